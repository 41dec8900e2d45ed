"""The report as a page: complete without anything else, safe for any name, small enough for a large model.

tests/browser/test_report_page.py has what the page's scripts make of it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from report_strategies import PROFILES
from report_support import ADVICE, inference_profile, pipeline_profile, search_result, wide_profile

from ipu_model.predict import profile_program
from ipu_model.predict.profile import Profile
from ipu_model.predict.verdict import close_band
from ipu_model.report.findings import DESCRIBED
from ipu_model.report.page import html_report
from published.convolutional import day03_program

VOID = {"meta", "br", "hr", "img", "link", "input"}
HOSTILE = "</title><script>alert('x')</script>&\"'<img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """What a page consists of; `closed` tells that every element that was opened is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.mistakes: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.mistakes.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def count(self, name: str) -> int:
        return sum(tag == name for tag, _ in self.elements)

    @property
    def closed(self) -> bool:
        return not self.open and not self.mistakes


def data_of(page: str) -> dict[str, Any]:
    """Return what the scripts of a page read."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture(scope="module")
def report() -> str:
    return html_report(pipeline_profile(collapsed=True), ADVICE)


class TestPage:
    def test_every_element_is_closed_and_nothing_is_loaded(self, report: str) -> None:
        page = Page(report)
        assert page.closed
        for tag, attributes in page.elements:
            for name in ("src", "href", "xlink:href", "action", "data"):
                value = attributes.get(name) or "#"
                assert value.startswith("#"), (tag, name, value)
        assert "@import" not in report
        assert "default-src 'none'" in report
        assert not re.search(r"url\((?!#)", report)

    def test_names_of_elements_are_unique_and_every_reference_leads_to_one(self, report: str) -> None:
        names = [attributes["id"] for _, attributes in Page(report).elements if attributes.get("id")]
        assert len(names) == len(set(names))
        written = report.split("const made =")[0]  # beyond are the scripts, with references to what they make
        references = set(re.findall(r'(?:href="#|url\(#|labelledby=")([^")]+)', written))
        assert references
        assert references <= set(names)

    def test_every_picture_has_an_alternative_text_and_a_caption(self, report: str) -> None:
        """Scripts draw four pictures into their places, and give them the label of the place."""
        elements = Page(report).elements
        places = {attributes["id"]: attributes for _, attributes in elements if attributes.get("class") == "drawn"}
        assert list(places) == ["roofline-picture", "timeline-picture", "tiles", "liveness"]
        assert all(len(attributes["data-label"] or "") > 40 for attributes in places.values())
        assert Page(report).count("figcaption") == len(places)
        for tag, attributes in elements:
            if tag == "svg" and "aria-hidden" not in attributes:
                assert attributes["role"] == "img"
                assert attributes["aria-label"]

    def test_headings_are_in_order(self, report: str) -> None:
        levels = [int(tag[1]) for tag, _ in Page(report).elements if re.fullmatch("h[1-6]", tag)]
        assert levels.count(1) == 1
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))


class TestContents:
    def test_the_page_has_the_numbers_of_the_profile_its_notes_its_options_and_advice(self, report: str) -> None:
        words = " ".join(Page(report).texts)
        for part in (
            "548,900 of 638,976 bytes (85.9 %)", "12,072 samples/s", "host loader", "8 min 07 s", "IPU-POD4",
            pipeline_profile().notes[0], "[64, 3, 64, 64] float16, [64] int32",
            "x 1.71 samples/s", "+291 KiB on the fullest tile: does not fit",
            *(text for item in ADVICE for text in (item.how, item.explanation)),
        ):  # fmt: skip
            assert part in words

    def test_every_section_is_there_and_linked(self, report: str) -> None:
        names = ("summary", "limits", "timeline", "memory", "ops", "advice", "trust", "options")
        assert re.findall(r'<section id="([a-z]+)"', report) == list(names)
        assert re.findall(r'<li><a href="#([a-z]+)"', report) == list(names)

    def test_without_advice_and_without_a_search_there_is_no_section_for_them(self) -> None:
        page = html_report(inference_profile())
        assert 'id="advice"' not in page
        assert 'id="fit"' not in page

    def test_the_verdict_is_one_of_three(self) -> None:
        profile = pipeline_profile()
        memory = profile.memory
        close = int(memory.max_tile_bytes / (sum(close_band()) / 2))
        for tile_bytes, words in ((900_000, "fits"), (close, "too close to call"), (300_000, "does not fit")):
            page = Page(html_report(replace(profile, memory=replace(memory, tile_bytes=tile_bytes))))
            assert page.texts[page.texts.index("Does it fit?") + 1] == words

    def test_a_program_that_does_not_fit_is_said_to_be_hypothetical(self) -> None:
        assert "what it would take if it fitted" in html_report(pipeline_profile(fits=False))

    def test_room_is_never_negative(self) -> None:
        """Where what is always live is larger than a tile, nothing else has room."""
        profile = inference_profile()
        memory = pipeline_profile().memory
        (first, *_) = memory.ipus
        assert first.always_live_bytes > 200_000
        full = replace(profile, memory=replace(memory, tile_bytes=200_000))
        assert "with no room at all" in DESCRIBED["liveness"](full)
        assert "room for -" not in DESCRIBED["liveness"](full)

    def test_numbers_are_modelled_and_nothing_else(self, report: str) -> None:
        captions = re.findall(r"<caption>(.*?)</caption>", report)
        plain = ("What was modelled", "On which machine", "What published measurements leave open, by family")
        assert captions
        assert all("modelled" in caption for caption in captions if caption not in plain)


class TestData:
    """What the scripts draw: the numbers of the profile, in columns."""

    def test_every_text_is_there_once_and_columns_point_to_it(self, report: str) -> None:
        data, profile = data_of(report), pipeline_profile(collapsed=True)
        texts = data["texts"]
        assert len(texts) == len(set(texts))
        assert [texts[place] for place in data["ops"]["scope"]] == [op.scope for op in profile.work]
        assert {len(column) for column in data["ops"].values()} == {len(profile.work)}

    def test_host_and_device_are_rows_of_one_axis(self, report: str) -> None:
        data, profile = data_of(report), pipeline_profile(collapsed=True)
        assert [name for name, _ in data["rows"]] == ["loader", "host", "IPU 0", "IPU 1"]
        drawn = {(name, start) for name, spans in data["rows"] for start in spans["start"]}
        assert drawn == {(span.resource, round(span.start, 9)) for span in profile.timeline}

    def test_runs_of_tiles_unroll_to_every_tile(self, report: str) -> None:
        for drawn, memory in zip(data_of(report)["memory"], pipeline_profile().memory, strict=True):
            runs = drawn["tiles"]
            tiles = [value for count, value in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]
            assert tiles == pytest.approx(memory.tiles, rel=1e-6)

    def test_steps_know_their_ops_and_recomputed_ones_are_those_of_the_forward_pass(self) -> None:
        profile = profile_program(day03_program())
        data = data_of(html_report(profile))
        texts, phases = data["texts"], set()
        for memory, drawn in zip(profile.memory, data["memory"], strict=True):
            for step, place, phase in zip(memory.liveness, drawn["steps"]["op"], drawn["steps"]["phase"], strict=True):
                if place < 0:
                    continue
                op = profile.work[place]
                phases.add((texts[phase], op.phase))
                assert (op.node, op.part) == (step.node, step.part)
        assert ("recompute", "forward") in phases
        assert ("backward", "backward") in phases


def test_ten_thousand_ops_take_less_than_5_megabytes_and_sixteen_ipus_less_than_one() -> None:
    """5 megabytes are the bound for the page of BERT-Large over four IPUs, which has some 3,000 ops."""
    profile = pipeline_profile(fits=False)
    ops = (profile.ops * 15)[:10_000]
    assert len(html_report(replace(profile, ops=ops), ADVICE).encode()) < 5_000_000
    assert len(html_report(wide_profile(16)).encode()) < 1_000_000


class TestSafety:
    def test_no_text_of_a_profile_is_taken_for_markup(self) -> None:
        profile = pipeline_profile()
        texts = {f.name: HOSTILE for f in fields(profile) if isinstance(getattr(profile, f.name), str)}
        ops = tuple(replace(op, node=HOSTILE, scope=HOSTILE, plan=HOSTILE, family=HOSTILE) for op in profile.ops[:3])
        machine = replace(profile.machine, name=HOSTILE, title=HOSTILE)
        timeline = tuple(replace(span, resource=HOSTILE, label=HOSTILE) for span in profile.timeline[:3])
        hostile = replace(
            profile, **texts, ops=ops, machine=machine, timeline=timeline, notes=(HOSTILE,),
            options={HOSTILE: HOSTILE}, shares={HOSTILE: 1.0},
        )  # fmt: skip
        advice = (replace(ADVICE[0], change=HOSTILE, how=HOSTILE, explanation=HOSTILE),)
        page = Page(html_report(hostile, advice))
        assert page.closed
        assert page.count("script") == 2
        assert page.count("img") == 0
        assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
        assert HOSTILE in "".join(page.texts)
        assert HOSTILE in data_of(html_report(hostile, advice))["texts"]

    @settings(max_examples=20, phases=[Phase.generate])  # making a failing example small would take minutes
    @given(PROFILES)
    def test_any_profile_gives_a_page(self, profile: Profile) -> None:
        page = html_report(profile)
        assert Page(page).closed
        assert len(data_of(page)["ops"]["name"]) == len(profile.work)

    def test_characters_that_no_page_may_hold_are_spelled_out(self) -> None:
        page = html_report(replace(inference_profile(), name="a\x00b\x1b[1m\ud800"))
        assert "a\\x00b\\x1b[1m\\xd800" in page
        page.encode("utf-8")


class TestWithoutMatplotlib:
    def test_the_page_needs_none(self) -> None:
        code = (
            "import sys; sys.modules['matplotlib'] = None\n"
            "from report_support import pipeline_profile\n"
            "from ipu_model.report.page import html_report\n"
            "sys.stdout.write(html_report(pipeline_profile()))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=__file__.rsplit("test_report_html", 1)[0]
        )
        assert done.returncode == 0, done.stderr
        page = Page(done.stdout)
        assert page.closed
        # What the pictures show is told in words and tables too.
        assert "IPU 0 works 92.6 % of it" in " ".join(page.texts)
        assert page.count("table") >= 8


class TestFit:
    """What `make_it_fit` found, beside the program as it is."""

    def test_a_section_has_the_program_that_fits_its_changes_and_code(self) -> None:
        words = " ".join(Page(html_report(inference_profile(), fit=search_result())).texts)
        assert "The fastest and the cheapest that fits" in words
        assert "split over 4 IPUs" in words
        assert "poptorch.BeginBlock(model.layer, ipu_id=1)" in words
        assert "3 settings, of which 1 fits for certain" in words

    def test_the_script_gets_every_setting_with_its_split_and_its_marks(self) -> None:
        tried = data_of(html_report(inference_profile(), fit=search_result()))["fit"]
        assert [(each["marks"], each["share"], each["ipus"], each["split"]) for each in tried] == [
            ("fastest, cheapest", 0.6, 4, "equal time"), ("", 1.0, 2, "as it is"), ("as it is", 2.0, 1, "as it is"),
        ]  # fmt: skip

    def test_where_nothing_fits_it_says_what_keeps_it_and_shows_the_nearest(self) -> None:
        words = " ".join(Page(html_report(inference_profile(), fit=search_result(fastest=False))).texts)
        assert "Nothing fits for certain. It is big." in words
        assert "The nearest" in words
