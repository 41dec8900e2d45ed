"""The JSON form of a `Profile`: exact in both directions, and nothing but data.

A tuple of records (dataclasses and named tuples) is a table there: `{"columns": [names], "rows": [[values], ...]}`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import msgspec

from ipu_model.errors import Error
from ipu_model.predict.profile import FORMAT, Profile
from ipu_model.report.text_files import read_text, write_text

FILE_NAME = "profile.json"


def to_json(profile: Profile) -> str:
    """Return a profile as JSON; `from_json` gives an equal profile back.

    Raises:
        Error: a value that no reader would take: infinite, of another type, or no time or tile at all.
    """
    data = msgspec.to_builtins(_written(profile, Profile), enc_hook=_of_numpy)
    _require_usable(_checked(data))
    return json.dumps(data, separators=(",", ":"))


def from_json(text: str) -> Profile:
    """Return the profile that `to_json` wrote.

    Raises:
        Error: not JSON, another format, or a field that is missing, unknown, of another type or impossible;
            the message names the field.
    """
    data = _parsed(text)
    if not isinstance(data, dict) or "format" not in data:
        raise Error("This is not a profile: it has no field 'format'. `to_json` writes profiles.")
    if data["format"] != FORMAT or isinstance(data["format"], bool):
        raise Error(
            f"The profile has format {data['format']!r:.40}, and this version reads format {FORMAT} only. "
            f"{_ANOTHER[_is_earlier(data['format'])]}"
        )
    profile = _checked(data)
    _require_usable(profile)
    return profile


def write(profile: Profile, path: str | Path) -> None:
    """Write a profile to a file, which appears whole or not at all.

    Raises:
        Error: as `to_json`; the file cannot be written.
    """
    write_text(Path(path), to_json(profile))


def read(path: str | Path) -> Profile:
    """Read the profile in a file, or the one called `profile.json` in a folder or in its only folder with one.

    Raises:
        Error: there is none, or more than one to choose from, or as `from_json`; the message names the file.
    """
    file = file_of(path)
    text = read_text(file)
    try:
        return from_json(text)
    except Error as problem:
        what_to_do = "" if "again" in problem.message else " Run or model the program again to write it anew."
        raise Error(f"{file}: {problem.message}{what_to_do}") from problem


def file_of(path: str | Path) -> Path:
    """Return the file of a profile, given it or its folder; profiling gives each model a folder of its own.

    Raises:
        Error: a folder with several to choose from.
    """
    folder = Path(path)
    if not folder.is_dir():
        return folder
    if (folder / FILE_NAME).exists():
        return folder / FILE_NAME
    below = sorted(folder.glob(f"*/{FILE_NAME}"))
    if len(below) > 1:
        raise Error(f"{folder} holds several profiles, choose one: {', '.join(str(each.parent) for each in below)}.")
    return below[0] if below else folder / FILE_NAME


_ANOTHER = {
    True: "An earlier version of the IPU Model wrote it: run or model the program again.",
    False: "Another version of the IPU Model wrote it: read it with that version, or model the program again.",
}


def _is_earlier(version: object) -> bool:
    return isinstance(version, int) and not isinstance(version, bool) and 0 < version < FORMAT


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except RecursionError as problem:
        raise Error("This is not a profile: it is nested too deeply.") from problem
    except ValueError as problem:  # the syntax, or a number of thousands of digits
        raise Error(f"This is not JSON: {problem}.") from problem


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Error(f"The profile has the field {twice!r:.60} twice.")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise Error(f"The profile holds {name}: numbers must be finite.")


def _checked(data: Any) -> Profile:
    """Return the profile of parsed JSON in which every field is there, known, of its type and finite."""
    try:
        form = msgspec.convert(data, _form(Profile))
    except msgspec.ValidationError as problem:
        what, _, where = str(problem).partition(" - at ")
        raise Error(f"{_field_at(where)}: {what[0].lower()}{what[1:]}.") from problem
    profile: Profile = _read(form, Profile, "profile")
    return profile


def _field_at(where: str) -> str:
    """Return msgspec's path to a value with the names of fields: `$.ops.rows[7][3]` is profile.ops[7].scope."""
    words = "profile"
    kind: Any = Profile
    for name, index in re.findall(r"\.(\w+)|\[([^]]+)\]", where):
        if _is_record(kind):
            field = name or list(_parts(kind))[int(index)]
            words, kind = f"{words}.{field}", _parts(kind)[field]
        elif name != "rows":
            words += f".{name}" if name else f"[{index}]"
            kind = None if name else _record_of(kind)
    return words


