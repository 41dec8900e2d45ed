"""`make_it_fit`: the programs that it finds are those that its printed lines build, within all limits."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, quiet
from modelling_support import Chain, trainable
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model import HostWork
from ipu_model.errors import Error
from ipu_model.explore import KEEP
from ipu_model.explore.blocks import has_checkpoints, with_checkpoints
from ipu_model.explore.fit_result import Fit, FitResult
from ipu_model.explore.lines import micro_batch_line
from ipu_model.explore.options import code_of, with_options
from ipu_model.explore.search import NEGLIGIBLE_GAIN
from ipu_model.explore.search_points import Programs
from ipu_model.explore.what_if import source_of
from ipu_model.front_ends import ModuleChanges, program_of_module
from ipu_model.predict import profile_program
from ipu_model.predict.hardware import System, system_named
from ipu_model.predict.profile import Profile, Verdict
from ipu_model.predict.program import Program
from ipu_model.step import Step


def in_order(layers: Any, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def loss(x: Tensor) -> Tensor:
    return poptorch.identity_loss(x, "mean")


NOTHING = "Nothing fits with 5 % of the fullest tile free"
Case = tuple[nn.Module, dict[str, Any]]


def of(module: nn.Module, inputs: tuple[Tensor, ...], options: poptorch.Options) -> Case:
    """Return a module and the other arguments of `make_it_fit`, with the inputs of one micro-batch."""
    optimizer = poptorch.optim.AdamW(module.parameters(), lr=1e-4)
    return module, {"inputs": inputs, "options": options, "optimizer": optimizer, "micro_batch": True}


def transformer(layers: int, width: int, *, half: bool = True, accumulation: int = 64) -> Case:
    """Return the training of a language model over two IPUs, with micro-batches of one sequence of 256 tokens."""

    def forward(m: Any, ids: Tensor, labels: Tensor) -> Tensor:
        logits = m.head(in_order(m.blocks, m.tokens(ids)))
        return loss(F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()))

    with torch.device("meta"):
        block = (width, width // 64, 4 * width, 0.0, "gelu")
        blocks = nn.ModuleList(nn.TransformerEncoderLayer(*block, batch_first=True) for _ in range(layers))
        module = Module(forward, tokens=nn.Embedding(8192, width), blocks=blocks, head=nn.Linear(width, 8192))
    poptorch.BeginBlock(module.blocks[layers // 2], ipu_id=1)
    module, ids = module.half() if half else module, torch.zeros(1, 256, dtype=torch.long)
    return of(module, (ids, ids), trainable(2, accumulation))


def unet() -> Case:
    """Return the training of a U-Net of two levels in single precision on one IPU."""

    def level(ins: int, outs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1), nn.GroupNorm(8, outs), nn.ReLU())

    def forward(m: Any, x: Tensor, labels: Tensor) -> Tensor:
        high = m.high(x)
        x = m.up(m.low(F.max_pool2d(high, 2)))
        return loss(F.cross_entropy(m.last(m.joined(torch.cat([x, high], 1))), labels))

    with torch.device("meta"):
        up, last = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(16, 2, 1)
        module = Module(forward, high=level(3, 16), low=level(16, 32), up=up, joined=level(32, 16), last=last)
    inputs = torch.zeros(4, 3, 64, 64), torch.zeros(4, 64, 64, dtype=torch.long)
    return of(module, inputs, trainable(1, 8))


def fitted(case: Case, **asked: Any) -> FitResult:
    return ipu_model.make_it_fit(case[0], **case[1], **asked)


def both(result: FitResult) -> tuple[Fit, Fit]:
    assert result.fastest is not None
    assert result.cheapest is not None
    return result.fastest, result.cheapest


def built(case: Case, code: str) -> Profile:
    """Run the printed lines on a program, and profile what they make of it."""
    module, given = case
    names = {"model": module, "opts": given["options"], "optimizer": given["optimizer"], "poptorch": poptorch}
    exec(code, {"torch": torch, **names}, names)
    rows = re.search(r"batch_size=([0-9]+)", code)
    inputs = [x if rows is None else x[:1].expand(int(rows[1]), *x.shape[1:]) for x in given["inputs"]]
    inputs = [x.half() if "model.half()" in code and x.is_floating_point() else x for x in inputs]
    machine = re.search(r"IPU_MODEL_MACHINE=(\S+)", code)
    changed = {"inputs": tuple(inputs), "optimizer": names["optimizer"], "machine": machine[1] if machine else None}
    return ipu_model.profile_module(names["model"], **{**given, **changed})


@pytest.fixture(scope="module", params=[lambda: transformer(4, 256), unet], ids=["transformer", "U-Net"])
def searched(request: pytest.FixtureRequest) -> tuple[Callable[[], Case], FitResult]:
    return request.param, fitted(request.param())


def test_the_printed_lines_build_the_programs_that_were_found(searched: Any) -> None:
    """Splits and checkpoints are derived from one capture; a capture of the changed module must agree."""
    make, result = searched
    module, given = make()
    start = ipu_model.profile_module(module, **given)
    for fit in both(result):
        assert fit.profile.verdict is Verdict.FITS
        assert built(make(), fit.code) == fit.profile
        assert fit.is_confirmed == bool(fit.changes)
        assert fit.candidate.samples_per_second == pytest.approx(fit.samples_per_second, rel=1e-9)
        assert fit.candidate.share == fit.profile.memory.max_tile_bytes / fit.profile.memory.tile_bytes
        # The same global batch, of which a call may have several.
        assert fit.profile.samples_per_call == start.samples_per_call * fit.candidate.setting.calls


def test_nothing_that_was_tried_is_better(searched: Any) -> None:
    result = searched[1]
    fastest, cheapest = both(result)
    assert cheapest.candidate.ipus <= fastest.candidate.ipus
    possible = [tried for tried in result.tried if not tried.refused]
    for tried in possible:
        is_as_fast = tried.samples_per_second * (1 - NEGLIGIBLE_GAIN) > fastest.samples_per_second
        assert not (result.limits.allow(tried.share) and tried.ipus < fastest.candidate.ipus and is_as_fast)
    for best in result.frontier:
        assert not any(o.share < best.share and o.samples_per_second >= best.samples_per_second for o in possible)


def test_everything_is_told_in_plain_words(searched: Any) -> None:
    result = searched[1]
    fastest, _ = both(result)
    text, speed, lines = str(result), f"{fastest.samples_per_second:,.1f} samples/s", result.code.splitlines()
    assert [line for line in lines if line not in text] == []
    assert speed in text
    assert str(fastest).startswith(f"{speed} on ")
    assert lines[0] in str(fastest)
    assert "Setting(" not in "".join(map(str, result.tried))
    assert "Profile(" not in repr(fastest)
    assert ("loader" in text, result.loaders) == (False, ())  # data that cost nothing are not mentioned
    assert lines[0].startswith("# These lines come before poptorch.trainingModel: model is your module")
    assert not any("These lines" in line for line in lines[1:])


def test_what_does_not_fit_is_explained_with_the_nearest_that_works() -> None:
    """Weights alone fill more than an IPU in single precision: 4 layers of 12 x 2,048^2 weights."""
    result = fitted(transformer(4, 2048, half=False, accumulation=32), ipus=1, keep="precision")
    text = str(result)
    assert not result.found
    assert f"{NOTHING} within the limits that you set (at most 1 IPU, precision stays)" in text
    assert "The fullest tile of IPU 0 needs" in result.binds
    assert "is always live" in result.binds
    assert result.instead is not None
    assert result.instead.profile.verdict is Verdict.FITS
    assert result.instead.code.splitlines()[0] in text
    # As few limits are dropped as possible: more IPUs are enough, and the types can stay.
    assert result.instead.candidate.setting.half_precision == result.start.setting.half_precision
    assert "This fits within wider limits (M2000, precision stays): " in text


def small_tiles(share: float) -> System:
    """Return an M2000 whose tiles have this share of their memory."""
    system = system_named("M2000")
    return replace(system, chip=replace(system.chip, tile_bytes=int(share * system.chip.tile_bytes)))


@pytest.fixture(scope="module")
def crowded() -> FitResult:
    """A search on four IPUs whose tiles are so small that memory decides."""
    return fitted(transformer(4, 256), machine=small_tiles(0.25), ipus=4, keep=("replicas", "calls"))


def test_the_search_finds_nearly_the_best_of_a_space_that_is_enumerated(crowded: FitResult) -> None:
    """Two cuts, checkpoints or not, state on the chip or not, three shares of memory, two micro-batches."""
    best = 0.0
    for rows, first in itertools.product((1, 2), (0, 1)):
        module, given = transformer(4, 256, accumulation=64 // rows)
        given["inputs"] = tuple(x.expand(rows, -1) for x in given["inputs"])
        program = ipu_model.profile_module(module, **given, machine=small_tiles(0.25)).program
        blocks = [f"blocks.{first}", f"blocks.{first + 1}", f"blocks.{first + 2}"]
        split = with_options(program, split=blocks, half_optimiser_state=True, half_partials=True)
        marks = [f"blocks.{number}" for number in range(4)]
        for marked, off_chip, share in itertools.product((False, True), (False, True), (0.1, 0.2, 0.6)):
            plan = with_options(split, optimiser_off_chip=off_chip, available_memory_proportion=share)
            profile = profile_program(with_options(plan, checkpoints=marks) if marked else plan)
            if crowded.limits.allow(profile.memory.share):
                best = max(best, profile.samples_per_second)
    assert best > 0
    assert both(crowded)[0].samples_per_second >= 0.97 * best


def test_recommendations_leave_room_and_what_a_full_tile_would_bring_is_said(crowded: FitResult) -> None:
    fastest, cheapest = both(crowded)
    assert max(fastest.share, cheapest.share) <= 0.95
    text = str(crowded)
    assert "that was found with 5 % of the fullest tile free: " in text
    fuller = [tried for tried in crowded.tried if tried.fits and not crowded.limits.allow(tried.share)]
    gained = max((tried.samples_per_second for tried in fuller), default=0.0) / fastest.samples_per_second - 1
    assert ("With no room to spare: " in text) == (gained > NEGLIGIBLE_GAIN)
    full = fitted(transformer(4, 256), machine=small_tiles(0.25), ipus=4, keep=("replicas", "calls"), margin=0)
    assert both(full)[0].samples_per_second >= fastest.samples_per_second
    assert "that was found with no room to spare: " in str(full)


@pytest.fixture(scope="module")
def free() -> FitResult:
    return fitted(transformer(2, 64, half=False))


@pytest.mark.parametrize("keep", [*KEEP, ("precision", "optimiser", "micro-batch", "replicas")])
def test_what_stays_stays(keep: Any, free: FitResult) -> None:
    result = fitted(transformer(2, 64, half=False), keep=keep)
    kept = [keep] if isinstance(keep, str) else keep
    fields = {"precision": "half_precision half_partials half_optimiser_state", "optimiser": "half_optimiser_state"}
    for name in " ".join(fields.get(word, word.replace("-", "_")) for word in kept).split():
        assert {getattr(tried.setting, name) for tried in result.tried} == {getattr(result.start.setting, name)}
        assert name == "machine" or len({getattr(tried.setting, name) for tried in free.tried}) > 1


def test_a_chip_may_have_any_number_of_ipus_but_stays() -> None:
    result = fitted(transformer(2, 64), machine="Bow")
    assert both(result)[0].profile.machine.chip == "Bow"
    assert "searches there" not in str(result)


def test_a_limit_between_two_powers_of_two_says_which_count() -> None:
    result = fitted(transformer(2, 64), ipus=3)
    assert all(tried.ipus <= 3 for tried in result.tried)
    words = "so the search could use only 2 of the 3 that you allowed. ipus=4"
    assert f"PopTorch reserves 1, 2, 4, 8, ... IPUs, {words}" in str(result)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"keep": "precission"}, "keep cannot name 'precission'. Did you mean precision?"),
        ({"keep": ("split", "speed")}, "keep cannot name 'speed'"),
        ({"ipus": 0}, "ipus must be a whole number from 1 on, not 0"),
        ({"machine": "POD3"}, "no machine 'POD3'"),
        ({"margin": 5}, "margin is the share of the fullest tile that stays free, from 0 to below 1, not 5: 0.05"),
    ],
)
def test_bad_requests_get_a_clear_answer(asked: dict[str, Any], answer: str) -> None:
    with pytest.raises(poptorch.Error, match=re.escape(answer)):
        linear(1, **asked)


def linear(replicas: int, **asked: Any) -> FitResult:
    """Search for one linear layer with so many replicas; 128 are spread over two processes of 64 IPUs each."""
    options = quiet().replicationFactor(replicas)
    return ipu_model.make_it_fit(nn.Linear(64, 64), (torch.zeros(4, 64),), options, micro_batch=True, **asked)


def test_ipus_are_those_of_all_processes() -> None:
    result = linear(128, keep="replicas")
    assert result.start.ipus == 128
    assert "on 128 IPUs (64 in each of 2 processes)" in str(result)
    assert "The search used at most 128 IPUs" in str(result)
    fastest, _ = both(linear(128, ipus=32))
    assert fastest.candidate.setting.ipus * 2 == fastest.candidate.ipus <= 32
    alone = linear(4, ipus=1)  # the program itself fits, on four
    assert alone.start.ipus == 4
    assert {fit.candidate.ipus for fit in both(alone)} == {1}


X = torch.ones(8, 8)


def chained(module: nn.Module | None = None, **asked: Any) -> FitResult:
    """Search for the training of two layers on two IPUs, in eight micro-batches of eight rows."""
    asked = {"options": trainable(2, 8), "micro_batch": True, **asked}
    return ipu_model.make_it_fit(module or Chain(2), (X, X), training=True, **asked)


R4 = trainable(2, 8).replicationFactor(4)


@pytest.mark.parametrize(
    ("search", "rule"),
    [
        (lambda: chained(ipus=1, keep="split"), "Its blocks have to stay as they are, and they need 2 IPUs."),
        (lambda: chained(options=R4, ipus=2, keep="replicas"), "It has to keep its 4 replicas, and each needs an IPU."),
        (lambda: linear(128, ipus=1), "It has 2 processes, and each needs an IPU of its own."),
    ],
)
def test_if_nothing_can_be_tried_the_rule_is_named(search: Callable[[], FitResult], rule: str) -> None:
    result = search()
    assert result.nearest is None
    assert result.binds == rule
    assert f"{NOTHING} within the limits that you set ({result.limits}). {rule}" in str(result)
    assert result.instead is not None


def trained(module: nn.Module) -> FitResult:
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    return ipu_model.make_it_fit(module, torch.zeros(32, 64), trainable(1, 4), optimizer=optimizer)


def test_a_module_for_one_micro_batch_keeps_it() -> None:
    """Its forward names the number of its rows, as many scripts do."""

    def of_one_micro_batch() -> nn.Module:
        return Module(lambda m, x: loss(m.layer(x.view(8, 64))), layer=nn.Linear(64, 64))

    result = trained(of_one_micro_batch())
    possible = [tried.setting for tried in result.tried if not tried.refused]
    assert {setting.micro_batch for setting in possible} == {8}
    assert any(setting != result.start.setting for setting in possible)
    programs = Programs(source_of(of_one_micro_batch(), torch.zeros(32, 64), trainable(1, 4), training=True))
    with pytest.raises(Error, match="micro-batches of 4: RuntimeError: shape"):
        programs.of(replace(programs.start, micro_batch=4))


def test_a_split_that_blocks_in_forward_undo_is_not_confirmed() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        with poptorch.Block(ipu_id=0):
            x = m.first(x)
        with poptorch.Block(ipu_id=1):
            return loss(m.second(x))

    result = trained(Module(forward, first=nn.Linear(64, 64), second=nn.Linear(64, 64)))
    for fit in both(result):
        assert len(fit.profile.memory.ipus) == fit.candidate.setting.split.ipus
        assert not fit.is_confirmed or fit.candidate.setting.split.ipus == 2
    assert any("Its own forward places blocks" in refusal for refusal in result.refusals)


def test_what_the_front_end_refuses_of_the_changed_module_is_reported() -> None:
    """Of one that cannot be copied, no changed one can be captured."""
    uncopied: Any = Chain(2)
    uncopied.__deepcopy__ = Mock(side_effect=RuntimeError("only one of these may exist"))
    result = chained(uncopied, keep="micro-batch")
    fastest, _ = both(result)
    assert fastest.changes
    assert not fastest.is_confirmed
    assert "only one of these may exist" in fastest.refused
    words = "The module could not be captured with all the changes of a program: The module cannot be copied"
    assert words in str(result)


def block() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


def marked_between(m: Any, x: Tensor) -> Tensor:
    for block in m.blocks:
        x = block(poptorch.recomputationCheckpoint(x.sin()))
    return loss(x)


def marked(step: Step) -> set[str]:
    return {op.name for op in step.ops if op.hints.recomputation_checkpoint}


def test_a_module_with_other_checkpoints_has_no_more_of_its_own() -> None:
    def program(changes: ModuleChanges | None) -> Program:
        module, x = Module(marked_between, blocks=nn.ModuleList(block() for _ in range(4))), (torch.zeros(4, 64),)
        return program_of_module(trainable(1, 8), module, x, training=True, micro_batch=True, changes=changes)

    own, names = program(None), tuple(f"blocks.{number}" for number in range(4))
    captured = program(ModuleChanges(checkpoints=names)).step
    assert has_checkpoints(own.step)
    assert marked(captured) == marked(with_checkpoints(own.step, names))
    assert not marked(captured) & marked(own.step)
    assert marked(program(ModuleChanges(micro_batch=2)).step) == marked(own.step)
    words = "# These replace the model's own poptorch.recomputationCheckpoint calls: remove those."
    bare = replace(own, step=with_checkpoints(own.step, ()))
    changed = {"checkpoints": names[:2]}
    assert words in code_of(own, own, changed, None)
    assert words not in code_of(bare, bare, changed, None)


def test_a_block_that_returns_no_tensor_is_refused_as_a_checkpoint() -> None:
    wrapped = Module(lambda m, x: {"hidden": m.block(x)}, block=block())
    module = Module(lambda m, x: loss(m.wrapped(x)["hidden"]), wrapped=wrapped)
    changes = ModuleChanges(checkpoints=("wrapped",))
    with pytest.raises(poptorch.Error, match="Module returns what cannot be a checkpoint"):
        program_of_module(quiet(), module, (torch.zeros(4, 64),), training=True, changes=changes)


def test_a_slow_loader_is_said_to_limit_the_program() -> None:
    """A thousandth of a second a sample in the program's own process; four workers load four times as fast."""
    result = chained(host=HostWork(seconds_per_sample=1e-3))
    fastest, _ = both(result)
    assert fastest.profile.limited_by == "host loader"
    text = str(result)
    assert "limited by: host loader" in text
    assert f"its IPUs alone would reach {fastest.profile.device_samples_per_second:,.1f}" in text
    workers = next(loader for loader in result.loaders if "workers" in loader.change)
    assert workers.samples_per_second == pytest.approx(4 / 1e-3, rel=0.01)
    assert f"{workers.change}: {workers.samples_per_second:,.1f} samples/s, by {workers.line}" in text


