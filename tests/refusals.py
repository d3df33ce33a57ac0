"""What tests assert of an error that a user sees: what is wrong, by its setting, and the values that it names."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vfl.base.errors import ConfigError, Explanation, PeerLost


def setting_of(error: BaseException) -> str:
    """The setting, option or argument that is wrong; of a file the last part of its path."""
    setting = error.setting if isinstance(error, Explanation) else ConfigError(str(error)).setting
    return Path(setting).name if setting.startswith("/") else setting


@contextmanager
def refused(
    setting: str, *values: object, kind: type[BaseException] | tuple[type[BaseException], ...] = (ValueError, PeerLost)
) -> Generator[pytest.ExceptionInfo[Any]]:
    """Expect one line about ``setting`` that names the values."""
    with pytest.raises(kind) as caught:
        yield caught
    line = str(caught.value)
    assert setting_of(caught.value) == setting, line
    assert len(line.splitlines()) == 1, line
    assert not [value for value in values if str(value) not in line], line


def refuses(setting: str, call: Callable[[], object], *values: object) -> None:
    """Expect a call to be refused as by `refused`."""
    with refused(setting, *values):
        call()
