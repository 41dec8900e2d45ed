"""The JSON form of a `Profile`: exact in both directions, and nothing but data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from ipu_model.errors import Error
from ipu_model.profiling.data import FORMAT, Profile
from ipu_model.profiling.plain_data import decode, encode
from ipu_model.profiling.text_files import read_text, write_text

FILE_NAME = "profile.json"


def to_json(profile: Profile) -> str:
    """Return a profile as JSON; `from_json` gives an equal profile back.

    Raises:
        Error: a value that no reader would take: infinite, of another type, or no time or tile at all.
    """
    data = encode(profile, Profile, "profile")
    _require_usable(profile)
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


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
            f"The profile has format {data['format']!r:.40}, and this version reads format {FORMAT}: "
            "model the program again, or read it with the version that wrote it."
        )
    profile: Profile = decode(data, Profile, "profile")
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
        raise Error(f"{file}: {problem.message}") from problem


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
