"""Results as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any, Sequence

from ipu_course.errors import CourseError

STANDARD_OUTPUT = "-"


def json_text(records: Sequence[dict[str, Any]]) -> str:
    """Records as a JSON list."""
    return json.dumps(list(records), indent=1) + "\n"


def csv_text(records: Sequence[dict[str, Any]]) -> str:
    """Records as CSV: a line each, columns named by the way to the value; lists are one text."""
    lines = [dict(_flat(record)) for record in records]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _flat(record: dict[str, Any], way: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in record.items():
        if isinstance(value, dict):
            found += _flat(value, f"{way}{name}.")
        else:
            found.append((way + name, "; ".join(map(str, value)) if isinstance(value, (list, tuple)) else value))
    return found


def write(content: str | bytes, target: str, option: str) -> None:
    """Write a file, or to the standard output for "-". Raises ``CourseError`` where it cannot be written."""
    if target == STANDARD_OUTPUT and isinstance(content, str):
        sys.stdout.write(content)
        return
    data = content.encode() if isinstance(content, str) else content
    try:
        Path(target).write_bytes(data)
    except OSError as problem:
        raise CourseError(f"{option} {target} cannot be written ({problem.strerror}); choose another file") from problem
