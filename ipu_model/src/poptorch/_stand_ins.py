"""Finding the stand-ins for other packages: they lie beside this package, and installed packages come first."""

from __future__ import annotations

import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent.parent / "popdist" / "stand_ins"


def offer_stand_ins() -> None:
    """Append their folder to the end of the import path, for programs that import them without `popdist`."""
    if str(_FOLDER) not in sys.path:
        sys.path.append(str(_FOLDER))
