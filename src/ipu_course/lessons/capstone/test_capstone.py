"""Lesson 17: the stored plans are what the model says, and every answer that the text gives follows from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lesson_words import notes

import poptorch
from ipu_course import engine, show
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.capstone import (
    budget_record,
    every_plan,
    lesson,
    plan_to_scale,
    show_every_plan,
    show_plans_compared,
    show_published,
    show_replicas,
    show_slow_program,
)
from ipu_course.lessons.capstone.budget import Budget, Compilation, PlanError, ladder_row, show_ladder
from ipu_course.lessons.capstone.every_plan import result_of
from ipu_course.lessons.capstone.exercises import COSTS, ENOUGH, REPORT, SENT, plan_hint
from ipu_course.lessons.capstone.first_look import ipus_for_weights, profile_as_it_is
from ipu_course.lessons.capstone.photographs import run_as_it_is, run_program, same_results
from ipu_course.lessons.capstone.plan_results import MARGIN, EveryPlan, file_of, stored_plans
from ipu_course.lessons.capstone.plans import (
    Plan,
    PlanGraph,
    captured_graph,
    every_cut,
    every_graph,
    plans_of,
    profile_plan,
)
from ipu_course.lessons.capstone.plans_figure import WIDEST_KIB, plans_figure
from ipu_course.lessons.capstone.pods import reduced_bytes
from ipu_course.lessons.capstone.prices import DECISIONS, head_loss_percent, in_words, prices, result_for, still_fitting
from ipu_course.lessons.capstone.published_plans import PUBLISHED_PLANS
from ipu_course.lessons.capstone.reasons import DECIDED
from ipu_course.lessons.capstone.report import report_text
from ipu_course.lessons.capstone.single_steps import starts_that_miss
from ipu_course.lessons.capstone.slow_program import make_loader, make_options, photographs
from ipu_course.lessons.capstone.small import train_small
from ipu_course.lessons.capstone.transformer import BASE, LARGE, SMALL, Transformer, TransformerSize, sequences
from ipu_course.not_modelled import NOT_MODELLED
from ipu_course.progress import BudgetUse, read_progress
from ipu_model.explore import fit_result
from ipu_model.predict.band import known_errors

KIB = 1024
SIZES = (BASE, LARGE)


def even_plan(model: torch.nn.Module, global_batch: int) -> poptorch.Options:
    """Split the layers evenly, as in the notebook."""
    for number, layer in enumerate(model.layers):  # type: ignore[arg-type]  # a Module's attribute
        poptorch.BeginBlock(layer, f"layer {number}", ipu_id=number * 4 // len(model.layers))  # type: ignore[arg-type]
    poptorch.BeginBlock(model.head, "head", ipu_id=3)  # type: ignore[arg-type]
    options = poptorch.Options()
    options.Training.gradientAccumulation(global_batch // 4)
    return options


def lesson_s_plan() -> Any:
    """Return the function of the lesson's solution of exercise 1."""
    solution = next(lesson.folder.glob("17_*.py")).read_text(encoding="utf-8")
    code = solution.split("### STARTER:     ...\n", 1)[1].split("### END SOLUTION", 1)[0]
    names: dict[str, object] = {"poptorch": poptorch, "torch": torch}
    exec(code, names)
    return names["plan"]


@pytest.fixture(scope="module")
def every() -> EveryPlan:
    return stored_plans(BASE)


