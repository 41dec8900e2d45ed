"""Random programs are right or refused with words, and leave nothing behind: some of what `make fuzz` tries for hours.

The oracle is plain PyTorch on the same data, micro-batch by micro-batch (`long_runs/fuzz/trial.py`).
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from executor_support import in_plain_pytorch, training
from fuzz import trial
from fuzz.cases import Case, cases
from fuzz.networks import Network
from fuzz.trial import FAULT, REFUSED, RIGHT, run
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import poptorch

pytestmark = pytest.mark.filterwarnings("ignore")


# Programs that the long run found something with, or that exercise a rule of their own.
KNOWN = {
    "no iterations and a loader": (
        Case(iterations=0, loader="AsyncRebatched", drop_last=False), REFUSED, "deviceIterations must be at least 1"
    ),
    "compile-time constants come back once": (
        Case(network="constants", rows=1, replicas=4, iterations=2, mode="All"), RIGHT, ""
    ),
    "a network whose results are all integers": (
        Case(network="masks", training=True, dtype="uint8", rows=1, iterations=2, accumulation=2), REFUSED, ""
    ),
    "grouped inputs": (
        Case(training=True, iterations=2, replicas=4, group=2, switches=frozenset({"orthogonal groups"})), RIGHT, ""
    ),
    "pipelined, everything at once": (
        Case(training=True, iterations=2, accumulation=4, replicas=2, ipus=(0, 1), strategy="stages", mode="All",
             optimiser="momentum", loader="Async", switches=frozenset({"recomputation", "offload optimiser"})),
        RIGHT, "",
    ),
    "interrupted in a call": (Case(network="recurrent", iterations=3, action="interrupt", seed=500), RIGHT, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_program(name: str) -> None:
    case, kind, words = KNOWN[name]
    outcome = run(case)
    assert outcome.kind == kind, outcome.text
    assert words in outcome.text


@settings(
    max_examples=12, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(cases(loaders=("Sync", "Async")))
def test_random_programs(case: Case) -> None:
    outcome = run(case)
    assert outcome.kind != FAULT, f"{outcome.text}: {case}"


COUNTS = st.integers(1, 3)
MODES = st.sampled_from([mode.name for mode in poptorch.OutputMode if mode is not poptorch.OutputMode.Default])


@pytest.mark.parametrize("network", ["perceptron", "convolutions", "recurrent", "attention"])
@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(
    iterations=COUNTS, accumulation=COUNTS, replicas=COUNTS, mode=MODES, reduction=st.sampled_from(["mean", "sum"]),
    optimiser=st.sampled_from(["momentum", "adamw", "torch adam"]), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_training_has_the_outputs_and_weights_of_plain_pytorch(network, iterations, reduction, **others) -> None:
    switches = frozenset({reduction} - {"mean"})
    case = Case(network, True, rows=3, iterations=iterations, period=iterations, switches=switches, **others)
    outcome = run(case)
    assert outcome.kind == RIGHT, outcome.text


def test_a_step_is_bit_equal_where_the_arithmetic_is_the_same() -> None:
    network = Network("convolutions")
    network.with_loss = True
    plain = copy.deepcopy(network)
    x = torch.randn(4, 1, 6, 6)
    expected = plain(x)
    executor = training(network, lr=0.5)
    results = executor(x)
    in_plain_pytorch(plain, (x,), lr=0.5)
    for found, wanted in zip((*results, *network.parameters()), (*expected, *plain.parameters()), strict=True):
        assert torch.equal(found, wanted)


class TestTheJudge:
    """A judge that finds nothing wrong is worth nothing: wrong results must be faults."""

    def test_another_value_shape_or_not_a_number_is_a_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert run(replace(Case(), iterations=2, mode="Final")).kind == RIGHT
        right = trial.PlainProgram.call
        monkeypatch.setattr(trial.PlainProgram, "call", lambda self, inputs: right(self, inputs) + 1e-2)
        assert run(Case()).text.startswith("results: leaf 0: values")
        nan = torch.tensor([torch.nan])
        assert trial.difference(torch.zeros(2, 4), torch.zeros(4, 4), values=False)
        assert "NaN" in trial.difference(nan, torch.ones(1), values=False)
        assert not trial.difference(nan, nan, values=True)

    def test_an_error_of_another_class_is_a_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trial, "options_of", lambda case: [][1])
        outcome = run(Case())
        assert outcome.kind == FAULT
        assert "IndexError" in outcome.text
