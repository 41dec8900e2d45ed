"""A compiled program with other options: `what_if`, `sweep` and `advise`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from modelling_support import Chain, quiet

import ipu_model
import poptorch
from ipu_model import HostWork
from ipu_model.explore.options import OPTIONS, with_options
from ipu_model.front_ends import program_of_module
from ipu_model.predict import profile_program
from ipu_model.predict.program import Program
from ipu_model.report.files import from_json, read_report, to_json, write_report
from ipu_model.sources import profile_of_source

X = torch.ones(8, 8)


@pytest.fixture(scope="module")
def executor() -> poptorch.PoplarExecutor:
    options = quiet()
    options.Training.gradientAccumulation(4)
    executor = poptorch.trainingModel(Chain(2), options)
    executor.compile(X, X)
    return executor


class TestWhatIf:
    def test_no_change_is_the_programs_own_profile(self, executor: poptorch.PoplarExecutor) -> None:
        assert ipu_model.what_if(executor) == ipu_model.profile(executor)

    def test_it_is_what_compiling_with_that_option_gives(self, executor: poptorch.PoplarExecutor) -> None:
        options = quiet().deviceIterations(3)
        options.Training.gradientAccumulation(4)
        other = poptorch.trainingModel(Chain(2), options)
        other.compile(torch.ones(24, 8), torch.ones(24, 8))
        found, wanted = ipu_model.what_if(executor, device_iterations=3), ipu_model.profile(other)
        assert found.samples_per_call == wanted.samples_per_call
        assert found.device_seconds_per_call == pytest.approx(wanted.device_seconds_per_call)
        assert found.memory.max_tile_bytes == wanted.memory.max_tile_bytes

    def test_half_precision_is_what_compiling_in_half_precision_gives(self) -> None:
        """Weights, inputs and outputs: all that crosses the host link is half as large, too."""
        full, half = (
            poptorch.inferenceModel(model, quiet().deviceIterations(2)) for model in (Chain(2), Chain(2).half())
        )
        full.compile(torch.ones(16, 8))
        half.compile(torch.ones(16, 8).half())
        assert ipu_model.what_if(full, half_precision=True) == ipu_model.profile(half)

    def test_the_program_stays_as_it_is(self, executor: poptorch.PoplarExecutor) -> None:
        before = ipu_model.profile(executor)
        ipu_model.what_if(executor, gradient_accumulation=64, half_precision=True)
        assert ipu_model.profile(executor) == before

    def test_unknown_options_are_refused(self, executor: poptorch.PoplarExecutor) -> None:
        with pytest.raises(poptorch.Error, match="no option 'batch'"):
            ipu_model.what_if(executor, batch=3)

    def test_only_executors_and_programs(self) -> None:
        with pytest.raises(poptorch.Error, match="got a Chain"):
            ipu_model.what_if(Chain(1))

    def test_only_compiled_ones(self) -> None:
        with pytest.raises(poptorch.Error, match="not been compiled"):
            ipu_model.what_if(poptorch.inferenceModel(Chain(1), quiet()))


class TestSweep:
    def test_more_accumulation_never_slows_the_device(self, executor: poptorch.PoplarExecutor) -> None:
        points = ipu_model.sweep(executor, "gradient_accumulation", [3, 4, 8, 16, 64])
        rates = [point.profile.device_samples_per_second for point in points if point.profile is not None]
        assert len(rates) == 5
        assert rates == sorted(rates)

    def test_impossible_values_become_points_that_say_why(self, executor: poptorch.PoplarExecutor) -> None:
        first, second = ipu_model.sweep(executor, "gradient_accumulation", [1, 8])
        assert first.profile is None
        assert "at least 2 x 2 - 1 = 3" in first.refused
        assert second.profile is not None

    def test_other_changes_hold_for_every_point(self, executor: poptorch.PoplarExecutor) -> None:
        points = ipu_model.sweep(executor, "replicas", [1, 2], execution="sharded")
        assert {point.profile.options["execution"] for point in points if point.profile} == {"sharded"}

    @pytest.mark.parametrize("knob", ["speed", None])
    def test_an_unknown_option_is_an_error(self, executor: poptorch.PoplarExecutor, knob: Any) -> None:
        with pytest.raises(poptorch.Error, match=f"no option '{knob}'"):
            ipu_model.sweep(executor, knob, [1])


@pytest.mark.parametrize("ask", [
    lambda executor, host: ipu_model.what_if(executor, host=host),
    lambda executor, host: ipu_model.sweep(executor, "replicas", [1], host=host),
    lambda executor, host: ipu_model.advise(executor, host=host),
])  # fmt: skip
def test_a_host_is_described_as_such(executor: poptorch.PoplarExecutor, ask: Any) -> None:
    with pytest.raises(poptorch.Error, match=r"host takes an ipu_model\.HostWork, not a float"):
        ask(executor, 0.001)


class TestAdvice:
    def test_a_slow_loader_is_found_out(self, executor: poptorch.PoplarExecutor) -> None:
        host = HostWork(seconds_per_sample=1e-3)
        assert ipu_model.profile(executor, host=host).limited_by == "host loader"
        assert ipu_model.advise(executor, host=host)[0].change.startswith("loader workers")

    def test_each_gain_is_that_of_modelling_the_change(self, executor: poptorch.PoplarExecutor) -> None:
        advice = next(item for item in ipu_model.advise(executor) if item.change.startswith("gradient accumulation"))
        value = int(advice.change.split()[-1])
        after = ipu_model.what_if(executor, gradient_accumulation=value)
        factor = after.samples_per_second / ipu_model.profile(executor).samples_per_second
        assert advice.samples_per_second_factor == pytest.approx(factor)
        assert advice.how == f"opts.Training.gradientAccumulation({value})"

    def test_the_most_useful_comes_first(self, executor: poptorch.PoplarExecutor) -> None:
        """Speed for each unit of risk: a change that leaves results alone counts four times one of the numerics."""
        found = ipu_model.advise(executor)
        gains = [math.log(item.samples_per_second_factor) / 2 ** int(item.risk) for item in found]
        assert gains == sorted(gains, reverse=True)
        assert min(item.samples_per_second_factor for item in found) >= 1.02


class TestHostOfAProfile:
    """A profile keeps the host's work that it was modelled with, and what explores it models that work, too."""

    HOST = HostWork(seconds_per_sample=1e-3)

    def test_advice_on_a_profile_is_that_on_its_program_with_the_same_host(
        self, executor: poptorch.PoplarExecutor
    ) -> None:
        profile = ipu_model.profile(executor, host=self.HOST)
        assert list(ipu_model.advise(profile)) == list(ipu_model.advise(profile.program, host=self.HOST))
        assert ipu_model.advise(executor, profile=profile)[0].change.startswith("loader workers")

    def test_a_profile_with_another_host_is_not_what_changes_are_compared_with(
        self, executor: poptorch.PoplarExecutor
    ) -> None:
        without = ipu_model.profile(executor)
        found = ipu_model.advise(executor, profile=without, host=self.HOST)
        assert list(found) == list(ipu_model.advise(executor, host=self.HOST))

    def test_no_change_is_the_same_profile(self, executor: poptorch.PoplarExecutor) -> None:
        profile = ipu_model.profile(executor, host=self.HOST)
        assert ipu_model.what_if(profile) == profile
        assert ipu_model.profile(profile) == profile
        assert ipu_model.sweep(profile, "replicas", [1])[0].profile == profile

    def test_it_comes_back_from_a_report(self, executor: poptorch.PoplarExecutor, tmp_path: Path) -> None:
        profile = ipu_model.profile(executor, host=self.HOST)
        write_report(profile, tmp_path)
        assert read_report(tmp_path).host == self.HOST
        assert profile_of_source(str(tmp_path), machine="Bow").host == self.HOST


