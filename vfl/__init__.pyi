from parties.compare import compare as compare
from parties.estimators import VerticalClassifier as VerticalClassifier
from parties.estimators import VerticalRegressor as VerticalRegressor
from parties.objects import Party as Party
from parties.objects import fit as fit
from vfl.api import Callback as Callback
from vfl.api import ConfigError as ConfigError
from vfl.api import Run as Run
from vfl.api import report as report
from vfl.api import train as train

__all__: list[str]
