"""`make_it_fit`: the programs that it finds are those that its printed lines build."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from fit_models import Case, decoder, unet

import ipu_model
import poptorch
from ipu_model.explore.fit_result import Fit
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


CASES = {"a small decoder": lambda: decoder(4, 256), "a small U-Net": lambda: unet(64, 16)}


@pytest.mark.parametrize("name", CASES)
def test_the_printed_lines_build_the_programs_that_were_found(name: str) -> None:
    make = CASES[name]
    case = make()
    found = ipu_model.make_it_fit(case.module, **case.arguments)
    for fit in (found.fastest, found.cheapest):
        assert isinstance(fit, Fit)
        assert fit.profile.verdict is Verdict.FITS
        assert built(make(), fit.code) == fit.profile
