"""Character models, which predict the next character.

Shapes: B samples, T characters, H hidden values, V characters in the vocabulary.
"""

from torch import Tensor, nn

from vfl.models.features import ClassifierSpec

EMBEDDING = 8
"""Width of a character's embedding (McMahan et al. 2017, section 3)."""
HIDDEN = 128
"""Nodes of the one LSTM layer (FedMom, section 5)."""


class NextCharLSTM(nn.Module):
    """Reads a sequence and predicts the character after it: int64 [B, T] -> logits [B, V]."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, batch_first=True)
        self.output = nn.Linear(HIDDEN, vocabulary)

    def forward(self, characters_BT: Tensor) -> Tensor:
        """Return the logits [B, V] of the character after the last one."""
        return self.output(self.states(characters_BT)[:, -1])

    def states(self, characters_BT: Tensor) -> Tensor:
        """Return the LSTM's state [B, T, H] after each character, starting from zero."""
        states_BTH, _ = self.lstm(self.embedding(characters_BT))
        return states_BTH


class EveryCharLSTM(NextCharLSTM):
    """The same model with a prediction after every character: int64 [B, T] -> logits [B, V, T], as cross_entropy
    takes."""

    def forward(self, characters_BT: Tensor) -> Tensor:
        """Return the logits [B, V, T] of the character after each one."""
        return self.output(self.states(characters_BT)).transpose(1, 2)


def char_lstm(spec: ClassifierSpec) -> NextCharLSTM:
    """Return the model with a prediction per character of a label. Raises ValueError unless samples are text."""
    if len(spec.input_shape) != 1:
        raise ValueError(f"classifier: char_lstm reads text, not samples of shape {list(spec.input_shape)}")
    return EveryCharLSTM(spec.classes) if spec.label_shape else NextCharLSTM(spec.classes)