def test_replicas_that_bring_nothing_are_left_out() -> None:
    """A slow loader limits the program on any number of IPUs, so that it takes those it has."""
    options = trainable(2, 16)
    limited = chained(options=options, host=HostWork(seconds_per_sample=1e-2, workers=2))
    assert both(limited)[0].candidate.ipus == 1 < both(chained(options=options))[0].candidate.ipus


def test_a_warning_about_the_module_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whole numbers as results, as a language model's guesses: not again for each change of the search."""
    module = Module(lambda m, x: m.layer(x).argmax(-1), layer=nn.Linear(8, 8))
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        for changes in (None, ModuleChanges(micro_batch=2)):
            program_of_module(quiet(), module, (torch.zeros(4, 8),), micro_batch=True, changes=changes)
    assert caplog.text.count("in which large values lose their range") == 1


def test_what_fits_best_has_no_code_and_a_bar_names_programs(capsys: pytest.CaptureFixture[str]) -> None:
    result = linear(1, ipus=1, progress=True, keep="calls")
    assert both(result)[0].changes == ()
    assert result.code == ""
    assert str(result).startswith("inference as it is: fits")
    assert "No setting that was tried is faster or uses fewer IPUs: " in str(result)
    assert not any(line.startswith("    ") for line in str(result).splitlines())
    bar = r"programs modelled: [0-9]+ in [0-9:]+, 1 IPU x 1 replica, micro-batch"
    assert re.search(bar, capsys.readouterr().err)


