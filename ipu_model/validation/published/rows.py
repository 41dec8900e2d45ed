"""The rows of `published.toml`: what was published, and what each row is worth as evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from ipu_model.errors import Error
from ipu_model.predict.band import Family

Argument = bool | int | str | tuple[int, ...]
FILE = Path(__file__).with_name("published.toml")


class Kind(str, Enum):
    """What a row says about the model.

    `FITTED`: a published figure influenced a constant that the row depends on. `PREDICTION`: none did. `SCORED_BLIND`:
    the model had never seen the row when it was scored. `ARITHMETIC`: a sum, ratio, difference or repeat of other rows,
    which no count includes.
    """

    FITTED = "fitted"
    PREDICTION = "prediction"
    SCORED_BLIND = "scored blind"
    ARITHMETIC = "arithmetic"

    def __str__(self) -> str:
        return self.value


# Whether a row was scored blind -> its kinds: a constant may be fitted on a row that was.
_KINDS = {True: (Kind.SCORED_BLIND, Kind.FITTED), False: (Kind.FITTED, Kind.PREDICTION, Kind.ARITHMETIC)}


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published number: `value` in `unit`; `wanted` is the relative error the model is meant to keep within.

    `measurement` names the run on hardware that it was read from. `settles` names the constants that were fitted on it
    ("section.name"). `blind` is the modelled value of the `day` when the row was scored blind, `before` that of a
    prediction before the model was improved with the row in view. The error bands of `families` rest on the row.
    `program` builds its program from `arguments`, which may take `long`; its profile has the value as `read`.
    """

    id: str
    what: str
    kind: Kind
    value: float
    unit: str
    source: str
    measurement: str
    wanted: float
    settles: tuple[str, ...] = ()
    blind: float | None = None
    before: float | None = None
    families: tuple[Family, ...] = ()
    day: str = ""
    program: str = ""
    arguments: Mapping[str, Argument] = {}
    read: str = "device_samples_per_second"
    times: float = 1.0
    long: bool = False

    def __post_init__(self) -> None:
        if (self.kind is Kind.FITTED) != bool(self.settles):
            raise ValueError(f"{self.id}: a {self.kind} row cannot settle {list(self.settles)}")
        scored = self.blind is not None
        if self.kind not in _KINDS[scored]:
            raise ValueError(f"{self.id}: a {self.kind} row cannot have the blind value {self.blind}")
        if scored != bool(self.day):
            raise ValueError(f"{self.id}: a blind value has the day of its score, and nothing else has")
        if self.before is not None and self.kind is not Kind.PREDICTION:
            raise ValueError(f"{self.id}: a {self.kind} row cannot have an earlier value: only predictions have")

    @property
    def earlier_error(self) -> float | None:
        """The signed relative error before the model was improved with the row in view; `None` if that is unknown."""
        earlier = self.before if self.blind is None else self.blind
        return None if earlier is None else earlier / self.value - 1.0


class VerdictRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published outcome: whether a program ran, or was out of memory.

    `blind` is the share of a tile that the fullest tile was modelled to hold on the day when the row was scored. The
    description of a `doubtful` program leaves a choice open that its memory depends on.
    """

    id: str
    what: str
    kind: Kind
    ran: bool
    source: str
    blind: float | None = None
    doubtful: bool = False
    day: str = ""
    program: str = ""
    arguments: Mapping[str, Argument] = {}
    long: bool = False

    def __post_init__(self) -> None:
        if (self.kind is Kind.SCORED_BLIND) != (self.blind is not None):
            raise ValueError(f"{self.id}: a {self.kind} row cannot have the blind share {self.blind}")

    @property
    def outcome(self) -> str:
        return "ran" if self.ran else "out of memory"


class BlindScore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far off the model of a day was on rows it had never seen, in words; most of them are not in this project."""

    day: str
    model: str
    speed: tuple[str, ...]
    memory: tuple[str, ...]


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows, by their ids, of programs that differ in one thing, which `change` names."""

    what: str
    change: str
    rows: tuple[str, ...]


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Other `arguments` for the program of a row whose source leaves them open."""

    row: str
    what: str
    arguments: Mapping[str, Argument]


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: tuple[Row, ...] = msgspec.field(name="row", default=())
    verdicts: tuple[VerdictRow, ...] = msgspec.field(name="verdict", default=())
    choices: tuple[Choice, ...] = msgspec.field(name="choice", default=())
    curves: tuple[Curve, ...] = msgspec.field(name="curve", default=())
    blind: tuple[BlindScore, ...] = ()


def read(toml: bytes) -> Published:
    try:
        content = msgspec.toml.decode(toml, type=dict[str, list[dict[str, Any]]])
        rows = {name: _parts(tables) for name, tables in content.items()}
        for row in rows.get("row", ()):
            row.setdefault("measurement", row.get("id", ""))  # a run on hardware of its own
        return msgspec.convert(rows, Published)
    except msgspec.DecodeError as problem:
        raise Error(f"{FILE.name}: {problem}.") from problem


def _parts(tables: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each part of a table, with what the table says of all its parts, or the table itself."""
    rows = []
    for table in tables:
        parts = [{"id": row_id, **part} for row_id, part in table.pop("part", {}).items()]
        rows += [{**table, **part} for part in parts or [{}]]
    return rows


@lru_cache(maxsize=1)
def published() -> Published:
    return read(FILE.read_bytes())
