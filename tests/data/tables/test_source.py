"""Tables as a source: who gets which row, what is fitted to which rows, the same bits for the same keys."""

import json
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from predicted import predict_in_process, predict_new_rows
from refusals import refused, refuses
from shorthand import build_here, train_rounds
from tiny_training import train_run
from two_tables import bank_config

from vfl.config import parse_config
from vfl.config.tables import TableConfig
from vfl.data.samples import Samples
from vfl.data.source import open_source
from vfl.data.tables.arrow import pa, pq
from vfl.data.tables.new_rows import read_new_rows, tables_of
from vfl.data.tables.preparation import MIN_COUNT, TablePreparation
from vfl.data.tables.source import Tables
from vfl.predict.open_run import take_samples
from vfl.runs.stored_run import Run

FLIGHTS = 120


def write(path, heading, rows, shuffled=0):
    rows = random.Random(shuffled).sample(rows, len(rows)) if shuffled else rows
    path.write_text("\n".join(",".join(map(str, row)) for row in (heading, *rows)))


def experiment(folder, shuffled=0, **sections):
    """An airline with labels, weather that many flights share, and a register of aircraft."""
    draw = np.random.default_rng(0)
    flights = []
    for number in range(FLIGHTS):
        wind, hour = draw.normal(), number % 30
        late = wind + (hour > 15) > 0.5
        flights.append((f"f{number:03}", f"h{hour}", f"t{number % 40}", wind, "AB"[number % 2], ["no", "yes"][late]))
    write(folder / "airline.csv", ("flight", "hour", "tail", "wind", "carrier", "late"), flights, shuffled)
    weather = [(f"h{hour}", hour, "" if hour % 5 == 0 else hour * 2) for hour in range(30)]
    write(folder / "weather.csv", ("hour", "clock", "rain"), weather, shuffled + 1 if shuffled else 0)
    register = [(f"t{tail}", tail, f"m{tail % 3}") for tail in range(35)]
    write(folder / "register.csv", ("tail", "age", "model"), register, shuffled + 2 if shuffled else 0)
    features = {"wind": "number", "carrier": "category"}
    keys = {"weather": "hour", "register": "tail"}

    def table(owner, key, **settings):
        return {"file": str(folder / f"{owner}.csv"), "key": key, **settings}

    tables = {
        "airline": table("airline", "flight", label="late", features=features, keys=keys),
        "weather": table("weather", "hour", features={"clock": "number", "rain": "number"}),
        "register": table("register", ["tail"], features={"age": "number", "model": "category"}),
    }
    values = {
        "name": "flights",
        "threads": 1,
        "data": {"dataset": {"kind": "tables"}, "tables": tables, "test_share": 0.2},
        "models": {"feature": {"embedding_size": 4, "width": 0.05}, "head": {"hidden": [8]}},
        "training": {"rounds": 2, "batch_size": 16, "optimizer": {"kind": "adamw", "learning_rate": 0.01}},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section if isinstance(section, dict) else section
    return parse_config(values)


@pytest.mark.filterwarnings("ignore:data.tables")
def test_every_owner_gives_the_row_that_the_label_owners_keys_name(tmp_path):
    split = open_source(experiment(tmp_path)).split()
    airline, weather, register = split.parties
    rows = [line.split(",") for line in (tmp_path / "airline.csv").read_text().splitlines()[1:]]
    flights = {int(row[0][1:]): row for row in rows}
    order = sorted(number for number in flights if number % 40 < 35)
    assert len(airline.train) + len(airline.test) == len(order)
    for own, hours, tails in (
        (airline.train, weather.train, register.train),
        (airline.test, weather.test, register.test),
    ):
        assert torch.equal(own.ids, hours.ids)
        assert torch.equal(own.ids, tails.ids)
        for wind, hour, tail in zip(own.features[:, 0], hours.features[:, 0], tails.features[:, 0], strict=True):
            (flight,) = [each for each in flights.values() if float(each[3]) == float(wind)]
            assert (f"h{int(hour)}", f"t{int(tail)}") == (flight[1], flight[2])
    assert abs(len(airline.test) - 0.2 * len(order)) < 1


@pytest.mark.filterwarnings("ignore:data.tables")
def test_shuffled_copies_and_other_formats_train_the_same_bits(tmp_path):
    digests = set()
    for shuffled in (0, 5):
        folder = tmp_path / str(shuffled)
        folder.mkdir()
        config = experiment(folder, shuffled)
        if shuffled:  # Parquet has typed numbers
            lines = [line.split(",") for line in (folder / "register.csv").read_text().splitlines()[1:]]
            tails, ages, models = zip(*lines, strict=True)
            table = pa.table({"tail": tails, "age": [int(age) for age in ages], "model": models})
            pq.write_table(table, folder / "register.csv")
        server = build_here(config).server
        train_rounds(server, 2)
        digests.add(server.summary()["model_digest"])
    assert len(digests) == 1


@pytest.mark.filterwarnings("ignore:data.tables")
def test_a_process_with_its_own_table_holds_what_the_split_gives_it(tmp_path):
    """Where all keys are equal: the join changes nothing, so every owner finds the same split alone."""
    config = experiment(tmp_path)
    airline = config.data.tables["airline"].model_copy(update={"keys": {}})
    other = airline.model_copy(update={"label": None, "features": {"wind": "number"}})
    data = config.data.model_copy(update={"tables": {"airline": airline, "other": other}})
    source = open_source(config.model_copy(update={"data": data}))
    split = source.split()
    for whole in split.parties:
        own = {name: table if name == whole.party else TableConfig() for name, table in data.tables.items()}
        knows = config.model_copy(update={"data": data.model_copy(update={"tables": own})})
        alone = open_source(knows).held_by(whole.party)
        for a, b in ((alone.train, whole.train), (alone.test, whole.test)):
            assert torch.equal(a.ids, b.ids)
            assert all(torch.equal(x, y) for x, y in zip(a.inputs, b.inputs, strict=True))
    assert source.held_labels().ids_digests() == split.labels.ids_digests()
    assert torch.equal(source.held_labels().test.values, split.labels.test.values)


def visits(folder, shuffled=0, **data):
    """Persons with one to four visits at the bank; another owner knows visits and persons, a third persons alone."""
    persons = [f"p{number % 37 % 23}" for number in range(90)]
    rows = [(f"v{number:02}", person, number, ["no", "yes"][number % 3 == 0]) for number, person in enumerate(persons)]
    write(folder / "bank.csv", ("visit", "person", "a", "late"), rows, shuffled)
    write(folder / "shop.csv", ("visit", "person", "b"), [(*row[:2], row[2] % 7) for row in rows], shuffled)
    write(folder / "insurer.csv", ("person", "c"), [(person, int(person[1:])) for person in sorted(set(persons))])
    tables = {
        "bank": {
            "file": str(folder / "bank.csv"),
            "key": "visit",
            "label": "late",
            "features": {"a": "number"},
            "keys": {"insurer": "person"},
        },
        "shop": {"file": str(folder / "shop.csv"), "key": "visit", "features": {"b": "number"}},
        "insurer": {"file": str(folder / "insurer.csv"), "key": "person", "features": {"c": "number"}},
    }
    config = experiment(folder, data={"dataset": {"kind": "tables"}, "tables": tables, **data})
    return config, {int(row[2]): row[1] for row in rows}


def persons_of(split, person_of):
    """The bank's column a tells the visit."""
    bank = split.parties[0]
    return [{person_of[int(value)] for value in part.features[:, 0]} for part in (bank.train, bank.test)]


@pytest.mark.filterwarnings("ignore:data.validation_share")
def test_a_group_is_on_one_side_and_owners_alone_find_the_same_split(tmp_path):
    """Also of the validation samples; another order of rows gives the same, another seed another split."""
    config, person_of = visits(tmp_path, group="person")
    source = open_source(config)
    split = source.split()
    train, test = persons_of(split, person_of)
    assert not train & test
    assert len(train | test) == 23
    assert 0.2 <= len(split.labels.test.values) / 90 < 0.3
    assert isinstance(source, Tables)
    assert "person" not in source.columns("bank").kinds
    others = {"seed": 1}, {"data": config.data.model_copy(update={"validation_share": 0.3})}
    for change in others:
        other = persons_of(open_source(config.model_copy(update=change)).split(), person_of)
        assert not other[0] & other[1]
        assert other[1] != test
    (tmp_path / "shuffled").mkdir()
    again = open_source(visits(tmp_path / "shuffled", shuffled=3, group="person")[0]).split()
    assert again.labels.ids_digests() == split.labels.ids_digests()
    for owner in ("bank", "shop"):
        tables = {name: table if name == owner else TableConfig() for name, table in config.data.tables.items()}
        alone = config.model_copy(update={"data": config.data.model_copy(update={"tables": tables})})
        assert open_source(alone).held_by(owner).ids_digests() == split.labels.ids_digests()


def test_what_groups_cannot_do_is_one_line(tmp_path):
    config, _ = visits(tmp_path)
    with pytest.warns(UserWarning, match=r"data.tables: \d+ of insurer's rows stand for training and for test samples"):
        open_source(config).split()
    unknown, _ = visits(tmp_path, group="persons")
    refuses("data.group", lambda: open_source(unknown).split(), "bank.csv", "'persons'")
    (tmp_path / "test.csv").write_text("visit\nv01\nv02")
    named, _ = visits(tmp_path, group="person", test_file=str(tmp_path / "test.csv"))
    refuses("data.group", lambda: open_source(named).split(), "'p1'")


@pytest.mark.filterwarnings("ignore:data.tables")
def test_what_is_exported_of_the_preparation_prepares_the_same_rows(tmp_path):
    source = open_source(experiment(tmp_path))
    for part in source.split().parties:
        preparation = source.prepare(part.train)
        assert isinstance(source, Tables)
        exported = json.loads(preparation.fitted_text(source.columns(part.party).names) or "")
        numbers, (hashes,) = part.test.features, part.test.more
        standardised = [
            ((column - each["mean"]) / each["std"]).nan_to_num(nan=0.0)
            for each, column in zip(exported["numbers"], numbers.unbind(1), strict=True)
        ]
        gaps = [numbers[:, place].isnan() for place, each in enumerate(exported["numbers"]) if each["indicator"]]
        codes = [
            torch.tensor([1 + each["known"].index(h) if h in each["known"] else 0 for h in column.tolist()])
            for each, column in zip(exported["categories"], hashes.unbind(1), strict=True)
        ]
        by_hand = torch.stack([column.float() for column in (*standardised, *gaps, *codes)], dim=1)
        assert torch.equal(preparation.apply(part.test).features, by_hand)


def check_predictions_of_the_test(folder):
    """The test samples by the airline's keys, with its labels, and the class that the threshold chooses."""
    with pytest.warns(UserWarning, match="dropped"):
        heading, *rows = predict_in_process(Run(folder / "run"), None, ["weather"], "zeros").rows()
    flights = {line.split(",")[0]: line.split(",")[5] for line in (folder / "airline.csv").read_text().splitlines()}
    assert heading == ["flight", "label", "prediction", "probability", "p_no", "p_yes", "owners"]
    assert [row[1] for row in rows] == [flights[row[0]] for row in rows]
    assert [row[2] for row in rows] == ["yes" if float(row[5]) >= 0.3 else "no" for row in rows]
    assert {row[6] for row in rows} == {"airline+register"}


@pytest.mark.filterwarnings("ignore:data.tables")
@pytest.mark.parametrize("cell", ["storm", "inf"])
def test_a_bad_table_leaves_no_run_and_no_half_written_prediction(tmp_path, cell):
    config = experiment(tmp_path, evaluation={"threshold": 0.3})
    train_run(config, tmp_path / "run")
    check_predictions_of_the_test(tmp_path)
    weather, bad = tmp_path / "weather.csv", tmp_path / "bad.csv"
    good = weather.read_text()
    for path in (weather, bad):
        path.write_text(good + f"\nh99,{cell},1")
    with refused("weather.csv", "'clock'", "row 32"):
        train_run(config, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    weather.write_text(good)
    paths = {owner: tmp_path / f"{owner}.csv" for owner in config.parties} | {"weather": bad}
    before = sorted((tmp_path / "run").rglob("*"))
    refuses("bad.csv", lambda: predict_in_process(Run(tmp_path / "run"), None, [], "zeros", paths), "row 32")
    assert sorted((tmp_path / "run").rglob("*")) == before


@pytest.mark.filterwarnings("ignore:data")
def test_validation_samples_come_from_the_training_and_the_test_stays_unseen(tmp_path):
    config = experiment(tmp_path)
    whole = open_source(config).split().labels
    chosen = config.model_copy(update={"data": config.data.model_copy(update={"validation_share": 0.25})})
    split = open_source(chosen).split()
    train, evaluated = set(split.labels.train.ids.tolist()), set(split.labels.test.ids.tolist())
    assert train | evaluated == set(whole.train.ids.tolist())
    assert (len(evaluated), train & evaluated) == (round(0.25 * len(whole.train.ids)), set())
    assert torch.equal(split.parties[1].test.ids, split.labels.test.ids)


@pytest.mark.filterwarnings("ignore:data.tables")
def test_new_rows_are_predicted_as_the_test_samples_were_and_missing_rows_by_the_placeholder(tmp_path):
    config = experiment(tmp_path)
    built = build_here(config)
    built.server.train_round(0)
    paths = {owner: tmp_path / f"{owner}.csv" for owner in config.parties}
    expected = built.server.joint.predictions()
    new = read_new_rows(tables_of(built.source), paths)
    of_id = {int(identity): row for row, identity in enumerate(new.whole.ids)}
    rows = torch.tensor([of_id[int(identity)] for identity in built.parties[0].test.ids])
    joint = take_samples(built, new)
    lines = (tmp_path / "airline.csv").read_text().splitlines()
    changed = [line.replace(",A,", ",Z,") if row < 4 else line.replace(",B,", ",,") for row, line in enumerate(lines)]
    (tmp_path / "changed.csv").write_text("\n".join(changed))
    with pytest.warns(UserWarning, match="taken as unknown") as said:
        told = predict_new_rows(built, paths | {"airline": tmp_path / "changed.csv"}, (), "zeros")
    assert told.lacking == {"register": FLIGHTS - FLIGHTS // 40 * 35}
    assert [str(each.message).partition("unknown: ")[2] for each in said] == ["2 of column 'carrier'"]
    predicted = joint.predictions()
    torch.testing.assert_close(predicted[rows], expected)
    lacking = ~new.present["register"]
    assert int(lacking.sum()) == FLIGHTS - FLIGHTS // 40 * 35
    assert torch.equal(predicted[lacking], joint.without(["register"]).predictions()[lacking])
    ones = replace(joint, instead={"register": torch.ones(4)}).predictions()
    assert torch.equal(ones[~lacking], predicted[~lacking])
    assert not torch.equal(ones[lacking], predicted[lacking])


@given(
    st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=3, max_size=30),
    st.lists(st.integers(-1, 3), min_size=3, max_size=30),
)
def test_what_is_prepared_depends_on_training_rows_alone(numbers, codes):
    length = min(len(numbers), len(codes))
    numbers, codes = numbers[:length], codes[:length]
    present = [value for value in numbers if value is not None]
    if not present:
        return
    values = torch.tensor([np.nan if value is None else value for value in numbers], dtype=torch.float64)[:, None]
    samples = Samples(torch.arange(length), values, more=(torch.tensor(codes)[:, None],))
    preparation = TablePreparation(samples)
    found = preparation.apply(samples).features
    mean, std = np.mean(present), np.std(present) if np.std(present) > 1e-12 * abs(np.mean(present)) else 1.0
    gaps = len(present) < length
    assert found.shape[1] == preparation.features.shape[0] == 2 + gaps
    scaled = [0.0 if value is None else (value - mean) / std for value in numbers]
    torch.testing.assert_close(found[:, 0], torch.tensor(scaled, dtype=torch.float32), atol=1e-4, rtol=1e-4)
    if gaps:
        assert found[:, 1].tolist() == [float(value is None) for value in numbers]
    frequent = sorted({code for code in codes if codes.count(code) >= MIN_COUNT})
    assert found[:, -1].tolist() == [1 + frequent.index(code) if code in frequent else 0 for code in codes]
    restored = TablePreparation(Samples(torch.arange(1), torch.zeros(1, 1).double(), more=(torch.zeros(1, 1).long(),)))
    restored.load_state_dict(preparation.state_dict())
    assert torch.equal(restored.apply(samples).features, found)


def test_the_columns_of_a_run_are_judged_once(tmp_path):
    """Its training names the columns that it leaves out or finds constant; what is asked of it later does not."""
    rows = [(f"k{row}", row % 9, 1, f"2020-01-{row % 28 + 1:02}", row % 2) for row in range(40)]
    write(tmp_path / "bank.csv", ("k", "a", "same", "day", "y"), rows)
    with warnings.catch_warnings(record=True, action="always") as caught:
        train_run(bank_config(tmp_path / "bank.csv", "y"), tmp_path / "run")
    assert {name for name in ("same", "day") if any(repr(name) in str(each.message) for each in caught)} == {
        "same",
        "day",
    }
    with warnings.catch_warnings(action="error"):
        predict_in_process(Run(tmp_path / "run"), None, (), "refuse")
