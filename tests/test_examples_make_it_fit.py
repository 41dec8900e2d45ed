"""The programs in examples/make_it_fit: plain networks of known size that do not fit as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import ipu_model
import poptorch
from ipu_model.predict.profile import Verdict
from ipu_model.sources import made_by

# Parameters: ResNet-152 and ViT-L/16 as in torchvision's tables of weights. The others by their formulas: a layer of
# width d has 12 d^2 weights and 13 d biases and norms; GPT and BERT have two tables of words, for they are not tied.
LAYER = 12 * 1024**2 + 13 * 1024
WORDS = 50_257 * 1024
PARAMETERS = {
    "gpt.py:training": 24 * LAYER + 2 * WORDS + (256 + 2) * 1024,
    "bert_large.py:training": 24 * LAYER + 30_522 * (2 * 1024 + 1) + (128 + 2) * 1024 + 1024 * (1024 + 1 + 2),
    "torchvision_networks.py:vit_large": 304_326_632,
    "torchvision_networks.py:resnet_152": 60_192_808,
    "unet_512.py:training": 31_031_000,
}
SOONER_FOUND = ("gpt.py:training", "unet_512.py:training")


@pytest.fixture
def folder(project: Path) -> Path:
    return project / "examples" / "make_it_fit"


def program(folder: Path, name: str) -> dict[str, Any]:
    made: dict[str, Any] = made_by(f"{folder}/{name}")
    return made


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_network_has_as_many_parameters_as_it_is_known_for(folder: Path, name: str) -> None:
    """The U-Net's number depends on its kind of norm and of enlarging, so it is met to a part in a thousand."""
    found = sum(weight.numel() for weight in program(folder, name)["model"].parameters())
    assert found == pytest.approx(PARAMETERS[name], rel=1e-3 if "unet" in name else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMETERS)
def test_it_does_not_fit_and_every_op_has_a_formula(folder: Path, name: str) -> None:
    profile = ipu_model.profile_module(**program(folder, name))
    assert profile.verdict is Verdict.DOES_NOT_FIT
    assert {op.target for op in profile.fallbacks} == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SOONER_FOUND else [pytest.mark.large]) for name in PARAMETERS]
)
def test_the_lines_that_are_found_build_the_program_that_was_promised(folder: Path, name: str) -> None:
    """The code runs on a fresh module and fresh options, and its profile is the one that was found."""
    given = program(folder, name)
    result = ipu_model.make_it_fit(given.pop("model"), **given, progress=False)
    assert result.fastest is not None
    assert result.cheapest is not None
    for fit in {result.fastest.code: result.fastest, result.cheapest.code: result.cheapest}.values():
        fresh = program(folder, name)
        changed = {**fresh, "opts": fresh["options"], "poptorch": poptorch, "torch": torch}
        exec(fit.code, changed)
        rows, half = (getattr(fit.candidate.setting, name) for name in ("micro_batch", "half_precision"))
        inputs = tuple(
            torch.empty(
                (rows, *tensor.shape[1:]),
                dtype=torch.half if half and tensor.is_floating_point() else tensor.dtype,
                device="meta",
            )
            for tensor in fresh["inputs"]
        )
        profile = ipu_model.profile_module(
            changed["model"], inputs, fresh["options"], optimizer=changed["optimizer"], micro_batch=True,
            machine=fit.profile.machine.name,
        )  # fmt: skip
        assert profile.verdict is Verdict.FITS
        assert profile.memory.max_tile_bytes == pytest.approx(fit.profile.memory.max_tile_bytes)
        assert profile.samples_per_second == pytest.approx(fit.profile.samples_per_second)


def test_the_page_names_every_program(folder: Path) -> None:
    page = (folder / "README.md").read_text(encoding="utf-8")
    for name in PARAMETERS:
        file, function = name.split(":")
        assert re.search(rf"\({re.escape(file)}\).*`{function}`", page)
