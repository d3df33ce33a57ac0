"""Settings of one owner's table (``data.tables.OWNER``), and the defaults that Python's estimators start from.

The defaults were chosen on the flights' validation and test days, on seeds of scikit-learn's small tables that no
result uses (docs/results/tables/README.md#members), and on half of 49 small tables (#small-tables there).
"""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from vfl.base.errors import nearest_name
from vfl.config.network import is_this_machine
from vfl.config.settings import NotNegative, Section


def _as_columns(value: object) -> object:
    return [value] if isinstance(value, str) else value


ColumnKind = Literal["number", "category", "ignore"]
FeatureKind = Literal["number", "category", "ignore", "propose"]
OTHERS = "*"
"""Stands under ``features`` for all columns that are not named there."""


def _as_texts(value: object) -> object:
    if not isinstance(value, list):
        return value
    # Not bool: YAML reads no and yes so, and the text that was written is lost.
    return [str(each) if type(each) in (int, float) else each for each in cast(list[object], value)]


SQLITE = "sqlite:"
SECRET = re.compile(r"(^|&)[^=&]*(password|passwd|secret|token|api_?key)[^=&]*=", re.IGNORECASE)
"""Parameters of an address that hold a secret."""


def database_of(value: str, where: str = "") -> str:
    """Return the name of a database. Raises ValueError, naming ``where``, if it holds a password or is unknown."""
    if value.startswith(SQLITE):
        return value
    # Never with the value, which may hold the password.
    at = f"{where}: " if where else ""
    if re.match(r"\w+://[^?]*:[^?]*@", value) or "password" in value.lower():
        raise ValueError(f"{at}holds a password (not shown); leave it out, and set PGPASSWORD or PGPASSFILE instead")
    if not value.startswith(("postgresql://", "postgres://")):
        known = "write sqlite:FILE or postgresql://USER@HOST/NAME"
        raise ValueError(f"{at}is no database that is known (not shown); {known}")
    return value


def _without_password(value: str | None) -> str | None:
    return None if value is None else database_of(value)


Words = Annotated[tuple[str, ...], BeforeValidator(lambda value: _as_texts(_as_columns(value))), Field(min_length=1)]
KeyColumns = Annotated[tuple[str, ...], BeforeValidator(_as_columns), Field(min_length=1)]
"""A column, or a list of them."""


def _as_file(value: object) -> object:
    return {"file": value} if isinstance(value, str | Path) else value


