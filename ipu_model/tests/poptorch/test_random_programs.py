"""Random programs are right or refused with words, and leave nothing behind: some of what `make fuzz` tries for hours.

The oracle is plain PyTorch on the same data, micro-batch by micro-batch (`long_runs/fuzz/plain.py`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fuzz import trial
from fuzz.cases import Case
from fuzz.drawing import cases
from fuzz.trial import FAULT, REFUSED, RIGHT, run
from hypothesis import HealthCheck, Phase, given, settings

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
    "interrupted while compiling": (Case(training=True, action="interrupt", seed=501), RIGHT, ""),
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


class TestTheJudge:
    """A judge that finds nothing wrong is worth nothing: wrong results must be faults."""

    def test_another_value_is_a_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = trial.PlainProgram.call
        monkeypatch.setattr(trial.PlainProgram, "call", lambda self, inputs: right(self, inputs) + 1e-2)
        assert run(Case()).text.startswith("results: leaf 0: values")

    def test_another_shape_is_a_fault(self) -> None:
        outcome = run(replace(Case(), iterations=2, mode="Final"))
        assert outcome.kind == RIGHT
        assert trial.difference(torch.zeros(2, 4), torch.zeros(4, 4), values=False)

    def test_not_a_number_is_a_fault(self) -> None:
        assert "NaN" in trial.difference(torch.tensor([torch.nan]), torch.ones(1), values=False)
        assert not trial.difference(torch.tensor([torch.nan]), torch.tensor([torch.nan]), values=True)

    def test_a_thread_left_behind_is_a_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import threading

        stop = threading.Event()
        left = threading.Thread(target=stop.wait)
        network_of = trial.network_of

        def leaving(case: Case) -> object:
            left.start()
            return network_of(case)

        monkeypatch.setattr(trial, "network_of", leaving)
        try:
            outcome = run(Case())
        finally:
            stop.set()
            left.join()
        assert outcome.kind == FAULT
        assert "threads" in outcome.text

    def test_an_error_of_another_class_is_a_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(case: Case) -> object:
            raise IndexError("tuple index out of range")

        monkeypatch.setattr(trial, "options_of", broken)
        outcome = run(Case())
        assert outcome.kind == FAULT
        assert "IndexError" in outcome.text
