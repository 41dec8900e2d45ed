"""The tool that runs PopTorch's own tests, tried on a folder of tests in their style and on tests that misbehave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from upstream_tests.__main__ import main
from upstream_tests.expected import Expected, compare, read, write
from upstream_tests.outcomes import Kind, Outcome
from upstream_tests.rules import rules_of
from upstream_tests.run import Settings, files_below, run, run_file

STYLE = Path(__file__).parent / "upstream_style"
NAME = "some_test.py"


def outcomes_of(folder: Path, source: str, *, patience: float = 60.0) -> dict[str, tuple[Kind, str]]:
    """Return what comes of the tests of one file, by their names in it."""
    (folder / NAME).write_text(source, encoding="utf-8")
    found = run_file(Settings(folder, patience), folder / NAME)
    return {outcome.test.removeprefix(f"{NAME}::"): (outcome.kind, outcome.line) for outcome in found}


class TestStyle:
    """Wording that programs and tests rely on (executor, options and execution references), checked by the tool."""

    @pytest.mark.slow
    def test_tests_in_the_style_of_poptorchs_own_pass(self, tmp_path: Path) -> None:
        (tmp_path / "listed.csv").write_text("test,failure,reason\n", encoding="utf-8")
        before = sorted(path.relative_to(STYLE) for path in STYLE.rglob("*"))
        environment = {**os.environ, "POPTORCH_LOG_LEVEL": "OFF"}  # a setting of the shell changes nothing
        done = subprocess.run(
            [sys.executable, "-m", "upstream_tests", str(STYLE), "--expected", "listed.csv", "--workers", "1"],
            cwd=tmp_path, env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True,
            text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "22 of 22 tests pass" in done.stdout
        assert "1 left out: needs a native build." in done.stdout
        assert sorted(path.relative_to(STYLE) for path in STYLE.rglob("*")) == before, "the folder is only read"


class TestRuns:
    def test_each_test_has_an_outcome_and_a_failure_its_first_line(self, tmp_path: Path) -> None:
        found = outcomes_of(
            tmp_path,
            "import pytest\n"
            "@pytest.mark.parametrize('n', [1, 2])\n"
            "def test_n(n):\n    assert n == 1, f'not one\\nbut {n}'\n"
            "def test_skips():\n    pytest.skip('no such thing')\n"
            "@pytest.mark.xfail\ndef test_known():\n    assert False\n"
            "@pytest.fixture\ndef broken():\n    raise ValueError(object())\n"
            "def test_setup(broken):\n    pass\n"
            "@pytest.mark.their_own_marker\ndef test_marked():\n    pass\n",
        )
        assert found.pop("test_n[2]")[1].startswith("AssertionError: not one")
        assert found.pop("test_setup") == (Kind.FAILED, "ValueError: <object object at 0x...>")
        assert found == {
            "test_n[1]": (Kind.PASSED, ""),
            "test_skips": (Kind.SKIPPED, "Skipped: no such thing"),
            "test_known": (Kind.PASSED, ""),
            "test_marked": (Kind.PASSED, ""),
        }

    @pytest.mark.slow
    def test_a_crash_or_a_hang_costs_one_test(self, tmp_path: Path) -> None:
        found = outcomes_of(
            tmp_path,
            "import os, signal, time\n"
            "def test_first():\n    pass\n"
            "def test_crashes():\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
            "def test_leaves():\n    os._exit(7)\n"
            "def test_hangs():\n    time.sleep(600)\n"
            "def test_last():\n    pass\n",
            patience=4.0,
        )
        assert found["test_crashes"] == (Kind.FAILED, "the process was ended by SIGSEGV")
        assert found["test_leaves"][1].startswith("pytest ended with exit code 7")
        assert found["test_hangs"] == (Kind.FAILED, "did not end within 4 s")
        assert found["test_first"] == found["test_last"] == (Kind.PASSED, "")
        assert len(found) == 5

    def test_an_interrupt_ends_the_processes(self, tmp_path: Path) -> None:
        (tmp_path / NAME).write_text(
            "import os, pathlib, time\n"
            f"def test_waits():\n    pathlib.Path({str(tmp_path)!r}, 'id').write_text(str(os.getpid()))\n"
            "    time.sleep(600)\n",
            encoding="utf-8",
        )
        other = tmp_path / "a_test.py"
        other.write_text("def test_first():\n    pass\n", encoding="utf-8")
        runs = run(Settings(tmp_path, workers=2), [other, tmp_path / NAME])
        assert [outcome.kind for outcome in next(runs)] == [Kind.PASSED]
        while not (tmp_path / "id").exists() or not (tmp_path / "id").read_text():
            time.sleep(0.05)
        runs.close()  # what becomes of a generator whose loop was interrupted
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "id").read_text()), 0)

    def test_a_file_that_cannot_be_imported_is_one_failure(self, tmp_path: Path) -> None:
        assert outcomes_of(tmp_path, "import poptorch._no_such_part\n") == {
            NAME: (Kind.FAILED, "ModuleNotFoundError: No module named 'poptorch._no_such_part'")
        }

    def test_a_conftest_that_breaks_is_a_failure_too(self, tmp_path: Path) -> None:
        (tmp_path / "conftest.py").write_text("raise RuntimeError('no build folder')\n", encoding="utf-8")
        ((kind, line),) = outcomes_of(tmp_path, "def test_any():\n    pass\n").values()
        assert kind is Kind.FAILED
        assert line.startswith("pytest ended with exit code 4")

    def test_their_helpers_and_conftest_are_used_and_files_are_written_elsewhere(self, tmp_path: Path) -> None:
        (tmp_path / "helpers.py").write_text("VALUE = 5\n", encoding="utf-8")
        (tmp_path / "conftest.py").write_text(
            "import pytest\n@pytest.fixture\ndef value():\n    import helpers\n    return helpers.VALUE\n",
            encoding="utf-8",
        )
        found = outcomes_of(tmp_path, "def test_value(value):\n    open('log', 'w').close()\n    assert value == 5\n")
        assert found == {"test_value": (Kind.PASSED, "")}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["conftest.py", "helpers.py", NAME]

    def test_installed_plugins_decide_nothing(self, tmp_path: Path) -> None:
        """pytest-xdist is installed here (pyproject.toml), and would bring the fixture."""
        ((kind, line),) = outcomes_of(tmp_path, "def test_any(worker_id):\n    pass\n").values()
        assert kind is Kind.FAILED
        assert "worker_id" in line

    def test_files_are_found_by_pytests_two_forms_of_names(self, tmp_path: Path) -> None:
        for name in ("a_test.py", "sub/test_b.py", "helpers.py", ".git/c_test.py"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        found = [path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path)]
        assert found == ["a_test.py", "sub/test_b.py"]


class TestRules:
    def test_a_function_that_loads_a_library_and_all_that_use_it_need_a_build(self) -> None:
        rules = rules_of(
            "import ctypes\n"
            "def load():\n    ctypes.cdll.LoadLibrary('libcube.so')\n"
            "def cube():\n    return load()\n"
            "def test_cube():\n    cube()\n"
            "def test_other():\n    pass\n"
        )
        assert rules.reason("test_cube", []) == "needs a native build"
        assert rules.reason("test_other", []) is None

    def test_a_file_that_loads_a_library_itself_needs_a_build(self) -> None:
        assert rules_of("import ctypes\nctypes.cdll.LoadLibrary('x')\n").reason("test_any", []) == (
            "needs a native build"
        )

    def test_a_marker_asks_for_hardware(self) -> None:
        assert rules_of("").reason("test_any", ["ipuHardwareRequired", "parametrize"]) == "needs hardware"

    def test_graph_networks_need_their_package(self) -> None:
        reason = rules_of("import poptorch_geometric\n").reason("test_any", [])
        assert reason == "needs poptorch_geometric"

    def test_parts_of_poptorch_are_never_optional(self) -> None:
        assert rules_of("from poptorch import _anything\n").reason("test_any", []) is None


class TestList:
    def test_it_survives_writing_and_reading(self, tmp_path: Path) -> None:
        entries = [Expected("b::test[x,y]", 'said "no"', "because"), Expected("a::test", "KeyError: 'x'")]
        write(tmp_path / "list.csv", entries)
        assert read(tmp_path / "list.csv") == {entry.test: entry for entry in entries}
        assert (tmp_path / "list.csv").read_text().splitlines()[1] == "a::test,KeyError: 'x',"

    def test_another_table_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "list.csv").write_text("name,why\n", encoding="utf-8")
        with pytest.raises(ValueError, match="first line must be test,failure,reason"):
            read(tmp_path / "list.csv")

    def test_what_differs_from_it(self) -> None:
        known = {name: Expected(name, "no", "newer torch") for name in ("fails", "passes", "changed", "not run")}
        known["open"] = Expected("open", "no")
        ran = [Outcome(name, Kind.FAILED, "no") for name in ("fails", "new", "open")]
        ran += [Outcome("passes", Kind.PASSED), Outcome("changed", Kind.FAILED, "other"), Outcome("x", Kind.SKIPPED)]
        found = compare(ran, known)
        assert [outcome.test for outcome in found.new] == ["new"]
        assert [entry.test for entry in found.passing] == ["passes"]
        assert [entry.test for entry in found.without_reason] == ["open"]
        assert [(entry.test, outcome.line) for entry, outcome in found.otherwise] == [("changed", "other")]
        assert not found.as_expected
        assert compare(ran[:1], {"fails": known["fails"], "not run": known["not run"]}).as_expected


@pytest.mark.slow
def test_a_maintainer_writes_and_updates_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first run writes it, the second asks for reasons, the third is content; then something changes."""
    tests, listed = tmp_path / "tests", tmp_path / "list.csv"
    tests.mkdir()
    source = "def test_a():\n    assert 'a' == 'b'\ndef test_b():\n    pass\n"
    (tests / NAME).write_text(source, encoding="utf-8")
    command = [str(tests), "--expected", str(listed)]

    assert main(command) == 0
    assert "lists 1 expected failures; 1 of them need a reason" in capsys.readouterr().out
    assert main(command) == 1
    assert "1 listed without a reason:\n  some_test.py::test_a\n" in capsys.readouterr().out
    listed.write_text(listed.read_text().rstrip("\n") + "strings differ\n", encoding="utf-8")
    assert main(command) == 0
    assert "Everything is as" in capsys.readouterr().out

    (tests / NAME).write_text(source.replace("pass", "raise OSError('full')"), encoding="utf-8")
    assert main(command) == 1
    assert "1 new failures:\n  some_test.py::test_b\n      OSError: full\n" in capsys.readouterr().out
    assert main([*command, "--update"]) == 0
    assert [(entry.test, entry.reason) for entry in read(listed).values()] == [
        ("some_test.py::test_a", "strings differ"), ("some_test.py::test_b", ""),
    ]  # fmt: skip

    (tests / NAME).write_text("def test_a():\n    pass\n", encoding="utf-8")
    assert main(command) == 1
    assert "1 listed as failing, but passing:\n  some_test.py::test_a" in capsys.readouterr().out


def test_a_folder_without_tests_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "No test files" in capsys.readouterr().err
