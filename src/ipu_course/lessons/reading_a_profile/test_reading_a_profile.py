"""Lesson 14: reports are written and read, three programs have three bottlenecks, and each mend brings what it can."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_course import engine
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.reading_a_profile import lesson
from ipu_course.lessons.reading_a_profile.all_cuts import place_at
from ipu_course.lessons.reading_a_profile.bottleneck_words import (
    WORDS,
    as_limit,
    call_seconds,
    limit_of,
    most_gained,
)
from ipu_course.lessons.reading_a_profile.busy import (
    BUSY_BY_HAND,
    BY_HAND,
    busy_in,
    busy_of_cycles,
    is_ipu,
    mistaken,
    rows_of,
)
from ipu_course.lessons.reading_a_profile.exercises import LEAST_GAIN_B, NAME, READ
from ipu_course.lessons.reading_a_profile.mended import (
    ENOUGH_WORKERS,
    compare_c,
    link_bytes_per_second,
    mend_all,
    peak,
    program_roofline,
    reached,
    show_mended,
    show_roofline,
)
from ipu_course.lessons.reading_a_profile.published_trace import (
    exchange_percentage,
    show_phases,
    workshop_profile,
)
from ipu_course.lessons.reading_a_profile.replicas_shown import (
    ACCUMULATIONS,
    efficiency_percentage,
    scaled_records,
    show_replicas,
)
from ipu_course.lessons.reading_a_profile.slow_programs import (
    SlowPrograms,
    begin,
    captured_photographs,
    captured_records,
    captured_sentences,
    sentences,
    show_programs,
    slow_programs,
    with_workers,
)
from ipu_course.lessons.reading_a_profile.steps_figure import first_block, show_steps
from ipu_course.lessons.reading_a_profile.written_report import (
    VARIABLE,
    WrittenReport,
    compare_reports,
    compile_something,
    engine_options_set,
    show_files,
    start_program,
)
from ipu_course.not_modelled import NOT_MODELLED

LIMITS = {"A": "loader", "B": "stage 3", "C": "update"}


@pytest.fixture(scope="module")
def programs() -> SlowPrograms:
    return slow_programs()


@pytest.fixture(scope="module")
def report() -> WrittenReport:
    return start_program(...)  # type: ignore[arg-type]  # as in the starter


@pytest.fixture(scope="module")
def text() -> str:
    source = next(lesson.folder.glob("14_*.py")).read_text(encoding="utf-8")
    return " ".join(source.replace("\n#", " ").split())


def place(*layers: int) -> Any:
    def at(model: Any) -> None:
        for ipu, layer in enumerate(layers, 1):
            begin(model, layer, ipu)

    return at


class TestReports:
    def test_the_program_leaves_four_files_without_knowing_of_reports(self, report: WrittenReport) -> None:
        assert report.files == ("profile.json", "program.ipu", "report.html", "trace.json")
        assert len(report.profile.cycles) == 4

    def test_a_learner_s_text_is_used(self, report: WrittenReport) -> None:
        text = json.dumps({"autoReport.all": "true", "autoReport.directory": "report"})
        assert start_program(lambda folder: text) is report
        assert report.options == text

    @pytest.mark.parametrize(
        "answer", [lambda folder: "{}", lambda folder: "not JSON", lambda folder: {}, lambda: None]
    )
    def test_a_wrong_text_does_not_stop_the_lesson(
        self, answer: Any, report: WrittenReport, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert start_program(answer) is report
        assert capsys.readouterr().out.startswith("With your engine options, ")

    def test_the_environment_is_as_before_even_after_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, "{}")
        with pytest.raises(RuntimeError), engine_options_set("not JSON"):
            raise RuntimeError
        with pytest.raises(Exception, match="not valid JSON"):
            compile_something("not JSON")
        import os

        assert os.environ[VARIABLE] == "{}"

    def test_compare_ends_with_its_conclusion(self, programs: SlowPrograms, capsys: pytest.CaptureFixture[str]) -> None:
        compare_reports(programs.c.profile, mend_all().c)
        printed = capsys.readouterr().out.splitlines()
        assert printed[0] == "$ python -m ipu_model compare before after"
        assert "after is 6.67 x as fast as before" in printed[-1]
        assert "limited by: weight update, then stage 0" in printed[-1]


class TestBusy:
    def test_three_ways_to_the_same_shares(self, report: WrittenReport) -> None:
        """By the trace, by the report's words, and by the cycles of every phase."""
        reported, counted = engine.busy_shares(report.profile), busy_of_cycles(report.profile)
        rows = {name: events for name, events in rows_of(report.trace).items() if is_ipu(name)}
        every = [event for events in rows.values() for event in events]
        step = max(each["ts"] + each["dur"] for each in every) - min(each["ts"] for each in every)
        assert set(reported) == set(counted) == set(rows)
        for name, events in rows.items():
            assert busy_in(events) / step == pytest.approx(reported[name], abs=1e-4)
            assert counted[name] == pytest.approx(reported[name], abs=1e-4)

    def test_the_trace_by_hand_tells_all_mistakes_apart(self) -> None:
        found = mistaken(BY_HAND)
        answers = [BUSY_BY_HAND, *found.values()]
        for number, some in enumerate(answers):
            assert all(some != pytest.approx(others, rel=0.01) for others in answers[:number])

    def test_the_text_states_the_program_s_shares(self, report: WrittenReport, text: str) -> None:
        shares = [f"{share:.2f}" for share in busy_of_cycles(report.profile).values()]
        assert f"{', '.join(shares[:-1])} and {shares[-1]} of the time at work" in text


