"""Which host runs which instance, and which instance runs which replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ipu_model.errors import Error


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
    """Divide replicas evenly over instances, and instances evenly over hosts; raise `Error` where that cannot be."""
    counts = {"--num-instances": instances, "--num-replicas": replicas, "--ipus-per-replica": ipus_per_replica}
    for option, value in counts.items():
        if value < 1:
            raise Error(f"{option} {value}: there must be at least 1.")
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
