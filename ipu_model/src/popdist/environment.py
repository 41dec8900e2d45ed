"""A run, its hosts, instances and replicas: what `poprun` sets, what a program asks, how instances work together.

Without `poprun` a program is one instance with one replica.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ipu_model.errors import Error
from ipu_model.predict.hardware import system_with

if TYPE_CHECKING:
    from ipu_model.instances import Group

# What `popdist` offers to programs.
__all__ = [
    "checkNumIpusPerReplica", "execute_on_instances", "finalizeBackend", "getDeviceId", "getInstanceIndex",
    "getLocalInstanceIndex", "getNumInstances", "getNumIpusPerReplica", "getNumLocalReplicas", "getNumTotalReplicas",
    "getReplicaIndexOffset", "init", "initializeBackend", "isBackendInitialized", "isPopdistEnvSet", "synchronize",
]  # fmt: skip


@dataclass(frozen=True)
class Instance:
    """One process of a run; it runs the replicas `first_replica` to `first_replica + replicas - 1`."""

    index: int
    host: str
    host_index: int
    local_index: int
    first_replica: int
    replicas: int

    @property
    def which_replicas(self) -> str:
        """The numbers of its replicas, as "3" or "4 to 7"."""
        last = self.first_replica + self.replicas - 1
        return str(last) if self.replicas == 1 else f"{self.first_replica} to {last}"

    @property
    def description(self) -> str:
        replicas = "replica" if self.replicas == 1 else "replicas"
        return f"instance {self.index} (host {self.host}, {replicas} {self.which_replicas})"


@dataclass(frozen=True)
class Topology:
    """A run: hosts in order, so many instances on each of them, so many replicas in each instance."""

    hosts: tuple[str, ...]
    instances_per_host: int
    replicas_per_instance: int
    ipus_per_replica: int = 1

    @property
    def num_instances(self) -> int:
        return len(self.hosts) * self.instances_per_host

    @property
    def num_replicas(self) -> int:
        return self.num_instances * self.replicas_per_instance

    def instance(self, index: int) -> Instance:
        """Return the instance with this index; hosts are filled one after the other."""
        host, local = divmod(index, self.instances_per_host)
        first = index * self.replicas_per_instance
        return Instance(index, self.hosts[host], host, local, first, self.replicas_per_instance)

    @property
    def instances(self) -> tuple[Instance, ...]:
        return tuple(self.instance(index) for index in range(self.num_instances))

    def on_host(self, host: int) -> tuple[Instance, ...]:
        return tuple(instance for instance in self.instances if instance.host_index == host)


def divide(hosts: Sequence[str], instances: int, replicas: int, ipus_per_replica: int = 1) -> Topology:
    counts = {"--num-instances": instances, "--num-replicas": replicas, "--ipus-per-replica": ipus_per_replica}
    for option, value in counts.items():
        if value < 1:
            raise Error(f"{option} {value}: there must be at least 1.")
    system_with("GC200", max(instances, replicas) * ipus_per_replica)  # refuses more than the largest system has
    over = (("--num-instances", len(hosts), "hosts"), ("--num-replicas", instances, "instances (--num-instances)"))
    for option, parts, what in over:
        below = counts[option] // parts * parts
        if below != counts[option]:
            nearest = f"{below} or {below + parts}" if below else f"{parts}"
            raise Error(
                f"{option} {counts[option]}: they are divided evenly over {parts} {what}, so it must be a multiple of "
                f"{parts}. Nearest that works: {nearest}."
            )
    return Topology(tuple(hosts), instances // len(hosts), replicas // instances, ipus_per_replica)


def as_table(topology: Topology) -> str:
    rows = [("host", "instance", "replicas", "IPUs per replica")]
    for instance in topology.instances:
        rows.append((instance.host, str(instance.index), instance.which_replicas, str(topology.ipus_per_replica)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


# --- the environment of an instance

TOTAL = "POPDIST_NUM_TOTAL_REPLICAS"
LOCAL = "POPDIST_NUM_LOCAL_REPLICAS"
IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"
OFFSET = "POPDIST_REPLICA_INDEX_OFFSET"
UNIFORM = "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE"
LOCAL_INSTANCE = "POPDIST_LOCAL_INSTANCE_INDEX"
_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
NAMES = (TOTAL, LOCAL, IPUS, OFFSET, UNIFORM, LOCAL_INSTANCE)


@dataclass(frozen=True)
class Place:
    """Where this process stands in its run; the defaults are those of a program started without `poprun`."""

    total_replicas: int = 1
    local_replicas: int = 1
    ipus_per_replica: int = 1
    replica_offset: int = 0
    local_instance: int = 0

    @property
    def instances(self) -> int:
        return self.total_replicas // self.local_replicas

    @property
    def instance(self) -> int:
        return self.replica_offset // self.local_replicas


def variables_of(topology: Topology, instance: Instance) -> dict[str, str]:
    values = {
        TOTAL: topology.num_replicas,
        LOCAL: instance.replicas,
        IPUS: topology.ipus_per_replica,
        OFFSET: instance.first_replica,
        UNIFORM: 1,
        LOCAL_INSTANCE: instance.local_index,
        "OMPI_COMM_WORLD_SIZE": topology.num_instances,
        "OMPI_COMM_WORLD_RANK": instance.index,
        _LOCAL_SIZE: topology.instances_per_host,
        "OMPI_COMM_WORLD_LOCAL_RANK": instance.local_index,
    }
    return {name: str(value) for name, value in values.items()}


def place(environment: Mapping[str, str] = os.environ) -> Place:
    given = [name for name in NAMES if name in environment]
    if not given:
        return Place()
    missing = [name for name in NAMES if name not in environment]
    if missing:
        raise Error(
            f"Only part of poprun's environment is set: {given[0]} is set, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not. Start the program with poprun, or unset {', '.join(given)}."
        )
    found = Place(*(_number(environment, name) for name in (TOTAL, LOCAL, IPUS, OFFSET, LOCAL_INSTANCE)))
    if environment[UNIFORM] != "1" or found.total_replicas % found.local_replicas:
        raise Error(
            f"{TOTAL}={found.total_replicas}, {LOCAL}={found.local_replicas}, {UNIFORM}={environment[UNIFORM]}: all "
            "instances must have the same number of replicas. Start the program with poprun, which divides them evenly."
        )
    if found.replica_offset % found.local_replicas or found.replica_offset >= found.total_replicas:
        raise Error(
            f"{OFFSET}={found.replica_offset} is not the first replica of any instance: with {found.local_replicas} "
            f"replicas each, those are the multiples of {found.local_replicas} below {found.total_replicas}."
        )
    return found


def instances_on_this_host() -> int:
    return _number(os.environ, _LOCAL_SIZE) if isPopdistEnvSet() and _LOCAL_SIZE in os.environ else 1


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    least = 0 if name in (OFFSET, LOCAL_INSTANCE) else 1
    if not text.isdecimal() or int(text) < least:
        raise Error(
            f"{name}={text!r} is not a whole number from {least}. Start the program with poprun, which sets it."
        )
    return int(text)


def isPopdistEnvSet() -> bool:
    """Whether this process was started by `poprun`."""
    return TOTAL in os.environ


def getNumTotalReplicas() -> int:
    """Replicas of all instances together."""
    return place().total_replicas


def getNumLocalReplicas() -> int:
    """Replicas that this instance runs."""
    return place().local_replicas


def getNumIpusPerReplica() -> int:
    """IPUs that a replica is placed on."""
    return place().ipus_per_replica


def getNumInstances() -> int:
    """Processes of the run."""
    return place().instances


def getInstanceIndex() -> int:
    """Index of this process in the run, from 0."""
    return place().instance


def getLocalInstanceIndex() -> int:
    """Index of this process among those on its host, from 0."""
    return place().local_instance


def getReplicaIndexOffset() -> int:
    """Index in the whole run of this instance's first replica."""
    return place().replica_offset


