"""Output lines, messages between poprun and its agents, and the account of a failed run."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.run.elastic import LinePipe, Output
from popdist.run.launch import choose_cause, explain, tagged
from popdist.run.messages import Failure, Line, MeetingPort, Writer, parse
from popdist.topology import divide

SMALL = st.integers(0, 2**16)
PIECES = st.lists(st.text("ab\r\n", max_size=6).map(str.encode), max_size=6)


class TestLines:
    @given(PIECES)
    def test_nothing_is_lost_however_the_data_comes(self, pieces: list[bytes]) -> None:
        pipe = LinePipe(0, "stdout")
        lines = [line for piece in pieces for line in pipe.lines(piece)]
        rest = pipe.rest()
        for descriptor in (pipe.reader, pipe.writer):
            os.close(descriptor)
        assert b"".join([*lines, rest]) == b"".join(pieces)
        assert all(line.endswith((b"\n", b"\r")) for line in lines)
        assert all(b"\n" not in line[:-1] and b"\r" not in line.rstrip(b"\r\n") for line in lines)
        assert not any(
            line.endswith(b"\r") and after.startswith(b"\n") for line, after in zip(lines, [*lines[1:], rest])
        )

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (b"text\n", b"[1,3]<stdout>:text\n"),
            (b"text", b"[1,3]<stdout>:text\n"),
            (b" 10%\r", b"[1,3]<stdout>: 10%\r"),
        ],
    )
    def test_are_tagged_as_open_mpi_tags_them(self, text: bytes, expected: bytes) -> None:
        """Data reference, section 7.2."""
        assert tagged(Line(3, "stdout", text)) == expected


class TestOutput:
    """What torch's launcher asks of a `LogsSpecs`: changes to the environments and places to write to."""

    def test_instances_get_their_variables_and_pipes_that_are_read(self) -> None:
        lines: list[tuple[int, str, bytes]] = []
        output = Output([{"A": "0"}, {"A": "1"}], lambda *line: lines.append(line))
        environments: dict[int, dict[str, str]] = {0: {"RANK": "0"}, 1: {"RANK": "1"}}
        places = output.reify(environments)
        assert [environments[rank]["A"] for rank in range(2)] == ["0", "1"]
        folder = environments[0]["TMPDIR"]
        assert os.path.isdir(folder)
        with open(places.stdouts[1], "w") as out, open(places.stderrs[0], "w") as err:
            out.write("one\n\rtwo\r\nrest")
            err.write("failed\n")
        output.finish()
        assert sorted(lines) == [
            (0, "stderr", b"failed\n"), (1, "stdout", b"one\n"), (1, "stdout", b"rest"), (1, "stdout", b"two\r\n"),
        ]  # fmt: skip
        assert output.last_lines(0) == b"failed\n"
        assert output.last_lines(1) == b""
        assert not os.path.exists(folder)


class TestMessages:
    @given(message=st.builds(Line, SMALL, st.just("stderr"), st.binary()) | st.builds(MeetingPort, SMALL))
    def test_are_read_as_they_were_sent(self, message: Line | MeetingPort) -> None:
        stream = io.BytesIO()
        Writer(stream).send(message)
        assert parse(stream.getvalue()) == message
        assert stream.getvalue().count(b"\n") == 1

    @pytest.mark.parametrize(
        "line",
        [
            b"Welcome to this host\n",
            b"",
            b"[1]\n",
            b'{"type": "Line", "no": "text"}\n',
            b'{"type": "No kind"}\n',
            b"\xff\n",
        ],
    )
    def test_what_a_remote_shell_prints_is_none(self, line: bytes) -> None:
        assert parse(line) is None


class TestAccount:
    TOPOLOGY = divide(["a", "b"], 4, 8)

    FAILURES = (Failure(0, 1, consequence=True), Failure(1, -signal.SIGTERM), Failure(2, 3), Failure(3, 1, True))

    @given(st.permutations(FAILURES))
    def test_the_cause_is_neither_what_followed_nor_what_was_stopped(self, ends: list[Failure]) -> None:
        assert choose_cause(ends) == Failure(2, 3)

    def test_an_instance_that_waited_in_vain_is_named_if_no_other_failed(self) -> None:
        assert choose_cause([Failure(1, -signal.SIGTERM), Failure(2, 1, consequence=True)]).index == 2
        assert choose_cause([Failure(3, -signal.SIGTERM)]).index == 3

    @pytest.mark.parametrize(
        ("status", "said", "shown"),
        [
            (7, "instance 2 (host b, replicas 4 to 5) ended with exit code 7", 7),
            (-signal.SIGKILL, "instance 2 (host b, replicas 4 to 5) was ended by SIGKILL: it was killed", 137),
            (-signal.SIGSEGV, "was ended by SIGSEGV: it crashed", 139),
            (-signal.SIGUSR1, "was ended by SIGUSR1", 128 + signal.SIGUSR1),
            (-200, "was ended by signal 200", 328),
        ],
    )
    def test_names_instance_host_replicas_and_how_it_ended(self, status: int, said: str, shown: int) -> None:
        end = Failure(2, status)
        assert said in explain(self.TOPOLOGY.instance(2), end)
        assert end.exit_status == shown


def test_it_needs_no_torch_to_start() -> None:
    """It tells mistakes at once; agents import torch when there is something to run."""
    program = "import sys, popdist.run.command, popdist.run.agent; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
