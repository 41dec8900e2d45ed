"""``python -m ipu_course``."""

from __future__ import annotations

import sys

from ipu_course.programs.command_line import main

if __name__ == "__main__":
    sys.exit(main())
