"""`python -m ipu_model` models functions of programs, and explains what it cannot model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from modelling_support import Chain, quiet

import poptorch

PROGRAM = Path(__file__).with_name("command_programs.py")


class TestFunctions:
    def test_a_training_program(self, run) -> None:
        code, out, err = run("report", f"{PROGRAM}:training")
        assert (code, err) == (0, "")
        assert out.startswith("training: training, modelled with 2 IPUs a replica")

    def test_arguments_by_name_and_one_micro_batch(self, run) -> None:
        """100 device iterations of two samples."""
        code, out, _ = run("report", f"{PROGRAM}:inference")
        assert code == 0
        assert "200 samples" in out

    def test_a_compiled_model(self, run) -> None:
        code, out, _ = run("report", f"{PROGRAM}:executor")
        assert code == 0
        assert out.startswith("inference: inference")

    def test_a_module_by_its_name(self) -> None:
        """As `python -m` finds it: from the folder that the command runs in."""
        command = [sys.executable, "-m", "ipu_model", "report", "command_programs:inference"]
        done = subprocess.run(command, cwd=PROGRAM.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "200 samples" in done.stdout

    def test_another_machine(self, run) -> None:
        assert "Bow" in run("report", f"{PROGRAM}:training", "--machine", "Bow")[1]

    def test_the_time_of_loading(self, run) -> None:
        """Two samples in each of 100 iterations, a second each, are the bottleneck."""
        _, out, _ = run("report", f"{PROGRAM}:inference", "--seconds-per-sample", "1", "--loading", "async")
        assert "host loader" in out

    def test_the_loader_itself(self, run) -> None:
        code, out, _ = run("report", f"{PROGRAM}:inference", "--loader", f"{PROGRAM}:loader")
        assert code == 0
        assert "measured here: 10 batches of 2 samples" in out

    def test_a_loader_with_other_workers(self, run) -> None:
        """The measured time of a sample stays; who loads it is as asked."""
        loaded = ("report", f"{PROGRAM}:inference", "--loader", f"{PROGRAM}:loader")
        assert " a sample and worker, sync, workers: 0 (measured here" in run(*loaded)[1]
        asked = run(*loaded, "--workers", "3", "--loading", "async")[1]
        assert " a sample and worker, async, workers: 3 (measured here" in asked

    def test_a_file_runs_once(self, run, tmp_path: Path) -> None:
        """For the program and its loader, and for two programs of it."""
        script, runs = tmp_path / "script.py", tmp_path / "runs"
        script.write_text(
            f"with open({str(runs)!r}, 'a') as file:\n    file.write('once ')\n"
            f"import sys\nsys.path.append({str(PROGRAM.parent)!r})\n"
            "from command_programs import executor, inference, loader\n"
        )
        assert run("report", f"{script}:inference", "--loader", f"{script}:loader")[0] == 0
        assert run("compare", f"{script}:inference", f"{script}:executor")[0] == 0
        assert runs.read_text() == "once "

    def test_a_changed_file_runs_again(self, run, tmp_path: Path) -> None:
        script = tmp_path / "again.py"
        for returned, words in (("None", "returned None"), ("7", "returned an int")):
            script.write_text(f"def program():\n    return {returned}\n")
            os.utime(script, ns=(len(words), len(words)))
            assert words in run("report", f"{script}:program")[2]

    def test_two_programs_are_compared(self, run) -> None:
        code, out, _ = run("compare", f"{PROGRAM}:inference", f"{PROGRAM}:executor")
        assert code == 0
        assert "Modelled" in out

    def test_a_page(self, run, tmp_path: Path) -> None:
        page = tmp_path / "page.html"
        assert run("report", f"{PROGRAM}:inference", "--html", page)[0] == 0
        assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


class TestAdvise:
    def test_changes_are_ranked_with_their_lines(self, run) -> None:
        """Two samples a call keep the host busy: its loader and the number of calls are what helps."""
        code, out, err = run("advise", f"{PROGRAM}:inference", "--seconds-per-sample", "1e-4")
        assert (code, err) == (0, "")
        assert out.startswith("inference: inference, modelled with 1 IPU")
        assert "\n1. loader workers" in out
        assert "num_workers=4" in out
        factors = [float(each) for each in re.findall(r"x ([0-9.]+) samples/s", out)]
        assert factors == sorted(factors, reverse=True)

    def test_a_page_shows_them_too(self, run, tmp_path: Path) -> None:
        page = tmp_path / "page.html"
        assert run("advise", f"{PROGRAM}:inference", "--html", page)[0] == 0
        assert "device iterations" in page.read_text(encoding="utf-8")


class TestReports:
    """The folder that profiling has left holds the program, so that the commands can model it again."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        above = tmp_path / "reports"
        options = quiet().enableProfiling(str(above)).deviceIterations(4).modelName("net")
        poptorch.inferenceModel(Chain(1), options).compile(torch.zeros(8, 8))
        return above / "net"

    def test_on_another_machine(self, run, folder: Path) -> None:
        assert "GC200" in run("report", folder)[1]
        assert "Bow" in run("report", folder, "--machine", "Bow")[1]

    def test_with_a_loader(self, run, folder: Path) -> None:
        assert "host loader" in run("report", folder, "--seconds-per-sample", "1", "--loading", "async")[1]

    def test_advice(self, run, folder: Path) -> None:
        code, out, _ = run("advise", folder)
        assert code == 0
        assert "device iterations: 4 -> " in out

    def test_results_alone_can_be_read_but_not_changed(self, run, folder: Path) -> None:
        alone = folder / "profile.json"
        (folder / "program.ipu").unlink()
        assert run("report", alone)[0] == 0
        for command in (("advise", alone), ("report", alone, "--machine", "Bow")):
            code, _, err = run(*command)
            assert code == 2
            assert "holds only results" in err
            assert "program.py:function" in err

    @pytest.mark.parametrize("keep", [0, 10, 200])
    def test_a_damaged_program_stops_only_what_needs_it(self, run, folder: Path, keep: int) -> None:
        file = folder / "program.ipu"
        file.write_bytes(file.read_bytes()[:keep])
        assert run("report", folder)[0] == 0
        code, _, err = run("advise", folder)
        assert code == 2
        assert err.count("\n") == 1
        assert f"{file}: " in err
        assert "again" in err

    @pytest.mark.parametrize("command", ["report", "advise"])
    def test_the_program_file_alone(self, run, folder: Path, command: str) -> None:
        (folder / "profile.json").unlink()
        code, out, _ = run(command, folder / "program.ipu")
        assert code == 0
        assert out.startswith("net: inference, modelled with 1 IPU a replica")

    @pytest.mark.parametrize("command", ["report", "advise", "fit"])
    def test_a_folder_without_a_report(self, run, folder: Path, command: str) -> None:
        """It names the report that lies deeper, and what writes one."""
        above = folder.parent.parent
        code, _, err = run(command, above)
        assert code == 2
        assert f"{above} holds no report: there is no profile.json in it." in err
        assert f"There is a report in {folder}." in err
        assert "POPLAR_ENGINE_OPTIONS=" in err

    @pytest.mark.parametrize("name", ["report.html", "trace.json"])
    def test_a_file_for_readers_names_its_folder(self, run, folder: Path, name: str) -> None:
        code, _, err = run("report", folder / name)
        assert code == 2
        assert err.endswith(f"{folder / name} holds no program. Name the folder of its report instead: {folder}.\n")

    def test_a_misspelt_folder(self, run, folder: Path) -> None:
        code, _, err = run("report", folder.with_name("nte"))
        assert code == 2
        assert f"Did you mean {folder}?" in err


