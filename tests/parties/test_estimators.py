"""What a Python program hands to the estimators: words, interrupts, threads and frames of every kind."""

import re
import warnings
from datetime import datetime
from typing import Any, cast, get_args

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from predicted import predict_in_process
from refusals import refused, refuses
from shorthand import release

import vfl
from vfl.api.frames import owner_of
from vfl.base.errors import WhenAbsent
from vfl.config import parse_config
from vfl.runs.stored_run import Run

N = 60
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 4))
Y = (X[:, 0] + X[:, 2] > 0).astype(np.int64)
QUICK: dict[str, Any] = {"rounds": 2, "random_state": 0, "settings": {"threads": 1, "training.steps_per_round": 2}}


def frames() -> dict[str, pd.DataFrame]:
    left, right = (pd.DataFrame(part, columns=list(names)) for part, names in ((X[:, :2], "ab"), (X[:, 2:], "cd")))
    return {"left": left, "right": right}


@pytest.fixture(scope="module")
def fitted() -> vfl.VerticalClassifier:
    return vfl.VerticalClassifier(**QUICK).fit(frames(), Y)


@pytest.mark.parametrize("word", ["avg", "Mean", "", 0, True])
def test_a_word_that_replaces_no_party_is_refused_wherever_it_is_given(fitted: vfl.VerticalClassifier, word: Any):
    for given in (frames(), {"left": frames()["left"]}):
        for ask in (fitted.predict, fitted.predict_proba):
            with refused("missing_parties", "refuse"):
                ask(given, missing_parties=word)
    refuses("--when-absent", lambda: predict_in_process(Run(fitted.run_.folder), None, [], word), "refuse")
    refuses("serving.when_absent", lambda: parse_config({"name": "run", "serving": {"when_absent": word}}), "serving")


@pytest.mark.filterwarnings("ignore:--when-absent")
def test_all_words_are_known_everywhere(fitted: vfl.VerticalClassifier):
    for word in get_args(WhenAbsent):
        assert parse_config({"name": "run", "serving": {"when_absent": word}}).serving.when_absent == word
        assert len(fitted.predict(frames(), missing_parties=word)) == N
    for word in ("refuse", None):
        with refused("X", "right"):
            fitted.predict({"left": frames()["left"]}, missing_parties=word)


LABELS: dict[str, Any] = {
    "objects": np.array(["no", "yes"]),
    "text": np.array([1, 2]),
    "nested": np.array([3.0, 5.0]),
    "codes": np.array([False, True]),
}
"""Of each kind, by the spelling of classes that every run tries with it."""
NAMED_CLASSES = [
    pytest.param(kind, spelling, marks=() if kind == spelling else pytest.mark.release)
    for kind in LABELS
    for spelling in LABELS
    if (kind, spelling) != ("text", "codes")  # 1 is the first class's name
]


@pytest.mark.filterwarnings("ignore:no better than a constant", "ignore:training.class_weights")
@pytest.mark.parametrize(("kind", "spelling"), NAMED_CLASSES)
def test_settings_name_classes_as_the_labels_do(kind: str, spelling: str):
    """Weights and the positive class, whatever the labels are; places among the classes go on to work."""
    labels = LABELS[kind]
    first, second = labels.tolist()
    weights = {
        "objects": {"training.class_weights": {first: 1.0, second: 3.0}},
        "text": {"training.class_weights": {str(second): 3.0}},
        "nested": {"training": {"class_weights": {str(second): 3.0}}},
        "codes": {"training.class_weights": {"0": 1.0, "1": 3.0}},
    }[spelling]
    positive = {"data.positive_class": "0" if spelling == "codes" else str(first)}
    made = [
        vfl.VerticalClassifier(**QUICK | {"settings": QUICK["settings"] | weights | positive}),
        vfl.VerticalClassifier(**QUICK | {"settings": QUICK["settings"] | weights}, positive_class=first),
    ]
    for model in made:
        run = model.fit(frames(), labels[Y]).run_
        task: Any = model._trained.joint.task
        assert dict(zip(task.names, task.weights, strict=True)) == {"0": 1.0, "1": 3.0}
        assert task.positive == "0"
        assert run.summary["positive_class"] == str(first)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("training.class_weights", {"yess": 2.0}),
        ("training.class_weights", {"2": 2.0}),
        ("data.positive_class", "maybe"),
    ],
)
def test_a_class_that_the_labels_lack_is_named(setting: str, value: Any):
    named = value if isinstance(value, str) else next(iter(value))
    with refused("settings", setting, named):
        vfl.VerticalClassifier(settings={setting: value}).fit(frames(), np.array(["no", "yes"])[Y])


