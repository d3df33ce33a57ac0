"""Settings that contradict each other or the data: one line that names the setting and what it stumbles over."""

import pytest
from refusals import refused

from vfl.config.files import lay_over, parse_overrides

SMALLER, SHIFT = "lightweighting.resolution={0: 0.5, 2: 1.0}", "data.augmentation.shift=2"
DEADLINE = "lightweighting.controller=deadline; lightweighting.seconds_per_exchange=0.06"
TABLES, AMOUNTS = "data.dataset.kind=breast_cancer", "task=regression"
REFUSED: dict[str, tuple[str, ...]] = {
    "training.local_rounds=2; training.labels=server": ("training.local_rounds",),
    "training.local_rounds=9": ("training.local_rounds",),
    "training.staleness=2; training.batch_size=24": ("training.staleness", "2 needs longer rounds than 2 exchanges"),
    "training.staleness=3": ("training.staleness",),
    "training.staleness=true": ("training.staleness",),
    "training.optimizer={learning_rate: {0: 0.1}, schedule: cosine}": (
        "training.optimizer.learning_rate",
        "cosine",
    ),
    # Smaller images
    "lightweighting.resolution=0.5": ("lightweighting.resolution", "0.5", "party_1", "1.0"),
    "lightweighting.resolution={0: 0.5, 4: 1.0}": ("lightweighting.resolution", "0.5", "party_1", "last"),
    "lightweighting.resolution.party_2={0: 1, 1: 0.5}": ("lightweighting.resolution", "0.5", "party_2"),
    "lightweighting.resolution={0: 0.0, 1: 1}": ("lightweighting.resolution", "0.0"),
    "lightweighting.resolution={0: 1.5, 1: 1}": ("lightweighting.resolution", "1.5"),
    "lightweighting.resolution.party_9=1.0": ("lightweighting.resolution", "'party_9'"),
    f"{SMALLER}; {DEADLINE}": ("lightweighting.resolution", "lightweighting.controller=fixed"),
    f"{SMALLER}; models.feature={{kind: mlp, width: 0.2}}": ("lightweighting.resolution", "0.5", "party_1"),
    f"{SMALLER}; {TABLES}": ("lightweighting.resolution", "have"),
    f"{SMALLER}; training.patience=2": ("training.patience", "before"),
    # Shifted images
    f"{SHIFT}; lightweighting.error_feedback=true": ("data.augmentation.shift", "lightweighting.error_feedback"),
    f"{SHIFT}; wire.gradients.error_feedback=true": ("data.augmentation.shift", "wire.gradients.error_feedback"),
    f"{SHIFT}; {TABLES}": ("data.augmentation.shift", "only images can be shifted"),
    "data.augmentation.shift=16": ("data.augmentation.shift", "16 moves images of 16 x 16 out of sight"),
    f"{SHIFT}; lightweighting.resolution.party_2={{0: 0.5, 1: 0.12, 2: 1.0}}": (
        "data.augmentation.shift",
        "2 moves images of 2 x 2 out of sight, as party_2 has in round 2 (lightweighting.resolution)",
    ),
    # Models
    f"{TABLES}; data.numbers=both; models={{members: 2, feature: {{kind: cnn}}}}": ("models.members", "kind"),
    f"{TABLES}; models={{members: 3, feature: {{embedding_size: 8}}}}": ("models.members", "gets"),
    f"{TABLES}; models={{linear_path: true, feature: {{kind: cnn}}}}": ("models.linear_path", "true"),
    # Ratios by a deadline
    "lightweighting.controller=deadlin": ("lightweighting.controller", "'deadlin'", "'deadline'"),
    "lightweighting.controller=deadline": ("lightweighting.seconds_per_exchange", "controller"),
    f"{DEADLINE}; lightweighting.seconds_per_exchange=0": ("lightweighting.seconds_per_exchange",),
    f"{DEADLINE}; lightweighting.seconds_per_exchange=soon": ("lightweighting.seconds_per_exchange",),
    f"{DEADLINE}; lightweighting.alpha.party_2={{1: 0.5}}; lightweighting.alpha_max=0.3": (
        "lightweighting.alpha_max",
        "0.3",
        "party_2",
    ),
    f"{DEADLINE}; lightweighting.alpha={{0: 0.5}}; lightweighting.alpha_max={{3: 0.6}}": (
        "lightweighting.alpha_max",
        "party_1",
        "0.5",
    ),
    f"{DEADLINE}; lightweighting.beta_max.party_7=0.3": ("lightweighting.beta_max", "'party_7'"),
    # Losses
    "training.loss.kind=mse": ("training.loss", "cross_entropy", "'mse'"),
    f"{AMOUNTS}; training.loss.kind=focal": ("training.loss", "regression"),
    "training.loss.gamma=1": ("training.loss", "kind"),
}


@pytest.mark.parametrize("settings", REFUSED)
def test_refused_in_one_line(build, settings: str):
    with refused(*REFUSED[settings]):
        build(**lay_over({}, parse_overrides(settings.split("; "))))
