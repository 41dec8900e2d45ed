"""`make_it_fit`: the programs that it finds are those that its printed lines build."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from fit_models import Case, decoder, unet
from modelling_support import Chain, quiet
from torch import nn

import ipu_model
import poptorch
from ipu_model import HostWork
from ipu_model.errors import Error
from ipu_model.explore.fit_result import Fit, FitResult
from ipu_model.explore.lines import micro_batch_line
from ipu_model.explore.options import code_of
from ipu_model.explore.search import NEGLIGIBLE_GAIN
from ipu_model.explore.settings import Programs
from ipu_model.explore.split import has_checkpoints, with_checkpoints
from ipu_model.explore.what_if import source_of
from ipu_model.front_ends import ModuleChanges, program_of_module
from ipu_model.predict.profile import Profile, Verdict
from ipu_model.predict.program import Program
from ipu_model.step import Step


def built(case: Case, code: str) -> Profile:
    """Run the printed lines on a program, and profile what they make of it."""
    names: dict[str, Any] = {
        "model": case.module, "opts": case.options, "optimizer": case.optimizer, "poptorch": poptorch, "torch": torch,
    }  # fmt: skip
    exec(code, names)
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
        assert "Nothing fits for certain within the limits that you set (at most 1 IPU, precision stays)" in str(
            one_ipu
        )

    def test_what_binds_is_named(self, one_ipu: FitResult) -> None:
        assert "The fullest tile of IPU 0 needs" in one_ipu.binds
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
            for option in ("half_precision", "half_partials", "half_optimiser_state", "micro_batch", "replicas"):
                assert each.setting[option] == start[option]

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


class TestPrecisionStays:
    def test_the_types_of_optimiser_state_stay_with_it(self) -> None:
        case = decoder(4, 256)
        kept = ipu_model.make_it_fit(case.module, **case.arguments, keep="precision")
        assert {each.setting["half_optimiser_state"] for each in kept.tried} == {False}
        assert any(each.setting["half_optimiser_state"] for each in found_for("a small decoder").tried)


class Marked(nn.Module):
    """Four blocks; forward marks what comes between them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(poptorch.recomputationCheckpoint(x.sin()))
        return poptorch.identity_loss(x, "sum")


class TestOwnCheckpoints:
    """The checkpoints of a search take the place of the program's, and the printed lines say so."""

    def test_the_changed_module_has_no_others(self) -> None:
        def program(changes: ModuleChanges | None) -> Program:
            options = quiet()
            options.Training.gradientAccumulation(8)
            return program_of_module(
                options, Marked(), (torch.zeros(4, 64),), training=True, micro_batch=True, changes=changes
            )

        own, names = program(None), ("blocks.0", "blocks.1", "blocks.2", "blocks.3")
        derived = with_checkpoints(own.step, names)
        captured = program(ModuleChanges(checkpoints=names)).step
        assert has_checkpoints(own.step)
        assert marked(captured) == marked(derived)
        assert not marked(captured) & marked(own.step)
        assert marked(program(ModuleChanges(micro_batch=2)).step) == marked(own.step)

    def test_the_lines_ask_to_take_those_of_forward_out(self) -> None:
        program = ipu_model.profile_module(Marked(), (torch.zeros(4, 64),), quiet(), training=True).program
        assert program is not None
        code = code_of(program, program, {"checkpoints": ("blocks.0", "blocks.1")}, None)
        assert "# These replace the model's own poptorch.recomputationCheckpoint calls: remove those." in code
        bare = replace(program, step=with_checkpoints(program.step, ()))
        assert "In place of" not in code_of(bare, bare, {"checkpoints": ("blocks.0", "blocks.1")}, None)


def marked(step: Step) -> set[str]:
    return {op.name for op in step.ops if op.hints.recomputation_checkpoint}


class Uncopied(Chain):
    """A module that cannot be copied, so that no changed one can be captured."""

    def __deepcopy__(self, memo: object) -> Chain:
        raise RuntimeError("only one of these may exist")


class TestRefused:
    def test_what_the_front_end_refuses_of_the_changed_module_is_reported(self) -> None:
        options = quiet()
        options.Training.gradientAccumulation(8)
        found = ipu_model.make_it_fit(
            Uncopied(2), (torch.ones(8, 8), torch.ones(8, 8)), options, training=True, micro_batch=True,
            keep="micro-batch",
        )  # fmt: skip
        assert found.fastest is not None
        assert found.fastest.changes
        assert not found.fastest.is_confirmed
        assert "only one of these may exist" in found.fastest.refused
        assert "The module could not be captured with all the changes of a program: The module cannot be copied" in str(
            found
        )


