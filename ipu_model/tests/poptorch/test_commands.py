"""`python -m ipu_model`: what each command does with reports and with functions of programs, and what it refuses."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command_programs import wide
from executor_support import quiet
from modelling_support import Chain

import ipu_model
import poptorch
from ipu_model import commands
from ipu_model.predict.hardware import known_hardware
from ipu_model.report.page import html_report
from ipu_model.sources import said_if_slow

PROGRAM = Path(__file__).with_name("command_programs.py")


def run(*arguments: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = commands.main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = int(str(stopped.code))
    return code, out.getvalue(), err.getvalue()


def of(function: str) -> str:
    return f"{PROGRAM}:{function}"


def printed(*arguments: object) -> str:
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    return out


def refused(*arguments: object) -> str:
    """Return the line that says what was asked for, what is wrong with it and what would work."""
    code, out, err = run(*arguments)
    *usage, line = err.splitlines(keepends=True)
    assert (code, out, not usage or usage[0].startswith("usage: ")) == (2, "", True)
    assert line.startswith(f"python -m ipu_model {arguments[0]}: error: ")
    return line


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that profiling has left: results, their page and trace, and the program."""
    above = tmp_path_factory.mktemp("run") / "reports"
    profiled = quiet().enableProfiling(str(above)).deviceIterations(4).modelName("net")
    poptorch.inferenceModel(Chain(1), profiled).compile(torch.zeros(8, 8))
    return above / "net"


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "reports" / "net"))


