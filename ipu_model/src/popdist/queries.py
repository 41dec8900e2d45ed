"""What a program asks about its run; without `poprun` it is one instance with one replica."""

from __future__ import annotations

from popdist import environment


def isPopdistEnvSet() -> bool:
    """Whether this process was started by `poprun`."""
    return environment.is_set()


def getNumTotalReplicas() -> int:
    """Replicas of all instances together."""
    return environment.place().total_replicas


def getNumLocalReplicas() -> int:
    """Replicas that this instance runs."""
    return environment.place().local_replicas


def getNumIpusPerReplica() -> int:
    """IPUs that a replica is placed on."""
    return environment.place().ipus_per_replica


def getNumInstances() -> int:
    """Processes of the run."""
    return environment.place().instances


def getInstanceIndex() -> int:
    """Index of this process in the run, from 0."""
    return environment.place().instance


def getLocalInstanceIndex() -> int:
    """Index of this process among those on its host, from 0."""
    return environment.place().local_instance


def getReplicaIndexOffset() -> int:
    """Index in the whole run of this instance's first replica."""
    return environment.place().replica_offset


def getDeviceId(ipusPerReplica: int = 0) -> int:
    """First of the IPUs that this instance would take of its host's: none has to be attached to here."""
    place = environment.place()
    return place.local_instance * place.local_replicas * (ipusPerReplica or place.ipus_per_replica)


def checkNumIpusPerReplica(n: int) -> bool:
    """Whether `n` IPUs per replica is what `poprun` was told; without it every number is."""
    return not environment.is_set() or environment.place().ipus_per_replica == n
