"""The typed experiment: every mistake is one line that names the field and the fix; nothing is lost in the YAML."""

import copy
import json
import re
from pathlib import Path

import pytest
from config_files import DIGITS, refusal, write
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refused, refuses
from shorthand import examples

from vfl.config import ConfigError, changed_keys, dump_config, load_config, load_experiment, parse_config
from vfl.config.data import DatasetConfig

FOLDER = Path(__file__).parents[1] / "configs"
CONFIGS = [path for path in sorted(FOLDER.rglob("*.yaml")) if not path.stem.startswith(("sweep_", "search_"))]

ratios = st.floats(0, 1, exclude_max=True)
by_round = st.dictionaries(st.integers(0, 500), ratios, min_size=1, max_size=4)
ratio_schedules = ratios | by_round | st.dictionaries(st.sampled_from(["party_1", "party_4"]), ratios | by_round)
rates = st.floats(0, 10, exclude_min=True)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    return write(tmp_path, DIGITS)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("sed", "seed"),
        ("trainig.rounds", "training"),
        ("rounds", "training.rounds"),
        ("training.alpha", "lightweighting.alpha"),
        ("training.learning_rate", "training.optimizer.learning_rate"),
        ("models.feature.widht", "width"),
        ("models.parties.party_1.embeding_size", "embedding_size"),
        ("models.head.hiden", "hidden"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(digits: Path, key: str, nearest: str):
    unknown = key if nearest != "training" else "trainig"
    assert refusal(digits, f"{key}=1") == f"{unknown}: unknown key; did you mean {nearest!r}?"


def test_an_unknown_key_like_no_other_lists_the_known_ones(digits: Path):
    known = "values, compressor, bits, step, coding, rounding, gradients"
    assert refusal(digits, "wire.xyz=1") == f"wire.xyz: unknown key; known: {known}"


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("training.rounds=ten", "must be a whole number (got 'ten')"),
        ("training.rounds=true", "must be a whole number (got True)"),
        ("training.rounds=1e3", "must be a whole number (got '1e3')"),
        ("training.rounds=1000000000001", "must be less than or equal to 1000000000000 (got 1000000000001)"),
        ("training.optimizer.learning_rate=1e31", "'1e31' is beyond 10^30"),
        ("training.optimizer.learning_rate={0: 1" + "0" * 400 + "}", "must be above 0 and finite"),
        ("training.rounds=0", "greater than or equal to 1 (got 0)"),
        ("training=fast", "got 'fast'"),
        ("training.labels=everywhere", "'shared' or 'server' (got 'everywhere')"),
        ("training.optimizer.momentum=1", "less than 1 (got 1)"),
        ("training.optimizer.weight_decay=yes", "must be a number (got True)"),
        ("training.optimizer.weight_decay=.inf", "finite number (got inf)"),
        ("training.optimizer.learning_rate=.nan", "must be above 0 and finite (got nan)"),
        ("training.optimizer.learning_rate=fast", "'fast' is not a number"),
        ("training.optimizer.learning_rate={5: 0.1}", "must name round 0"),
        ("threads=1025", "less than or equal to 1024 (got 1025)"),
        ("seed=-1", "greater than or equal to 0 (got -1)"),
        ("device=cuda:1000", "got 'cuda:1000'"),
        ("name=my/run", "got 'my/run'"),
        ("name=", "got None"),
        ("name=2020-01-01", "must be text; put it in quotes (got "),
        ("data.dataset.kind=imagenet", "unknown data source 'imagenet'; did you mean 'image_folder'?"),
        ("data.dataset.root=5", "got 5"),
        ("models.head.hidden=256", "must be a list (got 256)"),
        ("models.head.hidden.0=256", "got"),
        ("lightweighting.alpha=1", "outside [0, 1)"),
        ("lightweighting.alpha={1: 0.1, 2: 0.2, 1: 0.3}", "is not a YAML value ('1' is given twice, line 1)"),
        ("lightweighting.alpha={0:", "; put the setting in quotes: 'lightweighting.alpha={...}'"),
        ("data.test_share=0", "must be greater than 0 (got 0)"),
        ("network.consent.run=1234567890123456", "quotes (got 1234567890123456)"),
    ],
)
def test_a_wrong_value_names_the_field_and_what_was_given(digits: Path, override: str, reason: str):
    text = refusal(digits, override)
    section = override.split("=")[0].split(".")[0]
    assert text.startswith(section), text
    assert reason in text, text


