"""Lesson 12: the network, what its text says, and the stored outcomes of every choice, modelled again in part."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import poptorch
from ipu_course import engine
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.memory_techniques import (
    every_choice,
    lesson,
    more_code_kib,
    show_alone,
    show_code,
    show_own_activation,
    show_partials,
    show_schemes,
    show_sets,
    show_slices,
    show_sweep,
    show_trade_off,
    two_ipus,
)
from ipu_course.lessons.memory_techniques.choices import (
    FILE,
    FITS,
    POINTS,
    ChoiceOutcome,
    TechniqueChoice,
    every_combination,
    every_set,
    fastest_that_fits,
    outcome_of,
    profile_of,
    stored,
    written,
)
from ipu_course.lessons.memory_techniques.exercises import CHECKPOINTS, GRADIENT, PROGRAM, _marks_used, cheapest
from ipu_course.lessons.memory_techniques.language_model import (
    SMALL,
    Block,
    LanguageModel,
    plain_block,
    quick_gelu,
    small_block,
)
from ipu_course.lessons.memory_techniques.learners_program import recomputed
from ipu_course.lessons.memory_techniques.outlining import feed_widths
from ipu_course.lessons.memory_techniques.own_activation import (
    courses_activation,
    quick_gelu_gradient,
    register_activation,
    train_both,
)
from ipu_course.lessons.memory_techniques.sweep import _cuts, _elements
from ipu_course.lessons.memory_techniques.techniques import ALONE, PLAIN, TWO_IPUS, modelled
from ipu_course.lessons.memory_techniques.tradeoff_figure import front
from ipu_course.not_modelled import NOT_MODELLED

BEST_SET = ("queries, keys, values", "mixed values", "sum after attention", "wide layer")
NEXT = torch.arange(SMALL.length)[None]


def kib(technique: Any) -> float:
    return float(modelled(technique).memory.max_tile_bytes) / 1024


class TestNetwork:
    def test_slices_change_no_value(self) -> None:
        torch.manual_seed(0)
        plain = LanguageModel(SMALL)
        sliced = LanguageModel(SMALL, slices=4)
        sliced.load_state_dict(plain.state_dict())
        words = torch.randint(SMALL.words, (2, SMALL.length))
        assert torch.allclose(plain(words, words), sliced(words, words), atol=1e-5)

    def test_attention_is_that_of_pytorch(self) -> None:
        torch.manual_seed(0)
        attention, x = small_block().attention, torch.randn(2, SMALL.length, SMALL.width)
        queries, keys, values = attention.split(attention.qkv(attention.norm(x)))
        wanted = torch.nn.functional.scaled_dot_product_attention(queries, keys, values)
        found = attention.mix(attention.weights(queries, keys), values)
        assert torch.allclose(found, wanted.transpose(1, 2).flatten(2), atol=1e-5)

    def test_widths_have_the_same_sum(self) -> None:
        """The text: from 1,152 to 2,944, with the same number of weights in all."""
        different = feed_widths(8, equal=False)
        assert len(set(different)) == 8
        assert (min(different), max(different)) == (1152, 2944)
        assert sum(different) == sum(feed_widths(8, equal=True))


class TestText:
    def test_the_plain_program_is_44_per_cent_too_large(self) -> None:
        assert round(kib(PLAIN)) == 897
        assert f"{kib(PLAIN) / 624 - 1:.0%}" == "44%"

    def test_no_technique_is_enough_alone_and_two_ipus_are(self) -> None:
        assert all(modelled(each).verdict.value == "does not fit" for each in ALONE)
        assert modelled(TWO_IPUS).verdict.value == FITS

    def test_each_technique_saves_bytes(self) -> None:
        assert all(kib(each) < kib(PLAIN) for each in ALONE)

    def test_half_partials_save_few_bytes_and_much_time(self) -> None:
        assert kib(PLAIN) - kib(ALONE[1]) < 0.1 * kib(PLAIN)
        assert modelled(ALONE[1]).samples_per_second > 1.3 * modelled(PLAIN).samples_per_second

    def test_a_tile_is_hardly_emptier_at_0_05_than_at_0_15(self) -> None:
        small, smaller = (outcome_of(TechniqueChoice(proportion=each)).kib for each in (0.15, 0.05))
        assert abs(small - smaller) < 2

    def test_eight_slices_save_no_more_than_four(self) -> None:
        assert outcome_of(TechniqueChoice(slices=8)).kib == outcome_of(TechniqueChoice(slices=4)).kib

    def test_the_instructor_s_numbers_of_outlining(self) -> None:
        assert round(more_code_kib()) == 62

    def test_phases_are_much_slower_than_a_pipeline(self) -> None:
        assert two_ipus("sharded").samples_per_second < two_ipus("pipelined").samples_per_second

    def test_the_operation_keeps_as_little_as_silu(self) -> None:
        from ipu_course.lessons.memory_techniques.own_activation import with_activation

        sizes = [with_activation(each).memory.max_tile_bytes / 1024
                 for each in (quick_gelu, courses_activation(), torch.nn.functional.silu)]  # fmt: skip
        assert sizes[1] == pytest.approx(sizes[2], abs=2)
        assert sizes[0] - sizes[1] > 20


class TestEveryChoice:
    def test_there_are_256_sets_and_216_combinations(self) -> None:
        assert len(stored().sets) == 256 == 2 ** len(POINTS)
        assert len(stored().combinations) == 216
        assert [each.choice for each in stored().sets] == list(every_set())
        assert [each.choice for each in stored().combinations] == list(every_combination(BEST_SET))

    def test_the_file_is_what_the_command_writes(self) -> None:
        assert written(stored()) == FILE.read_text(encoding="utf-8")
        assert set(json.loads(FILE.read_text(encoding="utf-8"))) == {"sets", "combinations"}

    @pytest.mark.parametrize("outcome", stored().sets[::43], ids=lambda each: str(len(each.choice.kept or ())))
    def test_a_part_of_the_sets_modelled_again(self, outcome: ChoiceOutcome) -> None:
        assert outcome_of(outcome.choice) == outcome

    @pytest.mark.parametrize("place", range(5, 216, 35))
    def test_a_part_of_the_combinations_modelled_again(self, place: int) -> None:
        outcome = stored().combinations[place]
        assert outcome_of(outcome.choice) == outcome

    def test_the_best_set_and_its_neighbours_modelled_again(self) -> None:
        """With one result more the program does not certainly fit, or it is slower."""
        best = fastest_that_fits(stored().sets)
        assert best.choice.kept == BEST_SET
        assert outcome_of(best.choice) == best
        by_kept = {each.choice.kept: each for each in stored().sets}
        for point in set(POINTS) - set(BEST_SET):
            more = by_kept[tuple(each for each in POINTS if each in {*BEST_SET, point})]
            assert more.verdict != FITS or more.rate < best.rate

    def test_the_best_combination_is_faster_than_the_plain_program(self) -> None:
        best = fastest_that_fits(stored().combinations)
        assert outcome_of(best.choice) == best
        assert best.rate > modelled(PLAIN).samples_per_second
        assert best.choice == TechniqueChoice(slices=4, half_partials=True, kept=BEST_SET, own_op=True)

    def test_what_the_text_says_of_keeping_room(self) -> None:
        """The text: left of 593 KiB, and 11 % slower; the fastest fills nearly 99 % of its tile."""
        every, room = stored().combinations, 0.95 * 624
        best = fastest_that_fits(every)
        roomy = fastest_that_fits(tuple(each for each in every if each.kib <= room))
        assert round(room) == 593
        assert f"{best.kib / 624:.0%}" == "99%"
        assert f"{1 - roomy.rate / best.rate:.0%}" == "11%"
        assert roomy.choice == TechniqueChoice(proportion=0.2, half_partials=True, kept=(), own_op=True)

    def test_a_proportion_in_place_of_slices_is_too_close_to_call(self) -> None:
        """The solution's text: with 0.2, though not with 0.1."""
        found = {each.choice: each.verdict for each in stored().combinations}
        one, smaller = (
            TechniqueChoice(proportion=each, half_partials=True, kept=BEST_SET, own_op=True) for each in (0.2, 0.1)
        )
        assert (found[one], found[smaller]) == ("too close to call", FITS)

    def test_the_command_checks_and_writes(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: Any) -> None:
        monkeypatch.setattr(every_choice, "enumerate_choices", lambda processes: stored())
        assert every_choice.main(["--check"]) == 0
        monkeypatch.setattr(every_choice, "FILE", tmp_path / "every_choice.json")
        assert every_choice.main([]) == 0
        assert (tmp_path / "every_choice.json").read_text(encoding="utf-8") == FILE.read_text(encoding="utf-8")
        fewer = stored()._replace(sets=stored().sets[:-1])
        monkeypatch.setattr(every_choice, "enumerate_choices", lambda processes: fewer)
        assert every_choice.main(["--check"]) == 1
        assert "256 modelled" in capsys.readouterr().out

    def test_the_front_has_no_outcome_that_another_one_beats(self) -> None:
        every = stored().sets
        for each in front(every):
            assert not any(other.kib <= each.kib and other.rate > each.rate for other in every)