class TestPrograms:
    def test_each_is_limited_by_something_else_and_fits(self, programs: SlowPrograms) -> None:
        assert {each.name: limit_of(each.profile) for each in programs} == LIMITS
        assert all(each.profile.verdict.value == "fits" for each in programs)

    def test_the_hook_s_numbers(self, programs: SlowPrograms, text: str) -> None:
        shares = [100 * reached(each.profile) / peak(each.profile) for each in programs]
        assert [f"{share:.1f}" for share in shares] == ["5.5", "12.3", "2.5"]
        assert "**5.5, 12.3 and 2.5 %** of what their matrix units can do" in text

    def test_doubled_accumulation_helps_one_of_them(self, programs: SlowPrograms) -> None:
        from ipu_course.lessons.reading_a_profile.slow_programs import loading

        captured = (captured_photographs(), captured_sentences(), captured_records())
        accumulations, hosts = (16, 64, 16), (loading(), None, None)
        gains = [
            program.profile(host=host, gradient_accumulation=count).samples_per_second / each.profile.samples_per_second
            for each, program, count, host in zip(programs, captured, accumulations, hosts)
        ]
        assert gains[0] == pytest.approx(1.0)
        assert gains[1] < 1.05
        assert gains[2] == pytest.approx(1.8, abs=0.05)

    def test_a_mend_brings_what_was_left_without_the_part(self, programs: SlowPrograms) -> None:
        mended = mend_all()
        gained = {
            each.name: after.samples_per_second / each.profile.samples_per_second
            for each, after in zip(programs, mended)
        }
        assert gained["A"] == pytest.approx(most_gained(programs.a.profile, "loader"), rel=0.001)
        copies = sum(span.seconds for span in programs.c.profile.timeline if span.kind == "offload")
        total = programs.c.profile.call_seconds
        assert gained["C"] == pytest.approx(total / (total - copies), rel=0.01)
        assert gained["B"] > 1.4
        assert all(profile.verdict.value == "fits" for profile in mended)
        assert all(limit_of(after) != limit for after, limit in zip(mended[::2], ("loader", "update")))

    def test_what_the_text_says_of_them(self, programs: SlowPrograms) -> None:
        a, _, c = (call_seconds(each.profile) for each in programs)
        assert f"{1e3 * a.total:.1f}" == "64.0"
        assert f"{1e3 * programs.a.profile.device_seconds_per_call:.1f}" == "16.4"
        busy = list(engine.busy_shares(programs.b.profile).values())
        assert f"{busy[3]:.0%}" == "94%"
        assert max(busy[:3]) < 0.5
        assert f"{1e3 * c.total:.1f}" == "31.8"
        state = mend_all().c.memory[0].bytes_by_category["optimiser state"]
        assert round(state / 1024, -1) == 180
        full = [each.memory.max_tile_bytes for each in (programs.c.profile, mend_all().c)]
        assert f"{full[1] / full[0] - 1:.0%}" == "80%"
        executed = [engine.phases(each)["OnTileExecute"] for each in (programs.c.profile, mend_all().c)]
        assert executed[0] == executed[1]

    def test_sixteen_workers_are_the_fewest(self) -> None:
        assert limit_of(with_workers(ENOUGH_WORKERS)) != "loader"
        assert limit_of(with_workers(ENOUGH_WORKERS - 1)) == "loader"

    def test_the_projection_takes_longer_than_four_layers(self) -> None:
        """The text: longer than four layers, and shorter than four layers with the lookup of the words."""
        busy = list(engine.busy_shares(mend_all().b).values())
        assert busy[0] > busy[3] > max(busy[1:3])

    def test_moving_one_layer_is_not_enough(self, programs: SlowPrograms) -> None:
        moved = sentences(place(3, 7, 10)).profile().samples_per_second
        assert 1 < moved / programs.b.profile.samples_per_second < LEAST_GAIN_B

    def test_the_text_s_two_best_cuts(self, text: str) -> None:
        """`all_cuts` enumerates them all, which takes minutes; here are its first two and a neighbour."""
        rates = [sentences(place_at(begins)).profile().samples_per_second for begins in ((4, 8, 12), (3, 7, 11))]
        assert [f"{rate:,.0f}" for rate in rates] == ["4,463", "3,985"]
        assert "4,463 sentences per second" in text
        assert "next best reaches 3,985" in text
        assert sentences(place_at((3, 8, 12))).profile().samples_per_second < rates[1]


