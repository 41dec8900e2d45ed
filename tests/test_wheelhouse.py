"""A wheelhouse is complete when the wheels in it ask for nothing that is not in it, on the learners' machines."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import bootstrap
import pytest
import wheelhouse
from packaging.requirements import Requirement
from setup_errors import SetupError, explain
from wheel_closure import missing, requirements_of, wheels_in
from wheel_targets import PLATFORMS, Target, target_of

LINUX, MAC = target_of("linux-x86_64", "3.12"), target_of("macos-arm64", "3.12")
ANY = "py3-none-any"
TORCH_FOR_LINUX = "cp312-cp312-manylinux_2_28_x86_64"


def add_wheel(folder: Path, name: str, version: str, *asks: str, tag: str = ANY) -> Path:
    """Make a wheel that holds nothing but its metadata."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {ask}" for ask in asks),
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(metadata) + "\n\n")
        archive.writestr(f"{name}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
    return path


def lacking(folder: Path, *roots: str, target: Target = LINUX) -> list[str]:
    found = missing([Requirement(root) for root in roots], wheels_in(folder, target), target)
    return sorted(str(each) for each in found)


# --- what is missing


def test_what_wheels_ask_for_is_followed(tmp_path: Path) -> None:
    assert lacking(tmp_path, "a==1") == ["a==1"]
    add_wheel(tmp_path, "a", "1", "b>=2")
    assert lacking(tmp_path, "a==1") == ["b>=2"]
    add_wheel(tmp_path, "b", "2", "a")  # a circle ends
    assert lacking(tmp_path, "a==1") == []


def test_another_version_does_not_do(tmp_path: Path) -> None:
    add_wheel(tmp_path, "a", "2")
    assert lacking(tmp_path, "a==1") == ["a==1"]


def test_torchs_cuda_packages_are_followed_on_linux_only(tmp_path: Path) -> None:
    """They are not in requirements.txt; torch names them with a marker, and some as an extra of a bundle."""
    asks = 'cuda-toolkit[cudart]==13.0.2; platform_system == "Linux"'
    add_wheel(tmp_path, "torch", "2.12.1", asks, tag=TORCH_FOR_LINUX)
    add_wheel(tmp_path, "torch", "2.12.1", asks, tag="cp312-cp312-macosx_14_0_arm64")
    assert lacking(tmp_path, "torch==2.12.1", target=MAC) == []
    assert lacking(tmp_path, "torch==2.12.1") == [str(Requirement(asks))]
    runtime = "nvidia-cuda-runtime==13.0.*; extra == 'cudart'"
    add_wheel(tmp_path, "cuda_toolkit", "13.0.2", runtime, "nvidia-cufft; extra == 'cufft'")
    assert [each.split("=")[0] for each in lacking(tmp_path, "torch==2.12.1")] == ["nvidia-cuda-runtime"]


def test_a_cpu_only_torch_asks_for_no_cuda_package(tmp_path: Path) -> None:
    add_wheel(tmp_path, "torch", "2.12.1", "cuda-toolkit==13.0.2", tag=TORCH_FOR_LINUX)
    add_wheel(tmp_path, "torch", "2.12.1+cpu", tag=TORCH_FOR_LINUX)
    assert lacking(tmp_path, "torch==2.12.1") == []


def test_two_who_ask_for_one_package_get_one_that_suits_both(tmp_path: Path) -> None:
    add_wheel(tmp_path, "a", "1", "shared")
    add_wheel(tmp_path, "b", "1", "shared==13.0.*")
    assert lacking(tmp_path, "a==1", "b==1") == ["shared==13.0.*"]


def test_wheels_for_other_machines_do_not_count(tmp_path: Path) -> None:
    add_wheel(tmp_path, "a", "1", tag="cp311-cp311-manylinux_2_28_x86_64")
    add_wheel(tmp_path, "a", "1", tag="cp312-cp312-macosx_11_0_arm64")
    assert lacking(tmp_path, "a==1") == ["a==1"]
    assert lacking(tmp_path, "a==1", target=MAC) == []
    add_wheel(tmp_path, "a", "1", tag="cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64")
    assert lacking(tmp_path, "a==1") == []


def test_a_damaged_wheel_is_named(tmp_path: Path) -> None:
    path = add_wheel(tmp_path, "a", "1")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SetupError, match=r"a-1-py3-none-any\.whl is damaged"):
        requirements_of(wheels_in(tmp_path, LINUX)[0])


# --- targets


