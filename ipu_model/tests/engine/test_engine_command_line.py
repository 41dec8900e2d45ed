"""`python -m ipu_model`: its commands, and what happens when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_support import inference_profile, pipeline_profile

from ipu_model.commands import command_line, options
from ipu_model.predict.hardware import known_hardware
from ipu_model.report import files
from ipu_model.report.files import to_json, write_report

EARLIER = Path(__file__).with_name("profile_format_1.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a report."""
    write_report(inference_profile(), tmp_path / "run")
    return tmp_path / "run"


def in_a_process(*arguments: str, **settings) -> subprocess.Popen[str]:
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


class TestReport:
    def test_it_prints_the_report_and_where_the_page_is(self, run, folder: Path) -> None:
        code, out, err = run("report", folder)
        assert (code, err) == (0, "")
        assert out.startswith("tiny: inference, modelled with 1 IPU a replica")
        assert out.splitlines()[-1] == f"page: {folder / 'report.html'}"

    def test_a_file_will_do(self, run, folder: Path) -> None:
        assert run("report", folder / "profile.json") == run("report", folder)

    def test_html_writes_the_page(self, run, folder: Path) -> None:
        page = folder.parent / "page.html"
        code, out, _ = run("report", folder, "--html", page)
        assert code == 0
        assert out.splitlines()[-1] == f"page: {page}"
        assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")

    def test_without_a_page_it_says_how_to_make_one(self, run, tmp_path: Path) -> None:
        (tmp_path / "profile.json").write_text(to_json(inference_profile()))
        code, out, _ = run("report", tmp_path)
        assert code == 0
        assert out.splitlines()[-1].endswith("--html OUT writes one")

    def test_a_browser_opens_only_when_asked(self, run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[str] = []
        monkeypatch.setattr(options, "webbrowser", SimpleNamespace(open=opened.append))
        run("report", folder)
        assert opened == []
        run("report", folder, "--open")
        assert opened == [(folder / "report.html").as_uri()]


class TestCompare:
    def test_it_prints_both_and_a_conclusion(self, run, tmp_path: Path) -> None:
        for name, overlaps in (("sync", False), ("async", True)):
            (tmp_path / f"{name}.json").write_text(to_json(pipeline_profile(overlaps=overlaps)))
        code, out, _ = run("compare", tmp_path / "sync.json", tmp_path / "async.json")
        assert code == 0
        assert "Modelled end to end, after is 1.83 x as fast as before; both fit" in out

    def test_html_writes_a_page(self, run, folder: Path) -> None:
        page = folder / "comparison.html"
        assert run("compare", folder, folder, "--html", page)[0] == 0
        assert "after is as fast as before" in page.read_text(encoding="utf-8")

    def test_there_is_nothing_to_open_without_a_page(self, run, folder: Path) -> None:
        code, _, err = run("compare", folder, folder, "--open")
        assert code == 2
        assert "There is no page to open" in err


class TestMachines:
    def test_every_machine_is_listed(self, run) -> None:
        code, out, _ = run("machines")
        assert code == 0
        table = out.split("\n\n")[0].splitlines()
        assert [line.split()[0] for line in table[1:]] == list(known_hardware().systems)

    def test_a_number_has_its_unit_source_and_confidence(self, run) -> None:
        _, out, _ = run("machines", "Bow-POD16")
        words = " ".join(out.split())
        assert "clock_hz 1,850,000,000 Hz (published: MLPerf Training v2.0 system files)" in words
        assert "ipus 16 IPUs (published: IPU-POD16 datasheet: 4 IPU-M2000)" in words
        assert "GC200" not in words

    def test_what_differs_between_machines_says_whose_it_is(self, run) -> None:
        words = " ".join(run("machines", "M2000", "Bow-2000")[1].split())
        assert "GC200: 1,330,000,000 Hz" in words
        assert "Bow: 1,850,000,000 Hz" in words

    def test_an_unknown_machine_is_an_error_that_lists_the_known(self, run) -> None:
        code, _, err = run("machines", "M3000")
        assert code == 2
        assert "There is no machine 'M3000'" in err
        assert "POD16" in err


class TestErrors:
    @pytest.mark.parametrize(
        ("contents", "message"),
        [
            (None, "holds no report: there is no profile.json in it"),
            ("{", "is not JSON"),
            ('{"format": 99}', "has format 99"),
        ],
    )
    def test_a_profile_that_cannot_be_read_is_one_line(self, run, tmp_path: Path, contents, message: str) -> None:
        file = tmp_path / "profile.json"
        if contents is not None:
            file.write_text(contents)
        code, out, err = run("report", tmp_path)
        assert (code, out) == (2, "")
        assert err.startswith("python -m ipu_model report: error: ")
        assert err.count("\n") == 1
        assert message in err

    @pytest.mark.parametrize("command", ["report", "advise", "fit"])
    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda text: text[: len(text) // 2], "is not JSON"),
            (lambda text: "", "is not JSON"),
            (lambda text: EARLIER.read_text(encoding="utf-8"), "earlier version of the IPU Model"),
            (lambda text: text.replace('"samples_per_call":', '"samples_of_a_call":'), "samples_of_a_call"),
            (lambda text: "[]", "is not a profile"),
        ],
        ids=["truncated", "empty", "earlier version", "renamed field", "other JSON"],
    )
    def test_a_damaged_report_is_one_line(self, run, folder: Path, command: str, damage, message: str) -> None:
        """What is wrong, in which file, and that modelling again helps."""
        file = folder / "profile.json"
        file.write_text(damage(file.read_text(encoding="utf-8")), encoding="utf-8")
        code, out, err = run(command, folder)
        assert (code, out) == (2, "")
        assert err.startswith(f"python -m ipu_model {command}: error: {file}: ")
        assert err.count("\n") == 1
        assert message in err

    def test_several_reports_in_one_folder_are_named(self, run, tmp_path: Path) -> None:
        for name in ("training", "inference"):
            write_report(inference_profile(), tmp_path / name)
        code, _, err = run("report", tmp_path)
        assert code == 2
        assert str(tmp_path / "training") in err
        assert str(tmp_path / "inference") in err

    def test_a_page_that_cannot_be_written_is_one_line(self, run, folder: Path) -> None:
        code, _, err = run("report", folder, "--html", folder / "missing" / "page.html")
        assert code == 2
        assert err.count("\n") == 1

    @pytest.mark.parametrize("arguments", [(), ("dance",), ("report",), ("report", "x", "--html")])
    def test_wrong_usage_is_explained(self, run, arguments: tuple[str, ...]) -> None:
        code, _, err = run(*arguments)
        assert code == 2
        assert err.startswith("usage: python -m ipu_model")

    def test_ctrl_c_ends_with_130(self, run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(path: Path) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(files, "read", interrupted)
        assert run("report", folder) == (130, "", "python -m ipu_model report: stopped\n")

    def test_a_reader_that_goes_away_is_no_error(self) -> None:
        with in_a_process("-m", "ipu_model", "machines") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == ""
        assert process.returncode == 1


class TestStart:
    def test_help_waits_for_neither_torch_nor_matplotlib(self) -> None:
        code = (
            "import sys\nfrom ipu_model.commands.command_line import main\n"
            "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
            "heavy = {'torch', 'matplotlib', 'numpy'} & set(sys.modules)\n"
            "assert not heavy, heavy"
        )
        process = in_a_process("-c", code)
        out, err = process.communicate()
        assert process.returncode == 0, err
        for command in ("report", "compare", "fit", "advise", "machines", "validate"):
            assert command in out

    @pytest.mark.parametrize("command", ["report", "compare", "fit", "advise"])
    def test_every_command_about_programs_has_the_same_options_and_an_example(self, run, command: str) -> None:
        code, out, _ = run(command, "--help")
        assert code == 0
        for option in ("--machine", "--loader", "--seconds-per-sample", "--loading", "--workers", "--html", "--open"):
            assert option in out
        assert f"example: python -m ipu_model {command} " in out

    @pytest.mark.parametrize("command", ["machines", "validate"])
    def test_the_other_commands_have_an_example_that_works(self, run, command: str) -> None:
        _, out, _ = run(command, "--help")
        code, printed, _ = run(*out.split("example: python -m ipu_model ")[1].split())
        assert code == 0
        assert printed

    def test_a_report_needs_no_torch(self, folder: Path) -> None:
        code = (
            "import sys\nfrom ipu_model.commands.command_line import main\n"
            f"assert main(['report', {str(folder)!r}]) == 0\n"
            "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
        )
        process = in_a_process("-c", code)
        _, err = process.communicate()
        assert process.returncode == 0, err

    def test_every_command_offers_register(self) -> None:
        assert all(callable(command.register) for command in command_line.COMMANDS)
