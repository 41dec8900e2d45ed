"""`python ipu_model/validation` does what `python -m ipu_model validate` does, also beside an installed IPU Model."""

import sys

from ipu_model.commands import main

if __name__ == "__main__":
    sys.exit(main(["validate", *sys.argv[1:]]))
