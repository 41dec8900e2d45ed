"""The hosts of a run, and which of their names stand for this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ipu_model.errors import Error

# As Open MPI does: these reach other hosts without being asked for.
FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Host:
    """A machine of the run: its name as given, its address, and whether it is the machine that poprun runs on."""

    name: str
    address: str
    local: bool


def parse_hosts(text: str) -> tuple[str, ...]:
    """Split the value of `--host`.

    Raises:
        Error: an empty name, or one that is there twice.
    """
    names = tuple(name.strip() for name in text.split(","))
    if "" in names:
        raise Error(f"--host {text!r}: a name is empty. Write the hosts as --host name1,name2.")
    for position, name in enumerate(names):
        if name in names[:position]:
            raise Error(
                f"--host {text}: {name} is given twice. Name each host once: --num-instances says how many instances "
                "there are, and they are divided evenly."
            )
    return names


def find(names: Sequence[str]) -> tuple[Host, ...]:
    """Look up the hosts' addresses.

    Raises:
        Error: an unknown name, two names of one address, or a first host that the others cannot reach.
    """
    hosts = tuple(_find(name) for name in names)
    for position, host in enumerate(hosts):
        for other in hosts[:position]:
            if other.address == host.address:
                raise Error(
                    f"--host: {other.name} and {host.name} are the same machine ({host.address}). Name each host once."
                )
    first = hosts[0]
    far = [host.name for host in hosts if not host.local]
    if first.local and far and ipaddress.ip_address(first.address).is_loopback:
        raise Error(
            f"--host: {far[0]} has to reach the first host, and {first.name} is {first.address}, an address inside "
            "this machine. Name this machine by the address or name that the others know."
        )
    return hosts


def _find(name: str) -> Host:
    try:
        address = str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise Error(
            f"--host: {name} is unknown ({error.strerror}). Name hosts by an address, or by a name that this machine "
            "and the other hosts can look up."
        ) from None
    local = _is_here(address)
    if not local and ipaddress.ip_address(address).is_loopback:
        raise Error(f"--host: {name} is {address}, a loopback address that this machine does not have.")
    return Host(name, address, local)


def _is_here(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