class TestErrors:
    """One line that says what was asked for, what is wrong with it and what would work; exit code 2."""

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("missing.py:build", "missing.py cannot be read: there is no such file"),
            ("no_such_module:build", "no_such_module cannot be imported: ModuleNotFoundError"),
            (PROGRAM, f"Name the function in it that returns what to model: {PROGRAM}:training."),
            (f"{PROGRAM}:", f"Name the function in it that returns what to model: {PROGRAM}:training."),
            (f"{PROGRAM}:Wide.forward", "Functions without arguments there: training, inference, executor"),
            (f"{PROGRAM}:trainng", "has no function 'trainng'. It has training, inference"),
            (f"{PROGRAM}:with_arguments", "needs arguments (size)"),
            (f"{PROGRAM}:failing", "failed: KeyError: 'weights.pt' (line"),
            (
                f"{PROGRAM}:nothing",
                "returned None. The function takes no arguments and returns (module, inputs, options)",
            ),
            (f"{PROGRAM}:two_values", "returned 2 values. The function takes no arguments"),
            (f"{PROGRAM}:misspelt", "lacks inputs. Its names are model, inputs, options"),
            (f"{PROGRAM}:other_options", "takes poptorch.Options() as options, not a dict"),
            (f"{PROGRAM}:branching", "The model branches on data"),
            (f"{PROGRAM}:rows_left_over", "say micro_batch=True"),
            (f"{PROGRAM}:wrong_width", "the module failed: RuntimeError"),
            (f"{PROGRAM}:wrong_width", "of forward in modelling_support.py"),
            (f"{PROGRAM}:optimizer_of_another", "is no parameter of the model. Create the optimizer from"),
        ],
    )
    def test_functions_that_return_no_program(self, run, source: object, message: str) -> None:
        code, out, err = run("report", source)
        assert (code, out) == (2, "")
        assert message in err
        assert err.startswith("python -m ipu_model report: error: ")
        assert err.count("\n") == 1

    def test_only_functions_that_return_something_are_suggested(self, run, tmp_path: Path) -> None:
        """And the script does not run for that."""
        script = tmp_path / "script.py"
        script.write_text(
            "def main():\n    print(1)\n\ndef sized(n):\n    return n\n\ndef program(n=1):\n    return n\n\n1 / 0\n"
        )
        assert "Functions without arguments there: program. Or run it with" in run("report", script)[2]

    def test_of_many_functions_the_nearest_is_named(self, run) -> None:
        err = run("report", "torch:compille")[2]
        assert "functions. Did you mean compile?" in err

    def test_a_script_without_a_guard(self, run, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text("import sys\nsys.exit(3)\n")
        code, _, err = run("report", f"{script}:build")
        assert code == 2
        assert "it ended the process; put what a script does under `if __name__ == '__main__':`" in err

    @pytest.mark.parametrize("text", ["def build(:\n", "import nowhere_at_all\n", "1 / 0\n"])
    def test_a_file_that_python_refuses(self, run, tmp_path: Path, text: str) -> None:
        script = tmp_path / "script.py"
        script.write_text(text)
        code, _, err = run("report", f"{script}:build")
        assert code == 2
        assert f"{script} cannot be imported: " in err
        assert "frozen importlib" not in err  # Python's own lines tell a user nothing
        assert err.count("\n") == 1

    def test_loading_without_a_time(self, run) -> None:
        code, _, err = run("report", f"{PROGRAM}:inference", "--workers", "4")
        assert code == 2
        assert "--loading and --workers need to know how long a sample takes" in err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--workers", "two"), "--workers: it takes a whole number from 0 on, such as 4, not 'two'"),
            (("--workers", "-3"), "--workers: it takes a whole number from 0 on, such as 0, not '-3'"),
            (("--seconds-per-sample", "1ms"), "it takes a number of seconds from 0 on, such as 0.001 for a"),
            (("--seconds-per-sample", "nan"), "it takes a number of seconds from 0 on, such as 0.001 for a"),
            (("--seconds-per-sample", "-1"), "it takes a number of seconds from 0 on, such as 0, not '-1'"),
            (("--loading", "asnyc"), "it takes one of sync, async, not 'asnyc'. Did you mean async?"),
            (("--ipus", "2.4"), "--ipus: it takes a whole number from 1 on, such as 2, not '2.4'"),
            (("--ipus", "0"), "--ipus: it takes a whole number from 1 on, such as 1, not '0'"),
            (("--keep", "precison"), "machine, not 'precison'. Did you mean precision?"),
        ],
    )
    def test_values_of_options_name_their_rule_and_what_works(
        self, run, options: tuple[str, ...], message: str
    ) -> None:
        code, _, err = run("fit", "nowhere", *options)
        assert code == 2
        assert message in err

    @pytest.mark.parametrize("command", ["report", "advise", "fit", "compare"])
    @pytest.mark.parametrize("page", ["", "missing/page.html", None])
    def test_a_page_is_refused_before_the_program_runs(
        self, run, tmp_path: Path, command: str, page: str | None
    ) -> None:
        script = tmp_path / "script.py"
        script.write_text("raise AssertionError('it ran')\n")
        sources = [f"{script}:program"] * (2 if command == "compare" else 1)
        code, out, err = run(command, *sources, *(["--open"] if page is None else ["--html", tmp_path / page]))
        assert (code, out) == (2, "")
        assert {"": "is a folder", "missing/page.html": "there is no folder", None: "no page to open"}[page] in err

    def test_a_machine_that_is_too_small(self, run) -> None:
        code, _, err = run("report", f"{PROGRAM}:training", "--machine", "M3000")
        assert code == 2
        assert "M3000" in err
