"""`make_it_fit`: the programs that it finds are those that its printed lines build."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from fit_models import Case, decoder, unet
from modelling_support import Chain, quiet
from torch import nn

import ipu_model
import poptorch
from ipu_model.explore.fit_result import Fit, FitResult
from ipu_model.predict.profile import Profile
from ipu_model.predict.verdict import Verdict


def built(case: Case, code: str) -> Profile:
    """Run the printed lines on a program, and profile what they make of it."""
    names: dict[str, Any] = {
        "model": case.module, "opts": case.options, "optimizer": case.optimizer, "poptorch": poptorch, "torch": torch,
    }  # fmt: skip
    exec(re.sub("^loader = .*", "", code, flags=re.MULTILINE), names)
    rows = re.search(r"batch_size=([0-9]+)", code)
    inputs = [each if rows is None else each[:1].expand(int(rows[1]), *each.shape[1:]) for each in case.inputs]
    inputs = [each.half() if "model.half()" in code and each.is_floating_point() else each for each in inputs]
    machine = re.search(r"IPU_MODEL_MACHINE=(\S+)", code)
    return ipu_model.profile_module(
        names["model"], tuple(inputs), names["opts"], optimizer=names["optimizer"], micro_batch=True,
        machine=machine[1] if machine else None,
    )  # fmt: skip


CASES: dict[str, Callable[[], Case]] = {
    "a small decoder": lambda: decoder(4, 256),
    "a small U-Net": lambda: unet(64, 16),
}


@lru_cache(maxsize=4)
def found_for(name: str) -> FitResult:
    case = CASES[name]()
    return ipu_model.make_it_fit(case.module, **case.arguments)


@pytest.mark.parametrize("name", CASES)
class TestFound:
    def test_the_printed_lines_build_the_programs_that_were_found(self, name: str) -> None:
        for fit in (found_for(name).fastest, found_for(name).cheapest):
            assert isinstance(fit, Fit)
            assert fit.profile.verdict is Verdict.FITS
            assert built(CASES[name](), fit.code) == fit.profile

    def test_what_the_search_modelled_is_what_the_changed_module_gives(self, name: str) -> None:
        """Splits and checkpoints are derived from one capture; a capture of the changed module must agree."""
        for fit in (found_for(name).fastest, found_for(name).cheapest):
            assert fit is not None
            assert fit.is_confirmed == bool(fit.changes)
            assert fit.candidate.samples_per_second == pytest.approx(fit.profile.samples_per_second, rel=1e-9)
            assert fit.candidate.share * fit.profile.memory.tile_bytes == fit.profile.memory.max_tile_bytes

    def test_the_cheapest_takes_no_more_ipus_and_the_fastest_no_more_time(self, name: str) -> None:
        result = found_for(name)
        assert result.fastest is not None
        assert result.cheapest is not None
        assert result.cheapest.candidate.ipus <= result.fastest.candidate.ipus
        assert result.cheapest.profile.samples_per_second <= result.fastest.profile.samples_per_second

    def test_all_have_the_same_global_batch(self, name: str) -> None:
        result, case = found_for(name), CASES[name]()
        start = ipu_model.profile_module(case.module, **case.arguments)
        for fit in (result.fastest, result.cheapest):
            assert fit is not None
            assert fit.profile.samples_per_call == start.samples_per_call

    def test_nothing_on_the_frontier_is_beaten(self, name: str) -> None:
        result = found_for(name)
        for each in result.frontier:
            assert not any(
                other.share < each.share and other.samples_per_second >= each.samples_per_second
                for other in result.tried
                if not other.refused
            )

    def test_the_text_has_the_code_and_the_figure_every_setting(self, name: str) -> None:
        result = found_for(name)
        for line in result.code.splitlines():
            assert line in str(result)
        assert result.fastest is not None
        assert f"{result.fastest.profile.samples_per_second:,.1f} samples/s" in str(result)
        drawn = sum(len(each.get_offsets()) for each in result.figure().axes[0].collections)
        assert drawn == len([each for each in result.tried if not each.refused])


@pytest.fixture(scope="module")
def large() -> Case:
    """A decoder whose weights alone fill more than one IPU in single precision: 16 layers of 12 x 1,024^2 weights."""
    return decoder(16, 1024, half=False, accumulation=32)


@pytest.fixture(scope="module")
def one_ipu(large: Case) -> FitResult:
    return ipu_model.make_it_fit(large.module, **large.arguments, ipus=1, keep="precision")


class TestImpossible:
    def test_it_is_said_with_what_was_asked_for(self, one_ipu: FitResult) -> None:
        assert not one_ipu.found
        assert "Nothing fits for certain within what was asked for (at most 1 IPU, precision stays)" in str(one_ipu)

    def test_what_binds_is_named(self, one_ipu: FitResult) -> None:
        assert "What binds: the fullest tile of IPU 0" in one_ipu.binds
        assert "is always live" in one_ipu.binds

    def test_the_nearest_that_works_is_given_with_its_code(self, one_ipu: FitResult) -> None:
        assert one_ipu.instead is not None
        assert one_ipu.instead.profile.verdict is Verdict.FITS
        assert one_ipu.instead.code.splitlines()[0] in str(one_ipu)


class TestAsked:
    def test_what_stays_stays(self) -> None:
        case = decoder(4, 256)
        kept = ipu_model.make_it_fit(
            case.module, **case.arguments, keep=("precision", "optimiser", "micro-batch", "replicas")
        )
        start = kept.start.setting
        for each in kept.tried:
            now = each.setting
            assert (now.half, now.half_partials, now.half_state) == (start.half, start.half_partials, start.half_state)
            assert (now.micro_batch, now.replicas) == (start.micro_batch, start.replicas)

    def test_a_chip_may_have_any_number_of_ipus_but_stays(self) -> None:
        case = decoder(4, 256)
        found = ipu_model.make_it_fit(case.module, **case.arguments, machine="Bow")
        assert found.fastest is not None
        assert found.fastest.profile.machine.chip == "Bow"
        assert found.elsewhere is None

    def test_no_more_ipus_than_asked_for(self) -> None:
        case = decoder(4, 256)
        assert all(each.ipus <= 1 for each in ipu_model.make_it_fit(case.module, **case.arguments, ipus=1).tried[1:])

    @pytest.mark.parametrize(
        ("asked", "answer"),
        [
            ({"keep": "precission"}, "keep cannot name 'precission'. Did you mean 'precision'"),
            ({"keep": ("split", "speed")}, "keep cannot name 'speed'"),
            ({"ipus": 0}, "ipus must be a whole number from 1 on, not 0"),
            ({"machine": "POD3"}, "no machine 'POD3'"),
        ],
    )
    def test_bad_requests_get_a_clear_answer(self, asked: dict[str, Any], answer: str) -> None:
        case = decoder(1, 64)
        with pytest.raises(poptorch.Error, match=re.escape(answer)):
            ipu_model.make_it_fit(case.module, **case.arguments, **asked)


class TestLimits:
    def test_no_answer_has_more_ipus_than_were_asked_for(self) -> None:
        """The program itself fits, on four."""
        options = quiet()
        options.replicationFactor(4)
        found = ipu_model.make_it_fit(nn.Linear(64, 64), (torch.zeros(8, 64),), options, micro_batch=True, ipus=1)
        assert found.start.ipus == 4
        assert found.fastest is not None
        assert found.cheapest is not None
        assert (found.fastest.candidate.ipus, found.cheapest.candidate.ipus) == (1, 1)


class TestThings:
    """An executor, also one that ran out of memory, and a profile are as good as a module."""

    def test_an_executor_that_ran_out_of_memory(self) -> None:
        wide = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(24)))
        executor = poptorch.inferenceModel(wide, quiet())
        with pytest.raises(poptorch.Error, match="out of memory"):
            executor.compile(torch.zeros(8, 4096))
        found = ipu_model.make_it_fit(executor)
        assert found.start.verdict is Verdict.DOES_NOT_FIT
        assert found.fastest is not None
        assert found.fastest.is_confirmed

    def test_a_profile_has_no_module_so_that_micro_batches_stay(self) -> None:
        options = quiet()
        options.Training.gradientAccumulation(8)
        profile = ipu_model.profile_module(Chain(2), (torch.ones(64, 8), torch.ones(64, 8)), options, training=True)
        found = ipu_model.make_it_fit(profile)
        assert {each.setting.micro_batch for each in found.tried} == {8}
        assert "Other micro-batches were not tried" in str(found)

    def test_the_module_stays_as_it_is(self) -> None:
        module = Chain(2)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        options = quiet()
        options.Training.gradientAccumulation(8)
        ipu_model.make_it_fit(module, (torch.ones(8, 8), torch.ones(8, 8)), options, training=True, micro_batch=True)
        for name, value in module.state_dict().items():
            assert value.dtype == before[name].dtype
            assert torch.equal(value, before[name])
        assert not module._forward_hooks
