"""The registries of what horizontal experiments choose by name, beside those of ``vfl/config/components.py``."""

from vfl.config.registry import Registry

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
    "vfl.horizontal.config.AlgorithmConfig",
)
"""`horizontal.algorithm`"""