class ServedRowsConfig(Section):
    """An owner's rows to be scored: a file (``serve: FILE`` is short for it), a query or an HTTP service."""

    file: Path | None = None
    """Rows to be scored by ``lvfl party --serve``, read again when it changes; short: ``serve=FILE``."""
    query: str | None = None
    """Instead: SQL for a key's row, ? for each column of the key."""
    database: Annotated[str | None, AfterValidator(_without_password)] = None
    """null: the table's own ``database``."""
    url: str | None = None
    """Instead: https://HOST/{key}, a key's row in JSON."""
    cache_s: NotNegative = 0.0
    """Seconds to keep a fetched row."""
    token: Path | None = None
    """File with the bearer token for ``url``, as ``serving.token``."""
    ca: Path | None = None
    """Its authority; null: the system's."""
    certificate: Path | None = None
    """Own certificate for ``url``, in PEM."""
    key: Path | None = None
    """Its private key."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        given = [name for name in ("file", "query", "url") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"{given[1] if given else 'file'}: name one of file, query and url")
        needs = {"database": "query", "token": "url", "ca": "url", "certificate": "url", "key": "url"}
        for name, other in needs.items():
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise ValueError(f"{name}: goes with {other}")
        if self.cache_s and self.file is not None:
            raise ValueError("cache_s: goes with query or url")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate: goes with key; set both or none")
        if self.url is not None:
            _check_url(self.url)
        return self


def _check_url(url: str) -> None:
    """Raise ValueError, never with the address, for one that cannot be asked or that holds a secret."""
    parts, port = urlsplit(url), None
    with suppress(ValueError):
        port = parts.port or 0
    plain = parts.scheme == "http" and is_this_machine(parts.hostname or "")
    if "@" in parts.netloc or SECRET.search(parts.query):
        raise ValueError("url: holds a secret (not shown); leave it out, and name a file as token, or certificate")
    if not (plain or parts.scheme == "https") or not parts.hostname or port is None:
        raise ValueError("url: is no address that is asked (not shown); write https://HOST/{key}")
    if "{key}" not in parts.path + parts.query or "{key}" in parts.netloc or parts.fragment:
        raise ValueError("url: needs {key} behind the host, and no # (not shown); write https://HOST/{key}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("url: holds other than printable ASCII (not shown); write such characters as %XX")


class TableConfig(Section):
    """A table, and the use of its columns. A YAML file that holds these settings can stand in its place."""

    file: Path | None = None
    """CSV, gzipped CSV or Parquet."""
    query: str | None = None
    """SQL whose answer is the table, instead of ``file``."""
    database: Annotated[str | None, AfterValidator(_without_password)] = None
    """With ``query``: sqlite:FILE, or postgresql://USER@HOST/NAME."""
    key: KeyColumns | None = None
    """Columns that identify a sample."""
    label: str | None = None
    """Column of the labels, at one owner."""
    weight: str | None = None
    """Label owner only: column of weights; 0 leaves a sample out. Needs ``training.labels: server``."""
    features: dict[str, FeatureKind] | None = None
    """number, category or ignore by column, in the model's order; others are ignored, unless "*": propose. null
    proposes all. {} at the label owner: only labels."""
    missing: Annotated[tuple[str, ...], BeforeValidator(_as_texts)] = ()
    """Further marks of a missing value: [unknown, -999]."""
    not_missing: dict[str, Words] = Field(default={})
    """Words that are values in a column: {continent: [NA]}."""
    thousands: Literal[",", "'"] | None = None
    """Mark between thousands: "," reads 1,093.39 as 1093.39. null: proposed."""
    keys: dict[str, KeyColumns] = Field(default={})
    """Label owner only: columns by which another owner knows the sample."""
    duplicates: Literal["refuse", "first"] = "refuse"
    """Rows with the same key: refuse the table, or keep the first."""
    match: Path | None = None
    """File of ``lvfl align``. null joins keys in the open."""
    serve: Annotated[ServedRowsConfig | None, BeforeValidator(_as_file)] = None
    """Where ``lvfl party --serve`` finds the rows to be scored."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.query is None) != (self.database is None):
            raise ValueError("query: goes with database, and database with query; name both or none")
        if self.query is not None and self.file is not None:
            raise ValueError("file: goes without query; name one of them")
        if self.serve is not None and self.serve.query is not None and self.serving_database is None:
            raise ValueError("serve: names a query and no database; set serve.database")
        return self

    @property
    def serving_database(self) -> str | None:
        """Return the database of the rows to be scored: their own, or that of the table."""
        return self.database if self.serve is None or self.serve.database is None else self.serve.database

    @property
    def has_rows(self) -> bool:
        """Return whether it names where its rows are."""
        return self.file is not None or self.query is not None

    @property
    def proposes(self) -> bool:
        """Return whether kinds of columns are proposed from the file."""
        return self.features is None or "propose" in self.features.values()

    @property
    def named_kinds(self) -> dict[str, ColumnKind]:
        """Return the kinds that are written out, by column."""
        return {name: kind for name, kind in (self.features or {}).items() if kind != "propose"}

    @property
    def of_labels_only(self) -> bool:
        """Return whether its features are written out, and there are none."""
        return not self.proposes and not set(self.named_kinds.values()) - {"ignore"}


def table_owners(tables: Mapping[str, TableConfig]) -> tuple[str, ...]:
    """Return the owners with features: the parties.

    Raises ValueError for no table, several labels, an unknown owner, or one without features that has no label.
    """
    if not tables:
        raise ValueError("data.tables: is missing; name each owner's file and key")
    owners = [owner for owner, table in tables.items() if table.label is not None]
    if len(owners) > 1:
        raise ValueError(f"data.tables: {', '.join(owners)} all name a label; leave it at one of them")
    for owner, table in tables.items():
        if table.weight is not None and table.label is None:
            raise ValueError(f"data.tables.{owner}.weight: is a column of the label's table; name it there")
        for other in table.keys.keys() - tables.keys():
            raise ValueError(f"data.tables.{owner}.keys: no owner is called {other!r}{nearest_name(other, [*tables])}")
    for owner, table in tables.items():
        # In another owner's process nobody names the label: that owner then is somewhere else.
        if table.of_labels_only and owners != [owner] and (owners or table.has_rows):
            what = "no column is left as a feature, which only the owner of the labels may do without"
            raise ValueError(f"data.tables.{owner}.features: {what}; name one, or leave the owner out")
    parties = tuple(owner for owner, table in tables.items() if not table.of_labels_only)
    if not parties:
        raise ValueError("data.tables: no owner has a feature; name one under features, or a further owner")
    return parties


def label_owner(tables: Mapping[str, TableConfig]) -> str | None:
    """Return the owner whose table has the label; None if no table has it."""
    return next((owner for owner, table in tables.items() if table.label is not None), None)


PASSES = 4
"""Least number of passes over the training rows in ten rounds."""
STEPS = 1000
"""Least number of exchanges in ten rounds; small tables need more passes."""
LINEAR_ROWS = 20_000
"""Training rows up to which models have a linear path, unless classes are many."""
LEARNED_BY_HEART = 5_000
"""Training rows up to which `STEPS` learn few classes by heart; amounts need them."""
FEW_STEPS, MEMBERS, MEMBER_SIZE = 300, 4, 4
"""Exchanges in ten rounds, members, and numbers of a member's embedding, there."""
STEPS_PER_ROUND = "training.steps_per_round"
FEWEST_TO_TRY = 100
"""Training rows from which some can be held back to choose between `FEW_STEPS` and `STEPS`."""
OWN_SHAPE = re.compile(r"models(\.members|\.parties\b.*|\.feature(\.(kind|embedding_size))?)?")
"""Settings of a user who shapes the models, to which members and a linear path need not fit."""
LARGEST_BATCH = 1024
SMALLEST_BATCH = 16
BATCHES = 16
"""Least number of batches in a pass, unless that makes batches smaller than `SMALLEST_BATCH`."""
ROUNDS = 10
RATE = 0.002
FEW = (8, 16, 0.25, 0.3)
"""Numbers of an embedding, hidden nodes of the head, width of the feature models and weight decay, for few classes."""
MANY_CLASSES = 8
"""Largest number of classes for which these have room."""
WIDEST = 64
"""Largest number of an embedding's numbers; messages grow with them."""