class TestStoredPlans:
    @pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
    def test_every_plan_of_the_space_is_stored_once(self, size: TransformerSize) -> None:
        wanted = [plan for graph in every_graph(size) for plan in plans_of(graph)]
        found = [each.plan for each in stored_plans(size).results]
        assert sorted(map(repr, found)) == sorted(map(repr, wanted))
        assert len(set(found)) == len(found)

    def test_the_optimum_and_its_neighbours_are_what_the_model_says(self, every: EveryPlan) -> None:
        """The figures of the best plan, and of all plans with its graph, modelled anew."""
        best = every.best.plan
        graph = PlanGraph(best.layers, best.head, best.micro_batch)
        module = captured_graph(BASE, graph)
        for plan in plans_of(graph):
            assert result_of(plan, profile_plan(module, BASE, plan)) == result_for(every, plan)

    def test_another_graph_is_what_the_model_says(self, every: EveryPlan) -> None:
        plan = PUBLISHED_PLANS["base"]
        module = captured_graph(BASE, PlanGraph(plan.layers, plan.head, plan.micro_batch))
        assert result_of(plan, profile_plan(module, BASE, plan)) == result_for(every, plan)

    def test_single_precision_partials_are_no_way_out(self, every: EveryPlan) -> None:
        """The space has half partials only: with others, the best plan is slower and needs no less."""
        best = every.best.plan
        module = captured_graph(BASE, PlanGraph(best.layers, best.head, best.micro_batch))
        checkpoints = [f"layers.{number}" for number in range(BASE.layers)]
        profile = module.profile(machine="Bow-2000", available_memory_proportion=best.proportion,
                                 checkpoints=checkpoints, half_partials=False)  # fmt: skip
        assert profile.samples_per_second < every.best.sequences_per_second
        assert profile.memory.max_tile_bytes >= max(every.best.tile_bytes)

    def test_the_optimum_of_the_larger_size_is_what_the_model_says(self) -> None:
        best = stored_plans(LARGE).best
        module = captured_graph(LARGE, PlanGraph(best.plan.layers, best.plan.head, best.plan.micro_batch))
        assert result_of(best.plan, profile_plan(module, LARGE, best.plan)) == best

    def test_what_is_written_is_what_is_read(
        self, every: EveryPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        text = file_of(BASE).read_text(encoding="utf-8")
        monkeypatch.setattr(every_plan, "file_of", lambda size: tmp_path / "plans.json")
        every_plan.write_plans(every)
        assert (tmp_path / "plans.json").read_text(encoding="utf-8") == text

    @pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
    def test_the_published_cut_is_in_the_space(self, size: TransformerSize) -> None:
        assert PUBLISHED_PLANS[size.name].layers in every_cut(size)
        assert result_for(stored_plans(size), PUBLISHED_PLANS[size.name]).sequences_per_second > 0


class TestText:
    def test_the_hook(self, every: EveryPlan) -> None:
        """3.5 times a tile; 37 programs; the search is 9 % faster."""
        profile = profile_as_it_is(BASE)
        assert f"{profile.memory.max_tile_bytes / profile.memory.tile_bytes:.1f}" == "3.5"
        assert ipus_for_weights(BASE) > 1
        assert every.search is not None
        assert every.search.programs == 37
        assert len(every.results) == 640
        assert round(100 * (every.search.sequences_per_second / every.best.sequences_per_second - 1)) == 9
        assert f"{every.search.sequences_per_second:,.0f} sequences/s, 9 % more" in notes("capstone")

    def test_what_the_search_does(self, every: EveryPlan) -> None:
        """The best plan's decisions, cuts inside of layers, and moments in half precision."""
        assert every.search is not None
        changes = "; ".join(every.search.changes)
        for each in ("'layers.5.grow'", "(on IPU 0 again)", "layers.0 to layers.11", "0.2 on IPU0", "8 -> 16",
                     "first moments"):  # fmt: skip
            assert each in changes
        assert "off chip" not in changes
        best = every.best.plan
        assert (best.head, best.micro_batch, best.every_layer, best.state_on_chip) == (0, 16, True, True)

    def test_22_plans_are_within_the_model_s_error_of_the_best(self, every: EveryPlan) -> None:
        """What the text says of ratios, and the notes of plans that nearly tie."""
        rates, errors = [each.sequences_per_second for each in every.fitting], known_errors().ratios["all"]
        assert (f"{errors.median:.0%}", f"{engine.largest_ratio_error():.0%}") == ("2%", "16%")
        assert every.near_ties == every.fitting[:22]
        assert rates[1] > (1 - errors.median) * rates[0] > rates[2]
        assert "22 plans that fit are within 16 % of the best" in notes("capstone")

    def test_the_best_plan_has_room_to_spare_and_a_faster_one_has_not(self, every: EveryPlan) -> None:
        assert MARGIN == fit_result.MARGIN
        assert f"{every.best.sequences_per_second:,.0f} sequences/s with 579 KiB" in notes("capstone")
        full = result_for(every, Plan((0, 4, 4, 4), 0, 16, every_layer=True, state_on_chip=True, proportion=0.4))
        assert (full.verdict, full.fits, round(max(full.tile_bytes) / KIB)) == ("fits", False, 602)
        assert round(100 * (full.sequences_per_second / every.best.sequences_per_second - 1), 1) == 0.7

    def test_most_plans_do_not_lead_to_the_best_one(self, every: EveryPlan) -> None:
        """The solution of exercise 2, and the instructor's notes with their numbers."""
        missed, fitting = starts_that_miss(every), len(every.fitting)
        assert missed > fitting / 2
        assert f"From {missed} of the {fitting} plans that fit, of {len(every.results)}, single" in notes("capstone")

    def test_a_head_on_the_last_ipu_costs_copies_and_no_second_state(self) -> None:
        checkpoints = [f"layers.{number}" for number in range(BASE.layers)]
        first, last = (
            captured_graph(BASE, PlanGraph((1, 4, 4, 3), head, 16)).profile(machine="Bow-2000", checkpoints=checkpoints)
            for head in (0, 3)
        )
        state = [profile.memory[3].bytes_by_category["optimiser state"] / KIB for profile in (first, last)]
        vocabulary = 2 * 4 * BASE.vocabulary * BASE.width / (1_472 * KIB)  # two moments in float32
        assert 0 < state[1] - state[0] < 0.05 * vocabulary
        assert last.shares["copy"] > 0.2 > 10 * first.shares["copy"]

    def test_the_reasons_of_the_solution(self, every: EveryPlan) -> None:
        """16 is the largest micro-batch, 8 loses 10 %; 656 KiB without checkpoints; 74 KiB on IPU 0."""
        best = every.best
        assert not result_for(every, replace(best.plan, micro_batch=32)).fits
        eight = result_for(every, replace(best.plan, micro_batch=8))
        assert round(100 * (1 - eight.sequences_per_second / best.sequences_per_second)) == 10
        assert round(max(result_for(every, replace(best.plan, every_layer=False)).tile_bytes) / KIB) == 656
        wider = result_for(every, replace(best.plan, proportion=0.4))
        assert not wider.fits
        assert round(100 * (wider.sequences_per_second / best.sequences_per_second - 1)) == 1
        assert round((wider.tile_bytes[0] - best.tile_bytes[0]) / KIB) == 74
        assert round(max(best.tile_bytes) / KIB) == 579

    def test_no_plan_with_its_state_off_the_chip_is_enough(self, every: EveryPlan) -> None:
        """The instructor's notes: 82 % at most."""
        rates = [each.sequences_per_second for each in every.fitting if not each.plan.state_on_chip]
        assert round(100 * rates[0] / every.best.sequences_per_second) == 82
        assert rates[0] < ENOUGH * every.best.sequences_per_second

    def test_every_worst_value_costs_less_than_a_quarter(self, every: EveryPlan) -> None:
        for decision in DECISIONS:
            worst = min(price.anew or 0 for price in prices(every, decision))
            assert worst > 0.75 * every.best.sequences_per_second


class TestBudget:
    def test_the_ladder_says_what_was_changed(self) -> None:
        def halved(model: torch.nn.Module, global_batch: int) -> poptorch.Options:
            options = even_plan(model.half(), global_batch)
            options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
            options.setAvailableMemoryProportion({"IPU2": 0.2})
            return options

        budget = Budget(BASE)
        changed = [budget.compile(plan).changed for plan in (even_plan, halved, halved)]
        assert changed[0].startswith(
            "precision: float32; partials: float32; layers of the four IPUs: 3, 3, 3, 3; place"
        )
        assert changed[1] == (
            "precision: float32 -> half; place of the optimiser state: on the chip -> off the chip; available memory "
            "proportion: 0.6 -> 0.6, 0.6, 0.2, 0.6"
        )
        assert changed[2] == "none of these decisions"
        assert [ladder_row(each, budget)["changed since the one before"] for each in budget.used] == changed

    def test_every_decision_of_the_space_has_its_words_on_the_ladder(self) -> None:
        plan = lesson_s_plan()
        decisions = Budget(BASE).compile(plan).decisions
        best = stored_plans(BASE).best.plan
        assert {field: decisions[name] for field, name in DECISIONS.items()} == {
            field: in_words(field, getattr(best, field)) for field in DECISIONS
        }
        assert (decisions["precision"], decisions["partials"]) == ("half", "half")

    def test_a_renewed_budget_shows_on_the_ladder_in_the_report_and_in_the_records(
        self, records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(budget_record, "_used_here", {})
        first = Budget(BASE)
        first.compile(even_plan)
        assert read_progress().budgets == (), "the notebook's own plan is no use of the budget yet"
        first.compile(even_plan)
        assert read_progress().budgets == (BudgetUse("17", "BERT-base", 1, 2),)
        show_ladder(first)
        assert "renewed" not in capsys.readouterr().out
        assert "it was not renewed" in report_text(first, dict.fromkeys(DECIDED, "because"), {})
        second = Budget(BASE)
        second.compile(even_plan)
        assert read_progress().budgets == (BudgetUse("17", "BERT-base", 2, 3),)
        show_ladder(second)
        told = "The budget for BERT-base was renewed once: 2 budgets, 3 compilations in all"
        assert told in capsys.readouterr().out
        assert told in report_text(second, dict.fromkeys(DECIDED, "because"), {})
        assert str(plan_hint(even_plan, second)).startswith("Compilation 2 of 12 in budget number 2: does not fit")

    def test_another_session_renews_the_budget_too(self, records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for _ in range(2):
            monkeypatch.setattr(budget_record, "_used_here", {})
            budget = Budget(BASE)
            for number in (1, 2, 3):
                budget.record.note(number)
        assert read_progress().budgets == (BudgetUse("17", "BERT-base", 2, 6),)
        assert budget.record.renewals == 1

    def test_each_plan_takes_one_compilation_and_a_refused_one_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        budget = Budget(BASE, compilations=1)
        with pytest.raises(PlanError, match="does not divide"):
            budget.compile(lambda model, batch: _accumulating(100))
        first = budget.compile(even_plan)
        assert (first.micro_batch, first.accumulation, first.fits) == (4, 256, False)
        assert budget.best is None
        with pytest.raises(PlanError, match="used up"):
            budget.compile(even_plan)
        show_ladder(budget)
        assert "1 of 1" in capsys.readouterr().out

    def test_a_plan_keeps_the_network(self) -> None:
        def shorter(model: torch.nn.Module, global_batch: int) -> poptorch.Options:
            model.layers = model.layers[:8]  # type: ignore[index,assignment]  # a ModuleList
            return even_plan(model, global_batch)

        with pytest.raises(PlanError, match="The network is fixed: it has 109,"):
            Budget(BASE).compile(shorter)

    def test_a_plan_of_the_space_gives_what_is_stored(self, every: EveryPlan) -> None:
        """What a learner writes is the same program as the enumerated plan."""
        found = Budget(BASE).compile(lesson_s_plan())
        assert found.sequences_per_second == pytest.approx(every.best.sequences_per_second, abs=0.01)
        assert tuple(round(kib * KIB) for kib in found.tile_kib) == tuple(map(round, every.best.tile_bytes))

    def test_without_a_model_the_ladder_says_so(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_ladder(NOT_MODELLED)
        assert capsys.readouterr().out.strip() == engine.NOT_HERE


@pytest.mark.parametrize(
    "show_it",
    [
        lambda: show_every_plan(NOT_MODELLED, NOT_MODELLED),
        lambda: show_plans_compared(NOT_MODELLED),
        lambda: show_replicas(NOT_MODELLED, BASE),
        lambda: show_slow_program(NOT_MODELLED),
    ],
)
def test_without_a_model_everything_says_so(show_it: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    show_it()
    assert capsys.readouterr().out.strip() == engine.NOT_HERE


def test_a_plan_far_beyond_the_picture_does_not_squeeze_the_others(every: EveryPlan) -> None:
    own = [Compilation(number, 4, 256, SimpleNamespace(memory=[SimpleNamespace(max_tile_bytes=kib * KIB)],
                                                       samples_per_second=700.0))  # type: ignore[arg-type]
           for number, kib in enumerate((854, 71_203))]  # fmt: skip
    axes = plans_figure(every, own).axes[0]
    assert axes.get_xlim()[1] == WIDEST_KIB
    labels = [each.get_text() for each in axes.get_legend().get_texts()]
    assert labels[-2:] == ["yours", "yours, beyond 2,000 KiB"]


def test_without_a_model_the_published_rates_are_still_there(capsys: pytest.CaptureFixture[str]) -> None:
    show_published(BASE, NOT_MODELLED)
    show_published(BASE, stored_plans(BASE))
    published, derived, *with_model = capsys.readouterr().out.splitlines()
    assert (published, derived) == tuple(with_model[:2])
    assert with_model[2].startswith("modelled: 17,119")


def _accumulating(count: int) -> poptorch.Options:
    options = poptorch.Options()
    options.Training.gradientAccumulation(count)
    return options


class TestSmall:
    def test_a_plan_trains_as_plain_pytorch_does(self) -> None:
        run = train_small(even_plan, updates=4)
        assert run.furthest < 1e-4
        assert run.planned[-1] < run.planned[0]

    def test_sequences_repeat_a_word(self) -> None:
        words, places, were = sequences(SMALL, 5, seed=1)
        assert words.shape == (5, SMALL.length)
        assert (words.gather(1, places) == 0).all()
        whole = words.scatter(1, places, were)
        assert (whole == whole[:, :1]).all()
        assert Transformer(SMALL)(words, places, were).shape == ()


class TestPods:
    def test_the_figure_marks_where_fitting_is_too_close_to_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shown: list[tuple[Any, ...]] = []
        monkeypatch.setattr(show, "figure", lambda *given: shown.append(given))
        monkeypatch.setattr(show, "table", lambda rows: shown.append((rows,)))
        show_replicas(plan_to_scale(BASE), BASE)
        (figure, _, description), (rows,) = shown
        (axes,) = figure.axes
        hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
        close = [row for row in rows if row["fits"] == "too close to call"]
        assert [line.get_xdata()[0] for line in hollow] == [row["replicas"] for row in close] == [4]
        assert "too close to call if it fits" in [text.get_text() for text in axes.get_legend().get_texts()]
        assert description.count("(too close to call if it fits)") == len(close)

    @given(st.floats(1, 1e9), st.integers(1, 64), st.integers(1, 16))
    def test_between_pods_goes_less_than_a_part_twice(self, gradient: float, replicas: int, pods: int) -> None:
        inside, between = reduced_bytes(gradient, replicas, pods)
        assert 0 <= inside < 2 * gradient
        assert 0 <= between < 2 * gradient / replicas

    def test_the_solution_s_numbers(self) -> None:
        inside, between = reduced_bytes(1.0, 16, 64)
        assert inside > 1.8
        assert between < 1 / 8


class TestPhotographs:
    def test_the_program_as_it_is_has_its_own_results(self) -> None:
        assert same_results(run_as_it_is())
        assert not run_as_it_is().choice.asynchronous

    def test_more_device_iterations_keep_the_results(self) -> None:
        def four() -> poptorch.Options:
            return make_options().deviceIterations(4)

        assert same_results(run_program(four, make_loader))

    def test_the_tiny_program_takes_all_its_images(self) -> None:
        loader = make_loader(make_options(), photographs())
        assert sum(len(images) for images, _ in loader) == len(photographs())


class TestReport:
    def test_it_has_plan_ladder_profile_and_reasons(self) -> None:
        budget = Budget(BASE)
        budget.compile(even_plan)
        reasons = dict.fromkeys(
            ("split", "head", "micro-batch", "recomputation", "state", "proportion", "loader"), "because of 3 KiB"
        )
        text = report_text(budget, reasons, {"plan": even_plan})
        assert "No plan fits with 5 % of every tile free yet." in text
        assert "def even_plan" in text
        assert text.count("because of 3 KiB") == 7
        assert "| 1 of 12 |" in text

    def test_its_code_is_that_of_the_best_plan_and_not_of_the_last(self) -> None:
        best = lesson_s_plan()
        budget = Budget(BASE)
        budget.compile(best)
        budget.compile(even_plan)
        text = report_text(budget, dict.fromkeys(DECIDED, "because of 3 KiB"), {"plan": even_plan})
        assert "The plan is that of compilation 1." in text
        assert "def even_plan" not in text

    def test_without_a_model_it_has_the_reasons(self) -> None:
        reasons = dict.fromkeys(
            ("split", "head", "micro-batch", "recomputation", "state", "proportion", "loader"), "because"
        )
        assert "no modelled figures" in report_text(NOT_MODELLED, reasons, {})


class TestExercises:
    def test_the_numbers_of_exercise_2(self, every: EveryPlan) -> None:
        assert (still_fitting(every), round(head_loss_percent(every))) == (7, 20)

    @given(st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.lists(st.integers())))
    def test_no_answer_makes_a_check_raise(self, answer: object) -> None:
        with letting_errors_through():
            judge(COSTS, [answer, answer], stored_plans(BASE))
            judge(SENT, [answer])
            judge(SENT, [lambda *_: answer])
            judge(REPORT, [answer])
            judge(REPORT, [{"split": answer}])


def test_the_stored_file_names_its_command() -> None:
    text = (Path(__file__).parent / "plans_base.json").read_text(encoding="utf-8")
    assert "python -m ipu_course.lessons.capstone.every_plan --size base --search --write" in text
