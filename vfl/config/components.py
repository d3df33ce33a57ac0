"""The registries of components that an experiment chooses by name: a line for each built-in one."""

from vfl.config.registry import Registry

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

CLASSIFIERS = Registry(
    "lvfl.classifiers",
    "classifier",
    {
        "logistic": "vfl.horizontal.models.classifiers:logistic",
        "mlp": "vfl.horizontal.models.classifiers:mlp",
        "lenet": "vfl.horizontal.models.pooled_cnn:lenet",
        "cnn_tsfl": "vfl.horizontal.models.pooled_cnn:tsfl_cnn",
        "cnn_six_layer": "vfl.horizontal.models.pooled_cnn:six_layer_cnn",
        "cnn_mcmahan": "vfl.horizontal.models.pooled_cnn:mcmahan_cnn",
        "vgg11": "vfl.horizontal.models.classifiers:vgg11",
        "vgg11_bn": "vfl.horizontal.models.classifiers:vgg11_bn",
        "resnet18": "vfl.horizontal.models.classifiers:resnet18",
        "resnet18_gn": "vfl.horizontal.models.classifiers:resnet18_gn",
        "char_lstm": "vfl.horizontal.models.classifiers:char_lstm",
    },
    "a callable that makes a torch.nn.Module of a vfl.models.features.ClassifierSpec",
)
"""`models.classifier.kind`: functions that return a new model, drawn from torch's global generator."""

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
        "leaf": "vfl.horizontal.data.leaf:leaf",
        "text": "vfl.horizontal.data.text:text",
        "tables": "vfl.data.tables.source:Tables",
        "breast_cancer": "vfl.data.tables.breast_cancer:BreastCancer",
        "objects": "vfl.data.source:Objects",
    },
    "a callable that makes a vfl.data.source.Source of the `data` settings and a seed",
)
"""`data.dataset.kind`"""


ALGORITHMS = Registry(
    "lvfl.algorithms",
    "algorithm",
    {
        "fedsgd": "vfl.horizontal.fedavg:FedSGD",
        "fedavg": "vfl.horizontal.fedavg:FedAvg",
        "fedprox": "vfl.horizontal.fedprox:FedProx",
        "fednova": "vfl.horizontal.fednova:FedNova",
        "scaffold": "vfl.horizontal.scaffold:Scaffold",
        "feddyn": "vfl.horizontal.feddyn:FedDyn",
        "fedlga": "vfl.horizontal.fedlga:FedLGA",
        "fedasync": "vfl.horizontal.fedasync:FedAsync",
        "fedasync_average": "vfl.horizontal.fedasync:FedAsyncAverage",
        "dms": "vfl.horizontal.dms:DMS",
        "fedmom": "vfl.horizontal.fedmom:FedMom",
        "flare": "vfl.horizontal.flare:Flare",
    },
    "a subclass of vfl.horizontal.algorithm.FederatedAlgorithm with Settings, a subclass of "
    "vfl.config.horizontal.AlgorithmConfig",
)
"""`horizontal.algorithm`"""

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
