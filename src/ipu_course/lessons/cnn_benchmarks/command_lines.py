"""The training command lines of the benchmark page as a table: what they print, not what the course takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course.programs.bench import benchmark_page

if TYPE_CHECKING:
    from ipu_course.programs.bench.page import Configuration

__all__ = ["command_line_rows", "option_value", "printed_lines"]


def printed_lines() -> list[Configuration]:
    """Return the training configurations whose command lines the page prints in full; a POD64's name a file."""
    return [
        each for each in benchmark_page().configurations
        if each.settings.training and each.settings.machine != "POD64"
    ]  # fmt: skip


def option_value(command_line: str, option: str) -> str:
    """Return the value of an option as a command line prints it, "-" where it has none."""
    words = command_line.replace("=", " ").split()
    return words[words.index(option) + 1] if option in words else "-"


def command_line_rows() -> list[dict[str, object]]:
    """Return the lines as rows of a table: their headings, and what the lines themselves print.

    Replicas are those of poprun, or the program's own, or one.
    """
    rows: list[dict[str, object]] = []
    for number, each in enumerate(printed_lines(), 1):
        line = each.command_line
        printed = [option_value(line, option) for option in ("--num-replicas", "--replicas")]
        heading = each.heading.split(" / ", 1)[1].replace(" Training", "").replace("1 x IPU-", "")
        rows.append({
            "line": number,
            "heading": heading,
            "--group-dim": option_value(line, "--group-dim"),
            "--expand-ratio": option_value(line, "--expand-ratio"),
            "--batch-size": option_value(line, "--batch-size"),
            "accumulation": option_value(line, "--gradient-accumulation-count"),
            "replicas": next((value for value in printed if value != "-"), "1"),
            "--eight-bit-io": "yes" if "--eight-bit-io" in line else "no",
        })  # fmt: skip
    return rows