def test_a_name_that_is_missing_is_said(tmp_path: Path):
    assert refusal(write(tmp_path, {"seed": 1})) == "name: is missing"


def test_all_mistakes_stand_in_one_line(digits: Path):
    text = refusal(digits, "seed=x", "training.rounds=0", "wire.xyz=1")
    assert [text.count(field) for field in ("seed:", "training.rounds:", "wire.xyz:")] == [1, 1, 1]


def test_nesterov_without_momentum_is_refused(digits: Path):
    text = refusal(digits, "training.optimizer.nesterov=true", "training.optimizer.momentum=0")
    assert text.startswith("training.optimizer: nesterov needs momentum above 0")


def test_a_batch_larger_than_the_chosen_samples_is_refused(digits: Path):
    text = refusal(digits, "training.batch_size=101")
    assert text == ("training.batch_size: 101 is larger than data.train_samples = 100; lower it or take more samples")


@pytest.mark.parametrize("field", ["lightweighting.alpha", "lightweighting.beta"])
def test_a_ratio_of_an_unknown_party_names_the_nearest(digits: Path, field: str):
    assert refusal(digits, f"{field}.party_5=0.1").startswith(f"{field}: no party is called 'party_5'; did you mean")
    config = load_config(digits, [f"{field}.party_5=0.1", "data.partition.columns=3"])
    assert config.parties == tuple(f"party_{k}" for k in range(1, 7))


@pytest.mark.parametrize("name", ["server", "loop", "a/b", "\u00e9"])
def test_a_name_that_files_cannot_have_names_no_party(digits: Path, name: str):
    tables = {"a": {"label": "y"}, name: {}}
    text = refusal(digits, "data.dataset={kind: tables}", f"data.tables={json.dumps(tables)}")
    assert text.startswith(f"data: {name!r} cannot name a party: use letters, digits and _.-, and not all, head")


def test_a_model_of_an_unknown_party_is_refused(digits: Path):
    text = refusal(digits, "models.parties.anna.kind=mlp")
    assert text == ("models.parties: no party is called 'anna'; known: party_1, party_2, party_3, party_4")


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("data.tables.bank.kye", "did you mean 'key'"),
        ("models.parties.bank.wdth", "did you mean 'width'"),
        ("training.dict[x]", "known: rounds"),
        ("simulation.parties.bank.mac", "did you mean 'macs_per_s'"),
    ],
)
def test_an_unknown_key_of_one_owner_is_answered_by_the_known_ones(digits: Path, key, known):
    with refused(key, known):
        load_config(digits, [f"{key}=1"])


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("lightweighting.seconds_per_exchange", ["must be 'auto'", "must be greater than 0"]),
        ("training.class_weights", ["must be 'balanced'", "must be a mapping"]),
    ],
)
def test_a_value_of_no_kind_that_a_setting_takes_is_answered_by_all_kinds(digits: Path, key, wanted):
    with pytest.raises(ConfigError) as error:
        load_config(digits, [f"{key}=-1"])
    assert str(error.value) == "; ".join(f"{key}: {each} (got -1)" for each in wanted)


def test_a_mapping_on_the_command_line_changes_what_it_names_of_a_section(digits: Path):
    config = load_config(digits, ["lightweighting.beta=0.5", "lightweighting={alpha: 0.2}", "training={rounds: 9}"])
    assert (config.lightweighting.alpha, config.lightweighting.beta) == (0.2, 0.5)
    assert (config.training.rounds, config.training.batch_size) == (9, 10)
    refuses("training.batch_size", lambda: load_config(digits, ["training.batch_size=1"]), "BatchNorm")


def test_overrides_are_yaml_nested_and_the_last_one_holds(digits: Path):
    config = load_config(
        digits,
        [
            "training.rounds=3",
            "training.rounds=7",
            "training.optimizer.learning_rate=1e-3",
            "training.steps_per_round=null",
            "models.head.hidden=[8, 4]",
            "lightweighting.alpha=0.1",
            "lightweighting.beta={2: 0.5, 4: 1e-1}",
            "data.dataset.root=a=b",
            "channels_last=true",
        ],
    )
    assert config.training.rounds == 7
    assert config.training.batch_size == 10  # of the file, in the same section
    assert config.training.optimizer.learning_rate == 0.001
    assert config.training.steps_per_round is None
    assert config.models.head.hidden == (8, 4)
    assert config.lightweighting.alpha == 0.1
    assert config.lightweighting.beta == {2: 0.5, 4: 0.1}
    assert config.data.dataset.root == Path("a=b")
    assert config.channels_last is True


