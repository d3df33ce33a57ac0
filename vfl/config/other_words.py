"""Words of other programs for settings of this one: who writes one is told the setting, in one line."""

OTHER_WORDS = {
    "lr": "training.optimizer.learning_rate",
    "wd": "training.optimizer.weight_decay",
    "epochs": "training.rounds",
    "num_rounds": "training.rounds",
    "batch": "training.batch_size",
    "early_stopping": "training.patience",
    "random_state": "seed",
    "random_seed": "seed",
    "gpu": "device",
    "sparsity": "lightweighting.beta",
}
"""Settings, by dotted name, whose own names are unlike these."""

_NO_CLIP = "no setting clips the gradients of training (those of privacy bound what messages reveal)"
EXPLAINED = {
    "loss": "the loss follows from the task: cross-entropy for classes, squared error for numbers; see task",
    **dict.fromkeys(("clip", "grad_clip", "gradient_clip", "max_grad_norm"), _NO_CLIP),
}
"""Answers about words for which there is no setting, or only one of another meaning."""