class TestPlainModules:
    """Whatever takes an executor takes a module with its inputs and options, and a profile."""

    def given(self) -> dict[str, Any]:
        options = quiet()
        options.Training.gradientAccumulation(4)
        return {"inputs": (X, X), "options": options, "training": True}

    def test_what_if(self, executor: poptorch.PoplarExecutor) -> None:
        found = ipu_model.what_if(Chain(2), **self.given(), gradient_accumulation=8)
        assert found.samples_per_second == ipu_model.what_if(executor, gradient_accumulation=8).samples_per_second

    def test_sweep(self) -> None:
        first, second = ipu_model.sweep(Chain(2), "replicas", [1, 2], **self.given())
        assert first.profile is not None
        assert second.profile is not None
        assert second.profile.samples_per_call == 2 * first.profile.samples_per_call

    def test_advice(self) -> None:
        profile = ipu_model.profile_module(Chain(2), **self.given())
        of_module, of_profile = ipu_model.advise(Chain(2), **self.given()), ipu_model.advise(profile)
        assert {item.change for item in of_profile} <= {item.change for item in of_module}

    def test_a_module_needs_its_inputs_and_options(self) -> None:
        with pytest.raises(poptorch.Error, match="also give its inputs and options"):
            ipu_model.advise(Chain(2))
        with pytest.raises(poptorch.Error, match="needs both"):
            ipu_model.advise(Chain(2), inputs=(X, X))

    def test_a_profile_of_a_file_has_no_program(self, executor: poptorch.PoplarExecutor) -> None:
        read = from_json(to_json(ipu_model.profile(executor)))
        with pytest.raises(poptorch.Error, match="no program to explore"):
            ipu_model.what_if(read)


SET_BY_OPTIONS: dict[str, Any] = {
    "gradient_accumulation": 5, "device_iterations": 3, "replicas": 2, "execution": "sharded",
    "recomputation": "norm only", "available_memory_proportion": {"IPU1": 0.3}, "half_partials": True,
    "optimiser_off_chip": True, "optimiser_sharded": True, "prefetch_depth": 3, "synthetic_data": True,
    "output_mode": "all",
}  # fmt: skip


@pytest.mark.parametrize("name", SET_BY_OPTIONS)
def test_the_line_of_an_option_sets_what_the_model_changes(name: str) -> None:
    """A program whose options were set by the line, against the program without it and the option set anew."""

    def with_line(line: str) -> Program:
        opts = quiet()
        opts.Training.gradientAccumulation(4)
        exec(line, {"opts": opts, "poptorch": poptorch, "torch": torch})
        inputs = (torch.ones(8, 8), torch.ones(8, 8))
        model = Chain(2)
        optimiser = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return program_of_module(opts, model, inputs, optimizer=optimiser, micro_batch=True)

    before, option, value = with_line(""), OPTIONS[name], SET_BY_OPTIONS[name]
    after = with_line(option.line(before, value))
    assert profile_program(after) == profile_program(with_options(before, **{name: value}))
    assert profile_program(after) != profile_program(before)
