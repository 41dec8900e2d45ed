"""The doctor on Jupyter: the kernel that notebooks name, and the widgets' extension."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import NoSuchKernel
from packaging.requirements import Requirement

from ipu_course.programs.doctor.examination import CHECKS
from ipu_course.programs.doctor.finding import Severity
from ipu_course.programs.doctor.jupyter import WIDGETS_EXTENSION, check_kernel, judge_kernel, judge_lab

HERE = Path(sys.executable)
# What ipywidgets 8.1.9's metadata say.
ASKED = [
    Requirement(text)
    for text in ("jupyterlab", "ipywidgets", "widgetsnbextension~=4.0.16", "jupyterlab_widgets~=3.0.17")
]
VERSIONS: dict[str, str | None] = {
    "jupyterlab": "4.6.6",
    "ipywidgets": "8.1.9",
    "jupyterlab_widgets": "3.0.17",
    "widgetsnbextension": "4.0.16",
}
ENVIRONMENT = Path("/env")
EXTENSION = ENVIRONMENT / "share/jupyter/labextensions" / WIDGETS_EXTENSION


# --- kernel


@pytest.mark.parametrize("python", [sys.executable, "python", "python3"])
def test_a_kernel_of_this_python(python: str) -> None:
    """jupyter_client replaces a bare `python` by its own."""
    assert judge_kernel(python, Path("/env/k"), HERE).verdict is Severity.OK


def test_a_kernel_of_another_environment_is_a_notice_with_a_cure(tmp_path: Path) -> None:
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.symlink_to(sys.executable)  # as in a virtual environment made by the same Python
    finding = judge_kernel(str(other), Path("/home/k/python3"), HERE)
    assert finding.verdict is Severity.NOTICE
    assert "rm -r '/home/k/python3'" in finding.cure


def test_a_kernel_whose_python_is_gone() -> None:
    assert judge_kernel("/gone/bin/python", Path("/home/k"), HERE).verdict is Severity.PROBLEM


def test_no_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_client.kernelspec.KernelSpecManager.get_kernel_spec", no_such_kernel)
    finding = check_kernel()
    assert (finding.verdict, finding.what) == (Severity.PROBLEM, "There is no kernel called python3.")


def no_such_kernel(manager: object, name: str) -> None:
    raise NoSuchKernel(name)


def test_a_kernel_registered_in_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ipykernel install --user`, run once in another environment, leaves such a file."""
    spec = tmp_path / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/usr/bin/env", "x"], "display_name": "x", "language": "python"}))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    finding = check_kernel()
    assert finding.verdict is Severity.NOTICE
    assert str(spec.parent) in finding.what
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    assert check_kernel().verdict is Severity.OK


# --- JupyterLab and widgets


def test_everything_fits() -> None:
    assert judge_lab(ASKED, EXTENSION, ENVIRONMENT, VERSIONS.get).verdict is Severity.OK


@pytest.mark.parametrize("name", ["jupyterlab", "ipywidgets"])
def test_a_package_is_missing(name: str) -> None:
    finding = judge_lab(ASKED, EXTENSION, ENVIRONMENT, {**VERSIONS, name: None}.get)
    assert finding.verdict is Severity.PROBLEM
    assert finding.what.endswith(f": {name} is missing.")


@pytest.mark.parametrize("version", ["1.1.11", "4.0.0", None])
def test_an_extension_of_another_version(version: str | None) -> None:
    finding = judge_lab(ASKED, EXTENSION, ENVIRONMENT, {**VERSIONS, "jupyterlab_widgets": version}.get)
    assert finding.verdict is Severity.PROBLEM
    assert "(~=3.0.17 is needed)" in finding.what


def test_a_missing_extension() -> None:
    assert judge_lab(ASKED, None, ENVIRONMENT, VERSIONS.get).verdict is Severity.PROBLEM


def test_a_copy_of_the_extension_in_the_home_folder() -> None:
    finding = judge_lab(ASKED, Path("/home/k/labextensions") / WIDGETS_EXTENSION, ENVIRONMENT, VERSIONS.get)
    assert finding.verdict is Severity.NOTICE


def test_this_environment_has_both() -> None:
    assert dict(CHECKS)["JupyterLab and widgets"]().verdict is Severity.OK
