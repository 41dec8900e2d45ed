"""Balance of stages: times are those of the profile, and a cut counts by its weight update."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import poptorch
from ipu_course import engine
from ipu_course.lessons.pipelining_mnist import balance, lesson
from ipu_course.lessons.pipelining_mnist.balance import percentage_between, show_cuts, show_stages, stage_times
from ipu_course.lessons.pipelining_mnist.balance_figure import balance_figure
from ipu_course.programs.mnist.model import Network, TrainingModelWithLoss
from ipu_course.published import PublishedFigure


@pytest.fixture(scope="module")
def tutorial() -> engine.ModelledModule:
    """The tutorial's program, four stages; without its ten device iterations."""
    model, options = TrainingModelWithLoss(Network()), poptorch.Options()
    options.setExecutionStrategy(poptorch.PipelinedExecution("B1", "B2", "B3", "B4"))
    options.Training.gradientAccumulation(10)
    micro_batch = torch.zeros(40, 1, 28, 28), torch.zeros(40, dtype=torch.int64)
    return engine.modelled_module(model, micro_batch, options, poptorch.optim.AdamW(model.parameters()))


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """What is shown as tables; figures are drawn, but not shown."""
    found: list[list[dict[str, Any]]] = []
    monkeypatch.setattr(balance.show, "table", lambda rows, index=None: found.append(list(rows)))
    monkeypatch.setattr(balance.show, "figure", lambda drawn, takeaway, words: None)
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


class TestCuts:
    def test_the_slowest_is_compared_with_the_fastest(self, tutorial: engine.ModelledModule) -> None:
        slow, fast = (tutorial.profile(execution=how) for how in ("sharded", "pipelined"))
        assert fast.device_seconds_per_call < slow.device_seconds_per_call
        longer = slow.device_seconds_per_call / fast.device_seconds_per_call
        assert percentage_between({3: slow, 5: fast}) == pytest.approx(100 * (longer - 1))
        assert percentage_between({3: engine.NOT_MODELLED}) is engine.NOT_MODELLED

    def test_a_slower_second_ipu_moves_the_longer_stage(
        self, tutorial: engine.ModelledModule, tables: list[list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        # The convolutions, layer1 and layer2, are most of the work: cut before layer2, IPU 1 has more to do.
        cuts = {7: tutorial.profile(split="model.layer2"), 8: tutorial.profile(split="model.layer3")}
        assert [time.total for time in stage_times(cuts[7])] == sorted(time.total for time in stage_times(cuts[7]))
        show_cuts(cuts, PublishedFigure(2.0, "IPU 1 computes twice as long", "published", "[3]"))
        assert [row["cut before"] for row in tables[0]] == ["layer3[7]", "layer3[8]"]
        slower = next(name for name in tables[0][0] if "longer stage if" in name)
        first = tables[0][0]
        assert float(str(first[slower]).split()[0]) > float(str(first["longer stage"]).split()[0])
        assert "published: IPU 1 computes twice as long [3]" in capsys.readouterr().out

    @pytest.mark.parametrize("rows", [[[1.0, 2.0]], [[1.0], [2.0]]])
    def test_a_figure_needs_two_values_for_each_cut(self, rows: list[list[float]]) -> None:
        with pytest.raises(ValueError, match="each of the 2 cuts"):
            balance_figure(["a", "b"], rows, [[1.0, 2.0]] * 2, 624, "")


def test_without_a_model_each_view_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show_stages(engine.NOT_MODELLED, ["a"])
    show_cuts({8: engine.NOT_MODELLED}, lesson.published("stage_ratio"))
    assert capsys.readouterr().out.splitlines() == [engine.NOT_HERE] * 2