def getDeviceId(ipusPerReplica: int = 0) -> int:
    """First of the IPUs that this instance would take of its host's: none has to be attached to here."""
    here = place()
    return here.local_instance * here.local_replicas * (ipusPerReplica or here.ipus_per_replica)


def checkNumIpusPerReplica(n: int) -> bool:
    """Whether `n` IPUs per replica is what `poprun` was told; without it every number is."""
    return not isPopdistEnvSet() or place().ipus_per_replica == n


_T = TypeVar("_T")

# The instances that `execute_on_instances` has limited collectives to, innermost last.
_limits: list[tuple[int, ...]] = []


def init() -> None:
    """Join the other instances, if that has not been done; raise `Error` without `poprun`, or if they are not there."""
    if not isPopdistEnvSet():
        raise Error(
            "popdist.init() was called, but this program was not started by poprun. Call it only if "
            "popdist.isPopdistEnvSet(), or start it with: poprun --num-instances N --num-replicas R python program.py"
        )
    initializeBackend()


def initializeBackend() -> None:
    """Join the other instances, if there are any; a process that an instance started, as loaders do, leaves that to it.

    A spawned process imports the program again. If the program joins outside `if __name__ == "__main__"`, it would
    otherwise join a second time in its instance's place, and the instances would wait for each other for ever.
    """
    if multiprocessing.parent_process() is None:
        whole_run()


def isBackendInitialized() -> bool:
    """Whether this process has joined the others."""
    from ipu_model.instances import joined

    return joined() is not None


def finalizeBackend() -> None:
    """Leave the other instances; all of them must do so."""
    from ipu_model.instances import leave

    leave()


def synchronize() -> None:
    """Return when all instances have called this."""
    group().barrier()


def execute_on_instances(
    instances: Iterable[int], func: Callable[..., _T], *args: object, **kwargs: object
) -> _T | None:
    """Call `func` on these instances only and return its result there, `None` on the others.

    Collectives inside are among these instances. Raises `Error` for an index that no instance has.
    """
    chosen = tuple(sorted(set(instances)))
    here = place()
    unknown = [index for index in chosen if not 0 <= index < here.instances]
    if unknown or not chosen:
        raise Error(
            f"execute_on_instances({set(chosen) or '{}'}): name at least one of the instances 0 to "
            f"{here.instances - 1}, and no other."
        )
    if here.instance not in chosen:
        return None
    _limits.append(chosen)
    try:
        return func(*args, **kwargs)
    finally:
        _limits.pop()


def group() -> Group:
    everyone = whole_run()
    return everyone.only(_limits[-1]) if _limits else everyone


def whole_run() -> Group:
    from ipu_model.instances import world

    here = place()
    return world(here.instance, here.instances)
