"""Put this folder first on PYTHONPATH, and Python reaches nothing but its own machine: a room without a network.

Python imports `sitecustomize` at its start, so worker processes are cut off, too. Sockets that are not Python's, such
as those of ZeroMQ, are out of reach here; Jupyter uses them on the loopback interface only.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any

_connect, _connect_ex, _getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo


def is_local(host: object) -> bool:
    """Tell whether an address leads back to this machine."""
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host)).is_loopback
    except ValueError:
        return False


def is_blocked(family: int, address: Any) -> bool:
    """Tell whether a socket of this family may not go to an address."""
    return family in (socket.AF_INET, socket.AF_INET6) and not is_local(address[0])


def connect(self: socket.socket, address: Any) -> None:
    if is_blocked(self.family, address):
        raise OSError(errno.ENETUNREACH, f"no network in this test, and so no connection to {address}")
    _connect(self, address)


def connect_ex(self: socket.socket, address: Any) -> int:
    return errno.ENETUNREACH if is_blocked(self.family, address) else _connect_ex(self, address)


def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
    if not is_local(host):
        raise socket.gaierror(socket.EAI_AGAIN, f"no network in this test, and so no address of {host}")
    return _getaddrinfo(host, *arguments, **options)


socket.socket.connect = connect  # type: ignore[method-assign, assignment]
socket.socket.connect_ex = connect_ex  # type: ignore[method-assign, assignment]
socket.getaddrinfo = getaddrinfo
