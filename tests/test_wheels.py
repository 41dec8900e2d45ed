"""What `make wheels` builds: everything that an empty folder needs, and metadata that can be read anywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import wheels
from packaging.metadata import Metadata
from packaging.requirements import Requirement

import ipu_course
import ipu_model
from ipu_course.programs import command_line
from ipu_model import commands as model_commands

NAMES = ("ipu_course", "ipu_model")
ADDRESS = "https://host.example/owner/course"
README = """# A title

Words.

![A curve](docs/curve.png)

*What the curve shows.*

[A page](docs/page.md#part), [below](#part), [elsewhere](https://other.example/x) and `code`.
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what `make wheels` builds."""
    folder = tmp_path_factory.mktemp("dist")
    assert wheels.main([str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels' contents in a folder, as an installation has them."""
    folder = tmp_path_factory.mktemp("site")
    for name in NAMES:
        zipfile.ZipFile(wheel_of(built, name)).extractall(folder)
    return folder


def wheel_of(built: Path, name: str) -> Path:
    return built / f"{name}-{ipu_course.__version__}-py3-none-any.whl"


def metadata_of(installed: Path, name: str) -> Metadata:
    """Return a wheel's metadata, checked against the standards for them."""
    file = installed / f"{name}-{ipu_course.__version__}.dist-info" / "METADATA"
    return Metadata.from_email(file.read_bytes(), validate=True)


def files_below(folder: Path) -> set[str]:
    """Return the files of a source folder that belong into a wheel."""
    files = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return {
        file.as_posix()
        for file in files
        if "__pycache__" not in file.parts and ".egg-info" not in str(file) and not file.name.startswith("test_")
    }


def run(installed: Path, here: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder `here`, with what the wheels install in place of this repository."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "HOME": str(here)}
    return subprocess.run([sys.executable, *command], cwd=here, env=environment, capture_output=True, text=True)


# --- contents


def test_there_are_a_wheel_and_a_source_distribution_of_both(built: Path) -> None:
    version = ipu_course.__version__
    endings = (f"-{version}-py3-none-any.whl", f"-{version}.tar.gz")
    assert {file.name for file in built.iterdir()} == {name + ending for name in NAMES for ending in endings}


def test_the_course_has_its_modules_data_notebooks_and_pages(project: Path, installed: Path) -> None:
    wanted = {f"ipu_course/{file}" for file in files_below(project / "src" / "ipu_course")}
    folders = [("data", ".json .npz .md"), ("docs", ".md .png"), ("notebooks", ".ipynb")]
    wanted |= {
        f"ipu_course/bundled/{folder}/{file.name}"
        for folder, kinds in folders
        for file in (project / folder).iterdir()
        if file.suffix in kinds.split()
    }
    assert files_in(installed, "ipu_course/") == wanted


def test_the_model_has_its_modules_data_and_templates(project: Path, installed: Path) -> None:
    wanted = files_below(project / "ipu_model" / "src")
    assert files_in(installed, "ipu_model/", "poptorch/", "popdist/", "horovod.py", "popart.py") == wanted


def files_in(installed: Path, *beginnings: str) -> set[str]:
    """Return the files whose paths begin so, except for what Python compiled."""
    files = (file.relative_to(installed).as_posix() for file in installed.rglob("*") if file.is_file())
    return {file for file in files if file.startswith(beginnings) and "__pycache__" not in file}


# --- in an empty folder


def test_the_data_are_found_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    names = ("digits.npz", "published_day03.json", "cnn_benchmarks.json")
    program = f"from ipu_course.data_folder import data_file\nfor name in {names}: print(data_file(name))"
    done = run(installed, tmp_path, "-c", program)
    assert done.stderr == ""
    assert done.stdout.split() == [str(installed / "ipu_course" / "bundled" / "data" / name) for name in names]


def test_lab_makes_the_learners_copy_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-m", "ipu_course", "lab", "--", "--version")  # JupyterLab ends at once
    assert (done.returncode, done.stderr) == (0, "")
    copies = {file.name for file in (tmp_path / "my_course").glob("*.ipynb")}
    assert copies == {file.name for file in (installed / "ipu_course" / "bundled" / "notebooks").glob("*.ipynb")}
    text = "".join(file.read_text(encoding="utf-8") for file in (tmp_path / "my_course").glob("*.ipynb"))
    assert "](../" not in text, "a page that a lesson links to is not in the wheel"


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("ipu_course --version", f"ipu-course {ipu_course.__version__}\n"),
        ("ipu_model --version", f"ipu-model {ipu_model.__version__}\n"),
        ("ipu_course bench --list", "resnet50-infer-synthetic"),
        ("ipu_model machines", "POD16"),
    ],
)
def test_programs_run_in_an_empty_folder(installed: Path, tmp_path: Path, command: str, printed: str) -> None:
    done = run(installed, tmp_path, "-m", *command.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert printed in done.stdout


def test_the_command_about_published_measurements_says_that_no_wheel_has_them(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-m", "ipu_model", "validate")
    assert (done.returncode, done.stdout) == (2, "")
    assert "in the folder ipu_model/validation of the project's sources" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- metadata


def test_both_have_one_version(project: Path, installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ipu_course.__version__ == ipu_model.__version__
    for main in (command_line.main, model_commands.main):
        with pytest.raises(SystemExit):
            main(["--version"])
        assert capsys.readouterr().out.split()[1] == ipu_course.__version__
    (asked,) = [each for each in requirements_of(installed, "ipu_course") if each.name == "ipu-model"]
    assert asked.specifier.contains(ipu_model.__version__)


def requirements_of(installed: Path, name: str) -> list[Requirement]:
    return metadata_of(installed, name).requires_dist or []


@pytest.mark.parametrize("name", NAMES)
def test_the_metadata_are_complete(installed: Path, name: str) -> None:
    metadata = metadata_of(installed, name)
    assert metadata.name == name.replace("_", "-")
    assert metadata.summary
    assert metadata.author
    assert metadata.keywords
    assert metadata.requires_python is not None
    assert metadata.license_files == ["LICENSE"]
    assert metadata.description_content_type == "text/markdown"
    classifiers = metadata.classifiers or []
    named = [each.rsplit(" ", 1)[1] for each in classifiers if re.search(r":: 3\.\d+$", each)]
    assert "3.14" in named
    assert [version for version in named if not metadata.requires_python.contains(version)] == []


def test_the_page_on_installing_names_the_files_extras_and_pages_that_there_are(
    project: Path, built: Path, installed: Path
) -> None:
    page = (project / "docs" / "installing.md").read_text(encoding="utf-8")
    extras = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert {"lab", "model", "programs", "test"} == extras
    assert extras <= set(metadata_of(installed, "ipu_course").provides_extra or [])
    files = set(re.findall(r"dist/([\w.-]+\.whl)", page))
    assert files == {wheel_of(built, name).name for name in NAMES}
    links = re.findall(r"\]\((?!https:)([^)#]+)", page)
    assert links
    assert [link for link in links if not (project / "docs" / link).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_description_has_no_link_that_leads_nowhere(installed: Path, name: str) -> None:
    description = metadata_of(installed, name).description or ""
    assert len(description) > 1000
    assert re.findall(r"\]\((?!https://)[^)]*\)", description) == []


def test_without_an_address_links_are_words_and_pictures_go() -> None:
    text = wheels.for_elsewhere(README, ".", "")
    assert text == "# A title\n\nWords.\n\nA page, below, [elsewhere](https://other.example/x) and `code`.\n"
    assert wheels.with_address("[project]\nname = 'x'\n", "") == "[project]\nname = 'x'\n"


def test_with_an_address_they_lead_there() -> None:
    text = wheels.for_elsewhere(README.replace("docs/page", "../docs/page"), "ipu_model", ADDRESS)
    assert f"![A curve]({ADDRESS}/raw/HEAD/ipu_model/docs/curve.png)" in text
    assert f"[A page]({ADDRESS}/blob/HEAD/docs/page.md#part), below, [elsewhere](https://other.example/x)" in text
    assert f'urls = {{ Source = "{ADDRESS}"' in wheels.with_address("[project]\nname = 'x'\n", ADDRESS)