def test_calls_become_longer_where_that_is_faster_and_stay_if_asked_to() -> None:
    """The host's part of a call is most of the time of one linear layer, and is shared by the updates of a call."""
    fastest = both(chained())[0]
    calls = fastest.candidate.setting.calls
    assert calls > 1
    assert f"opts.deviceIterations({calls})" in fastest.code
    shorter = both(chained(keep="calls"))[0]
    assert shorter.candidate.setting == replace(fastest.candidate.setting, calls=1)
    assert shorter.samples_per_second < fastest.samples_per_second


def test_lines_come_with_hints() -> None:
    assert micro_batch_line(1, 2) == "batch_size=1  # instead of 2, in poptorch.DataLoader(...)"
    module, given = transformer(1, 64)
    program = ipu_model.profile_module(module, **given).program
    changed = {"half_optimiser_state": True}
    assert "give the optimizer a loss_scaling" in code_of(program, program, changed, None)
    scaled = replace(program, optimiser=replace(program.optimiser, loss_scaling=128.0))
    assert "give the optimizer a loss_scaling" not in code_of(program, scaled, changed, None)
    assert str(HostWork(2e-3, workers=4)) == (
        "2 ms for each of 4 workers to load a sample, while the device works (no loader described)"
    )


def test_a_profile_has_no_module_so_that_micro_batches_stay() -> None:
    """With one micro-batch for each update, there is nothing to share among replicas."""
    several = ipu_model.profile_module(Chain(2), (torch.ones(64, 8),) * 2, trainable(2, 8), training=True)
    result = ipu_model.make_it_fit(several)
    assert {tried.setting.micro_batch for tried in result.tried} == {8}
    words = "free, without other micro-batches (make_it_fit(module, inputs, options, ...) tries them): "
    assert words in str(result)
    one = ipu_model.make_it_fit(ipu_model.profile_module(Chain(1), (X, X), quiet(), training=True), ipus=4)
    assert one.found
    assert {tried.setting.replicas for tried in one.tried} == {1}