class TestWords:
    @pytest.mark.parametrize(
        ("answer", "word"),
        [("Loader", "loader"), ("host loader", "loader"), ("stage3", "stage 3"), (" STAGE  2 ", "stage 2"),
         ("stage_1", "stage 1"), ("Stage-10", "stage 10"), ("host_call", "host call"),
         ("weight update", "update"), ("fill and flush", "ramps"), ("inter-IPU copy", "copies"), ("run start", "start"),
         ("Python", None), (3, None), (None, None), ("stage", None)],
    )  # fmt: skip
    def test_learners_write_them_in_many_ways(self, answer: object, word: str | None) -> None:
        assert as_limit(answer) == word

    def test_every_word_of_the_engine_has_one_here(self) -> None:
        assert all(as_limit(word) == word for word in WORDS)

    def test_the_parts_of_a_call_sum_up(self, programs: SlowPrograms) -> None:
        for each in programs:
            parts = call_seconds(each.profile)
            device = parts.passes + parts.ramps + parts.stream + parts.copies + parts.update + parts.start
            assert device == pytest.approx(each.profile.device_seconds_per_call)


class TestPublished:
    def test_the_published_percentage_follows_from_the_published_cycles(self) -> None:
        names = engine.phases(workshop_profile())
        cycles = {name: lesson.published(name).value for name in names}
        derived = lesson.published("exchange_percentage")
        assert derived.value == pytest.approx(100 * cycles["DoExchange"] / sum(cycles.values()), abs=0.05)

    def test_fitted_rows_are_those_that_the_engine_calls_fitted(self) -> None:
        from ipu_course.lessons.reading_a_profile.published_trace import ARITHMETIC, FITTED, MEANING
        from published.rows import published

        kinds = {row.id.removeprefix("day03.trace.ga3."): row.kind for row in published().rows}
        for name in MEANING:
            snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).removeprefix("_")
            wanted = "fitted" if name in FITTED else "arithmetic" if name in ARITHMETIC else "prediction"
            assert str(kinds[snake]) == wanted

    def test_the_model_is_near_the_trace(self) -> None:
        assert exchange_percentage(workshop_profile()) == pytest.approx(19.1, abs=0.1)


class TestScaling:
    def test_the_text_s_percentages(self) -> None:
        scaled = scaled_records()
        assert round(efficiency_percentage(scaled)) == 38
        assert f"{scaled[ACCUMULATIONS[1]][-1].efficiency:.0%}" == "66%"

    def test_only_the_all_reduce_and_the_streams_grow(self) -> None:
        points = scaled_records()[ACCUMULATIONS[0]]
        parts = [
            {name: share * point.profile.device_seconds_per_call for name, share in point.profile.shares.items()}
            for point in points
            if point.profile is not None
        ]
        grown = {name for name in parts[0] if parts[-1][name] > 1.01 * parts[0][name] + 1e-9}
        assert grown == {"collective", "stream"}
        assert f"{1e3 * parts[-1]['collective']:.2f}" == "7.66"
        assert parts[-1]["collective"] > parts[-1]["main"]


class TestFigures:
    def test_a_stands_on_its_loader_s_roof_and_the_others_below_every_roof(self, programs: SlowPrograms) -> None:
        drawn = program_roofline(programs, mend_all())
        assert all(name in drawn.description for name in ("A has", "B has", "C has", "A mended has"))
        assert 4e9 < link_bytes_per_second(programs.a.profile) < 6e9

    def test_the_block_has_its_ops_in_order(self, programs: SlowPrograms) -> None:
        ops = first_block(programs.a.profile)
        assert [name.split(":")[0] for name, *_ in ops[:3]] == ["conv1", "bn1", "relu"]
        name, moved, computed, _ = ops[0]
        assert 0.25 < moved / (moved + computed) < 0.4, f"the text says: about a third of {name}"

    def test_every_view_has_a_picture_and_a_table(self, programs: SlowPrograms) -> None:
        for state in lesson.explorers[0].states():
            view = lesson.explorers[0].view(programs, **state)
            assert view.figure is not None
            assert len(view.description.split()) > 10
            assert view.rows
            assert LIMITS[state["program"]] not in view.takeaway.split(":")[0]

    def test_without_a_model_each_says_so_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_programs(NOT_MODELLED)
        show_files(NOT_MODELLED)
        show_phases(NOT_MODELLED)
        show_steps(NOT_MODELLED)
        show_mended(NOT_MODELLED, NOT_MODELLED)
        show_roofline(NOT_MODELLED, NOT_MODELLED)
        show_replicas(NOT_MODELLED)
        compare_c(NOT_MODELLED, NOT_MODELLED)
        assert capsys.readouterr().out.splitlines() == [engine.NOT_HERE] * 8


@given(st.one_of(st.none(), st.text(), st.integers(), st.dictionaries(st.text(max_size=2), st.integers())))
def test_no_answer_makes_a_check_raise(answer: Any) -> None:
    with letting_errors_through():
        judge(NAME, [answer, answer], slow_programs())
        judge(NAME, [dict.fromkeys("ABC", answer), LIMITS], slow_programs())
        judge(READ, [answer], object())
