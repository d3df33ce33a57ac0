"""What an experiment can choose by name: our own components, a line each, and those of installed packages."""

from typing import TYPE_CHECKING

from vfl.registry import Registry

if TYPE_CHECKING:  # nothing is imported before it is chosen
    from vfl.data.source import SourceFactory
    from vfl.vertical.feature_models import FeatureModelFactory

FEATURE_MODELS: "Registry[FeatureModelFactory]" = Registry(
    "lvfl.feature_models",
    "feature model",
    {
        "vgg16": "models.vgg:vgg16",
        "vgg11": "models.vgg:vgg11",
        "cnn": "models.cnn:SmallCNN",
        "mlp": "models.mlp:FeatureMLP",
    },
    "a callable that makes a torch.nn.Module of a models.features.ModelSpec",
)
"""`models.feature.kind`"""

SOURCES: "Registry[SourceFactory]" = Registry(
    "lvfl.sources",
    "data source",
    {
        "digits": "vfl.data.sources.digits:digits",
        "mnist": "vfl.data.sources.published:mnist",
        "fashion_mnist": "vfl.data.sources.published:fashion_mnist",
        "cifar10": "vfl.data.sources.published:cifar10",
        "cifar100": "vfl.data.sources.published:cifar100",
        "svhn": "vfl.data.sources.published:svhn",
        "image_folder": "vfl.data.sources.image_folder:image_folder",
        "leaf": "vfl.data.sources.leaf:leaf",
        "text": "vfl.data.sources.text:text",
    },
    "a callable that makes a vfl.data.source.Source of the `data` settings and a seed",
)
"""`data.dataset.kind`"""
