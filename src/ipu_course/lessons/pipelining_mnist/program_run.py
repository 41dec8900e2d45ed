"""The tutorial's program, run as its command line would, in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import tempfile
from pathlib import Path

from ipu_course.programs.command_line import main


def run_program(arguments: str) -> None:
    """Run ``python -m ipu_course mnist ARGUMENTS`` in an empty folder, and print its output and the files it wrote."""
    print(f"$ python -m ipu_course mnist {arguments}")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            # SystemExit is how --help ends.
            with contextlib.redirect_stderr(io.StringIO()) as complaints, contextlib.suppress(SystemExit):
                main(["mnist", *shlex.split(arguments)])
        finally:
            os.chdir(before)
        print(complaints.getvalue(), end="")
        for file in sorted(Path(folder).rglob("*.*")):
            if file.is_file():
                print(f"wrote {file.relative_to(folder).as_posix()}")
