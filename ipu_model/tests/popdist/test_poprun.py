"""poprun before and around a run: command line, hosts, division, messages, the account (data reference, section 7)."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipu_model
import poptorch
from popdist.environment import as_table, divide
from popdist.run.command import (
    Host,
    agent_command,
    choose_cause,
    explain,
    find,
    main,
    parse_hosts,
    shared_variables,
    tagged,
)
from popdist.run.elastic import LinePipe, Output
from popdist.run.messages import Failure, Line, MeetingPort, Writer, parse
from popdist.run.options import FLAGS, OPTIONS, exported, read, read_mpi, split

WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
VALUED = st.sampled_from([name for option in OPTIONS for name in (option.name, option.short) if name])
SMALL, NUMBER = st.integers(1, 6), st.integers(0, 2**16)


@given(
    options=st.lists(st.one_of(st.tuples(VALUED, WORDS, st.booleans()), st.sampled_from(FLAGS)), max_size=4),
    program=st.tuples(WORDS.filter(lambda word: not word.startswith("-")), st.lists(WORDS, max_size=4)),
)
def test_the_first_word_that_is_no_option_starts_the_program(options: Any, program: Any) -> None:
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
    assert split([*words, "--", "--odd-name", *command])[1] == ["--odd-name", *command]  # two dashes end the options


class TestReading:
    def test_defaults_are_those_of_the_reference(self) -> None:
        request = read(["program"])
        assert (request.num_instances, request.num_replicas, request.ipus_per_replica) == (1, 1, 1)
        assert (request.host, request.print_topology, request.only_output_from_instance) == (None, False, None)
        assert (request.given, request.verbosity, request.program) == ({}, 0, ("program",))

    def test_yes_no_and_verbosity_have_their_forms(self) -> None:
        for text, value in (("yes", True), ("1", True), ("no", False), ("0", False)):
            for words in (["--print-topology", text], [f"--print-topology={text}"]):
                assert read([*words, "x"]).print_topology is value
        assert [read([word, "x"]).verbosity for word in ("-v", "--verbose", "-vv", "--vv")] == [1, 1, 2, 2]

    def test_options_without_effect_are_accepted_and_known(self) -> None:
        names = [option.name for option in OPTIONS if not option.effective]
        assert "--vipu-partition" in names
        assert "--num-replicas" not in names
        assert sorted(read([*(f"{name}=1" for name in names), "x"]).without_effect) == sorted(names)

    def test_help_lists_every_option_and_version_names_the_package(self, capsys: pytest.CaptureFixture[str]) -> None:
        for word in ("--help", "--version"):
            with pytest.raises(SystemExit) as end:
                read([word])
            assert end.value.code == 0
        text = capsys.readouterr().out
        assert [option.name for option in OPTIONS if option.name not in text] == []
        assert f"poprun of ipu-model {ipu_model.__version__}" in text

    def test_exported_options_can_be_imported_and_the_command_line_wins(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("popdist.run.command.run", lambda plan: 0)
        file = tmp_path / "options.json"
        words = ["--num-replicas=8", "--print-topology=no", "--mpi-local-args", "-x A"]
        assert main([*words, f"--export-config={file}", "x"]) == 0
        expected = {"num-replicas": 8, "print-topology": False, "mpi-local-args": "-x A"}
        assert json.loads(file.read_text()) == expected
        again = read([f"--import-config={file}", "--num-replicas=4", "--host", "a,b", "y"])
        assert (again.num_replicas, again.host, again.mpi.variables) == (4, "a,b", {"A": None})
        assert json.loads(exported(again))["host"] == "a,b"
        for text in ("not json", "[1]", '{"num-replica": 2}', '{"num-replicas": "many"}', "[" * 10**5):
            file.write_text(text)
            with pytest.raises(poptorch.Error):
                read([f"--import-config={file}", "x"])
        with pytest.raises(poptorch.Error, match="cannot be read"):
            read([f"--import-config={tmp_path / 'nothing.json'}", "x"])

    def test_arguments_for_mpirun_are_understood(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = read_mpi("--tag-output --mca plm_rsh_agent 'ssh -p 22' --mca btl tcp", "-x A -x B=1=2 --bind-to core")
        assert found.variables == {"A": None, "B": "1=2"}
        assert found.remote_shell == ("ssh", "-p", "22")
        assert found.ignored == ("--mca btl tcp", "--bind-to", "core")
        # Only these variables reach other hosts.
        here = {"PATH": "/p", "PYTHONPATH": "/q", "A": "a", "SECRET": "s"}
        request = read(["--executable-cache-path", "/c", "--mpi-local-args=-x A -x B=b -x NONE", "x"])
        shared = shared_variables(request, here)
        assert shared == {"PATH": "/p", "PYTHONPATH": "/q", "A": "a", "B": "b", "POPTORCH_CACHE_DIR": "/c"}
        assert "-x NONE: this variable is not set here" in capsys.readouterr().err

    @pytest.mark.parametrize(("line", "said"), [
        ("--num-replicas", "--num-replicas needs a value: number of replicas of the whole run"),
        ("--num-replica 2 x", "no option --num-replica. Did you mean --num-replicas?"),
        ("--num-replicas two x", "--num-replicas: 'two' is not a whole number"),
        ("--print-topology maybe x", "'maybe' is neither yes nor no"),
        ("--executable-cache-path= x", "the path is empty"),
        ("--mpi-local-args=-x x", "-x needs a variable"),
        ("'--mpi-local-args=--mca plm_rsh_agent' x", "--mca needs a name and a value"),
        ("--mpi-local-args=\\'open x", "cannot be read"),
        ("", "no program was given"),
        ("--num-replicas 3 --num-instances 2 x", "Nearest that works: 2 or 4"),
        ("--only-output-from-instance 1 x", "from 0 to 0"),
        ("--host one, x", "a name is empty"),
        ("--host a,b,a x", "a is given twice"),
        # RFC 2606 keeps `.invalid` free of hosts, RFC 5737 192.0.2.0/24 for documentation.
        ("--host nowhere.invalid x", "--host: nowhere.invalid is unknown"),
        ("--host=localhost,127.0.0.1 --num-instances=2 --num-replicas=2 x", "are the same machine"),
        ("--host=localhost,192.0.2.1 --num-instances=2 --num-replicas=2 x",
         "192.0.2.1 has to reach the first host, and localhost is 127"),
    ])  # fmt: skip
    def test_what_cannot_be_run_ends_with_status_2_and_the_reason(
        self, capsys: pytest.CaptureFixture[str], line: str, said: str
    ) -> None:
        assert main(shlex.split(line)) == 2
        error = capsys.readouterr().err
        assert error.startswith("poprun: ")
        assert said in error
        assert error.count("\n") == 1


# Hosts, and the division of replicas among instances and of these among hosts.


def test_hosts_are_names_with_commas_between_and_have_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_hosts("one, two,three") == ("one", "two", "three")
    assert find(["127.0.0.1"]) == (Host("127.0.0.1", "127.0.0.1", local=True),)
    assert find(["192.0.2.1"]) == (Host("192.0.2.1", "192.0.2.1", local=False),)

    def refuse(self: socket.socket, address: object) -> None:
        raise OSError("cannot assign requested address")

    monkeypatch.setattr(socket, "socket", type("Unbindable", (socket.socket,), {"bind": refuse}))
    with pytest.raises(poptorch.Error, match=r"127\.0\.0\.9, a loopback address that this machine does not have"):
        find(["127.0.0.9"])


def test_a_remote_agent_is_one_line_for_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/a folder:/bin")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("PYTHONPATH", "")
    command = agent_command(Host("far", "192.0.2.1", local=False), ("ssh", "-q"))
    assert command[:3] == ["ssh", "-q", "far"]
    agent = [sys.executable, "-m", "popdist.run.agent"]
    assert shlex.split(command[3]) == ["env", "PATH=/a folder:/bin", "PYTHONPATH=", *agent]
    assert agent_command(Host("near", "127.0.0.1", local=True), ("ssh",)) == agent


@given(hosts=SMALL, per_host=SMALL, per_instance=SMALL)
def test_each_replica_is_run_once_and_hosts_run_equal_numbers(hosts: int, per_host: int, per_instance: int) -> None:
    names = [f"host{index}" for index in range(hosts)]
    topology = divide(names, hosts * per_host, hosts * per_host * per_instance)
    ranges = [range(i.first_replica, i.first_replica + i.replicas) for i in topology.instances]
    assert [replica for run in ranges for replica in run] == list(range(topology.num_replicas))
    assert [i.index for i in topology.instances] == list(range(topology.num_instances))
    assert [i.host for i in topology.instances] == [name for name in names for _ in range(per_host)]
    assert [i.local_index for i in topology.instances] == list(range(per_host)) * hosts
    assert [i for host in range(hosts) for i in topology.on_host(host)] == list(topology.instances)


@given(instances=st.integers(1, 9), replicas=st.integers(1, 40))
def test_counts_that_do_not_divide_are_refused_with_the_nearest_that_do(instances: int, replicas: int) -> None:
    if replicas % instances == 0:
        assert divide(["a"], instances, replicas).num_replicas == replicas
        return
    with pytest.raises(poptorch.Error, match=f"must be a multiple of {instances}") as refusal:
        divide(["a"], instances, replicas)
    nearest = [int(word) for word in refusal.value.message.rsplit(":", 1)[1].rstrip(".").split(" or ")]
    assert all(divide(["a"], instances, number).num_replicas == number for number in nearest)
    assert min(abs(number - replicas) for number in nearest) < instances


@pytest.mark.parametrize(("hosts", "counts", "words"), [
    (["a", "b"], (3, 3, 1), r"--num-instances 3: .*2 hosts.*Nearest that works: 2 or 4\."),
    (["a", "b"], (1, 1, 1), r"--num-instances 1: .*Nearest that works: 2\."),
    (["a"], (0, 1, 1), "--num-instances 0: there must be at least 1"),
    (["a"], (1, 0, 1), "--num-replicas 0: there must be at least 1"),
    (["a"], (1, 1, 0), "--ipus-per-replica 0: there must be at least 1"),
    (["a"], (10**10, 1, 1), r"No system has 10000000000 IPUs .* POD256 with 256\. Use fewer replicas"),
    (["a"], (10**10, 10**10, 1), "No system has 10000000000 IPUs"),
    (["a"], (1, 10**30, 1), "No system has 1000000000000000000000000000000 IPUs"),
    (["a"], (1, 1, 257), "No system has 257 IPUs"),
    (["a", "b"], (2, 130, 2), "No system has 260 IPUs"),
])  # fmt: skip
def test_counts_fit_the_hosts(hosts: list[str], counts: tuple[int, int, int], words: str) -> None:
    with pytest.raises(poptorch.Error, match=words):
        divide(hosts, *counts)


def test_the_table_has_a_row_for_each_instance() -> None:
    assert as_table(divide(["a", "longer"], 4, 8, 2)).splitlines() == [
        "host    instance  replicas  IPUs per replica",
        "------  --------  --------  ----------------",
        "a       0         0 to 1    2",
        "a       1         2 to 3    2",
        "longer  2         4 to 5    2",
        "longer  3         6 to 7    2",
    ]
    assert as_table(divide(["a"], 1, 1)).splitlines()[2] == "a     0         0         1"


# What instances print, what agents send, and how poprun accounts for the end.


@given(st.lists(st.text("ab\r\n", max_size=6).map(str.encode), max_size=6))
def test_nothing_is_lost_however_the_data_comes(pieces: list[bytes]) -> None:
    pipe = LinePipe(0, "stdout")
    lines = [line for piece in pieces for line in pipe.lines(piece)]
    rest = pipe.rest
    for descriptor in (pipe.reader, pipe.writer):
        os.close(descriptor)
    assert b"".join([*lines, rest]) == b"".join(pieces)
    assert all(line.endswith((b"\n", b"\r")) for line in lines)
    assert all(b"\n" not in line[:-1] and b"\r" not in line.rstrip(b"\r\n") for line in lines)
    pairs = zip(lines, [*lines[1:], rest])
    assert not any(line.endswith(b"\r") and after.startswith(b"\n") for line, after in pairs)


def test_lines_are_tagged_as_open_mpi_tags_them() -> None:
    """Section 7.2."""
    shown = [tagged(Line(3, "stdout", text)) for text in (b"text\n", b"text", b" 10%\r")]
    assert shown == [b"[1,3]<stdout>:text\n", b"[1,3]<stdout>:text\n", b"[1,3]<stdout>: 10%\r"]


def test_instances_get_their_variables_and_pipes_that_are_read() -> None:
    """What torch's launcher asks of a `LogsSpecs`: changes to the environments and places to write to."""
    lines: list[tuple[int, str, bytes]] = []
    output = Output([{"A": "0"}, {"A": "1"}], lambda *line: lines.append(line))
    environments: dict[int, dict[str, str]] = {0: {"RANK": "0"}, 1: {"RANK": "1"}}
    places = output.reify(environments)
    assert [environments[rank]["A"] for rank in range(2)] == ["0", "1"]
    folder = environments[0]["TMPDIR"]
    assert os.path.isdir(folder)
    Path(places.stdouts[1]).write_text("one\n\rtwo\r\nrest", newline="")
    Path(places.stderrs[0]).write_text("failed\n")
    output.finish()
    first, *others = sorted(lines)
    assert first == (0, "stderr", b"failed\n")
    assert others == [(1, "stdout", text) for text in (b"one\n", b"rest", b"two\r\n")]
    assert [list(output.tails[local]) for local in (0, 1)] == [[b"failed\n"], []]
    assert not os.path.exists(folder)


