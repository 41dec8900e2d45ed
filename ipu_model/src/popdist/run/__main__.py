"""`python -m popdist.run` is `poprun`."""

import sys

from popdist.run.command import main

if __name__ == "__main__":
    sys.exit(main())