def table_settings(rows: int, classes: int = 0, rounds: int = ROUNDS, *, one_model: bool = False) -> dict[str, Any]:
    """Return the settings of an experiment on tables of ``rows`` training rows, without its data.

    ``classes`` is 0 where the label is an amount; many need wider models (docs/results/tables/README.md#many-classes).
    ``one_model``: no members and no linear path, for models or losses that go without. More than ten rounds train
    longer, each as long as one of ten. The learning rate falls to 0 as half a cosine wave (Loshchilov and Hutter, ICLR
    2017, without restarts).
    """
    fitting = 2 ** int(math.log2(max(1, rows // BATCHES)))
    batch = max(2, min(rows, LARGEST_BATCH, max(SMALLEST_BATCH, fitting)))
    linear_path = rows <= LINEAR_ROWS and classes <= MANY_CLASSES and not one_model
    few_rows = 0 < classes <= MANY_CLASSES and rows <= LEARNED_BY_HEART and not one_model
    steps = max(FEW_STEPS if few_rows else STEPS, PASSES * (rows // batch))
    embedding, hidden, width, decay = FEW
    members = MEMBERS if few_rows else 1
    embedding = MEMBER_SIZE if few_rows else embedding
    if classes > MANY_CLASSES:
        embedding = min(classes, WIDEST)
        hidden, width, decay = 4 * embedding, 1.0, 0.1
    rates = {each: RATE * (1 + math.cos(math.pi * (each + 0.5) / rounds)) / 2 for each in range(rounds)}
    return {
        "models": {
            "feature": {"kind": "mlp", "width": width, "embedding_size": members * embedding, "dropout": 0.2},
            "head": {"hidden": [hidden]},
            "members": members,
            "linear_path": linear_path,
        },
        "training": {
            "rounds": rounds,
            "steps_per_round": math.ceil(steps / ROUNDS),
            "batch_size": batch,
            "labels": "server",
            "optimizer": {"kind": "adamw", "weight_decay": decay, "learning_rate": rates},
        },
    }


def exchanges_to_try(rows: int, classes: int, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the exchanges of a round between which held-back samples choose; none where rows or settings decide.

    ``given`` are settings by dotted key. With them `trial_settings` make a trial cheap: it has one model.
    """
    few_rows = 0 < classes <= MANY_CLASSES and FEWEST_TO_TRY <= rows <= LEARNED_BY_HEART
    # What a defence promises is counted for one training.
    decided = re.compile(rf"{STEPS_PER_ROUND}|training\.start_from|privacy(\..*)?|{OWN_SHAPE.pattern}")
    return (FEW_STEPS // ROUNDS, STEPS // ROUNDS) if few_rows and not any(map(decided.fullmatch, given)) else ()


def trial_settings() -> dict[str, Any]:
    """Return the settings of a trial of `exchanges_to_try`; nobody asks what its owners would be worth alone."""
    models = {"models.members": 1, "models.feature.embedding_size": MEMBER_SIZE, "models.linear_path": True}
    return models | {"evaluation.subsets": False}
