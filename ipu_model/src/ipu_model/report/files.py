"""Writes a report into a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_model.predict.profile import Profile
from ipu_model.report import profile_json
from ipu_model.report.page import html_report
from ipu_model.report.text_files import make_folder, write_text
from ipu_model.report.trace import trace_json

if TYPE_CHECKING:
    from ipu_model.explore.advise import Advice

HTML_NAME = "report.html"
TRACE_NAME = "trace.json"


@dataclass(frozen=True)
class ReportFiles:
    """Where the parts of a report are."""

    profile: Path
    html: Path
    trace: Path


def write_report(profile: Profile, directory: str | Path, advice: Sequence[Advice] = ()) -> ReportFiles:
    """Write `profile.json`, `report.html` and `trace.json` into a folder, and return where they are.

    The folder is made if it is missing. All three are composed before the first is written, and each appears
    whole or not at all.

    Raises:
        Error: the folder or a file cannot be written; the profile holds what no reader would take.
    """
    folder = Path(directory)
    paths = ReportFiles(folder / profile_json.FILE_NAME, folder / HTML_NAME, folder / TRACE_NAME)
    contents = (profile_json.to_json(profile), html_report(profile, advice), trace_json(profile))
    make_folder(folder)
    for path, text in zip((paths.profile, paths.html, paths.trace), contents):
        write_text(path, text)
    return paths