COLOURS = ["red", "blue"] * (N // 2)
FRAMES: dict[str, Any] = {
    "polars text": pl.DataFrame({"a": X[:, 0], "c": COLOURS}),
    "polars categorical": pl.DataFrame({"a": X[:, 0], "c": pl.Series(COLOURS, dtype=pl.Categorical)}),
    "polars enum": pl.DataFrame({"a": X[:, 0], "c": pl.Series(COLOURS, dtype=pl.Enum(["red", "blue"]))}),
    "pandas cut": pd.DataFrame({"a": X[:, 0], "c": pd.cut(X[:, 1], 3)}),
    "pandas interval": pd.DataFrame({"a": X[:, 0], "c": pd.arrays.IntervalArray.from_breaks(range(N + 1))}),
    "arrow view": pa.table({"a": X[:, 0], "c": pa.array(COLOURS).cast(pa.string_view())}),
    "polars dates": pl.DataFrame({"a": X[:, 0], "c": [datetime(2020, 1, 1 + row % 9) for row in range(N)]}),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_of_every_kind_become_tables(kind: str):
    table = owner_of("X", FRAMES[kind], None).table
    assert table.num_rows == N
    assert table.column_names[:2] == ["a", "c"]
    assert table["a"].to_pylist() == X[:, 0].tolist()


AT_EVERY_RUN = ("polars categorical", "pandas cut", "arrow view")


@pytest.mark.parametrize("kind", [kind if kind in AT_EVERY_RUN else release(kind) for kind in FRAMES])
@pytest.mark.filterwarnings("ignore:.*column 'c'")
def test_frames_of_every_kind_are_trained_and_predicted(kind: str):
    model = vfl.VerticalClassifier(**QUICK).fit({"left": FRAMES[kind]}, Y)
    assert len(model.predict({"left": FRAMES[kind]})) == N


WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "no rows": (lambda: vfl.VerticalClassifier().fit({"left": frames()["left"][:0]}, Y[:0]), ("X['left']", "holds")),
    "mixed": (lambda: vfl.VerticalClassifier().fit({"left": {"a": [1, "x"]}}, [0, 1]), ("X['left']", "type")),
    "own name": (
        lambda: vfl.VerticalClassifier().fit({"left": {"lvfl_row": [1.0, 2.0]}}, [0, 1]),
        ("X['left']", "rename"),
    ),
    "own label": (
        lambda: vfl.VerticalClassifier().fit({"left": {"lvfl_label": [1.0, 2.0]}}, [0, 1]),
        ("X['left']", "rename"),
    ),
    "arrays as parties": (lambda: vfl.fit(cast(Any, [X]), Y), ("parties", "vfl.Party")),
    "no labels": (lambda: vfl.fit([], cast(Any, None)), ("y", "expected")),
    "settings as config": (lambda: vfl.train(cast(Any, {"name": "x"})), ("config", "overrides")),
    "sections as config": (lambda: vfl.train(cast(Any, {"training": {"rounds": 2}})), ("config", "overrides")),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_trained_is_one_line(kind: str):
    call, line = WRONG[kind]
    with refused(*line):
        call()


def test_a_named_index_is_no_feature_but_may_be_the_key():
    given = {name: frame.rename_axis("row") for name, frame in frames().items()}
    given["left"].index = pd.Index(np.arange(N)[::-1] * 7, name="row")  # not a range, which Arrow leaves out
    assert owner_of("X", given["left"], None).features() is None
    assert owner_of("X", given["left"], None).table.column_names[:-1] == ["a", "b"]
    several = given["left"].set_axis(pd.MultiIndex.from_product([range(N // 2), ["x", "y"]], names=["u", None]))
    assert owner_of("X", several, None).table.column_names[:-1] == ["a", "b"]
    assert owner_of("X", given["left"], "row").keys[0].as_py() == str(7 * (N - 1))


SHUFFLED = DRAW.permutation(N)


def keyed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(k=range(N))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"right": lambda frame: frame.iloc[SHUFFLED]}, r"X\['right'\]: its index has X\['left'\]'s values in another"),
        release({"right": lambda frame: frame.sort_values("c")}, r"give X\['right'\]\.loc\[X\['left'\]\.index\]"),
        ({"y": lambda values: values.iloc[SHUFFLED]}, r"y: its index has X\['left'\]'s values in another"),
        ({"right": lambda frame: frame.iloc[SHUFFLED].reset_index(drop=True)}, ""),
        release({"right": lambda frame: frame.set_index(np.arange(N) + N)}, ""),
        ({"left": keyed, "right": lambda frame: keyed(frame).iloc[SHUFFLED]}, ""),
    ],
)
def test_indexes_in_another_order_are_told(changes: dict[str, Any], line: str):
    given: dict[str, Any] = {**frames(), "y": pd.Series(Y)}
    given |= {name: change(given[name]) for name, change in changes.items()}
    labels = given.pop("y")
    model = vfl.VerticalClassifier(**QUICK | {"rounds": 1, "key": "k" if "left" in changes else None})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(given, labels)
        told = [str(each.message) for each in caught if "index" in str(each.message)]
        assert bool(told) == bool(line)
        assert all(re.search(line, each) for each in told)
        if line and "y" not in changes:
            caught.clear()
            model.predict(given)
            assert any(re.search(line, str(each.message)) for each in caught)
