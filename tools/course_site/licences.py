"""The licences of what a built site contains of other projects: scripts, styles and icons in its pages."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Sequence

# Distributions whose files are in the pages. docs/licences.md says what each of them brings.
PIECES = ("accessible-pygments", "furo", "myst-nb", "pygments", "snowballstemmer", "sphinx", "sphinx-basic-ng")
_TEXTS = re.compile(r"\.dist-info/(?:licenses/)?(?:LICEN[SC]E|COPYING)[^/]*$", re.IGNORECASE)


def copy_licences(target: Path, pieces: Sequence[str] = PIECES) -> None:
    """Write the licence of every piece into ``target``. Raises ``FileNotFoundError`` for one that has none."""
    target.mkdir(parents=True, exist_ok=True)
    for name in pieces:
        files = [file for file in distribution(name).files or () if _TEXTS.search(str(file))]
        if not files:
            raise FileNotFoundError(f"the installed {name} has no file with its licence")
        texts = [Path(str(file.locate())).read_text(encoding="utf-8") for file in files]
        (target / f"{name}.txt").write_text("\n\n".join(texts), encoding="utf-8")