def test_an_override_reaches_into_a_schedule_or_takes_its_place(tmp_path: Path):
    path = write(tmp_path, DIGITS | {"lightweighting": {"alpha": {1: 0.2, 4: 0.4}, "beta": 0.3}})
    config = load_config(path, ["lightweighting.alpha.4=0.6", "lightweighting.beta.party_2=0.5"])
    assert config.lightweighting.alpha == {1: 0.2, 4: 0.6}
    assert config.lightweighting.beta == {"party_2": 0.5}
    assert load_config(path, ["lightweighting.alpha={2: 0.1}"]).lightweighting.alpha == {2: 0.1}


@pytest.mark.parametrize("override", ["training.rounds", "=5", ".=5", "training.=5", "--rounds", ""])
def test_what_is_not_an_override_is_refused_with_an_example(digits: Path, override: str):
    assert refusal(digits, override) == f"{override!r} is not an override; write key=value, as training.rounds=20"


@pytest.mark.parametrize("value", ["[1, 2", "{a: b: c}", "'open", "2020-99-99", "*nowhere", "- a\nb: c"])
def test_an_override_that_is_not_yaml_names_its_key(digits: Path, value: str):
    assert refusal(digits, f"training.rounds={value}").startswith(f"training.rounds: {value!r} is not a YAML value (")


scalars = st.none() | st.booleans() | st.integers(-2, 300) | st.floats() | st.text("ab1.-\n\u2028 [{'", max_size=5)
keys = st.sampled_from(
    [
        "name", "seed", "data", "dataset", "root", "kind", "training", "rounds", "optimizer", "learning_rate", "models",
        "parties", "party_1", "head", "hidden", "lightweighting", "alpha", "beta", "partition", "rows", "base", "wire",
    ]
)  # fmt: skip
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | scalars, inner, max_size=4),
    max_leaves=12,
)


def outcome(path: Path) -> str:
    """The experiment as YAML, or why it is none."""
    try:
        config = load_config(path)
    except ConfigError as error:
        return str(error)
    assert all(len(line.splitlines()) == 1 for line in config.warnings())
    return dump_config(config)


@example({"base": 300 * "a"}, True)
@examples(150)
@given(st.dictionaries(keys | scalars, anything, max_size=6), st.booleans())
def test_whatever_yaml_can_say_is_an_experiment_or_one_line(tmp_path_factory, content, named: bool):
    path = write(tmp_path_factory.getbasetemp(), content | ({"name": "x"} if named else {}), "anything.yaml")
    text = outcome(path)
    assert text.startswith("name: ") if len(text.splitlines()) > 1 else text


@given(
    alpha=ratio_schedules.filter(lambda value: value != {}),
    beta=ratio_schedules.filter(lambda value: value != {}),
    rate=rates | st.dictionaries(st.integers(1, 500), rates, max_size=3).map(lambda later: {0: 0.1} | later),
    name=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,8}", fullmatch=True),
    root=st.none() | st.text("aé/ :#'\"", min_size=1, max_size=6),
    hidden=st.lists(st.integers(1, 300), max_size=3),
    mixed=st.booleans(),
)
@pytest.mark.release
def test_what_is_dumped_loads_as_the_same_experiment(tmp_path_factory, alpha, beta, rate, name, root, hidden, mixed):
    config = parse_config(
        {
            "name": name,
            "data": {"dataset": {"root": root}, "train_samples": None},
            "models": {"head": {"hidden": hidden}, "parties": {"party_1": {"kind": "mlp"}} if mixed else {}},
            "training": {"optimizer": {"learning_rate": rate}},
            "lightweighting": {"alpha": alpha, "beta": beta},
        }
    )
    path = tmp_path_factory.getbasetemp() / "dumped.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    loaded = load_config(path)
    assert loaded == config
    assert changed_keys(config, loaded) == []
    assert dump_config(loaded) == dump_config(config)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_configuration_of_the_repository_loads_without_a_warning(path: Path):
    config = load_experiment(path, {})
    assert config.warnings() == []
    assert config.name == path.stem


