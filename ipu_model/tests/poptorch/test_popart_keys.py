"""The keys of `Options._Popart.set` that the reference lists, by the type of their values (section 9)."""

from __future__ import annotations

from typing import Any

import pytest

import poptorch

BOOLS = """
    disableGradAccumulationTensorStreams disableOptimizerStateTensorStreams enableOutlining
    scheduleNonWeightUpdateGradientConsumersEarly decomposeGradSum enableStochasticRounding enableGradientAccumulation
    replicatedCollectivesSettings.prepareScheduleForMergingCollectives
    replicatedCollectivesSettings.mergeAllReduceCollectives groupNormStridedChannelGrouping explicitRecomputation
    enableInplaceAmbiguityChecking enableLoadAndOffloadRNGState batchSerializationSettings.concatOnVirtualGraphChange
    batchSerializationSettings.concatOnExecutionPhaseChange batchSerializationSettings.concatOnPipelineStageChange
    strictOpVersions opxAliasChecking opxModifyChecking dotOpNames exportPoplarComputationGraph
    exportPoplarVertexGraph separateCallOpPdfs enableOutliningCopyCostPruning rearrangeAnchorsOnHost
    rearrangeStreamsOnHost enablePrefetchDatastreams enableNonStableSoftmax enableReplicatedGraphs
    instrumentWithHardwareCycleCounter enablePipelining compileEngine constantWeights enableEngineCaching
    enableMergeExchange enableFloatingPointChecks ensureFp32LossScaleTensor enableExplicitMainLoops enableExplicitIR
    useHostCopyOps aliasZeroCopy delayVarUpdates enableFullyConnectedPass enableSerializedMatmuls enableStableNorm
    enableDistributedReplicatedGraphs groupHostSync automaticLossScalingSettings.enabled
    enableSupportedDataTypeCasting"""
INTS = """
    defaultPrefetchBufferingDepth defaultBufferingDepth executionPhaseSettings.phases executionPhaseSettings.stages
    batchSerializationSettings.factor firstDotOp finalDotOp mergeVarUpdateMemThreshold looseThresholdAtPeak
    accumulationFactor swapLimitScheduler globalReplicationFactor globalReplicaOffset compilationProgressTotal
    transitiveClosureOptimizationThreshold automaticLossScalingSettings.updatePeriod autodiffSettings.stitchStrategy"""
FLOATS = """
    outlineThreshold timeLimitScheduler outlineSequenceBreakCost automaticLossScalingSettings.binEdgeLocation
    automaticLossScalingSettings.thresholdUpperCountProportion"""
STRINGS = """
    saveInitializersToFile partialsTypeMatMuls cachePath customCodeletCompileFlags serializedPoprithmsShiftGraphsDir
    kahnTieBreaker"""
CONTAINERS = """
    accumulateOuterFragmentSettings.excludedVirtualGraphs dotChecks hardwareInstrumentations customCodelets
    updatableNamedBuffers"""
MAPS = "engineOptions convolutionOptions reportOptions matmulOptions lstmOptions gclOptions"
# Values that are enums, each with PopART's last member.
LAST_MEMBERS = {
    "autoRecomputation": 4, "syntheticDataMode": 3, "virtualGraphMode": 3, "subgraphCopyingStrategy": 1,
    "accumulateOuterFragmentSettings.schedule": 3, "batchSerializationSettings.batchSchedule": 3,
    "batchSerializationSettings.method": 2, "batchSerializationSettings.transformContext": 1, "mergeVarUpdate": 3,
    "accumulationAndReplicationReductionType": 2, "automaticLossScalingSettings.gradientTensorTrackingMethod": 2,
}  # fmt: skip


def validate(**settings: Any) -> None:
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    for key, value in settings.items():
        options._Popart.set(key, value)
    poptorch.poptorch_core._validateOptions(options.toDict())


@pytest.mark.parametrize(
    ("keys", "value"),
    [(BOOLS, True), (INTS, 1), (FLOATS, 1.0), (STRINGS, "text"), (CONTAINERS, ["0"]), (MAPS, {"name": "text"})],
    ids=["bool", "int", "float", "str", "container", "map"],
)
def test_keys_are_accepted_with_values_of_their_type_only(keys: str, value: Any) -> None:
    validate(**dict.fromkeys(keys.split(), value))
    for other in (True, 1, 1.0, "text", ["0"], {"name": "text"}):
        if type(other) is not type(value):
            for key in keys.split():
                with pytest.raises(poptorch.Error, match=rf"Unknown .* option {key}\."):
                    validate(**{key: other})


@pytest.mark.parametrize(("key", "last"), LAST_MEMBERS.items(), ids=list(LAST_MEMBERS))
def test_enums_end_with_their_last_member(key: str, last: int) -> None:
    validate(**{key: last})
    with pytest.raises(poptorch.Error, match=rf"option {key} is out of range"):
        validate(**{key: last + 1})
