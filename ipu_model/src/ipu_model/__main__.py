"""`python -m ipu_model`."""

from __future__ import annotations

import sys

from ipu_model.commands import main

if __name__ == "__main__":
    sys.exit(main())
