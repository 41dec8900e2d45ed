"""The command `poprun`."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ipu_model.errors import Error
from popdist.environment import as_table, divide
from popdist.run.launch import FORWARDED, run
from popdist.run.messages import DEFAULT_SHELL, LOOPBACK, Host, Plan
from popdist.run.options import Request, exported, read

_THIS_MACHINE = Host("localhost", LOOPBACK, local=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a program as the command line says; return the exit status, 2 for a mistake in the command line."""
    try:
        request = read(sys.argv[1:] if arguments is None else arguments)
        plan = plan_of(request, os.environ)
        if request.export_config:
            Path(request.export_config).write_text(exported(request), encoding="utf-8")
    except (Error, OSError) as error:
        print(f"poprun: {error.message if isinstance(error, Error) else error}", file=sys.stderr)
        return 2
    _describe(request, plan)
    return run(plan)


def plan_of(request: Request, environment: Mapping[str, str]) -> Plan:
    """Return the run that a command line asks for; raise `Error` for what cannot be run, with the nearest that can."""
    if not request.program:
        raise Error("no program was given. Write it after the options: poprun --num-instances 2 python program.py")
    names = (_THIS_MACHINE.name,) if request.host is None else parse_hosts(request.host)
    topology = divide(names, request.num_instances, request.num_replicas, request.ipus_per_replica)
    only = request.only_output_from_instance
    if only is not None and not 0 <= only < topology.num_instances:
        raise Error(
            f"--only-output-from-instance {only}: there are {topology.num_instances} instances, from 0 to "
            f"{topology.num_instances - 1}."
        )
    port = environment.get("MASTER_PORT", "0")  # 0 stands for a free one
    if not port.isdecimal() or int(port) >= 2**16:
        raise Error(f"MASTER_PORT is {port!r}, which is no port: unset it to have a free one chosen.")
    return Plan(
        topology,
        (_THIS_MACHINE,) if request.host is None else find(names),
        request.program,
        shared=shared_variables(request, environment),
        port=int(port),
        remote_shell=request.mpi.remote_shell or DEFAULT_SHELL,
        only_output_from=only,
        talkative=request.verbosity > 1,
    )


def shared_variables(request: Request, environment: Mapping[str, str]) -> dict[str, str]:
    shared = {name: environment[name] for name in FORWARDED if name in environment}
    for name, value in request.mpi.variables.items():
        if value is not None:
            shared[name] = value
        elif name in environment:
            shared[name] = environment[name]
        else:
            print(f"poprun: -x {name}: this variable is not set here, so it is not passed on", file=sys.stderr)
    if request.executable_cache_path:
        shared["POPTORCH_CACHE_DIR"] = request.executable_cache_path
    return shared


def _describe(request: Request, plan: Plan) -> None:
    if request.print_topology:
        print(as_table(plan.topology), flush=True)
    if not request.verbosity:
        return
    lines = [f"{name} has no effect on the IPU Model" for name in request.without_effect]
    lines += [f"{text} is an argument of mpirun that has no effect here" for text in request.mpi.ignored]
    for index, host in enumerate(plan.hosts):
        instances = plan.topology.on_host(index)
        way = "on this machine" if host.local else "through the remote shell"
        numbers = f"instances {instances[0].index} to {instances[-1].index}"
        lines.append(f"host {host.name} ({host.address}, {way}): {numbers}")
    for line in lines:
        print(f"poprun: {line}", file=sys.stderr, flush=True)


def parse_hosts(text: str) -> tuple[str, ...]:
    """Split the value of `--host`; raise `Error` for an empty name, or one that is there twice."""
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

    Raises `Error` for an unknown name, two names of one address, or a first host that the others cannot reach.
    """
    hosts = tuple(map(_find, names))
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
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
            local = True
        except OSError:
            local = False
    if not local and ipaddress.ip_address(address).is_loopback:
        raise Error(f"--host: {name} is {address}, a loopback address that this machine does not have.")
    return Host(name, address, local)
