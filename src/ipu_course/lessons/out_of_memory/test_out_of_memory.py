"""Lesson 13: five programs end at five causes, and each is mended by its own remedy."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch
from ipu_course import engine
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.out_of_memory import lesson, remedies
from ipu_course.lessons.out_of_memory.broken import (
    BLOCKS,
    EXPERT_WIDTH,
    EXPERTS,
    PROGRAMS,
    A,
    B,
    C,
    Profiles,
    captured,
    convolutions,
    profile_all,
    recomputed,
)
from ipu_course.lessons.out_of_memory.decision import (
    ACTIVATIONS,
    CAUSES,
    CODE,
    IPU,
    KIB,
    ONE_OP,
    STATE,
    TILE,
    Facts,
    cause_of,
    facts_of,
    parting,
)
from ipu_course.lessons.out_of_memory.decision_figure import decision_figure
from ipu_course.lessons.out_of_memory.exercises import WALK
from ipu_course.lessons.out_of_memory.remedies import HALF, HALF_BATCH, SETTINGS, with_setting
from ipu_course.models import WithLoss
from ipu_course.not_modelled import NOT_MODELLED
from ipu_model.predict.profile import close_band

FOUND = {"A": ACTIVATIONS, "B": TILE, "C": CODE, "D": STATE, "E": ONE_OP}
FULL = Facts(fullest=700.0, average=690.0, over=9, limit=624, other_ipu=None, always_live=100.0, one_op=100.0,
             parameters=50.0, code=40.0)  # fmt: skip


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    return profile_all()


class SumUp(nn.Module):
    """The sum over all layers: [rows, layers, width] to [rows, width]."""

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs.sum(1)


class TestPrograms:
    def test_all_need_about_as_much(self, profiles: Profiles) -> None:
        """The text says 710,000 to 735,000 bytes, 12 to 15 % too many."""
        for profile in profiles:
            assert profile.verdict.value == "does not fit"
            facts = facts_of(profile)
            assert f"{facts.fullest / facts.limit - 1:.0%}" in ("12%", "13%", "14%", "15%")
            assert 710e3 < facts.fullest < 735e3

    def test_each_has_a_cause_of_its_own(self, profiles: Profiles) -> None:
        found = {program.name: cause_of(facts_of(profile)) for program, profile in zip(PROGRAMS, profiles)}
        assert found == FOUND

    def test_the_text_names_the_range_that_is_too_close_to_call(self) -> None:
        text = next(lesson.folder.glob("13_*.py")).read_text(encoding="utf-8")
        assert all(f"{100 * end:.1f} %" in text for end in close_band())

    def test_together_program_b_needs_less_code_and_less_time(self, profiles: Profiles) -> None:
        """The praise for exercise 3: as one wide layer, it does the same work."""
        layers = nn.Sequential(nn.Linear(EXPERT_WIDTH, EXPERTS * EXPERT_WIDTH), nn.ReLU())
        wide = B.modelled(nn.Sequential(layers, nn.Unflatten(1, (EXPERTS, EXPERT_WIDTH)), SumUp(), nn.Linear(32, 10)))
        joined = wide.profile()
        assert facts_of(joined).code < facts_of(profiles.b).code / 2
        assert joined.device_seconds_per_call < profiles.b.device_seconds_per_call / 2

    def test_what_the_text_says_of_them(self, profiles: Profiles) -> None:
        a, b, _, d, _ = map(facts_of, profiles)
        assert a.over == 1_365
        assert b.over == 16
        assert b.average < b.limit / 3
        weights = sum(each.numel() for each in PROGRAMS[3].network().parameters())
        assert round(weights / 1e6) == 60
        assert d.parameters > d.code

    def test_the_error_of_the_notebook_is_that_of_the_profile(self, profiles: Profiles) -> None:
        """Compiled with real tensors, as in the notebook, program A is the program that was profiled."""
        module = WithLoss(A.network())
        options = poptorch.Options().useOfflineIpuTarget().showCompilationProgressBar(False)
        model = poptorch.trainingModel(module, options, A.optimiser(module))
        with pytest.raises(poptorch.Error, match=f"{facts_of(profiles.a).fullest:,.0f} bytes used"):
            model.compile(torch.zeros(8, 3, 128, 128), torch.zeros(8, dtype=torch.int64))


class TestDecision:
    @pytest.mark.parametrize(
        ("changed", "cause"),
        [
            ({}, ACTIVATIONS),
            ({"one_op": 400.0}, ONE_OP),
            ({"always_live": 500.0}, STATE),
            ({"always_live": 500.0, "code": 60.0}, CODE),
            ({"other_ipu": 300.0}, IPU),
            ({"other_ipu": 690.0}, ACTIVATIONS),
            ({"average": 500.0, "other_ipu": 300.0}, TILE),
        ],
    )
    def test_each_question_leads_on(self, changed: dict[str, Any], cause: str) -> None:
        assert cause_of(replace(FULL, **changed)) == cause

    def test_every_wrong_cause_is_told_where_it_parts(self, profiles: Profiles) -> None:
        for profile in profiles:
            facts = facts_of(profile)
            for wrong in set(CAUSES) - {cause_of(facts)}:
                assert "KiB" in parting(facts, wrong) or "one IPU" in parting(facts, wrong)

    def test_the_right_cause_has_no_parting(self) -> None:
        with pytest.raises(ValueError, match="is the cause"):
            parting(FULL, ACTIVATIONS)

    def test_the_drawing_names_every_cause(self) -> None:
        drawn = decision_figure()
        assert all(cause in drawn.description for cause in CAUSES)


class TestCheckpoints:
    @pytest.mark.slow
    def test_the_solution_is_as_good_as_the_best_of_all_placements(self) -> None:
        """The text says that there are 128 placements, and that the best needs less than 480 KiB."""
        needed = {places: kib_with_checkpoints(places) for places in all_placements()}
        assert len(needed) == 128
        assert min(needed.values()) < 480
        assert round(needed[2, 4, 6]) <= round(min(needed.values())) + 1
        assert max(needed, key=lambda places: needed[places]) == ()

    def test_what_the_notes_say_of_some_placements(self) -> None:
        notes = (lesson.folder / "instructor.md").read_text(encoding="utf-8")
        for places in ((2, 4, 6), (2, 5), (3,), tuple(range(8)), ()):
            assert f"{kib_with_checkpoints(places):.0f} KiB" in notes, places

    def test_equal_layers_need_less_than_a_tenth_of_the_code(self, profiles: Profiles) -> None:
        """The text: C has more code than a third of a tile, and equal widths leave less than a tenth of it."""
        with torch.device("meta"):
            equal = facts_of(C.modelled(convolutions([152] * 53)).profile())
        found = facts_of(profiles.c)
        assert 10 < found.code / equal.code < 11
        assert found.code > found.limit / 3 > equal.code


def all_placements() -> list[tuple[int, ...]]:
    """Return all sets of blocks whose outputs may be kept; after the last block, nothing is computed again."""
    return [places for count in range(BLOCKS) for places in combinations(range(BLOCKS - 1), count)]


def kib_with_checkpoints(places: tuple[int, ...]) -> float:
    def forward(blocks: Sequence[nn.Module], images: Tensor) -> Tensor:
        for number, block in enumerate(blocks):
            images = block(images)
            if number in places:
                images = poptorch.recomputationCheckpoint(images)
        return images

    return recomputed(forward).memory.max_tile_bytes / KIB


class TestSettings:
    def test_half_precision_saves_three_and_makes_one_worse(self, profiles: Profiles) -> None:
        """The text: A, D and E fit, C is too close to call, B needs more than before."""
        verdicts = {program.name: with_setting(program, HALF).verdict.value for program in PROGRAMS}
        assert [name for name, verdict in verdicts.items() if verdict == "fits"] == ["A", "D", "E"]
        assert verdicts["C"] == "too close to call"
        assert with_setting(PROGRAMS[1], HALF).memory.max_tile_bytes > profiles.b.memory.max_tile_bytes
        assert remedies.fit_in_half_precision() == 3

    def test_no_setting_saves_all_and_none_saves_c(self) -> None:
        """The text: every setting saves two or three programs, and none of them makes C fit."""
        fits = {
            name: [program.name for program in PROGRAMS if with_setting(program, name).verdict.value == "fits"]
            for name in (HALF_BATCH, *SETTINGS)
        }
        assert all(len(saved) in (2, 3) for saved in fits.values())
        assert not any("C" in saved for saved in fits.values())
        assert "B" in fits["state off the chip"]

    def test_half_precision_is_the_first_remedy_that_the_message_names_for_b(self, profiles: Profiles) -> None:
        """The text: the message recommends it."""
        assert "half precision" in captured(PROGRAMS[1]).memory_remedies(profiles.b)[0]

    def test_a_message_is_printed_sentence_by_sentence(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        message = "It is full (modelled; 1 tile is over). Use less. ipu_model.make_it_fit(model) may help."
        sentences = ["It is full (modelled; 1 tile is over).", "Use less.", "ipu_model.make_it_fit(model) may help."]
        remedies.print_sentences(message)
        assert capsys.readouterr().out.splitlines() == sentences
        monkeypatch.setattr(engine, "is_available", lambda: False)
        remedies.print_sentences(message)
        assert capsys.readouterr().out.splitlines() == sentences[1:]

    def test_without_a_model_each_says_so_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        remedies.show_half_precision(NOT_MODELLED)
        remedies.show_settings(NOT_MODELLED)
        assert capsys.readouterr().out.splitlines() == [engine.NOT_HERE] * 2


class TestExplorer:
    def test_every_setting_has_a_picture_and_the_facts(self, profiles: Profiles) -> None:
        for state in lesson.explorers[0].states():
            view = lesson.explorers[0].view(profiles, **state)
            assert view.figure is not None
            assert len(view.description) > 40
            assert view.rows[0]["program"] == state["program"]

    def test_no_picture_names_the_cause(self, profiles: Profiles) -> None:
        for state in lesson.explorers[0].states():
            view = lesson.explorers[0].view(profiles, **state)
            assert FOUND[state["program"]] not in view.takeaway


@given(st.one_of(st.none(), st.text(), st.integers(), st.dictionaries(st.text(max_size=1), st.text(max_size=3))))
def test_no_answer_makes_the_first_check_raise(answer: object) -> None:
    with letting_errors_through():
        judge(WALK, [answer], profile_all_once())
        judge(WALK, [dict.fromkeys("ABCDE", answer)], profile_all_once())


def profile_all_once() -> Profiles:
    """The profiles take some seconds; hypothesis asks for them a hundred times."""
    if not _kept:
        _kept.append(profile_all())
    return _kept[0]


_kept: list[Profiles] = []
