"""A source whose data a Python program gives as objects (`vfl.fit`)."""

from collections.abc import Sequence

from vfl.base.errors import ConfigError
from vfl.config.data import DataConfig
from vfl.data.samples import Samples
from vfl.data.source import Source, Split


class Objects(Source):
    """Data of a Python program, already split, as ``given``. Options: `owners`, the parties' names."""

    given: Split | None = None

    def __init__(self, data: DataConfig, seed: int) -> None:
        super().__init__(data, seed)
        self._owners: Sequence[str] = data.dataset.options.get("owners", ())

    @property
    def parties(self) -> tuple[str, ...]:
        """The owners. Raises ValueError if there are none."""
        if not self._owners:
            raise ConfigError("data.dataset.kind: objects are given in Python, by vfl.fit")
        return tuple(self._owners)

    def split(self) -> Split:
        """Return the given data. Raises ValueError in a program that gave none."""
        if self.given is None:
            raise ConfigError(
                "data.dataset.kind: this run's data and models are objects of a Python program; "
                "call vfl.fit with the same ones and resume=True"
            )
        return self.given

    def check(self, samples: Samples) -> None:
        """Do nothing: samples are checked when a batch reads them."""
