"""Balance of stages: times are those of the profile, and the fastest cut is the fastest that fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import poptorch
from ipu_course import engine
from ipu_course.lessons.pipelining_mnist import balance
from ipu_course.lessons.pipelining_mnist import stash as stash_view
from ipu_course.lessons.pipelining_mnist.balance import fastest_cut, show_cuts, show_stages, stage_times
from ipu_course.lessons.pipelining_mnist.balance_figure import balance_figure
from ipu_course.lessons.pipelining_mnist.stash import show_schedules, show_stash
from ipu_course.programs.mnist.model import Network, TrainingModelWithLoss


@pytest.fixture(scope="module")
def tutorial() -> engine.ModelledModule:
    """The tutorial's program, four stages; without its ten device iterations."""
    model, options = TrainingModelWithLoss(Network()), poptorch.Options()
    options.setExecutionStrategy(poptorch.PipelinedExecution("B1", "B2", "B3", "B4"))
    options.Training.gradientAccumulation(10)
    micro_batch = torch.zeros(40, 1, 28, 28), torch.zeros(40, dtype=torch.int64)
    found = engine.modelled_module(model, micro_batch, options, poptorch.optim.AdamW(model.parameters()))
    assert found is not None
    return found


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """What is shown as tables; figures are drawn, but not shown."""
    found: list[list[dict[str, Any]]] = []
    for module in (balance, stash_view):
        monkeypatch.setattr(module.show, "table", lambda rows, index=None: found.append(list(rows)))
        monkeypatch.setattr(module.show, "figure", lambda drawn, words: None)
    return found


class TestStageTimes:
    def test_every_stage_but_the_last_runs_its_forward_pass_twice(self, tutorial: engine.ModelledModule) -> None:
        times = stage_times(tutorial.profile())
        assert [time.stage for time in times] == [0, 1, 2, 3]
        assert [time.again > 0 for time in times] == [True, True, True, False]
        assert all(time.total == time.forward + time.again + time.backward for time in times)

    def test_they_do_not_depend_on_how_many_micro_batches_there_are(self, tutorial: engine.ModelledModule) -> None:
        few, many = (stage_times(tutorial.profile(gradient_accumulation=count)) for count in (7, 100))
        for one, other in zip(few, many):
            assert one.total == pytest.approx(other.total)

    def test_stages_are_shown_as_shares_of_the_longest(
        self, tutorial: engine.ModelledModule, tables: list[list[dict[str, Any]]]
    ) -> None:
        show_stages(tutorial.profile(), ["a", "b", "c", "d"])
        assert [row["stage"] for row in tables[0]] == ["a", "b", "c", "d"]
        assert [row["of the longest"] for row in tables[0]].count("100%") == 1


class TestCuts:
    def test_the_fastest_is_of_those_that_fit(self, tutorial: engine.ModelledModule) -> None:
        slow, fast = (tutorial.profile(execution=how) for how in ("sharded", "pipelined"))
        assert fast.device_seconds_per_call < slow.device_seconds_per_call
        assert fastest_cut({3: slow, 5: fast, 6: None}) == 5
        assert fastest_cut({3: None}) is None

    def test_two_stages_of_the_tutorial_s_network(
        self, tutorial: engine.ModelledModule, tables: list[list[dict[str, Any]]]
    ) -> None:
        # The convolutions, layer1 and layer2, are most of the work: cut behind them, IPU 0 is the slower one.
        cuts = {name: tutorial.profile(split=f"model.{name}") for name in ("layer2", "layer3")}
        show_cuts(cuts)
        assert [row["cut before"] for row in tables[0]] == list(cuts)
        assert tables[0][1]["slower stage"] == "IPU 0"
        assert {row["fits"] for row in tables[0]} == {"yes"}

    @pytest.mark.parametrize("rows", [[[1.0, 2.0]], [[1.0], [2.0]]])
    def test_a_figure_needs_two_values_for_each_cut(self, rows: list[list[float]]) -> None:
        with pytest.raises(ValueError, match="each of the 2 cuts"):
            balance_figure(["a", "b"], rows, [[1.0, 2.0]] * 2, 624, "")


class TestStash:
    def test_modelled_stashes_grow_with_the_counted_slots(
        self, tutorial: engine.ModelledModule, tables: list[list[dict[str, Any]]]
    ) -> None:
        show_stash(tutorial, stages=4, accumulation=10)
        counted = [(row["grouped"], row["interleaved"]) for row in tables[0]]
        assert counted == [(7, 4), (5, 3), (3, 2), (0, 0)]
        for row, (grouped, alternating) in zip(tables[0][:3], counted):
            sizes = [
                float(str(row[f"{name}, modelled"]).split()[0].replace(",", "")) for name in ("grouped", "interleaved")
            ]
            assert sizes[0] / sizes[1] == pytest.approx(grouped / alternating, rel=0.01)

    def test_all_four_ways_are_shown(self, tutorial: engine.ModelledModule, tables: list[list[dict[str, Any]]]) -> None:
        show_schedules(tutorial)
        assert [row["schedule"].split(",")[0] for row in tables[0]] == ["grouped", "interleaved"] * 2


def test_without_a_model_each_view_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show_stages(None, ["a"])
    show_cuts({"layer": None})
    show_schedules(None)
    assert capsys.readouterr().out.splitlines() == [engine.NOT_HERE] * 3


def test_counts_of_a_stash_need_no_model(tables: list[list[dict[str, Any]]]) -> None:
    show_stash(None, stages=2, accumulation=3)
    assert tables[0] == [
        {"stage": 0, "grouped": 3, "interleaved": 2},
        {"stage": 1, "grouped": 0, "interleaved": 0},
    ]