def test_the_paper_s_four_methods_differ_in_their_ratios_only():
    methods = {name: load_config(Path(f"cifar10_{name}")) for name in ("nl", "ml", "pl", "l")}
    used = {name: (c.lightweighting.alpha != 0, c.lightweighting.beta != 0) for name, c in methods.items()}
    assert used == {"nl": (False, False), "ml": (False, True), "pl": (True, False), "l": (True, True)}
    for config in methods.values():
        changes = changed_keys(methods["l"], config)
        assert all(change.startswith(("name ", "lightweighting.")) for change in changes), changes


def test_changed_keys_names_keys_and_both_values(digits: Path):
    before = load_config(digits, ["lightweighting.alpha={1: 0.2, 3: 0.5}"])
    after = load_config(
        digits, ["lightweighting.alpha={1: 0.2, 4: 0.5}", "training.rounds=20", "models.parties.party_1.kind=mlp"]
    )
    assert changed_keys(before, before) == []
    changes = changed_keys(before, after)
    assert changes[:3] == [
        "lightweighting.alpha.3 (0.5 -> (absent))",
        "lightweighting.alpha.4 ((absent) -> 0.5)",
        "models.parties.party_1.batch_norm ((absent) -> True)",
    ]
    assert changes[-1] == "training.rounds (10 -> 20)"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"training": 3}, ("training", "training")),
        ({"models": {"feature": "vgg16"}}, ("models.feature",)),
        ({"models": {"parties": {"clinic": [1]}}}, ("models.parties.clinic",)),
    ],
)
def test_the_defaults_of_tables_hide_no_mistake(settings, field):
    tables = {"name": "x", "data": {"dataset": {"kind": "breast_cancer"}}}
    assert parse_config(tables | {"models": {"parties": {"clinic": {}}}}).models.parties["clinic"].kind == "mlp"
    with refused(*field):
        parse_config(tables | settings)


def test_a_copy_with_other_data_has_their_owners_and_all_copies_of_one_experiment_are_equal():
    config = load_config(Path("quickstart_tables"))
    assert config.parties == ("clinic", "laboratory")
    digits = config.data.model_copy(update={"dataset": DatasetConfig(kind="digits")})
    assert config.model_copy(update={"data": digits}).parties == ("party_1", "party_2", "party_3", "party_4")
    assert copy.deepcopy(config) == config.model_copy() == load_config(Path("quickstart_tables"))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("device=gpu", ("device", "'gpu'")),
        ("lightweighting.alpha={0:0.2,4:0.4}", ("lightweighting.alpha", "0.2", "0.4")),
        ("training.optimizer.learning_rate={0:0.2}", ("training.optimizer.learning_rate", "0.2", "0.4")),
        ("seed=" + "[" * 600 + "]" * 600, ("seed", "nested")),
    ],
)
def test_what_a_user_slips_on_is_explained(override: str, line: tuple[str, ...]):
    with refused(*line) as error:
        load_config(Path("quickstart"), [override])
    assert len(str(error.value)) < 300


def test_a_number_that_would_overflow_is_refused_by_name(digits: Path):
    """But for seeds, which are only hashed."""
    page = (FOLDER.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    kind = r"\b(?:number|integer|from [01]|above 0|between 0|0 to)\b"
    rows = re.findall(rf"(?m)^\| `([a-z_0-9.]+)` \| ([^|]*{kind}[^|]*) \|", page)
    rows += re.findall(rf"(?m)^- `([a-z_0-9.]+)` \((.*?{kind}.*?)\): ", page)
    numbers = {key: "; list" in kind for key, kind in rows if "{class" not in kind and not key.endswith("seed")}
    assert len(numbers) > 100
    for key, many in numbers.items():
        large = "1" + "0" * 31
        mode = "horizontal" if key.startswith("horizontal.") else "vertical"
        assert refusal(digits, f"mode={mode}", f"{key}=[{large}]" if many else f"{key}={large}").startswith(key)
    load_config(digits, ["simulation.parties.all.macs_per_s=1e15"])
