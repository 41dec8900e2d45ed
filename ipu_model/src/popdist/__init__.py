"""PopDist for any CPU: what a program started by `poprun` asks about its run, and how its instances work together."""

from popdist import stand_ins
from popdist.environment import (
    checkNumIpusPerReplica,
    execute_on_instances,
    finalizeBackend,
    getDeviceId,
    getInstanceIndex,
    getLocalInstanceIndex,
    getNumInstances,
    getNumIpusPerReplica,
    getNumLocalReplicas,
    getNumTotalReplicas,
    getReplicaIndexOffset,
    init,
    initializeBackend,
    isBackendInitialized,
    isPopdistEnvSet,
    synchronize,
)

__all__ = [
    "checkNumIpusPerReplica", "execute_on_instances", "finalizeBackend", "getDeviceId", "getInstanceIndex",
    "getLocalInstanceIndex", "getNumInstances", "getNumIpusPerReplica", "getNumLocalReplicas", "getNumTotalReplicas",
    "getReplicaIndexOffset", "init", "initializeBackend", "isBackendInitialized", "isPopdistEnvSet", "synchronize",
]  # fmt: skip

stand_ins.offer()
