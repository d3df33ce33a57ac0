"""All horizontal algorithms by name."""

from collections.abc import Sequence

from vfl.config import ExperimentConfig
from vfl.horizontal.algorithm import FederatedAlgorithm
from vfl.horizontal.dms import DMS
from vfl.horizontal.fedasync import FedAsync
from vfl.horizontal.fedasync_average import FedAsyncAverage
from vfl.horizontal.fedavg import FedAvg, FedSGD
from vfl.horizontal.feddyn import FedDyn
from vfl.horizontal.fedlga import FedLGA
from vfl.horizontal.fedmom import FedMom
from vfl.horizontal.fednova import FedNova
from vfl.horizontal.fedprox import FedProx
from vfl.horizontal.flare import Flare
from vfl.horizontal.flat import FlatModel
from vfl.horizontal.scaffold import Scaffold
from vfl.horizontal.traffic import message_bytes

ALGORITHMS: dict[str, type[FederatedAlgorithm]] = {
    "fedsgd": FedSGD,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fednova": FedNova,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "fedlga": FedLGA,
    "fedasync": FedAsync,
    "fedasync_average": FedAsyncAverage,
    "dms": DMS,
    "fedmom": FedMom,
    "flare": Flare,
}
"""By ``horizontal.algorithm``."""


def build_algorithm(config: ExperimentConfig, samples_N: Sequence[int], model: FlatModel) -> FederatedAlgorithm:
    """Build the algorithm that ``horizontal.algorithm`` names, for clients with so many samples each."""
    kind = ALGORITHMS[config.horizontal.algorithm]
    if kind is FedLGA:
        return FedLGA(config, samples_N, model.split)
    if kind is Flare:
        return Flare(config, samples_N, upload_bits=8 * message_bytes(config.horizontal, model, Flare.uploads))
    return kind(config, samples_N)
