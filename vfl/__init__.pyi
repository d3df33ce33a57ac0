from vfl.api.estimators import VerticalClassifier as VerticalClassifier
from vfl.api.estimators import VerticalRegressor as VerticalRegressor
from vfl.api.fit import Party as Party
from vfl.api.fit import fit as fit
from vfl.api.train import Callback as Callback
from vfl.api.train import ConfigError as ConfigError
from vfl.api.train import report as report
from vfl.api.train import train as train
from vfl.comparison.compare import compare as compare
from vfl.predict.prune_run import prune as prune
from vfl.runs.stored_run import Run as Run

__all__: list[str]
