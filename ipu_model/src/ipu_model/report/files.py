"""The files of a report: `profile.json`, exact in both directions, and beside it a page, a trace and the program."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from ipu_model.errors import Error
from ipu_model.predict.profile import FORMAT, Profile
from ipu_model.whole_files import read_whole, refused, write_text, write_whole

if TYPE_CHECKING:
    from ipu_model.explore.advise import Advice

FILE_NAME, HTML_NAME = "profile.json", "report.html"
_MOST_BYTES = 1 << 29  # profiles of the largest models have some ten million
_EARLIER = "An earlier version of the IPU Model wrote it: run or model the program again."
_OTHER = "Another version of the IPU Model wrote it: read it with that version, or model the program again."
_KEPT = [field.name for field in fields(Profile) if field.compare]
"""All fields but the program, which has a file of its own."""
_Data: Any = msgspec.defstruct(
    "Profile", [(name, get_type_hints(Profile)[name]) for name in _KEPT], forbid_unknown_fields=True
)


@dataclass(frozen=True)
class ReportFiles:
    """Where the parts of a report are; `program` is `None` for a profile that does not know its program."""

    profile: Path
    html: Path
    trace: Path
    program: Path | None = None


def write_report(profile: Profile, directory: str | Path, advice: Sequence[Advice] = ()) -> ReportFiles:
    """Write `profile.json`, `report.html`, `trace.json` and the program into a folder, and return where they are.

    The folder is made if it is missing. All are composed before the first is written, and each appears whole or not
    at all. A profile that was read from a file may not know its program; then no program stays in the folder. Raises
    `Error`: the folder or a file cannot be written; the profile holds what no reader would take.
    """
    from ipu_model.report import program_file
    from ipu_model.report.page import html_report
    from ipu_model.report.trace import trace_json

    folder = Path(directory)
    texts = {FILE_NAME: to_json(profile), HTML_NAME: html_report(profile, advice), "trace.json": trace_json(profile)}
    program = None if profile.program is None else program_file.to_bytes(profile.program)
    with refused(f"The folder {folder} cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    paths, file = ReportFiles(*(folder / name for name in texts)), folder / program_file.FILE_NAME
    if program is not None:
        with refused(f"{file} cannot be written"):
            write_whole(file, program)
        return replace(paths, program=file)
    with refused(f"{file} cannot be removed"):
        file.unlink(missing_ok=True)
    return paths


def read_report(path: str | Path) -> Profile:
    """Return the profile in a report's folder or file, with its program if that is beside it; errors as `read`."""
    from ipu_model.report import program_file

    file = file_of(path)
    profile, beside = read(file), file.with_name(program_file.FILE_NAME)
    return replace(profile, program=program_file.read(beside)) if beside.exists() else profile


def read(path: str | Path) -> Profile:
    """Read the profile in a file, or the one called `profile.json` in a folder or in its only folder with one."""
    file = file_of(path)
    with refused(f"{file} cannot be read"):
        data = read_whole(file, _MOST_BYTES)
    try:
        return from_json(data.decode("utf-8"))
    except UnicodeDecodeError as problem:
        raise Error(
            f"{file} is not a text file in UTF-8, as profiles are. Unpack it if it is compressed, or name the "
            "folder of the report."
        ) from problem
    except Error as problem:
        what_to_do = "" if "again" in problem.message else " Run or model the program again to write it anew."
        raise Error(f"{file}: {problem.message}{what_to_do}") from problem


def file_of(path: str | Path) -> Path:
    """Return the file of a profile, given it or its folder; profiling gives each model a folder of its own."""
    folder = Path(path)
    if not folder.is_dir():
        return folder
    if (folder / FILE_NAME).exists():
        return folder / FILE_NAME
    below = sorted(folder.glob(f"*/{FILE_NAME}"))
    if len(below) > 1:
        raise Error(f"{folder} holds several profiles, choose one: {', '.join(str(file.parent) for file in below)}.")
    return below[0] if below else folder / FILE_NAME


def to_json(profile: Profile) -> str:
    # numpy's numbers become those of Python
    data = msgspec.to_builtins({name: getattr(profile, name) for name in _KEPT}, enc_hook=lambda value: value.item())
    text = json.dumps(data, separators=(",", ":"))
    from_json(text)  # refuses what no reader would take: infinite, of another type, no time or tile at all
    return text


def from_json(text: str) -> Profile:
    """Return the profile that `to_json` wrote in this version; `Error` for anything else."""
    try:
        data = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError as problem:
        raise Error("This is not a profile: it is nested too deeply.") from problem
    except ValueError as problem:  # the syntax, or a number of thousands of digits
        raise Error(f"This is not JSON: {problem}.") from problem
    if not isinstance(data, dict) or "format" not in data:
        raise Error("This is not a profile: it has no field 'format'. `to_json` writes profiles.")
    version = data["format"]
    if version != FORMAT:
        is_earlier = type(version) is int and 0 < version < FORMAT
        raise Error(
            f"The profile has format {version!r:.40}, and this version reads format {FORMAT} only. "
            f"{_EARLIER if is_earlier else _OTHER}"
        )
    try:
        profile = Profile(**msgspec.structs.asdict(msgspec.convert(data, _Data)))
    except msgspec.ValidationError as problem:
        what, _, where = str(problem).partition(" - at ")
        raise Error(f"profile{where.strip('`').lstrip('$')}: {what[0].lower()}{what[1:]}.") from problem
    _require_usable(profile)
    return profile


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Error(f"The profile holds {text:.40}: numbers must be finite.")
    return value


# What every reader divides by or looks up.
_ABOVE_ZERO = """
    samples_per_call device_seconds_per_call call_seconds machine.clock_hz machine.ipus machine.tiles
    machine.tile_bytes memory.tile_bytes error_band.low error_band.high
"""


def _require_usable(profile: Profile) -> None:
    for name in _ABOVE_ZERO.split():
        value = attrgetter(name)(profile)
        if not value > 0:
            raise Error(f"profile.{name} cannot be {value!r}: it must be above 0.")
    for name, parts in (("memory.ipus", profile.memory.ipus), ("cycles", profile.cycles)):
        if not parts:
            raise Error(f"profile.{name} is empty: a program has at least one IPU.")
    for index, span in enumerate(profile.timeline):
        if span.seconds < 0 or span.repeats < 1:
            raise Error(f"profile.timeline[{index}] has {span.seconds!r} seconds and {span.repeats!r} repeats.")