@lru_cache(maxsize=64)
def _form(kind: Any) -> Any:
    """Return the type that JSON is checked against: each record by a struct that needs every field and no other."""
    if record := _record_of(kind):
        columns = GenericAlias(tuple, tuple(Literal[name] for name in _parts(record)))
        rows = GenericAlias(tuple, (_struct(record, array_like=True), ...))
        return msgspec.defstruct("Table", [("columns", columns), ("rows", rows)], forbid_unknown_fields=True)
    return _struct(kind) if _is_record(kind) else kind


def _struct(record: Any, *, array_like: bool = False) -> Any:
    parts = [(name, _form(part)) for name, part in _parts(record).items()]
    return msgspec.defstruct(record.__name__, parts, forbid_unknown_fields=True, array_like=array_like)


def _written(value: Any, kind: Any) -> Any:
    if record := _record_of(kind):
        parts = _parts(record)
        rows = [[_written(getattr(each, name), part) for name, part in parts.items()] for each in value]
        return {"columns": list(parts), "rows": rows}
    if _is_record(kind):
        return {name: _written(getattr(value, name), part) for name, part in _parts(kind).items()}
    return dict(value) if isinstance(value, Mapping) else value


def _read(form: Any, kind: Any, where: str) -> Any:
    """Return the record, or the tuple of them, that a struct of `_form` stands for."""
    if record := _record_of(kind):
        return tuple(_read(row, record, f"{where}[{index}]") for index, row in enumerate(form.rows))
    if _is_record(kind):
        return kind(*(_read(getattr(form, name), part, f"{where}.{name}") for name, part in _parts(kind).items()))
    _require_finite(form, where)
    return form


def _require_finite(value: Any, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Error(f"{where} is {value!r}: it must be a finite number.")
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, tuple) else ()
    for key, part in parts:
        _require_finite(part, f"{where}[{key!r}]")


def _of_numpy(value: Any) -> Any:
    """Return a number of numpy as one of Python."""
    return value.item() if hasattr(value, "item") else value


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind) or hasattr(kind, "_fields")


def _record_of(kind: Any) -> Any:
    """Return the record that a tuple holds any number of, and `None` for any other type."""
    return next((part for part in get_args(kind) if get_origin(kind) is tuple and _is_record(part)), None)


@lru_cache(maxsize=64)
def _parts(kind: Any) -> Mapping[str, Any]:
    """Return the types of a record's fields by name, in their order, without what no comparison looks at."""
    hints = get_type_hints(kind)
    names = getattr(kind, "_fields", None) or [field.name for field in fields(kind) if field.compare]
    return {name: hints[name] for name in names}


def _require_usable(profile: Profile) -> None:
    """Refuse what every reader divides by or looks up, if it is not there."""
    above_zero = {
        "samples_per_call": profile.samples_per_call,
        "device_seconds_per_call": profile.device_seconds_per_call,
        "call_seconds": profile.call_seconds,
        "machine.clock_hz": profile.machine.clock_hz,
        "machine.ipus": profile.machine.ipus,
        "machine.tiles": profile.machine.tiles,
        "machine.tile_bytes": profile.machine.tile_bytes,
        "memory.tile_bytes": profile.memory.tile_bytes,
        "error_band.low": profile.error_band.low,
        "error_band.high": profile.error_band.high,
    }
    for name, value in above_zero.items():
        if not value > 0:
            raise Error(f"profile.{name} cannot be {value!r}: it must be above 0.")
    for name, parts in (("memory.ipus", profile.memory.ipus), ("cycles", profile.cycles)):
        if not parts:
            raise Error(f"profile.{name} is empty: a program has at least one IPU.")
    for index, span in enumerate(profile.timeline):
        if span.seconds < 0 or span.repeats < 1:
            raise Error(f"profile.timeline[{index}] has {span.seconds!r} seconds and {span.repeats!r} repeats.")
