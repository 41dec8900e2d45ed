"""How much `import poptorch` adds to `import torch`, each in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from measurements.timing import Row, medians


def rows(rounds: int) -> list[Row]:
    """Measure both imports."""
    actions = {
        name: partial(subprocess.run, [sys.executable, "-c", code], check=True)
        for name, code in (("torch", "import torch"), ("poptorch", "import torch, poptorch"))
    }
    took = medians(actions, 3)
    return [Row.seconds("import poptorch, beyond importing torch", took["poptorch"] - took["torch"], at_most=2)]
