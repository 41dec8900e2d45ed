"""Build the source distributions and wheels of both distributions, ipu-course and ipu-model.

`make wheels` runs it. Everything is built in a copy of the project, so no older build can leave anything in a wheel.
Only the copy gets what a reader outside the repository needs: READMEs whose links lead to the project's public address
(`[tool.project]` in pyproject.toml), or are plain words while there is none, and that address in the metadata.
Each wheel is built from its source distribution. That needs no network.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from posixpath import normpath

from project_address import project_address

ROOT = Path(__file__).resolve().parents[1]
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
PROJECT_TABLE = "[project]\n"
# A picture or link, and a paragraph of nothing but a picture with the caption in italics below it.
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!\w+:)[^)\s]+\)\n\n(?:\*[^*\n]+\*\n\n)?", re.MULTILINE)


@dataclass(frozen=True)
class Distribution:
    """One of the two: its folder in the project, and what of that folder it is built from."""

    folder: str
    parts: tuple[str, ...]


COMMON = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "src")
DISTRIBUTIONS = (
    Distribution(".", (*COMMON, "data", "docs", "notebooks", "setup.py")),
    Distribution("ipu_model", (*COMMON, "tests")),
)


def for_elsewhere(readme: str, folder: str, address: str) -> str:
    """Return a README as it can be read anywhere.

    Links and pictures that are relative to `folder` lead to the repository at `address`. While that is empty, links
    become their words, and pictures go with their captions. Links within the page become their words, too: the pages of
    package indexes have no anchors.
    """

    def elsewhere(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        if re.match(r"\w+:", target):
            return link[0]
        if target.startswith("#") or not address:
            return words
        path, _, part = target.partition("#")
        form = "raw" if picture else "blob"
        file = normpath(str(PurePosixPath(folder, path)))
        return f"{picture}[{words}]({address}/{form}/HEAD/{file}{'#' + part if part else ''})"

    return _LINK.sub(elsewhere, readme if address else _PICTURE.sub("", readme))


def with_address(pyproject: str, address: str) -> str:
    """Return a pyproject.toml whose metadata name the project's address; the same while that is empty."""
    if not address:
        return pyproject
    before, table, after = pyproject.partition(PROJECT_TABLE)
    return f'{before}{table}urls = {{ Source = "{address}", Issues = "{address}/issues" }}\n{after}'


def copy_for_building(distribution: Distribution, target: Path, address: str) -> None:
    """Copy what a distribution is built from, its README and metadata as they are to be outside the repository."""
    source = ROOT / distribution.folder
    target.mkdir(parents=True)
    for name in distribution.parts:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=NOT_COPIED)
        else:
            shutil.copy(source / name, target / name)
    readme, pyproject = target / "README.md", target / "pyproject.toml"
    text = for_elsewhere(readme.read_text(encoding="utf-8"), distribution.folder, address)
    readme.write_text(text, encoding="utf-8")
    pyproject.write_text(with_address(pyproject.read_text(encoding="utf-8"), address), encoding="utf-8")


def build(distribution: Distribution, folder: Path, address: str) -> list[Path]:
    """Build a source distribution and from it a wheel into `folder`, and return both."""
    with tempfile.TemporaryDirectory() as scratch:
        copy, made = Path(scratch) / "copy", Path(scratch) / "made"
        copy_for_building(distribution, copy, address)
        made.mkdir()
        run_backend("build_sdist", copy, made)
        (archive,) = made.iterdir()
        with tarfile.open(archive) as content:
            content.extractall(scratch)
        run_backend("build_wheel", Path(scratch) / archive.name[: -len(".tar.gz")], made)
        folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(file, folder)) for file in sorted(made.iterdir(), reverse=True)]


def run_backend(hook: str, folder: Path, target: Path) -> None:
    """Run a hook of setuptools in `folder`, as `pip install --no-build-isolation` does; it speaks only if it fails."""
    command = [sys.executable, "-W", "ignore", "-c", BUILD, hook, str(target)]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{hook} failed in {folder}:\n{done.stdout}")


def main(arguments: list[str] | None = None) -> int:
    """Build all four files and name them."""
    parser = argparse.ArgumentParser(description="Build source distributions and wheels of ipu-course and ipu-model.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parsed = parser.parse_args(arguments)
    try:
        address = project_address()
        files = [file for each in DISTRIBUTIONS for file in build(each, parsed.folder, address)]
    except (RuntimeError, ValueError, OSError) as problem:
        print(f"wheels: {problem}", file=sys.stderr)
        return 1
    for file in files:
        print(f"wheels: {file} ({file.stat().st_size / 2**20:.1f} MiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
