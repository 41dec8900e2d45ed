"""`python -m popdist.run` is `poprun`."""

from __future__ import annotations

import sys

from popdist.run.command import main

if __name__ == "__main__":
    sys.exit(main())
