"""What pyproject.toml cannot say: the course's folders of files go into the wheel, and the lessons' tests stay out.

An editable install (`pip install -e .`) leaves the folders where they are; `ipu_course.course_files` finds them there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.build import build
from setuptools.command.build_py import build_py

# What goes in, and where the package looks for it (ipu_course.course_files.BUNDLED).
FILES = ("data/*.json", "data/*.npz", "data/README.md", "docs/*.md", "docs/*.png", "notebooks/*.ipynb")
BUNDLED = Path("ipu_course", "bundled")


class BuildWithoutTests(build_py):
    """Leave out the tests in the lessons' folders, which need the settings and helpers of the repository's tests."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return (package, module, file) of all modules of a package but its tests."""
        return [found for found in super().find_package_modules(package, package_dir) if found[1][:5] != "test_"]


class BundleCourseFiles(Command):
    """Copy the course's data, notebooks and pages into the package. A sub-command of `build`, as setuptools has them.

    Setuptools sets `build_lib` and `editable_mode`, and asks the `get_` functions for what belongs into a source
    distribution and for what was built.
    """

    editable_mode = False

    def initialize_options(self) -> None:
        """Begin without a folder to build in."""
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        """Take the folder from `build`."""
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Copy each file, unless the install is editable."""
        for target, source in self.get_output_mapping().items():
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def get_source_files(self) -> list[str]:
        """Return the files, relative to this folder."""
        return sorted(path.as_posix() for pattern in FILES for path in Path().glob(pattern))

    def get_output_mapping(self) -> dict[str, str]:
        """Return which file is made from which; none in an editable install."""
        files = [] if self.editable_mode else self.get_source_files()
        return {str(Path(self.build_lib or "", BUNDLED, file)): file for file in files}

    def get_outputs(self) -> list[str]:
        """Return the files that are made."""
        return list(self.get_output_mapping())


class BuildWithCourseFiles(build):
    """The usual build with that sub-command at its end."""

    sub_commands: ClassVar = [*build.sub_commands, ("bundle_course_files", None)]


if __name__ == "__main__":
    setup(
        cmdclass={
            "build": BuildWithCourseFiles,
            "build_py": BuildWithoutTests,
            "bundle_course_files": BundleCourseFiles,
        }
    )