class Wrapped(nn.Module):
    """A block of a decoder that returns a dict, as those of some libraries do."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"hidden": self.block(x)}


def test_a_block_that_returns_no_tensor_is_refused_as_a_checkpoint() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Wrapped(block) for block in Marked().blocks)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)["hidden"]
            return poptorch.identity_loss(x, "sum")

    changes = ModuleChanges(checkpoints=("blocks.0",))
    with pytest.raises(poptorch.Error, match="Wrapped returns what cannot be a checkpoint"):
        program_of_module(quiet(), Model(), (torch.zeros(4, 64),), training=True, changes=changes)


class OneMicroBatch(nn.Module):
    """A model whose forward names the number of its rows, as many scripts do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.layer(x.view(8, 64)), "mean")


class NormOverRows(nn.Module):
    """A model that PyTorch refuses to train on a single row: it has no variance."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(64, 64), nn.BatchNorm1d(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.norm(self.layer(x)), "mean")


class TestMicroBatchesThatTheModuleRefuses:
    def test_a_module_for_one_micro_batch_keeps_it(self) -> None:
        found = trained(OneMicroBatch())
        assert {each.setting["micro_batch"] for each in found.tried if not each.refused} == {8}
        assert any(each.setting != found.start.setting for each in found.tried if not each.refused)

    def test_the_leanest_is_the_smallest_that_it_takes(self) -> None:
        found = trained(NormOverRows())
        assert found.fastest is not None
        assert {each.setting["micro_batch"] for each in found.tried if not each.refused} >= {2}
        assert not [each for each in found.tried if each.setting["micro_batch"] == 1]

    def test_what_its_own_code_raises_is_the_reason(self) -> None:
        module = OneMicroBatch()
        source = source_of(
            module, torch.zeros(32, 64), accumulating(4), optimizer=poptorch.optim.SGD(module.parameters(), 0.1)
        )
        programs = Programs(source)
        with pytest.raises(Error, match="micro-batches of 4: RuntimeError: shape"):
            programs.of(programs.start | {"micro_batch": 4})


def accumulating(count: int) -> poptorch.Options:
    options = poptorch.Options()
    options.Training.gradientAccumulation(count)
    return options


def trained(module: nn.Module) -> FitResult:
    """Return what a search finds for training on micro-batches of eight rows, four for each update."""
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    return ipu_model.make_it_fit(module, torch.zeros(32, 64), accumulating(4), optimizer=optimizer)


class PlacedInForward(nn.Module):
    """Two layers, the second on another IPU by forward itself, which no change of the module can undo."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block(ipu_id=0):
            x = self.first(x)
        with poptorch.Block(ipu_id=1):
            return poptorch.identity_loss(self.second(x), "mean")


def test_a_split_that_blocks_in_forward_undo_is_not_confirmed() -> None:
    found = trained(PlacedInForward())
    for fit in (found.fastest, found.cheapest):
        assert fit is not None
        assert len(fit.profile.memory.ipus) == fit.candidate.setting.ipus_per_replica
        assert not fit.is_confirmed or fit.candidate.setting.ipus_per_replica == 2
    assert any("its own forward places blocks" in each.lower() for each in found.refusals)


class TestFewestIpus:
    def test_replicas_that_bring_nothing_are_left_out(self) -> None:
        """The loader limits the program on any number of IPUs, so that it takes those it has."""
        options = quiet()
        options.Training.gradientAccumulation(16)
        given = {"inputs": (torch.ones(8, 8), torch.ones(8, 8)), "options": options, "training": True}
        slow = HostWork(seconds_per_sample=1e-2, workers=2)
        limited = ipu_model.make_it_fit(Chain(2), **given, micro_batch=True, host=slow)
        free = ipu_model.make_it_fit(Chain(2), **given, micro_batch=True)
        assert limited.fastest is not None
        assert free.fastest is not None
        assert limited.fastest.candidate.ipus == 1 < free.fastest.candidate.ipus

    def test_a_split_that_brings_nothing_is_left_out(self) -> None:
        found = found_for("a small decoder")
        assert found.fastest is not None
        least = found.fastest.samples_per_second * (1 - NEGLIGIBLE_GAIN)
        for each in found.tried:
            is_simpler = each.ipus < found.fastest.candidate.ipus
            assert not (each.fits and is_simpler and each.samples_per_second > least / (1 - NEGLIGIBLE_GAIN))


