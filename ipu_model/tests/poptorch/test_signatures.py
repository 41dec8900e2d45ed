"""Names, order and defaults of arguments (options reference 3 to 9, execution reference 2 to 14)."""

from __future__ import annotations

import inspect
from functools import reduce
from typing import Any

import pytest

import poptorch

# What programs write in front, then one line for each function: its name and its arguments as in the reference.
TABLE: dict[str, str] = {
    "poptorch.Options()": """
        deviceIterations(device_iterations)
        replicationFactor(replication_factor)
        inputReplicaGrouping(input_group_size, input_group_type)
        outputMode(output_mode, output_return_period=None)
        anchorTensor(short_name, long_name, output_mode=None, output_return_period=1)
        setExecutionStrategy(strategy)
        randomSeed(random_seed)
        enableExecutableCaching(path)
        autoRoundNumIPUs(auto_round_num_ipus=True)
        setAvailableMemoryProportion(available_memory_proportion)
        enableSyntheticData(enabled)
        useIpuModel(use_model)
        useIpuId(ipu_id)
        useOfflineIpuTarget(ipu_version=2)
        connectionType(connection_type)
        syncPattern(sync_pattern)
        enableStableNorm(enabled)
        showCompilationProgressBar(show=True)
        relaxOptimizerAttributesChecks(relax=True)
        modelName(name)
        logDir(log_dir)
        logCycleCount(log_cycle_count)
        maxRepeatLogs(max_lines)
        enableProfiling(profile_dir=None)
        broadcastBuffers(broadcast_buffers=True)
        updatableNamedBuffers(buffers)
        sourceLocationExcludes(excludes)
        appendToLocationExcludes(*excludes)
        disableModuleNamescope()
        defaultOutputMode()
        clone()
        toDict()
        loadFromFile(filepath)
        from_json(string)
        Training.gradientAccumulation(gradient_accumulation)
        Training.accumulationAndReplicationReductionType(reduction_type)
        Training.setMeanAccumulationAndReplicationReductionStrategy(mean_reduction_strategy)
        Training.setAutomaticLossScaling(enabled)
        Training.setConvolutionDithering(enabled)
        Precision.enableStochasticRounding(enabled)
        Precision.setPartialsType(dtype)
        Precision.enableFloatingPointExceptions(enabled)
        Precision.runningStatisticsAlwaysFloat(value)
        TensorLocations.setActivationLocation(location)
        TensorLocations.setWeightLocation(location)
        TensorLocations.setOptimizerLocation(location)
        TensorLocations.setAccumulatorLocation(location)
        TensorLocations.numIOTiles(num_tiles)
        Distributed.configureProcessId(process_id, num_processes)
        Distributed.setEnvVarNames(var_num_processes, var_process_id)
        Distributed.disable()
        Jit.traceModel(trace_model)
        _Popart.set(key, value)
        _Popart.setPatterns(patterns, level=2)
        _Popart.setEngineOptions(engine_options)""",
    "poptorch.TensorLocationSettings()": """
        useOnChipStorage(use=True)
        useReplicatedTensorSharding(use=True)
        useIOTilesToLoad(use=True)
        useIOTilesToStore(use=True)
        minElementsForOffChip(min_elements)
        minElementsForReplicatedTensorSharding(min_elements)""",
    "poptorch": """
        BeginBlock(layer_to_call, user_id=None, ipu_id=None)
        Block(user_id=None, ipu_id=None)
        Block.start(user_id=None, ipu_id=None)
        Block.useAutoId()
        BlockFunction(user_id=None, ipu_id=None)
        removeBlocks(module)
        module_repr(module)
        identity_loss(x, reduction)
        recomputationCheckpoint(*tensors)
        set_available_memory(tensor, available_memory_proportion)
        serializedMatMul(lhs, rhs, mode, factor=0, keep_precision=False)
        set_overlap_for_input(input_tensors, mode)
        set_overlap_for_output(output_tensors, mode)
        for_loop(count, body, inputs)
        cond(condition, then_body, then_inps, else_body, else_inps)
        custom_op(inputs, name, domain, domain_version, example_outputs, attributes=None)
        CPU(layer_to_call, ID)
        nop(tensor)
        dynamic_slice(tensor, dim, start, size, step)
        dynamic_update(input, src, dim, start, size)
        ctc_beam_search_decoder(probs, lengths, blank=0, beam_width=100, top_paths=1)
        fps(src, ptr, ratio=0.5, random_start=False)
        nearest(x, y, batch_x=None, batch_y=None)
        ipu_print_tensor(tensor, title='', print_gradient=True, summarise_threshold=1000, edge_items=3, \
max_line_width=80, digits=4, float_format='auto', separator=', ', open_bracket='(', close_bracket=')')
        NameScope(name)
        ipuHardwareIsAvailable(num_ipus=1)
        ipuHardwareVersion()
        isRunningOnIpu()
        setLogLevel(level)
        createPoptorchError(msg)
        _logging.setPopartLogLevel(level)
        profiling.Channel(name)
        profiling.Channel.tracepoint(self, label)""",
    "poptorch.SerialPhasedExecution('A')": """
        phase(phase)
        stage(block_id)
        useSeparateBackwardPhase(use=True)
        setTensorsLiveness(liveness)""",
    "poptorch.ParallelPhasedExecution('A')": "sendTensorsOffChipAfterFwd(off_chip=True)",
}
CASES = [(owner, line.strip()) for owner, lines in TABLE.items() for line in lines.splitlines() if line.strip()]
OWNERS: dict[str, Any] = {
    "poptorch": poptorch,
    "poptorch.Options()": poptorch.Options(),
    "poptorch.TensorLocationSettings()": poptorch.TensorLocationSettings(),
    "poptorch.SerialPhasedExecution('A')": poptorch.SerialPhasedExecution("A"),
    "poptorch.ParallelPhasedExecution('A')": poptorch.ParallelPhasedExecution("A"),
}


@pytest.mark.parametrize(("owner", "call"), CASES, ids=[f"{owner}.{call.partition('(')[0]}" for owner, call in CASES])
def test_arguments_have_the_names_order_and_defaults_of_the_reference(owner: str, call: str) -> None:
    function = reduce(getattr, call.partition("(")[0].split("."), OWNERS[owner])
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
    ]
    assert f"{call.partition('(')[0]}{inspect.Signature(plain)}" == call
