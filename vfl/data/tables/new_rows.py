"""New rows of owners' tables, to be scored: whose they are, which belong together, and by which keys others know them.

Shapes: N samples.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from vfl.base.errors import Argument, Choice, ConfigError
from vfl.config.tables import label_owner
from vfl.data.samples import Samples
from vfl.data.source import NewSamples, Source
from vfl.data.tables.arrow import pa
from vfl.data.tables.cells import TableError, TablePlace, column_names
from vfl.data.tables.columns import SHOWN, Table, key_cells, key_of, keys_of
from vfl.data.tables.join import Joined, join, matched
from vfl.data.tables.matching_input import of_rows, rows_match
from vfl.data.tables.own_columns import no_features, raw_samples
from vfl.data.tables.source import Tables


def tables_of(source: Source) -> Tables:
    """Return a source of tables. Raises ConfigError for another one."""
    if not isinstance(source, Tables):
        use = Choice(Argument.DATA, ("FILE",), "names its samples", "give its samples")
        raise ConfigError(f"--table: {source.data.dataset.kind} has no tables", use)
    return source


def read_new_rows(source: Tables, tables: Mapping[str, TablePlace], known: Sequence[str] | None = None) -> NewSamples:
    """Read new rows to predict, a table for each owner that is not absent; labels are ignored.

    Samples are the label owner's rows or, if it is absent, those of the first owner in ``tables``, by key. ``known``:
    owners whose keys of these rows are read as well. Raises TableError.
    """
    owners = [owner for owner in source.owners if owner in tables]
    known = owners if known is None else known
    first = label_owner(source.data.tables)
    first = owners[0] if first not in owners else first
    read = {owner: source.read(owner, known, tables[owner]) for owner in dict.fromkeys((first, *owners))}
    joined, config = join(read, source.data.tables, first, keep_all=True), source.data.tables[first]
    away, rows, parts = no_features(joined.ids), joined.rows[first], list[Samples]()
    for owner in source.parties:
        parts.append(_raw(source, owner, read[owner], joined) if owner in owners else away)
    foreign = {
        other: read[first].keys[key].take(pa.array(rows)) for other, key in config.keys.items() if other in known
    }
    assert joined.keys is not None
    return NewSamples(
        away,
        tuple(parts),
        keys=(key_of(config), *key_cells(joined.keys)),
        present={owner: torch.as_tensor(joined.rows[owner] >= 0) for owner in owners},
        file_order=torch.as_tensor(rows.argsort()),
        known_as=dict(zip(foreign, map(key_cells, foreign.values()), strict=True)),
    )


def _raw(source: Tables, owner: str, table: Table, joined: Joined) -> Samples:
    columns, chosen = source.columns(owner), [(joined.rows[owner], joined.ids)]
    return raw_samples(table, chosen, columns)[0]


def read_own_rows(source: Source, path: Path, owner: str | None = None) -> NewSamples | None:
    """Read one owner's new rows (None: the label owner's), in the order of their match if there is one.

    Returns None if ``path`` is no table but a file that ``write_prediction_files`` wrote. Raises ValueError for a match
    of other rows, TableError.
    """
    if path.suffix == ".safetensors" or not isinstance(source, Tables):
        return None
    owner = owner or source.leader
    return _matched_rows(source, owner, path) if rows_match(path).exists() else read_new_rows(source, {owner: path})


def _matched_rows(source: Tables, owner: str, path: Path) -> NewSamples:
    """Read new rows in the order of their match; at the label owner with the other owners' masks."""
    table = source.read(owner, source.owners, path)
    joined = matched({owner: table}, {owner: rows_match(path)}, of_rows(source.data, owner, path))
    rows, key = joined.rows[owner], key_of(source.data.tables[owner])
    away, own = no_features(joined.ids), _raw(source, owner, table, joined)
    held = {owner: rows >= 0, **joined.others}
    # The server shows keys where other owners lack rows; an owner needs its own in messages to itself.
    keyed = bool(joined.others) or owner != label_owner(source.data.tables)
    return NewSamples(
        away,
        tuple(own if each == owner else away for each in source.parties),
        keys=(key, *key_cells(table.keys[key].take(pa.array(rows.clip(min=0))))) if keyed else (),
        present={each: torch.as_tensor(there) for each, there in held.items()},
    )


def find_owners(source: Tables, path: Path) -> tuple[str, ...]:
    """Return the owners whose columns a table contains completely, if no other owner can be meant.

    Several owners' rows may be joined in one table, but not if two of them have a feature of the same name: then it
    holds only one owner's. Nor can the table be taken for that of an owner whose features others have as well. Raises
    TableError if it is uncertain.
    """
    there = set(column_names(path))
    features = {owner: {*source.columns(owner).names} for owner in source.owners}
    keys = {owner: {name for key in keys_of(source.data.tables[owner], ()) for name in key} for owner in source.owners}
    owners = tuple(owner for owner in source.owners if features[owner] | keys[owner] <= there)
    for owner in owners:
        for other in source.parties:
            shared = sorted(features[owner] & features[other])
            if other != owner and (shared and (other in owners or features[owner] <= features[other])):
                what = f"has columns of {owner} and {other} ({', '.join(shared[:SHOWN])})"
                raise TableError(f"--table: {path}: {what}; say whose it is: --table {owner}={path}")
    if not set(source.parties) & set(owners):
        lacking = {owner: sorted((features[owner] | keys[owner]) - there) for owner in source.parties}
        what = "; ".join(f"{owner}'s {', '.join(names[:SHOWN])}" for owner, names in lacking.items())
        raise TableError(f"--table: {path}: lacks columns of every owner ({what}); name OWNER=FILE for each")
    return owners
