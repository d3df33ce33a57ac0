"""An error is a setting, a place, a reason and a remedy, which each edge renders in the words of its caller."""

import copy
import warnings

import pytest

from vfl.base.errors import Argument, Choice, ConfigError, ConfigWarning, PeerLost, Words, in_words, use_words

WITHOUT = Choice(Argument.WHEN_ABSENT, ("zeros", "mean"), "would predict without", "give its table")
PYTHON: Words = {Argument.TABLE: "samples", Argument.WHEN_ABSENT: "when_absent"}


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("data.file, row 3: is empty; fill it", ("data.file", "row 3", "is empty", "fill it")),
        ("seed: must be a number (got: x)", ("seed", "", "must be a number (got: x)", "")),
        ("seed: is\nmissing", ("seed", "", "is missing", "")),
        ("no place for runs; name one; or two", ("", "", "no place for runs", "name one; or two")),
    ],
)
def test_a_line_is_split_into_its_parts_and_stays_itself(line: str, parts: tuple[str, ...]):
    error = copy.copy(ConfigError(line))  # as pickle between the processes of a sweep
    assert (error.setting, error.place, error.reason, error.remedy) == parts
    assert str(error) == line.replace("\n", " ")


def test_each_edge_has_its_own_words_for_an_argument():
    lost = copy.copy(PeerLost("bank is absent", WITHOUT))
    assert str(lost) == "bank is absent; --when-absent zeros or mean would predict without"
    assert in_words(lost, PYTHON) == "bank is absent; when_absent='zeros' or 'mean' would predict without"
    assert in_words(lost, {}) == "bank is absent; give its table"
    assert in_words(ConfigError("--table: a: --table is a name"), PYTHON) == "samples: a: --table is a name"
    assert in_words(OSError("disk is full"), PYTHON) == "disk is full"


def test_python_gets_errors_and_warnings_in_its_words():
    with pytest.raises(ConfigError) as error, use_words(PYTHON):
        raise PeerLost("--table: is lost")
    assert error.value.setting == "samples"
    with pytest.warns(ConfigWarning) as caught, use_words(PYTHON):
        warnings.warn(ConfigWarning("--when-absent: zeros replace bank"), stacklevel=1)
    assert str(caught[0].message) == "when_absent: zeros replace bank"
    assert str(ConfigError("--table: is missing")) == "--table: is missing"