def best_block(block: Block, x: Tensor) -> Tensor:
    """Keep the best set, as the solution of exercise 2 does."""
    attention, feed, keep = block.attention, block.feed, poptorch.recomputationCheckpoint
    queries, keys, values = attention.split(keep(attention.qkv(attention.norm(x))))
    x = keep(x + attention.out(keep(attention.mix(attention.weights(queries, keys), values))))
    return x + feed.down(feed.activation(keep(feed.up(feed.norm(x)))))  # type: ignore[no-any-return]


class TestExercises:
    def test_a_block_in_code_is_the_set_of_the_enumeration(self) -> None:
        """What the command marks by the names of modules is what a learner marks in code."""
        found = recomputed(best_block)
        stored_one = fastest_that_fits(stored().sets)
        assert found.memory.max_tile_bytes / 1024 == pytest.approx(stored_one.kib, rel=0.002)
        assert found.samples_per_second == pytest.approx(stored_one.rate, rel=0.002)

    def test_marks_that_are_not_among_the_sets_gain_nothing(self) -> None:
        """The score's optimum is that of all marks: those of ``out`` and ``down`` add nothing to the best set."""

        def more_marks(block: Block, x: Tensor) -> Tensor:
            attention, feed, keep = block.attention, block.feed, poptorch.recomputationCheckpoint
            queries, keys, values = attention.split(keep(attention.qkv(attention.norm(x))))
            x = keep(x + keep(attention.out(keep(attention.mix(attention.weights(queries, keys), values)))))
            return x + keep(feed.down(feed.activation(keep(feed.up(feed.norm(x))))))  # type: ignore[no-any-return]

        best = fastest_that_fits(stored().sets).rate
        assert recomputed(more_marks).samples_per_second <= 1.001 * best

    def test_marks_that_are_used_and_marks_that_are_not(self) -> None:
        def thrown_away(block: Block, x: Tensor) -> Tensor:
            poptorch.recomputationCheckpoint(x)
            return best_block(block, x)

        assert _marks_used(best_block) == [True] * 4
        assert _marks_used(thrown_away) == [False, True, True, True, True]
        assert _marks_used(plain_block) == []

    def test_marks_under_another_name_of_the_notebook_are_found_too(self) -> None:
        """In a notebook, the function's globals are those of the notebook."""
        globals()["keep_as_well"] = poptorch.recomputationCheckpoint

        def named(block: Block, x: Tensor) -> Tensor:
            keep_as_well(x)  # type: ignore[name-defined]  # noqa: F821
            return plain_block(block, keep_as_well(x))  # type: ignore[name-defined]  # noqa: F821

        assert _marks_used(named) == [False, True]
        assert globals().pop("keep_as_well") is poptorch.recomputationCheckpoint

    def test_the_proportions_follow_the_model(self) -> None:
        from ipu_course.lessons.memory_techniques.choices import captured

        assert (cheapest(captured(), False), cheapest(captured(), True)) == (0.2, 0.15)

    @pytest.mark.parametrize("exercise", [CHECKPOINTS, GRADIENT, PROGRAM], ids=lambda each: each.names[0])
    @given(answer=st.one_of(st.none(), st.integers(), st.text(), st.lists(st.integers())))
    @settings(max_examples=20)
    def test_no_answer_makes_a_check_raise(self, exercise: Any, answer: object) -> None:
        with letting_errors_through():
            assert not judge(exercise, [answer]).correct
            assert not judge(exercise, [lambda *_: answer]).correct

    def test_without_a_model_no_verdict_is_given(self) -> None:
        for exercise in (CHECKPOINTS, PROGRAM):
            verdict = judge(exercise, [best_block], NOT_MODELLED)
            assert verdict.correct is None
            assert "needs the IPU Model" in verdict.text

    def test_the_course_s_gradient_is_right(self) -> None:
        assert judge(GRADIENT, [quick_gelu_gradient]).correct


