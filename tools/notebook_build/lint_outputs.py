"""The form of a lesson's saved outputs: pictures that are described, published figures that have a source."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nbformat import NotebookNode

from notebook_build.limits import LEAST_ALT_WORDS

PUBLISHED = re.compile(r"^.*\b(?:published|derived): .*$", re.M)
SOURCE = re.compile(r"\[\d+\]")


def picture_findings(cells: list[NotebookNode]) -> Iterator[str]:
    """Yield what is wrong with the saved pictures; a lesson has at least one, and words for each."""
    pictures = [output for output in outputs_of(cells) if "image/png" in output.get("data", {})]
    if not pictures:
        yield "no picture is saved"
    for number, picture in enumerate(pictures, start=1):
        alternative = picture.metadata.get("image/png", {}).get("alt", "")
        if len(alternative.split()) < LEAST_ALT_WORDS:
            yield f"picture {number} is described by {alternative!r}, not in {LEAST_ALT_WORDS} words or more"
        elif picture.data.get("text/plain") != alternative:
            yield f"picture {number} shows another text than its description where pictures are not shown"


def published_findings(cells: list[NotebookNode]) -> Iterator[str]:
    """Yield the lines with a published figure that do not say which reference it is from."""
    for output in outputs_of(cells):
        for line in PUBLISHED.findall(output.get("text", "")):
            if not SOURCE.search(line):
                yield f"no source, such as [1], in the line {line.strip()!r}"


def outputs_of(cells: list[NotebookNode]) -> list[NotebookNode]:
    """Return the outputs of all cells."""
    return [output for cell in cells for output in cell.get("outputs", ())]
