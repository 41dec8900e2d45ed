"""Writes a report into a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_model.predict.profile import Profile
from ipu_model.report import profile_json, program_file
from ipu_model.report.page import html_report
from ipu_model.report.text_files import make_folder, remove, write_bytes, write_text
from ipu_model.report.trace import trace_json

if TYPE_CHECKING:
    from ipu_model.explore.advise import Advice

HTML_NAME = "report.html"
TRACE_NAME = "trace.json"


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
    at all. A profile that was read from a file may not know its program; then no program stays in the folder.

    Raises:
        Error: the folder or a file cannot be written; the profile holds what no reader would take.
    """
    folder = Path(directory)
    paths = ReportFiles(folder / profile_json.FILE_NAME, folder / HTML_NAME, folder / TRACE_NAME)
    contents = (profile_json.to_json(profile), html_report(profile, advice), trace_json(profile))
    program = None if profile.program is None else program_file.to_bytes(profile.program)
    make_folder(folder)
    for path, text in zip((paths.profile, paths.html, paths.trace), contents):
        write_text(path, text)
    if program is None:
        remove(folder / program_file.FILE_NAME)
        return paths
    write_bytes(folder / program_file.FILE_NAME, program)
    return replace(paths, program=folder / program_file.FILE_NAME)


def read_report(path: str | Path) -> Profile:
    """Return the profile in a report's folder or file, with its program if that is beside it.

    Raises:
        Error: as `profile_json.read` and `program_file.read`.
    """
    file = profile_json.file_of(path)
    profile, beside = profile_json.read(file), file.with_name(program_file.FILE_NAME)
    return replace(profile, program=program_file.read(beside)) if beside.exists() else profile