def test_markers_are_those_of_the_target(project: Path) -> None:
    text = (project / "requirements.txt").read_text(encoding="utf-8")
    names = {
        target.name: {each.name for each in wheelhouse.pins(text) if target.applies(each)}
        for target in (LINUX, MAC, target_of("linux-aarch64", "3.10"))
    }
    linux, mac, old = names.values()
    assert mac - linux == {"appnope"}
    assert "tomli" in old - linux
    assert {"torch", "setuptools", "jupyterlab"} <= linux & mac & old


def test_one_version_of_each_package_for_every_target(project: Path) -> None:
    pins = wheelhouse.pins((project / "requirements.txt").read_text(encoding="utf-8"))
    for platform in PLATFORMS:
        for minor in range(10, 15):
            target = target_of(platform, f"3.{minor}")
            names = [each.name for each in pins if target.applies(each)]
            assert len(names) == len(set(names)), target.name


def test_this_machine_needs_no_options_and_another_names_its_tags() -> None:
    assert target_of(None, None).pip_options() == []
    options = LINUX.pip_options()
    assert options[:4] == ["--python-version", "3.12", "--implementation", "cp"]
    assert "--platform=manylinux_2_28_x86_64" in options
    assert "--platform=macosx_14_0_arm64" in MAC.pip_options()


@pytest.mark.parametrize("version", ["3.9", "3.15", "312", "3.12.1"])
def test_an_unsupported_python_is_refused(version: str) -> None:
    with pytest.raises(SetupError, match=r"3\.10 to 3\.14, written like 3\.12"):
        target_of(None, version)


# --- filling


def test_filling_goes_on_until_nothing_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def fetch(requirements: list[Requirement], folder: Path, target: Target) -> None:
        asked.append(sorted(each.name for each in requirements))
        for each in requirements:
            add_wheel(folder, each.name, "1", *(["c"] if each.name == "a" else []))

    monkeypatch.setattr(wheelhouse, "download", fetch)
    roots = [Requirement("a==1"), Requirement("b==1"), Requirement("d==1; sys_platform == 'win32'")]
    assert wheelhouse.fill(tmp_path / "house", roots, LINUX) == 3
    assert asked == [["a", "b"], ["c"]]
    assert wheelhouse.fill(tmp_path / "house", roots, LINUX) == 3
    assert len(asked) == 2  # a second run fetches nothing


def test_a_download_that_brings_nothing_that_fits_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheelhouse, "download", lambda requirements, folder, target: None)
    with pytest.raises(SetupError, match=r"no wheel that fits Python 3\.12 on linux-x86_64 for a==1"):
        wheelhouse.fill(tmp_path, [Requirement("a==1")], LINUX)


# --- installing from it


def test_pip_looks_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_wheel(tmp_path / "my wheels", "a", "1")
    monkeypatch.setenv("WHEELHOUSE", "my wheels")
    folder = bootstrap.chosen_wheelhouse(tmp_path)
    assert folder == tmp_path / "my wheels"
    assert bootstrap.pip_sources(folder) == ["--no-index", "--find-links", str(tmp_path / "my wheels")]


@pytest.mark.parametrize("value", ["", " "])
def test_without_a_wheelhouse_pip_looks_where_it_always_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("WHEELHOUSE", value)
    assert bootstrap.chosen_wheelhouse(tmp_path) is None
    assert bootstrap.pip_sources(None) == []


def test_an_empty_wheelhouse_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHEELHOUSE", str(tmp_path))
    with pytest.raises(SetupError, match="`make wheelhouse` fills a folder"):
        bootstrap.bring_up_to_date(bootstrap.ROOT, tmp_path / ".venv")
    assert not (tmp_path / ".venv").exists()


def test_a_wheel_that_is_missing_is_named_with_what_to_do() -> None:
    said = "$ /x/python -m pip install --no-index --find-links /w a\nERROR: No matching distribution found for a==1"
    error = explain(said, 1)
    assert "the wheelhouse has no a==1 for Python 3." in str(error)
    assert error.nothing_changed


def test_a_real_pip_installs_from_it_with_a_dead_index(tmp_path: Path) -> None:
    """The index is a port on this machine where nothing listens."""
    add_wheel(tmp_path / "wheels", "course_test_a", "1", "course-test-b")
    add_wheel(tmp_path / "wheels", "course_test_b", "1")
    sources = bootstrap.pip_sources(tmp_path / "wheels")
    command = [sys.executable, "-m", "pip", "download", *sources, "--dest", str(tmp_path / "out"), "course-test-a"]
    environment = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": "/dev/null"}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert len(list((tmp_path / "out").glob("*.whl"))) == 2
