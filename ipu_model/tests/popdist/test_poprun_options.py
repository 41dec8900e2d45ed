"""poprun's command line (data reference, section 7)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipu_model
import poptorch
from popdist.run.command import main, meeting_port, plan_of, shared_variables
from popdist.run.options import FLAGS, OPTIONS, exported, read, read_mpi, split

WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
VALUED = st.sampled_from([name for option in OPTIONS for name in (option.name, option.short) if name])


class TestSplitting:
    @given(
        options=st.lists(st.one_of(st.tuples(VALUED, WORDS, st.booleans()), st.sampled_from(FLAGS)), max_size=4),
        program=st.tuples(WORDS.filter(lambda word: not word.startswith("-")), st.lists(WORDS, max_size=4)),
    )
    def test_the_first_word_that_is_no_option_starts_the_program(self, options, program) -> None:
        words = []
        for option in options:
            if isinstance(option, str):
                words.append(option)
            else:
                name, value, joined = option
                words += [f"{name}={value}"] if joined else [name, value]
        command = [program[0], *program[1]]
        found, rest = split([*words, *command])
        assert rest == command
        assert len(found) == len(options)

    def test_two_dashes_end_the_options(self) -> None:
        assert split(["-v", "--", "--odd-name", "x"]) == (["-v"], ["--odd-name", "x"])

    def test_an_option_without_its_value_is_told_what_it_needs(self) -> None:
        with pytest.raises(poptorch.Error, match=r"--num-replicas needs a value: number of replicas of the whole run"):
            split(["--num-replicas"])

    def test_an_unknown_option_is_told_the_nearest(self) -> None:
        with pytest.raises(poptorch.Error, match=r"no option --num-replica\. Did you mean --num-replicas\?"):
            split(["--num-replica", "2", "python"])


class TestReading:
    def test_defaults_are_those_of_the_reference(self) -> None:
        request = read(["program"])
        assert (request.num_instances, request.num_replicas, request.ipus_per_replica) == (1, 1, 1)
        assert (request.host, request.print_topology, request.only_output_from_instance) == (None, False, None)
        assert (request.given, request.verbosity, request.program) == ({}, 0, ("program",))

    @pytest.mark.parametrize(("text", "value"), [("yes", True), ("1", True), ("no", False), ("0", False)])
    def test_yes_and_no_have_two_forms(self, text: str, value: bool) -> None:
        assert read(["--print-topology", text, "x"]).print_topology is value
        assert read([f"--print-topology={text}", "x"]).print_topology is value

    @pytest.mark.parametrize(("words", "verbosity"), [(["-v"], 1), (["--verbose"], 1), (["-vv"], 2), (["--vv"], 2)])
    def test_verbosity_has_its_forms(self, words: list[str], verbosity: int) -> None:
        assert read([*words, "x"]).verbosity == verbosity

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--num-replicas", "two"], "--num-replicas: 'two' is not a whole number"),
            (["--print-topology", "maybe"], "'maybe' is neither yes nor no"),
            (["--executable-cache-path="], "the path is empty"),
        ],
    )
    def test_a_value_of_another_kind_is_refused(self, words: list[str], said: str) -> None:
        with pytest.raises(poptorch.Error, match=said):
            read([*words, "x"])

    def test_options_without_effect_are_accepted_and_known(self) -> None:
        words = [f"{option.name}=1" for option in OPTIONS if not option.effective]
        assert "--vipu-partition=1" in words  # data reference, section 7
        assert "--num-replicas=1" not in words
        assert sorted(read([*words, "x"]).without_effect) == sorted(word.partition("=")[0] for word in words)

    def test_help_lists_every_option_and_version_names_the_package(self, capsys: pytest.CaptureFixture[str]) -> None:
        for word in ("--help", "--version"):
            with pytest.raises(SystemExit) as end:
                read([word])
            assert end.value.code == 0
        text = capsys.readouterr().out
        assert [option.name for option in OPTIONS if option.name not in text] == []
        assert f"poprun of ipu-model {ipu_model.__version__}" in text


class TestFiles:
    def test_exported_options_can_be_imported_and_the_command_line_wins(self, tmp_path: Path) -> None:
        file = tmp_path / "options.json"
        request = read(["--num-replicas=8", "--host", "a,b", "--print-topology=no", "--mpi-local-args", "-x A", "x"])
        file.write_text(exported(request))
        assert json.loads(file.read_text()) == {
            "num-replicas": 8, "host": "a,b", "print-topology": False, "mpi-local-args": "-x A",
        }  # fmt: skip
        again = read([f"--import-config={file}", "--num-replicas=4", "y"])
        assert (again.num_replicas, again.host, again.mpi.variables) == (4, "a,b", {"A": None})

    def test_the_command_writes_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("popdist.run.command.run", lambda plan: 0)
        file = tmp_path / "options.json"
        assert main([f"--export-config={file}", "--num-replicas=2", "x"]) == 0
        assert json.loads(file.read_text()) == {"num-replicas": 2}

    @pytest.mark.parametrize("text", ["not json", "[1]", '{"num-replica": 2}', '{"num-replicas": "many"}'])
    def test_a_file_that_is_none_is_refused(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "options.json"
        file.write_text(text)
        with pytest.raises(poptorch.Error):
            read([f"--import-config={file}", "x"])
        with pytest.raises(poptorch.Error, match="cannot be read"):
            read([f"--import-config={tmp_path / 'nothing.json'}", "x"])
        file.write_text("[" * 100_000, encoding="utf-8")
        with pytest.raises(poptorch.Error, match=r"options\.json cannot be read"):
            read([f"--import-config={file}", "x"])


class TestMpirun:
    def test_variables_and_the_remote_shell_are_understood(self) -> None:
        found = read_mpi("--tag-output --mca plm_rsh_agent 'ssh -p 22' --mca btl tcp", "-x A -x B=1=2 --bind-to core")
        assert found.variables == {"A": None, "B": "1=2"}
        assert found.remote_shell == ("ssh", "-p", "22")
        assert found.ignored == ("--mca btl tcp", "--bind-to", "core")

    @pytest.mark.parametrize("text", ["-x", "--mca plm_rsh_agent", "'open"])
    def test_arguments_that_end_too_early_are_refused(self, text: str) -> None:
        with pytest.raises(poptorch.Error):
            read_mpi("", text)

    def test_only_these_variables_reach_other_hosts(self, capsys: pytest.CaptureFixture[str]) -> None:
        here = {"PATH": "/p", "PYTHONPATH": "/q", "A": "a", "SECRET": "s"}
        request = read(["--executable-cache-path", "/c", "--mpi-local-args=-x A -x B=b -x NONE", "x"])
        found = shared_variables(request, here)
        assert found == {"PATH": "/p", "PYTHONPATH": "/q", "A": "a", "B": "b", "POPTORCH_CACHE_DIR": "/c"}
        assert "-x NONE: this variable is not set here" in capsys.readouterr().err


class TestPlan:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ([], "no program was given"),
            (["--num-instances=2"], "no program was given"),
            (["--num-instances", "0", "x"], "--num-instances 0: there must be at least 1"),
            (["--num-replicas", "3", "--num-instances", "2", "x"], "Nearest that works: 2 or 4"),
            (["--host", "127.0.0.2,127.0.0.3", "--num-instances", "3", "x"], "Nearest that works: 2 or 4"),
            (["--only-output-from-instance", "1", "x"], "from 0 to 0"),
        ],
    )
    def test_what_cannot_be_run_ends_with_status_2_and_the_reason(
        self, capsys: pytest.CaptureFixture[str], words: list[str], said: str
    ) -> None:
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.startswith("poprun: ")
        assert said in error
        assert error.count("\n") == 1

    def test_the_port_is_free_unless_one_is_asked_for(self) -> None:
        assert plan_of(read(["x"]), {}).port == 0
        assert plan_of(read(["x"]), {"MASTER_PORT": "1234"}).port == 1234
        for text in ("http", "65536", "-1"):
            with pytest.raises(poptorch.Error, match="no port"):
                meeting_port({"MASTER_PORT": text})