def test_help_waits_for_no_library_and_reports_and_machines_not_for_torch(written: Path) -> None:
    code = f"""import contextlib, sys
from ipu_model.commands import main
with contextlib.suppress(SystemExit):
    main(['--help'])
assert not {{'torch', 'matplotlib', 'numpy'}} & set(sys.modules)
main(['machines'])
assert main(['report', {str(written)!r}]) == 0
assert not {{'torch', 'matplotlib'}} & set(sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("report", "compare", "fit", "advise", "machines"):
        assert f"    {command} " in done.stdout


@pytest.mark.parametrize("command", ["report", "compare", "fit", "advise"])
def test_every_command_about_programs_has_the_same_options_and_an_example(command: str) -> None:
    out = printed(command, "--help")
    for option in ("--machine", "--loader", "--seconds-per-sample", "--loading", "--workers", "--html", "--open"):
        assert option in out
    assert f"example: python -m ipu_model {command} " in out


def test_wrong_usage_is_explained() -> None:
    for arguments in ((), ("dance",), ("report",), ("report", "x", "--html")):
        code, _, err = run(*arguments)
        assert code == 2
        assert err.startswith("usage: python -m ipu_model")


def test_ctrl_c_ends_with_130_and_a_reader_that_goes_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ipu_model.sources.folder_of_source", interrupted)
    assert run("report", "x") == (130, "", "python -m ipu_model report: stopped\n")
    command = [sys.executable, "-m", "ipu_model", "machines"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("terminal", "patience"), [(Terminal(), 0.01), (Terminal(), 1000.0), (io.StringIO(), 0.0)])
def test_only_slow_work_says_so(monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO, patience: float) -> None:
    is_said = terminal.isatty() and patience < 1
    monkeypatch.setattr(sys, "stderr", terminal)
    with said_if_slow("timing the loader", patience=patience):
        deadline = time.monotonic() + (10 if is_said else 0.05)
        while "loader: 0 s" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    said = r"\rtiming the loader: 0 s(.*\r)* +\r" if is_said else ""
    assert re.fullmatch(said, terminal.getvalue())


def test_machines_are_listed_and_their_numbers_have_unit_source_and_confidence() -> None:
    table = printed("machines").split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in table[1:]] == list(known_hardware().systems)
    words = " ".join(printed("machines", "Bow-POD16").split())
    assert "clock_hz 1,850,000,000 Hz (published: MLPerf Training v2.0 system files)" in words
    assert "ipus 16 IPUs (published: IPU-POD16 datasheet: 4 IPU-M2000)" in words
    assert "GC200" not in words
    words = " ".join(printed("machines", "M2000", "Bow-2000").split())
    assert "GC200: 1,330,000,000 Hz" in words
    assert "Bow: 1,850,000,000 Hz" in words
    example = printed("machines", "--help").split("example: python -m ipu_model ")[1]
    assert printed(*example.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["training"], "training: training, modelled with 2 IPUs a replica"),
        (["inference"], "200 samples"),  # arguments by name: 100 device iterations of one micro-batch of two
        (["executor"], "inference: inference"),
        (["training", "--machine", "Bow"], "Bow"),
        (["inference", "--seconds-per-sample", "1", "--loading", "async"], "host loader"),
        (["inference", "--loader", of("loader")], "workers: 0 (measured here: 10 batches of 2 samples"),
        # The measured time of a sample stays; who loads it is as asked.
        (
            ["inference", "--loader", of("loader"), "--workers", "3", "--loading", "async"],
            " a sample and worker, async, workers: 3 (measured here",
        ),
        (["compiled_wide"], "does not fit"),  # a function whose compilation runs out of memory gives its program
    ],
)
def test_a_function_returns_the_program(arguments: list[str], words: str) -> None:
    assert words in printed("report", of(arguments[0]), *arguments[1:])


def test_a_report_is_a_folder_its_profile_or_its_program(folder: Path) -> None:
    out = printed("report", folder)
    assert out.startswith("net: inference, modelled with 1 IPU a replica on M2000 (4 x GC200")
    assert out.splitlines()[-1] == f"page: {folder / 'report.html'}"
    assert printed("report", folder / "profile.json") == out
    assert "Bow" in printed("report", folder, "--machine", "Bow")
    assert "host loader" in printed("report", folder, "--seconds-per-sample", "1", "--loading", "async")
    (folder / "profile.json").unlink()
    for command in ("report", "advise"):
        assert printed(command, folder / "program.ipu").startswith("net: inference, modelled with 1 IPU a replica")


def test_results_alone_can_be_read_but_not_changed(folder: Path) -> None:
    (folder / "program.ipu").unlink()
    (folder / "report.html").unlink()
    assert printed("report", folder / "profile.json").splitlines()[-1].endswith("--html OUT writes one")
    for command in (("advise", folder), ("report", folder, "--machine", "Bow")):
        assert re.search("holds only results.*program.py:function", refused(*command))


def test_a_file_runs_once_until_it_changes(tmp_path: Path) -> None:
    script, runs = tmp_path / "script.py", tmp_path / "runs"
    script.write_text(
        f"with open({str(runs)!r}, 'a') as file:\n    file.write('once ')\n"
        f"import sys\nsys.path.append({str(PROGRAM.parent)!r})\n"
        "from command_programs import executor, inference, loader\n"
    )
    assert run("report", f"{script}:inference", "--loader", f"{script}:loader")[0] == 0
    assert "Modelled end to end, after takes " in printed("compare", f"{script}:inference", f"{script}:executor")
    assert runs.read_text() == "once "
    for returned, words in (("None", "returned None"), ("7", "returned an int")):
        script.write_text(f"def program():\n    return {returned}\n")
        os.utime(script, ns=(len(words), len(words)))
        assert words in run("report", f"{script}:program")[2]


def test_modules_are_found_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_from_here.py").write_text("def program():\n    return 7\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert "found_from_here:program returned an int" in run("report", "found_from_here:program")[2]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["report", of("inference")], "<!DOCTYPE html>"),
        (["advise", of("inference")], "device iterations"),
        (["compare", of("inference"), of("inference")], "after is as fast as before"),
    ],
)
def test_a_page_is_written_and_named(tmp_path: Path, command: list[str], words: str) -> None:
    page = tmp_path / "page.html"
    assert printed(*command, "--html", page).splitlines()[-1] == f"page: {page}"
    assert words in page.read_text(encoding="utf-8")


def test_a_browser_opens_only_when_asked(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(commands, "webbrowser", SimpleNamespace(open=opened.append))
    run("report", written)
    run("report", written, "--open")
    assert opened == [(written / "report.html").as_uri()]


@pytest.mark.parametrize("command", ["report", "advise", "fit", "compare"])
@pytest.mark.parametrize(
    ("page", "words"), [("", "is a folder"), ("missing/page.html", "there is no folder"), (None, "no page to open")]
)
def test_a_page_is_refused_before_the_program_runs(tmp_path: Path, command: str, page: str | None, words: str) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise AssertionError('it ran')\n")
    sources = [f"{script}:program"] * (2 if command == "compare" else 1)
    assert words in refused(command, *sources, *(["--open"] if page is None else ["--html", tmp_path / page]))


def test_changes_are_ranked_with_their_lines(written: Path) -> None:
    """Two samples a call keep the host busy: its loader and the number of calls are what helps."""
    out = printed("advise", of("inference"), "--seconds-per-sample", "1e-4")
    assert out.startswith("inference: inference, modelled with 1 IPU")
    assert "\n1. loader workers" in out
    assert "num_workers=4" in out
    factors = [float(factor) for factor in re.findall(r"x ([0-9.]+) samples/s", out)]
    assert factors == sorted(factors, reverse=True)
    assert "device iterations: 4 -> " in printed("advise", written)
    assert "does not fit" in printed("advise", of("compiled_wide"))


def test_the_page_and_the_words_are_those_of_python_with_advice_for_a_shell(tmp_path: Path) -> None:
    page, given = tmp_path / "fit.html", wide()
    model = given.pop("model")
    result = ipu_model.make_it_fit(model, **given)
    out = printed("fit", of("wide"), "--html", page)
    assert out == f"{result.for_shell()}\npage: {page}\n"
    text = page.read_text(encoding="utf-8")
    assert text == html_report(ipu_model.profile_module(model, **given), fit=result.for_shell())
    for words in ("The fastest", "fullest tile against throughput: ", "model.half()", "that were modelled"):
        assert words in text
    for option, argument in (("--ipus N sets", "ipus=N sets"), ("--keep precision leaves", 'keep="precision" leaves')):
        assert option in out
        assert argument not in out
        assert argument in str(result)


def test_the_folder_of_a_failed_compilation_is_enough(tmp_path: Path) -> None:
    given = wide()
    model = poptorch.trainingModel(given["model"], given["options"].enableProfiling(str(tmp_path)), given["optimizer"])
    with pytest.raises(poptorch.Error, match="python -m ipu_model fit") as refusal:
        model.compile(torch.zeros(64, 5120), torch.zeros(64, 5120))
    command = re.search(r"python -m ipu_model (fit \S+)", refusal.value.message)
    assert command is not None
    out = printed(*command[1].split())
    assert "does not fit" in out.splitlines()[0]
    assert "programs modelled" in out
    assert "free, without other micro-batches (python -m ipu_model fit program.py:function tries them): " in out
    assert ipu_model.make_it_fit(model, progress=False).found


def test_an_impossible_request_names_the_nearest_and_ends_with_1() -> None:
    """One IPU in float32 has no room for twice its memory in weights alone."""
    code, out, _ = run("fit", of("wide"), "--ipus", "1", "--keep", "precision", "--keep", "optimiser")
    assert code == commands.NOTHING_FITS == 1
    limits = "at most 1 IPU, optimiser stays, precision stays"
    assert f"Nothing fits with 5 % of the fullest tile free within the limits that you set ({limits})" in out
    assert "The nearest: " in out


MISTAKES: list[tuple[list[object], str]] = [
    (["report", "missing.py:build"], "missing.py cannot be read: there is no such file"),
    (["report", "no_such_module:build"], "no_such_module cannot be imported: ModuleNotFoundError"),
    (["report", PROGRAM], f"Name the function in it that returns what to model: {PROGRAM}:training."),
    (["report", of("")], f"Name the function in it that returns what to model: {PROGRAM}:training."),
    (["report", of("Chain.forward")], "Functions without arguments there: training, inference, executor"),
    (["report", of("trainng")], "has no function 'trainng'. It has training, inference"),
    (["report", "torch:compille"], "Did you mean compile?"),
    (["report", of("with_arguments")], "needs arguments (size)"),
    (["report", of("inference"), "--workers", "4"], "--loading and --workers need to know how long a sample takes"),
    (["report", of("inference"), "--loader", PROGRAM], "--loader takes a function that returns a loader"),
    (["report", of("inference"), "--machine", "M3000"], "There is no machine 'M3000'"),
    (["fit", of("inference"), "--machine", "M3000"], "There is no machine 'M3000'"),
    (["machines", "M3000"], "There is no machine 'M3000'. Systems: M2000, POD4, POD16"),
    (["fit", "no", "--workers", "two"], "--workers: it takes a whole number from 0 on, such as 4, not 'two'"),
    (["fit", "no", "--workers", "-3"], "--workers: it takes a whole number from 0 on, such as 4, not '-3'"),
    (["fit", "no", "--seconds-per-sample", "1ms"], "it takes a number of seconds from 0 on, such as 0.001 for a"),
    (["fit", "no", "--seconds-per-sample", "nan"], "it takes a number of seconds from 0 on, such as 0.001 for a"),
    (["fit", "no", "--seconds-per-sample", "-1"], "it takes a number of seconds from 0 on, such as 0.001 for a"),
    (["fit", "no", "--loading", "asnyc"], "it takes one of sync, async, not 'asnyc'. Did you mean async?"),
    (["fit", "no", "--ipus", "2.4"], "--ipus: it takes a whole number from 1 on, such as 4, not '2.4'"),
    (["fit", "no", "--ipus", "0"], "--ipus: it takes a whole number from 1 on, such as 4, not '0'"),
    (["fit", "no", "--keep", "precison"], "machine, not 'precison'. Did you mean precision?"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_mistakes(arguments: list[object], words: str) -> None:
    assert words in refused(*arguments)


BUILDS = """from executor_support import *
from modelling_support import Chain, trainable
X, options = torch.zeros(6, 8), poptorch.Options().deviceIterations(2)
optimizer = poptorch.optim.SGD(Chain(2).parameters(), lr=0.1)
def program():
    """
SCRIPT = "def main():\n    print(1)\n\ndef sized(n):\n    return n\n\ndef program(n=1):\n    return n\n\n1 / 0\n"


@pytest.mark.parametrize(
    ("text", "function", "words"),
    [
        ("def build(:\n", ":build", "cannot be imported: SyntaxError"),
        ("import nowhere_at_all\n", ":build", "cannot be imported: ModuleNotFoundError"),
        ("1 / 0\n", ":build", "cannot be imported: ZeroDivisionError: division by zero (line"),
        ("import sys\nsys.exit(3)\n", ":build", "put what a script does under `if __name__ == '__main__':`"),
        # Only functions that return something are suggested, and the script does not run for that.
        (SCRIPT, "", "Functions without arguments there: program. Or run it with"),
        *(
            (f"{BUILDS}{body}\n", ":program", words)
            for body, words in (
                ("raise KeyError('weights.pt')", "failed: KeyError: 'weights.pt' (line"),
                ("pass", "returned None. The function takes no arguments and returns (module, inputs, options)"),
                ("return Chain(1), X", "returned 2 values. The function takes no arguments"),
                ("return dict(model=Chain(1), input=X, options=options)", "lacks inputs. Its names are model, inputs,"),
                ("return Chain(1), X, {'logDir': '.'}", "takes poptorch.Options() as options, not a dict"),
                ("return Module(lambda m, x: -x if x.sum() else x), X, options", "The model branches on data"),
                ("return Chain(1), X[:3], options", "say micro_batch=True"),
                ("return Chain(1), X[:, :7], options", "the module failed: RuntimeError"),
                ("return Chain(1), X[:, :7], options", "of forward in modelling_support.py"),
                ("return Chain(2), (X, X), trainable(2), optimizer", "is no parameter of the model. Create the opt"),
            )
        ),
    ],
)
@pytest.mark.parametrize("command", ["report", "fit"])
def test_a_function_that_returns_no_program(tmp_path: Path, command: str, text: str, function: str, words: str) -> None:
    (tmp_path / "script.py").write_text(text)
    err = refused(command, f"{tmp_path / 'script.py'}{function}")
    assert words in err
    assert "frozen importlib" not in err  # Python's own lines tell a user nothing


def test_what_is_no_report_names_what_is_near(folder: Path) -> None:
    """The report that lies deeper and what writes one, the folder of a file for readers, a name like it, several."""
    above = folder.parent.parent
    for command in ("report", "advise", "fit"):
        err = refused(command, above)
        assert f"{above} holds no report: there is no profile.json in it. There is a report in {folder}." in err
        assert "POPLAR_ENGINE_OPTIONS=" in err
    for name in ("report.html", "trace.json"):
        err = refused("report", folder / name)
        assert err.endswith(f"{folder / name} holds no program. Name the folder of its report instead: {folder}.\n")
    assert f"Did you mean {folder}?" in refused("report", folder.with_name("nte"))
    shutil.copytree(folder, folder.with_name("other"))
    err = refused("report", folder.parent)
    assert str(folder) in err
    assert str(folder.with_name("other")) in err


@pytest.mark.parametrize("command", ["report", "advise", "fit"])
def test_a_damaged_report_names_the_file_and_stops_only_what_needs_it(folder: Path, command: str) -> None:
    """What else can be wrong in these files is tested with those who read them."""
    program, profile = folder / "program.ipu", folder / "profile.json"
    program.write_bytes(program.read_bytes()[:10])
    if command == "report":
        printed("report", folder)
    else:
        assert re.search(rf"error: {re.escape(str(program))}: .* again", refused(command, folder))
    earlier = (
        "The profile has format 3, and this version reads format 4 only. An earlier version of the IPU Model wrote it: "
        "run or model the program again."
    )
    for contents, words in (
        (profile.read_bytes()[:100], ": This is not JSON"),
        (b'{"format": 3, "name": "net"}', f": {earlier}"),
        (
            gzip.compress(b'{"format": 3}'),
            " is not a text file in UTF-8, as profiles are. Unpack it",
        ),
    ):
        profile.write_bytes(contents)
        assert refused(command, folder).startswith(f"python -m ipu_model {command}: error: {profile}{words}")
