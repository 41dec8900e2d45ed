"""Programs with other options, without another capture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cost_support import SETTINGS, cycles
from torch import Tensor, nn
from tracing_support import traced

from ipu_model.batching import Batching, Keep
from ipu_model.capture import tracing
from ipu_model.capture.describe import step_of
from ipu_model.errors import Error
from ipu_model.explore.options import OPTIONS, in_half_precision, with_byte_inputs, with_options
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.costs import costs_of
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.predict.remote import variables_of
from ipu_model.step import FLOAT16, FLOAT32, UINT8, Step
from published.convolutional import day03

PROGRAM = Program(step_of(day03()), True, Batching(accumulation=8), recomputation=Recomputation.PIPELINE)


class TestValues:
    def test_nothing_changed_is_the_same_program(self) -> None:
        assert with_options(PROGRAM) is PROGRAM

    def test_batching(self) -> None:
        found = with_options(PROGRAM, gradient_accumulation=16, device_iterations=4, replicas=2)
        assert found.batching == Batching(4, 16, 2)

    def test_execution_by_name(self) -> None:
        assert with_options(PROGRAM, execution="sharded").execution is Execution.SHARDED

    def test_only_pipelines_recompute_by_default(self) -> None:
        """PopTorch sets autoRecomputation to Pipeline for pipelines of several IPUs; what is chosen besides stays."""
        sharded = with_options(PROGRAM, execution="sharded")
        assert sharded.recomputation is Recomputation.NONE
        assert with_options(sharded, execution="pipelined").recomputation is Recomputation.PIPELINE
        chosen = with_options(PROGRAM, execution="sharded", recomputation="standard")
        assert chosen.recomputation is Recomputation.STANDARD

    def test_recomputation_by_name(self) -> None:
        assert with_options(PROGRAM, recomputation="none").recomputation is Recomputation.NONE

    def test_one_proportion_is_for_every_ipu(self) -> None:
        settings = with_options(PROGRAM, available_memory_proportion=0.2).settings
        assert (settings.proportion(0), settings.proportion(1)) == (0.2, 0.2)

    def test_proportions_by_ipu(self) -> None:
        settings = with_options(PROGRAM, available_memory_proportion={1: 0.3}).settings
        assert (settings.proportion(0), settings.proportion(1)) == (0.6, 0.3)

    def test_ipus_named_as_poptorch_does(self) -> None:
        assert with_options(PROGRAM, available_memory_proportion={"IPU1": 0.3}).settings.proportion(1) == 0.3

    def test_another_machine_brings_its_chip(self) -> None:
        found = with_options(PROGRAM, machine="Bow-POD16")
        assert found.settings.device.chip == found.system.chip
        assert found.system.ipus == 16

    def test_optimiser_state_off_chip_and_sharded(self) -> None:
        location = with_options(PROGRAM, optimiser_off_chip=True, optimiser_sharded=True).locations.optimiser
        assert (location.on_chip, location.sharded) == (False, True)

    def test_another_optimiser_brings_its_state(self) -> None:
        # One tensor of 4 bytes for an element of velocity, where the program had no optimiser.
        found = with_options(PROGRAM, optimizer=OptimiserSpec("SGD2", Hyper(lr=0.1, momentum=0.9)))
        weights = [tensor for tensor in variables_of(found) if tensor.trainable]
        assert {tensor.state / tensor.elements for tensor in weights} == {4.0}

    def test_half_precision_and_bytes(self) -> None:
        full = Program(step_of(day03(torch.float32)), True, Batching(accumulation=8))
        found = with_options(full, half_precision=True, eight_bit_inputs=True)
        assert found.step.inputs[0].dtype == UINT8
        assert {found.step.tensors[v.tensor].dtype for v in found.step.variables if v.trainable} == {FLOAT16}

    def test_output_mode(self) -> None:
        assert with_options(PROGRAM, output_mode="all").returns.keep is Keep.ALL

    def test_every_option_can_be_set(self) -> None:
        given = {
            "gradient_accumulation": 9, "device_iterations": 2, "replicas": 2, "processes": 2,
            "execution": "interleaved", "recomputation": "all", "available_memory_proportion": 0.5,
            "split": "model.layer3.6", "optimizer": OptimiserSpec("SGD2", Hyper(lr=0.1, momentum=0.9)),
            "half_partials": True, "half_precision": True,
            "eight_bit_inputs": True, "optimiser_off_chip": True, "optimiser_sharded": True, "prefetch_depth": 3,
            "synthetic_data": True, "output_mode": "all", "machine": "POD16", "half_optimiser_state": True,
            "checkpoints": "model.layer3",
        }  # fmt: skip
        assert set(given) == set(OPTIONS)
        program = replace(PROGRAM, optimiser=OptimiserSpec("ADAMW", Hyper(lr=0.1)))
        for name, value in given.items():
            assert with_options(program, **{name: value}) is not program, name


class TestReservedIpus:
    """`autoRoundNumIPUs` reserves more IPUs than a program uses; how many is known until it uses others."""

    ROUNDED = replace(PROGRAM, reserved_ipus=4)

    @pytest.mark.parametrize("options", [{"gradient_accumulation": 16}, {"device_iterations": 4}], ids=str)
    def test_they_stay_where_the_same_ipus_do_more(self, options: dict[str, int]) -> None:
        assert with_options(self.ROUNDED, **options).reserved_ipus == 4

    @pytest.mark.parametrize("options", [{"replicas": 2}, {"processes": 2}, {"split": "model.layer4"}], ids=str)
    def test_they_are_forgotten_where_others_join(self, options: dict[str, Any]) -> None:
        assert with_options(self.ROUNDED, **options).reserved_ipus is None


class TestBadInput:
    def test_unknown_options_name_the_nearest(self) -> None:
        with pytest.raises(Error, match=r"'gradient_acumulation' to change\. Did you mean 'gradient_accumulation'"):
            with_options(PROGRAM, gradient_acumulation=2)

    def test_an_optimiser_is_for_training_and_no_name(self) -> None:
        for program, value in ((PROGRAM, "adam"), (replace(PROGRAM, training=False), OptimiserSpec("SGD2", Hyper()))):
            with pytest.raises(Error, match="optimizer takes the OptimiserSpec"):
                with_options(program, optimizer=value)

    def test_a_split_names_modules_that_there_are(self) -> None:
        with pytest.raises(Error, match=r"does not reach a module 'model.layer3.99'\. Nearest: model\.layer3\.9"):
            with_options(PROGRAM, split="model.layer3.99")

    @pytest.mark.parametrize("value", [0, -3, 2.5, True, "4"])
    def test_counts_are_whole_and_positive(self, value: object) -> None:
        with pytest.raises(Error, match="device_iterations must be a whole number from 1 on"):
            with_options(PROGRAM, device_iterations=value)

    def test_the_pipeline_must_be_kept_busy(self) -> None:
        with pytest.raises(Error, match=r"gradient_accumulation must be at least 2 x 2 - 1 = 3 .* it is 2"):
            with_options(PROGRAM, gradient_accumulation=2)

    def test_sharded_execution_has_no_such_minimum(self) -> None:
        assert with_options(PROGRAM, execution="sharded", gradient_accumulation=1).batching.accumulation == 1

    def test_values_of_choices_are_listed(self) -> None:
        with pytest.raises(Error, match="execution must be one of 'pipelined', 'interleaved', 'sharded', not 'fast'"):
            with_options(PROGRAM, execution="fast")

    @pytest.mark.parametrize("value", [1.5, -1, float("nan"), "0.1", None, [], {0: None}])
    def test_proportions_are_shares(self, value: object) -> None:
        with pytest.raises(Error, match="between 0 and 1"):
            with_options(PROGRAM, available_memory_proportion=value)

    @pytest.mark.parametrize("ipu", [2, -1, "IPU9", "0.5", True, None])
    def test_proportions_are_of_the_programs_ipus(self, ipu: object) -> None:
        with pytest.raises(Error, match=r"has no IPU .* It has IPU0, IPU1"):
            with_options(PROGRAM, available_memory_proportion={ipu: 0.1})

    def test_unknown_machines_are_listed(self) -> None:
        with pytest.raises(Error, match="no machine 'POD3'"):
            with_options(PROGRAM, machine="POD3")


class Summed(nn.Module):
    """A module with the sum of its output as loss, in the type of the output."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.module(x).sum()
        trace = tracing.current()
        if trace is not None:
            trace.mark_loss(loss)
        return loss


