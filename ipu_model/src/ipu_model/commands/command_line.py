"""The programs of the IPU Model: one sub-command each."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ipu_model import __version__
from ipu_model.commands import machines, programs, validate
from ipu_model.errors import Error

# Each module offers register(subparsers): it adds its parsers and sets the default `run`, a function of the
# parsed arguments that returns the exit code, `None` for 0. What `run` needs is imported inside it, so that --help
# waits for nothing.
COMMANDS = (programs, machines, validate)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m ipu_model` with all its sub-commands."""
    parser = argparse.ArgumentParser(
        prog="python -m ipu_model",
        description="The IPU Model predicts what programs would do on IPUs. All numbers are modelled.",
        epilog="example: python -m ipu_model fit --help explains what a program is and lists the options",
    )
    parser.add_argument("--version", action="version", version=f"ipu-model {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (default: the command line) name and return its exit code.

    Codes: 0 done, 1 nothing that fits was found or nobody reads the output any more, 2 an error in one line, 130
    stopped with Ctrl-C.
    """
    parsed = make_parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed) or 0
        sys.stdout.flush()
    except Error as problem:
        print(f"python -m ipu_model {parsed.command}: error: {problem.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"python -m ipu_model {parsed.command}: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`). Python would complain once more when it empties it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