class TestProcesses:
    def test_ipus_are_those_of_all_processes(self) -> None:
        """128 replicas of one IPU are spread over two processes, for one has 64 IPUs at most."""
        options = quiet().replicationFactor(128)
        model, inputs = nn.Linear(64, 64), (torch.zeros(4, 64),)
        found = ipu_model.make_it_fit(model, inputs, options, micro_batch=True, keep="replicas")
        assert found.start.ipus == 128
        assert "on 128 IPUs (64 in each of 2 processes)" in str(found)
        assert "The search used at most 128 IPUs" in str(found)

    def test_a_limit_counts_all_of_them(self) -> None:
        options = quiet().replicationFactor(128)
        found = ipu_model.make_it_fit(nn.Linear(64, 64), (torch.zeros(4, 64),), options, micro_batch=True, ipus=32)
        assert found.fastest is not None
        assert found.fastest.candidate.ipus <= 32
        assert found.fastest.candidate.setting.ipus * 2 == found.fastest.candidate.ipus

    def test_fewer_ipus_than_processes_are_refused_by_that_rule(self) -> None:
        options = quiet().replicationFactor(128)
        found = ipu_model.make_it_fit(nn.Linear(64, 64), (torch.zeros(4, 64),), options, micro_batch=True, ipus=1)
        assert not found.found
        assert "It has 2 processes, and each needs an IPU of its own." in str(found)


class TestRules:
    """If nothing can be tried, the text names the rule and no tile."""

    @pytest.mark.parametrize(
        ("kept", "replicas", "ipus", "rule"),
        [
            ("split", 1, 1, "Its blocks have to stay as they are, and they need 2 IPUs."),
            ("replicas", 4, 2, "It has to keep its 4 replicas, and each needs an IPU."),
        ],
    )
    def test_fewer_ipus_than_what_stays_needs(self, kept: str, replicas: int, ipus: int, rule: str) -> None:
        options = quiet().replicationFactor(replicas)
        options.Training.gradientAccumulation(8)
        inputs = (torch.ones(8, 8), torch.ones(8, 8))
        found = ipu_model.make_it_fit(Chain(2), inputs, options, training=True, micro_batch=True, ipus=ipus, keep=kept)
        assert found.nearest is None
        assert found.binds == rule
        assert f"Nothing fits for certain within the limits that you set ({found.limits}). {rule}" in str(found)
        assert found.instead is not None

    def test_a_limit_between_two_powers_of_two_says_which_count(self) -> None:
        case = decoder(4, 256)
        text = str(ipu_model.make_it_fit(case.module, **case.arguments, ipus=3))
        assert (
            "PopTorch reserves 1, 2, 4, 8, ... IPUs, so the search could use only 2 of the 3 that you allowed. ipus=4"
            in text
        )


class TestInstead:
    def test_as_few_limits_are_dropped_as_possible(self, one_ipu: FitResult) -> None:
        """More IPUs are enough: the types can stay."""
        assert one_ipu.instead is not None
        assert one_ipu.instead.candidate.setting["half_precision"] == one_ipu.start.setting["half_precision"]
        assert "This fits within wider limits (M2000, precision stays): " in str(one_ipu)


@pytest.fixture(scope="module")
def loading() -> FitResult:
    """A small network whose loader takes a thousandth of a second for each sample, in the program's own process."""
    options = quiet()
    options.Training.gradientAccumulation(8)
    inputs, host = (torch.ones(8, 8), torch.ones(8, 8)), HostWork(seconds_per_sample=1e-3)
    return ipu_model.make_it_fit(Chain(2), inputs, options, training=True, micro_batch=True, host=host)