def registered(name: str, gradient: Any) -> Any:
    """Register the activation under a name, and return it as the notebook's function does."""
    register_activation(name, gradient)
    return lambda x: poptorch.custom_op([x], name, "course.ops", 1, example_outputs=[x])[0]


class TestOwnOperation:
    def test_it_trains_as_pytorch_s_ops_do(self) -> None:
        plain, own = train_both(courses_activation())
        assert own == pytest.approx(plain, rel=1e-3)
        assert own[-1] < own[0] / 2

    def test_an_open_gradient_is_replaced_by_the_course_s(self) -> None:
        def gradient(inputs: Any, outputs: Any, gradients: Any, attributes: Any) -> Any: ...

        plain, own = train_both(registered("Open", gradient))
        assert own == pytest.approx(plain, rel=1e-3)

    def test_a_wrong_gradient_trains_differently(self) -> None:
        plain, own = train_both(registered("Wrong", lambda inputs, outputs, gradients, attributes: [-gradients[0]]))
        assert own != pytest.approx(plain, rel=1e-2)


class TestShown:
    def test_every_setting_of_the_explorer_has_a_picture_and_a_price(self) -> None:
        from ipu_course.lessons.memory_techniques.choices import captured

        for state in list(lesson.explorers[0].states())[::3]:
            view = lesson.explorers[0].view(captured(), **state)
            assert view.figure is not None
            assert view.rows[0]["proportion"] == state["proportion"]
            assert "KiB of temporary data" in view.takeaway

    def test_the_figure_shows_the_learner_s_program(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_sets(best_block)
        assert "Yours: 618 KiB" in capsys.readouterr().out

        def still_open(block: Block, x: Tensor) -> Tensor: ...

        show_sets(still_open)
        assert "Yours" not in capsys.readouterr().out

    def test_an_answer_that_raises_is_not_in_the_figure(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_sets(lambda block, x: block.missing(x))
        assert "run_block is not in the figure" in capsys.readouterr().out

    def test_plans_and_shapes_are_read(self) -> None:
        assert _cuts("pointwise, swapped: field / 2, in / 23, out / 32") == 23
        assert _cuts("pointwise, swapped: field / 46, out / 32") == 1
        assert _elements("float16[8192, 512]") == 8192 * 512

    def test_without_a_model_each_says_so_once(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "is_available", lambda: False)
        show_sweep(NOT_MODELLED)
        show_partials(NOT_MODELLED)
        show_slices((0, 8))
        show_own_activation(quick_gelu)
        show_code()
        show_schemes({})
        show_alone()
        assert capsys.readouterr().out.splitlines() == [engine.NOT_HERE] * 7
        assert show_sets(best_block) is NOT_MODELLED
        assert show_trade_off(lambda: None) is NOT_MODELLED


def test_a_choice_is_modelled_with_all_its_techniques() -> None:
    plain = TechniqueChoice()
    for changed in (
        {"proportion": 0.2}, {"half_partials": True}, {"kept": ()}, {"off_chip": True}, {"slices": 4}, {"own_op": True},
    ):  # fmt: skip
        choice = replace(plain, **changed)  # type: ignore[arg-type]
        assert profile_of(choice).memory.max_tile_bytes < profile_of(plain).memory.max_tile_bytes