@given(message=st.builds(Line, NUMBER, st.just("stderr"), st.binary()) | st.builds(MeetingPort, NUMBER))
def test_messages_are_read_as_they_were_sent(message: Line | MeetingPort) -> None:
    stream = io.BytesIO()
    Writer(stream).send(message)
    assert parse(stream.getvalue()) == message
    assert stream.getvalue().count(b"\n") == 1


def test_what_a_remote_shell_prints_is_no_message() -> None:
    lines = b"Welcome here\n", b"", b"[1]\n", b'{"type": "Line", "no": "text"}\n', b'{"type": "None"}\n', b"\xff\n"
    assert [parse(line) for line in lines] == [None] * 6


STOPPED = Failure(1, -signal.SIGTERM)


@given(st.permutations([Failure(0, 1, consequence=True), STOPPED, Failure(2, 3), Failure(3, 1, True)]))
def test_the_cause_is_neither_what_followed_nor_what_was_stopped(ends: list[Failure]) -> None:
    assert choose_cause(ends) == Failure(2, 3)
    # An instance that waited in vain is named if no other failed.
    assert choose_cause([STOPPED, Failure(2, 1, consequence=True)]).index == 2
    assert choose_cause([STOPPED]) == STOPPED


@pytest.mark.parametrize(("status", "said", "shown"), [
    (7, "ended with exit code 7", 7),
    (-signal.SIGKILL, "was ended by SIGKILL: it was killed", 137),
    (-signal.SIGSEGV, "was ended by SIGSEGV: it crashed", 139),
    (-signal.SIGUSR1, "was ended by SIGUSR1", 128 + signal.SIGUSR1),
    (-200, "was ended by signal 200", 328),
])  # fmt: skip
def test_an_end_names_instance_host_replicas_and_how(status: int, said: str, shown: int) -> None:
    end = Failure(2, status)
    text = explain(divide(["a", "b"], 4, 8).instance(2), end)
    assert text.startswith(f"instance 2 (host b, replicas 4 to 5) {said}")
    assert end.exit_status == shown
    assert divide(["a"], 1, 1).instance(0).description == "instance 0 (host a, replica 0)"
