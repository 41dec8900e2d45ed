"""Where the stand-ins for other packages lie; an installed package of the same name always comes first."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

STAND_INS = Path(__file__).resolve().parent / "stand_ins"


def offer_stand_ins() -> None:
    """Append the folder of stand-ins to the end of the import path."""
    if str(STAND_INS) not in sys.path:
        sys.path.append(str(STAND_INS))


def folder_of_horovod() -> Path | None:
    """Return the folder that `import horovod` finds."""
    spec = find_spec("horovod")
    return Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