def small(dtype: torch.dtype) -> Step:
    module = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
    return step_of(traced(Summed(module).to(dtype), torch.zeros(4, 3, 8, 8, dtype=dtype)))


class TestHalfPrecision:
    """A derived step costs what a capture of the changed program costs."""

    def test_a_small_network_costs_what_its_half_capture_costs(self) -> None:
        derived, captured = costs_of(in_half_precision(small(torch.float32))), costs_of(small(torch.float16))
        assert cycles(derived) == pytest.approx(cycles(captured), rel=0.03)

    def test_resnet_101_costs_what_its_half_capture_costs(self) -> None:
        derived = costs_of(in_half_precision(step_of(day03(torch.float32))), SETTINGS)
        assert cycles(derived) == pytest.approx(cycles(costs_of(step_of(day03()), SETTINGS)), rel=0.001)

    def test_weights_and_inputs_shrink_with_it(self) -> None:
        step = in_half_precision(small(torch.float32))
        variables = [step.tensors[variable.tensor] for variable in step.variables]
        assert {variable.dtype for variable in variables if variable.dtype.is_floating} == {FLOAT16}
        assert step.inputs[0].dtype == FLOAT16

    def test_the_captured_step_stays_as_it_is(self) -> None:
        step = small(torch.float32)
        in_half_precision(step)
        assert step.inputs[0].dtype == FLOAT32


class TestByteInputs:
    def test_they_are_a_quarter_of_floats(self) -> None:
        step = small(torch.float32)
        assert with_byte_inputs(step).inputs[0].dtype.bytes * 4 == step.inputs[0].dtype.bytes

    def test_labels_stay_as_they_are(self) -> None:
        assert with_byte_inputs(PROGRAM.step).inputs[1] == PROGRAM.step.inputs[1]

    def test_only_what_the_host_sends_changes(self) -> None:
        step = small(torch.float32)
        assert (with_byte_inputs(step).ops, with_byte_inputs(step).tensors) == (step.ops, step.tensors)
