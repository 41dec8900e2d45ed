"""Build the site: `make site`, or `python -m course_site` in the tools folder's path."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from project_address import project_address

from course_site.capture import capture_explorers, usual_processes
from course_site.licences import copy_licences
from course_site.outline import ROOT, read_outline
from course_site.page_checks import problems
from course_site.recorded import MOST_STATES
from course_site.source_tree import lay_out
from notebook_build.lesson import lessons


def main(words: list[str] | None = None) -> int:
    """Build the site from the repository and check its pages; return 0 if Sphinx and the checks find nothing wrong."""
    arguments = _parser().parse_args(words)
    began = time.perf_counter()
    work = arguments.work.resolve()
    recorded, source = work / "explorers", work / "source"
    if not arguments.keep_explorers:
        shutil.rmtree(recorded, ignore_errors=True)
        capture_explorers(lessons(tuple(arguments.lessons)), recorded, arguments.states, arguments.processes)
    shutil.rmtree(source, ignore_errors=True)
    outline = read_outline([f"notebooks/{lesson.notebook.name}" for lesson in lessons()])
    lay_out(outline, recorded, source, project_address())
    copy_licences(source / "_static" / "licences")
    code = run_sphinx(source, arguments.output.resolve(), work / "doctrees")
    wrong = problems(arguments.output)
    print("".join(f"site: {each}\n" for each in wrong), end="")
    if code == 0:
        size = sum(file.stat().st_size for file in arguments.output.rglob("*") if file.is_file())
        took = time.perf_counter() - began
        print(f"site: {arguments.output}/index.html, {size / 1e6:.0f} MB, built in {took:.0f} s")
    return code or int(bool(wrong))


def run_sphinx(source: Path, output: Path, doctrees: Path) -> int:
    """Write the pages anew; every warning is an error, after all have been printed."""
    shutil.rmtree(output, ignore_errors=True)
    shutil.rmtree(doctrees, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-d", str(doctrees)]
    return subprocess.run([*command, str(source), str(output)], cwd=ROOT).returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="course_site", description="Build the course's site.")
    parser.add_argument("lessons", nargs="*", help="lessons whose explorers move, such as 02; all if none is named")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site", help="the folder for the pages")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "site-work", help="a folder for what is between")
    parser.add_argument("--states", type=int, default=MOST_STATES, help="the most views of an explorer")
    parser.add_argument("--processes", type=int, default=usual_processes(), help="how many lessons run at a time")
    parser.add_argument("--keep-explorers", action="store_true", help="use the views that were recorded last time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
