"""The registries of components that an experiment chooses by name: a line for each built-in one."""

from typing import NamedTuple

from vfl.config.registry import Registry


class NamedMode(NamedTuple):
    """Where a mode is, as "module:attribute"."""

    experiment: str
    """Type of its experiments."""
    use: str
    """Its ``vfl.runs.mode.Mode``, which builds and shows them."""
    predict: str = ""
    """Function that predicts with a run, and below the one that explains its scores; none without a split model."""
    explain: str = ""


MODES = {
    "vertical": NamedMode(
        "vfl.config.experiment:ExperimentConfig",
        "vfl.predict.mode:VERTICAL",
        "vfl.predict.in_python:predict_in_python",
        "vfl.predict.in_python:explain_in_python",
    ),
    "horizontal": NamedMode("vfl.horizontal.config:HorizontalExperiment", "vfl.horizontal.mode:HORIZONTAL"),
}
"""`mode`: an experiment is of the type that it names."""

FEATURE_MODELS = Registry(
    "lvfl.feature_models",
    "feature model",
    {
        "vgg16": "vfl.models.convolution:vgg16",
        "vgg11": "vfl.models.convolution:vgg11",
        "cnn": "vfl.models.convolution:small_cnn",
        "mlp": "vfl.models.table:mlp",
        "torchvision": "vfl.core.torchvision_models:torchvision_model",
        "given": "vfl.core.feature_models:given_model",
        "own": "vfl.core.feature_models:own_model",
    },
    "a callable that makes a torch.nn.Module of a vfl.models.features.ModelSpec",
)
"""`models.feature.kind`: functions that return a new model for a sample's tensors, drawn from torch's global
generator."""

SOURCES = Registry(
    "lvfl.sources",
    "data source",
    {
        "digits": "vfl.data.sources.images:digits",
        "mnist": "vfl.data.sources.published:mnist",
        "fashion_mnist": "vfl.data.sources.published:fashion_mnist",
        "cifar10": "vfl.data.sources.published:cifar10",
        "cifar100": "vfl.data.sources.published:cifar100",
        "svhn": "vfl.data.sources.published:svhn",
        "image_folder": "vfl.data.sources.image_folder:image_folder",
        "leaf": "vfl.data.sources.leaf:leaf",
        "text": "vfl.data.sources.text:text",
        "tables": "vfl.data.tables.source:Tables",
        "breast_cancer": "vfl.data.tables.breast_cancer:BreastCancer",
        "objects": "vfl.data.source:Objects",
    },
    "a callable that makes a vfl.data.source.Source of the `data` settings and a seed",
)
"""`data.dataset.kind`"""

COMPRESSORS = Registry(
    "lvfl.compressors",
    "compressor",
    {"magnitude": "vfl.core.compressors:magnitude"},
    "a callable that makes a vfl.core.embeddings.Compressor of the section `wire`",
)
"""`wire.compressor`"""

CONTROLLERS = Registry(
    "lvfl.controllers",
    "controller",
    {
        "fixed": "vfl.core.costs.controllers:fixed",
        "deadline": "vfl.core.costs.controllers:deadline",
    },
    "a callable that makes a vfl.core.costs.controllers.Assign of a vfl.core.costs.controllers.ControllerContext",
)
"""`lightweighting.controller`"""
