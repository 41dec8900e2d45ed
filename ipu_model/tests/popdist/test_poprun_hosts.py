"""The hosts of a run, and the commands that reach them."""

from __future__ import annotations

import shlex
import socket
import sys

import pytest

import poptorch
from popdist.run.command import Host, find, parse_hosts
from popdist.run.launch import agent_command


def test_hosts_are_names_with_commas_between() -> None:
    assert parse_hosts("one") == ("one",)
    assert parse_hosts("one, two,three") == ("one", "two", "three")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a name is empty"),
        ("one,", "a name is empty"),
        ("one,,two", "a name is empty"),
        ("a,b,a", "a is given twice"),
    ],
)
def test_empty_and_repeated_names_are_refused(text: str, said: str) -> None:
    with pytest.raises(poptorch.Error, match=said):
        parse_hosts(text)


def test_an_unknown_name_is_refused() -> None:
    """RFC 2606 keeps `.invalid` free of hosts."""
    with pytest.raises(poptorch.Error, match=r"--host: nowhere\.invalid is unknown"):
        find(["nowhere.invalid"])


def test_two_names_of_one_machine_are_refused() -> None:
    with pytest.raises(poptorch.Error, match=r"localhost and 127\.0\.0\.1 are the same machine"):
        find(["localhost", "127.0.0.1"])


def test_addresses_of_this_machine_are_here_and_others_are_not() -> None:
    """RFC 5737 keeps 192.0.2.0/24 for documentation: no machine has it."""
    assert find(["127.0.0.1", "localhost"][:1]) == (Host("127.0.0.1", "127.0.0.1", local=True),)
    assert find(["192.0.2.1"]) == (Host("192.0.2.1", "192.0.2.1", local=False),)


def test_other_hosts_must_be_able_to_reach_the_first() -> None:
    with pytest.raises(poptorch.Error, match=r"192\.0\.2\.1 has to reach the first host, and localhost is 127"):
        find(["localhost", "192.0.2.1"])


def test_a_loopback_address_that_the_machine_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unbindable(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError("cannot assign requested address")

    monkeypatch.setattr(socket, "socket", Unbindable)
    with pytest.raises(poptorch.Error, match=r"127\.0\.0\.9, a loopback address that this machine does not have"):
        find(["127.0.0.9"])


def test_a_remote_agent_is_one_line_for_a_shell_with_forwarded_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/a folder:/bin")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("PYTHONPATH", "")
    command = agent_command(Host("far", "192.0.2.1", local=False), ("ssh", "-q"))
    assert command[:3] == ["ssh", "-q", "far"]
    agent = [sys.executable, "-m", "popdist.run.agent"]
    assert shlex.split(command[3]) == ["env", "PATH=/a folder:/bin", "PYTHONPATH=", *agent]
    assert agent_command(Host("near", "127.0.0.1", local=True), ("ssh",)) == agent