class TestLoader:
    def test_a_slow_loader_is_said_to_limit_the_program(self, loading: FitResult) -> None:
        assert loading.fastest is not None
        assert loading.fastest.profile.limited_by == "host loader"
        assert "limited by: host loader" in str(loading)
        alone = loading.fastest.profile.device_samples_per_second
        assert f"its IPUs alone would reach {alone:,.1f}" in str(loading)

    def test_other_loaders_are_named_with_what_they_would_make(self, loading: FitResult) -> None:
        """Four workers load four times as fast as one process, and the device does next to nothing here."""
        workers = next(each for each in loading.loaders if "workers" in each.change)
        assert workers.samples_per_second == pytest.approx(4 / 1e-3, rel=0.01)
        assert f"{workers.change}: {workers.samples_per_second:,.1f} samples/s, by {workers.line}" in str(loading)

    def test_data_that_cost_nothing_are_not_mentioned(self) -> None:
        assert found_for("a small decoder").loaders == ()
        assert "loader" not in str(found_for("a small decoder"))


class _CountsWords(nn.Module):
    """Returns whole numbers, as a language model does with its guesses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the index of the largest of eight results."""
        return self.layer(x).argmax(-1)


class TestPrinted:
    def test_a_warning_about_the_module_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """Not again for each change with which the search captures the module."""
        with caplog.at_level(logging.WARNING, logger="poptorch::python"):
            for changes in (None, ModuleChanges(micro_batch=2)):
                program_of_module(quiet(), _CountsWords(), (torch.zeros(4, 8),), micro_batch=True, changes=changes)
        assert caplog.text.count("in which large values lose their range") == 1

    def test_what_fits_best_as_it_is_has_no_block_of_code(self) -> None:
        found = ipu_model.make_it_fit(nn.Linear(8, 8), (torch.zeros(4, 8),), quiet(), micro_batch=True, ipus=1)
        assert found.fastest is not None
        assert found.fastest.changes == ()
        assert found.code == ""
        assert "No setting that was tried is faster or uses fewer IPUs: " in str(found)
        assert not any(line.startswith("    ") for line in str(found).splitlines())

    def test_names_are_explained_once(self) -> None:
        first, *others = found_for("a small U-Net").code.splitlines()
        assert first.startswith("# These lines come before poptorch.trainingModel: model is your module")
        assert not any("These lines" in line for line in others)

    def test_the_loaders_argument_is_printed_with_what_it_was(self) -> None:
        assert micro_batch_line(1, 2) == "batch_size=1  # instead of 2, in poptorch.DataLoader(...)"

    def test_float16_gradients_come_with_a_hint_at_loss_scaling(self) -> None:
        program = ipu_model.profile_module(
            (case := decoder(1, 64)).module, **case.arguments
        ).program  # fmt: skip
        assert program is not None
        assert program.optimiser is not None
        changed = {"half_optimiser_state": True}
        assert "loss_scaling" in code_of(program, program, changed, None)
        scaled = replace(program, optimiser=replace(program.optimiser, loss_scaling=128.0))
        assert "give the optimizer a loss_scaling" not in code_of(program, scaled, changed, None)

    def test_everything_prints_in_plain_words(self) -> None:
        found = found_for("a small U-Net")
        assert found.fastest is not None
        assert str(found.fastest).startswith(f"{found.fastest.samples_per_second:,.1f} samples/s on ")
        assert found.code.splitlines()[0] in str(found.fastest)
        assert "Setting(" not in "".join(map(str, found.tried))
        assert "Profile(" not in repr(found.fastest)
        assert str(HostWork(2e-3, workers=4)) == (
            "2 ms for each of 4 workers to load a sample, while the device works (no loader described)"
        )


class TestProgress:
    def test_a_bar_says_what_is_modelled(self, capsys: pytest.CaptureFixture[str]) -> None:
        ipu_model.make_it_fit(nn.Linear(8, 8), (torch.zeros(4, 8),), quiet(), micro_batch=True, ipus=1, progress=True)
        assert re.search(
            r"programs modelled: [0-9]+ in [0-9:]+, 1 IPU x 1 replica, micro-batch", capsys.readouterr().err
        )


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
        assert {each.setting["micro_batch"] for each in found.tried} == {8}
        assert "The search tried no other micro-batches" in str(found)

    def test_a_profile_with_one_micro_batch_for_each_update_has_nothing_to_share_among_replicas(self) -> None:
        profile = ipu_model.profile_module(Chain(1), (torch.ones(8, 8), torch.ones(8, 8)), quiet(), training=True)
        found = ipu_model.make_it_fit(profile, ipus=4)
        assert found.fastest is not None
        assert {each.setting["replicas"] for each in found.tried} == {1}

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
