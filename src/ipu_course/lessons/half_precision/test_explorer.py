"""Lesson 01's explorer: every setting gives a picture and a table, and the knobs do what they say."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from explorer_settings import some_of

import poptorch
from ipu_course import engine
from ipu_course.engine import ModelledModule
from ipu_course.explorers.explorer import View
from ipu_course.lessons.half_precision.explorer import FP16_MOMENTS, TYPES, explore_precision, precision_view
from ipu_course.models import SmallNetwork, WithLoss

HALF, SINGLE = torch.float16, torch.float32
PRECISIONS = {"32.32": (SINGLE, SINGLE), "16.32": (HALF, SINGLE), "16.16": (HALF, HALF)}
SETTINGS = some_of(PRECISIONS, TYPES.values(), TYPES.values(), TYPES.values(), (False, True))


@pytest.fixture(scope="module")
def captured() -> dict[str, ModelledModule]:
    """A small network in each precision, with an accumulation of 2, so that there are accumulators."""
    found = {}
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    for name, (data, model) in PRECISIONS.items():
        network = WithLoss(SmallNetwork()).to(model)
        inputs = (torch.zeros(8, 3, 32, 32, dtype=data), torch.zeros(8, dtype=torch.int64))
        module = engine.modelled_module(network, inputs, options, poptorch.optim.AdamW(network.parameters()))
        assert module is not None
        found[name] = module
    return found


def total_bytes(module: ModelledModule, *types: torch.dtype) -> float:
    """What optimiser state and accumulators take on the IPU."""
    categories = module.with_state_types(*types).profile().memory[0].categories
    return sum(each.total_bytes for each in categories if each.name in ("optimiser state", "gradient accumulators"))


@pytest.mark.parametrize(("precision", "accumulators", "first", "second", "half_partials"), SETTINGS)
def test_a_setting_has_a_picture_and_a_table(
    captured: Mapping[str, ModelledModule],
    precision: str,
    accumulators: torch.dtype,
    first: torch.dtype,
    second: torch.dtype,
    half_partials: bool,
) -> None:
    view = precision_view(captured, precision, accumulators, first, second, half_partials)
    assert view.figure is not None
    assert len(view.rows) == 1
    assert (view.text == FP16_MOMENTS) == (second is HALF)


def test_each_type_takes_the_bytes_it_has(captured: Mapping[str, ModelledModule]) -> None:
    parameters = sum(parameter.numel() for parameter in SmallNetwork().parameters())
    single = total_bytes(captured["16.16"], SINGLE, SINGLE, SINGLE)
    for types in itertools.product((HALF, SINGLE), repeat=3):
        saved = single - total_bytes(captured["16.16"], *types)
        # Two bytes for each parameter and each tensor of state in fp16; tiles hold whole grains of each.
        assert saved == pytest.approx(2 * parameters * types.count(HALF), rel=0.1, abs=1)


def test_fewer_bits_take_less_memory_in_all(captured: Mapping[str, ModelledModule]) -> None:
    """All tiles together: on so small a network, the placement of a few grains decides which tile is the fullest."""
    memories = [captured[name].with_state_types(SINGLE, SINGLE, SINGLE).profile().memory[0] for name in PRECISIONS]
    sizes = [sum(each.total_bytes for each in memory.categories) for memory in memories]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


def test_without_an_engine_one_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    nothing: dict[str, Any] = dict.fromkeys(PRECISIONS)
    explore_precision(nothing)
    assert capsys.readouterr().out.strip() == engine.NOT_HERE
    assert precision_view(nothing, "16.16", HALF, HALF, SINGLE, False) == View(text=engine.NOT_HERE)


def test_a_module_without_an_optimiser_has_no_state_to_type() -> None:
    module = engine.modelled_module(SmallNetwork(), (torch.zeros(1, 3, 32, 32),), poptorch.Options())
    assert module is not None
    with pytest.raises(ValueError, match="without an optimiser"):
        module.with_state_types(HALF, HALF, SINGLE)


def test_figures_are_of_nobody_s_pyplot(captured: Mapping[str, ModelledModule]) -> None:
    precision_view(captured, "16.16", HALF, HALF, SINGLE, False)
    assert not plt.get_fignums()
