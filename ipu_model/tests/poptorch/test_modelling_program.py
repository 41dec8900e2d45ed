"""Every option on placement, memory or speed reaches the `Program` that is modelled (options reference 3 to 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modelling_support import ROWS, Chain, batch, inferred, quiet, trainable, trained
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model.batching import Keep
from ipu_model.front_ends import program_of_module
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import Work
from ipu_model.predict.program import Execution, Location, Program, Recomputation


def with_popart(key: str, value: Any) -> poptorch.Options:
    options = trainable()
    options._Popart.set(key, value)
    return options


class TestBatches:
    @settings(max_examples=10, deadline=None)
    @given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
    def test_a_call_takes_rows_for_every_iteration_accumulation_and_replica(self, d: int, a: int, r: int) -> None:
        options = trainable(1, a).deviceIterations(d).replicationFactor(r)
        program = trained(options, ipus=1)
        assert program.samples_per_micro_batch == ROWS
        assert program.samples_per_call == ROWS * d * a * r
        assert (program.batching.device_iterations, program.batching.accumulation) == (d, a)
        assert program.replicas == r

    def test_input_groups(self) -> None:
        options = quiet().replicationFactor(4).inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
        batching = inferred(options, ipus=1).batching
        assert (batching.replicas, batching.input_group, batching.orthogonal_groups) == (4, 2, True)

    def test_processes_have_replicas_of_their_own(self) -> None:
        options = quiet().replicationFactor(2)
        options.Distributed.configureProcessId(1, 3)
        assert inferred(options, ipus=1).replicas == 6

    @pytest.mark.parametrize(
        ("mode", "keep"),
        [
            (poptorch.OutputMode.All, Keep.ALL),
            (poptorch.OutputMode.Sum, Keep.SUM),
            (poptorch.OutputMode.Final, Keep.FINAL),
        ],
    )
    def test_output_modes(self, mode: poptorch.OutputMode, keep: Keep) -> None:
        assert trained(trainable().outputMode(mode)).returns.keep is keep

    def test_an_output_mode_with_a_period(self) -> None:
        returns = inferred(quiet().deviceIterations(6).outputMode(poptorch.OutputMode.EveryN, 3), ipus=1).returns
        assert (returns.keep, returns.period) == (Keep.EVERY_N, 3)

    def test_the_default_is_final_for_training_and_all_for_inference(self) -> None:
        assert trained(trainable()).returns.keep is Keep.FINAL
        assert inferred(quiet().deviceIterations(2)).returns.keep is Keep.ALL


class TestExecution:
    def test_the_default_strategy_is_a_pipeline(self) -> None:
        program = trained(trainable())
        assert program.execution is Execution.PIPELINED
        assert program.ipus_per_replica == 2

    def test_sharding(self) -> None:
        options = trainable(accumulation=1).setExecutionStrategy(poptorch.ShardedExecution())
        assert trained(options).execution is Execution.SHARDED

    def test_a_pipeline_that_is_switched_off_runs_its_stages_one_after_another(self) -> None:
        assert trained(with_popart("enablePipelining", False)).execution is Execution.SHARDED

    def test_phases_run_one_after_another_and_keep_their_tensors_off_chip_by_default(self) -> None:
        class Phased(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

            def forward(self, x: Tensor) -> Tensor:
                with poptorch.Block("a", ipu_id=0):
                    x = self.a(x)
                with poptorch.Block("b", ipu_id=0):
                    return self.b(x)

        options = quiet().setExecutionStrategy(poptorch.SerialPhasedExecution("a", "b"))
        options.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
        program = program_of_module(options, Phased(), torch.empty(2, 8))
        assert program.execution is Execution.SHARDED
        assert program.locations.activations == Location(on_chip=False)
        assert program.locations.weights == Location(on_chip=True)

    def test_synthetic_data_needs_no_streams(self) -> None:
        assert trained(trainable().enableSyntheticData(True)).synthetic_data
        assert not trained(trainable()).synthetic_data


class TestRecomputation:
    def test_pipelines_recompute_by_default_when_they_train(self) -> None:
        assert trained(trainable()).recomputation is Recomputation.PIPELINE
        assert trained(trainable(1), ipus=1).recomputation is Recomputation.NONE
        assert inferred(quiet().deviceIterations(2)).recomputation is Recomputation.NONE

    def test_sharded_programs_do_not(self) -> None:
        options = trainable(accumulation=1).setExecutionStrategy(poptorch.ShardedExecution())
        assert trained(options).recomputation is Recomputation.NONE

    @pytest.mark.parametrize(
        ("value", "mode"),
        [
            (0, Recomputation.NONE), (1, Recomputation.STANDARD), (2, Recomputation.NORM_ONLY),
            (3, Recomputation.PIPELINE), (4, Recomputation.ALL),
        ],
    )  # fmt: skip
    def test_the_program_may_choose_another_mode(self, value: int, mode: Recomputation) -> None:
        assert trained(with_popart("autoRecomputation", value)).recomputation is mode

    def test_checkpoints_are_marked_in_the_step(self) -> None:
        class Checkpointed(Chain):
            def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
                return super().forward(poptorch.recomputationCheckpoint(x * 2), y)

        options, model = trainable(), Checkpointed()
        step = program_of_module(options, model, batch(options), training=True).step
        marked = [op.name for op in step.ops if op.hints.recomputation_checkpoint]
        assert marked == ["mul_tensor"]


class TestCosts:
    def test_partials_are_single_precision_unless_the_program_says_otherwise(self) -> None:
        plain = trained(trainable()).settings
        assert (plain.half_partials, plain.half_partials_of_convolutions) == (False, False)
        options = trainable()
        options.Precision.setPartialsType(torch.half)
        chosen = trained(options).settings
        assert (chosen.half_partials, chosen.half_partials_of_convolutions) == (True, True)

    def test_products_and_convolutions_may_differ(self) -> None:
        products = trained(with_popart("partialsTypeMatMuls", "half")).settings
        assert (products.half_partials, products.half_partials_of_convolutions) == (True, False)
        convolutions = trained(with_popart("convolutionOptions", {"partialsType": "half"})).settings
        assert (convolutions.half_partials, convolutions.half_partials_of_convolutions) == (False, True)

    def test_memory_proportions_of_ipus(self) -> None:
        found = trained(trainable().setAvailableMemoryProportion({"IPU0": 0.2, "IPU1": 1})).settings
        assert (found.proportion(0), found.proportion(1)) == (0.2, 1.0)
        assert trained(trainable()).settings.proportion(0) == 0.6  # PopLibs' default

    @pytest.mark.parametrize("share", [1.5, -0.1, "0.2", True, float("nan")])
    def test_a_proportion_that_no_tile_has_is_refused_with_its_ipu(self, share: Any) -> None:
        with pytest.raises(poptorch.Error, match=r"IPU1.* must be .*between 0 and 1"):
            trained(trainable().setAvailableMemoryProportion({"IPU1": share}))

    def test_stable_norms(self) -> None:
        assert trained(trainable().enableStableNorm(True)).settings.stable_norm
        assert not trained(trainable()).settings.stable_norm

    def test_a_memory_hint_changes_the_plan_of_its_op(self) -> None:
        plain = product(lambda a, b: a @ b)
        hinted = product(lambda a, b: poptorch.set_available_memory(a @ b, 0.01))
        assert hinted.temporary_bytes < plain.temporary_bytes

    def test_a_product_in_slices_is_costed_as_such(self) -> None:
        columns = poptorch.MatMulSerializationMode.OutputChannels
        plain = product(lambda a, b: a @ b)
        sliced = product(lambda a, b: poptorch.serializedMatMul(a, b, columns, 64))
        assert sliced.cycles.phases > plain.cycles.phases
        assert sliced.flops == plain.flops


def product(function: Callable[[Tensor, Tensor], Tensor]) -> Work:
    """Return the cost of a product of two large matrices, which the model finds in the program."""

    class Product(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return function(a, b)

    large = torch.empty(4096, 4096, dtype=torch.float16, device="meta")
    program = program_of_module(quiet(), Product(), (large, large))
    (op,) = costs_of(program.step, program.settings).ops
    return op.work


class TestTensorLocations:
    def test_the_backends_defaults(self) -> None:
        found = trained(trainable()).locations
        assert {found.activations, found.weights, found.optimiser, found.accumulators} == {Location()}
        assert Location() == Location(on_chip=True, sharded=False, least_off_chip=2, least_sharded=8192)

    @pytest.mark.parametrize(
        ("setter", "field"),
        [
            ("setActivationLocation", "activations"),
            ("setWeightLocation", "weights"),
            ("setOptimizerLocation", "optimiser"),
            ("setAccumulatorLocation", "accumulators"),
        ],
    )
    def test_each_category_has_its_own(self, setter: str, field: str) -> None:
        options = trainable()
        wanted = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
        wanted.minElementsForOffChip(100).minElementsForReplicatedTensorSharding(200)
        getattr(options.TensorLocations, setter)(wanted.useIOTilesToLoad(True))
        found = trained(options).locations
        expected = Location(on_chip=False, sharded=True, least_off_chip=100, least_sharded=200)
        assert {name: value for name, value in vars(found).items() if value != Location()} == {field: expected}

    def test_io_tiles(self) -> None:
        options = trainable()
        options.TensorLocations.numIOTiles(64)
        assert trained(options).io_tiles == 64
        assert trained(trainable()).io_tiles == 0


class TestHostTransfers:
    @pytest.mark.parametrize(
        ("keys", "depth"),
        [
            ({}, 1),
            ({"defaultPrefetchBufferingDepth": 3}, 3),
            ({"defaultBufferingDepth": 4}, 4),
            ({"defaultPrefetchBufferingDepth": 3, "defaultBufferingDepth": 4}, 4),
            ({"enablePrefetchDatastreams": False, "defaultBufferingDepth": 4}, 0),
        ],
    )
    def test_how_far_the_host_prepares_ahead(self, keys: dict[str, Any], depth: int) -> None:
        options = trainable()
        for key, value in keys.items():
            options._Popart.set(key, value)
        assert trained(options).prefetch_depth == depth

    @pytest.mark.parametrize("mode", poptorch.OverlapMode)
    def test_overlap_of_inputs_and_outputs(self, mode: poptorch.OverlapMode) -> None:
        def overlapping(function: Callable[..., Any]) -> Program:
            class Marked(nn.Module):
                def forward(self, x: Tensor) -> Tensor:
                    if function is poptorch.set_overlap_for_input:
                        return function(x, mode) + 1
                    return function(x + 1, mode)

            options = quiet().setExecutionStrategy(poptorch.ShardedExecution())
            options.TensorLocations.numIOTiles(32)
            program: Program = program_of_module(options, Marked(), torch.empty(2, 8))
            return program

        expected = mode is not poptorch.OverlapMode.NoOverlap
        program = overlapping(poptorch.set_overlap_for_input)
        assert (program.overlaps_input, program.overlaps_output) == (expected, False)
        program = overlapping(poptorch.set_overlap_for_output)
        assert (program.overlaps_input, program.overlaps_output) == (False, expected)


class TestOptimiser:
    def test_inference_has_none(self) -> None:
        assert inferred(quiet().deviceIterations(2)).optimiser is None

    def test_family_and_groups(self) -> None:
        def adam(model: Chain) -> poptorch.optim.AdamW:
            return poptorch.optim.AdamW([
                {"params": model.layers[0].parameters(), "lr": 0.1},
                {"params": [model.layers[1].weight], "lr": 0.2},
            ])  # fmt: skip

        program = trained(trainable(), optimizer=adam)
        assert program.optimiser is not None
        assert program.optimiser.family == "ADAMW"
        groups = {f"layers.{i}.{name}": group for (i, name), group in {
            (0, "weight"): 0, (0, "bias"): 0, (1, "weight"): 1, (1, "bias"): None,
        }.items()}  # fmt: skip
        assert program.groups == groups
        assert [program.optimiser.hyper(groups[f"layers.{i}.weight"]).lr for i in (0, 1)] == [0.1, 0.2]

    def test_training_without_one_uses_poptorchs_default(self) -> None:
        options = trainable()
        program = program_of_module(options, Chain(), batch(options), training=True)
        assert (program.optimiser.family, program.optimiser.default.lr) == ("SGD2", 0.01)


class TestNames:
    def test_a_report_is_called_after_the_model_or_after_what_it_does(self) -> None:
        assert trained(trainable()).name == "training"
        assert inferred(quiet().deviceIterations(2)).name == "inference"
        assert trained(trainable().modelName("net")).name == "net"


class Nothing(nn.Module):
    """Adds up rows of which there are none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :0].sum(2) + x.sum((1, 2))[:, None][:, :0]


def test_a_reduction_to_an_empty_result_is_profiled() -> None:
    wrapped = poptorch.inferenceModel(Nothing(), quiet())
    assert wrapped(torch.ones(2, 3, 4)).shape == (2, 0)
    assert ipu_model.profile(wrapped).fits
