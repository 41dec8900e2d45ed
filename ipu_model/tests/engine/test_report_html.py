"""The report as a page: complete without anything else, safe for any name, small enough for a large model."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from report_strategies import PROFILES
from report_support import ADVICE, inference_profile, pipeline_profile, wide_profile

from ipu_model.predict.profile import Profile
from ipu_model.report import page, pictures
from ipu_model.report.page import html_report

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


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "pictures", lambda profile: None)


@pytest.fixture(scope="module")
def report() -> str:
    return html_report(pipeline_profile(collapsed=True), ADVICE)


class TestPage:
    def test_every_element_is_closed(self, report: str) -> None:
        assert Page(report).closed

    def test_nothing_is_loaded(self, report: str) -> None:
        for tag, attributes in Page(report).elements:
            for name in ("src", "href", "xlink:href", "action", "data"):
                value = attributes.get(name) or "#"
                assert value.startswith("#"), (tag, name, value)
        assert "@import" not in report
        assert "default-src 'none'" in report
        assert not re.search(r"url\((?!#)", report)

    def test_names_of_elements_are_unique_and_every_reference_leads_to_one(self, report: str) -> None:
        names = [attributes["id"] for _, attributes in Page(report).elements if attributes.get("id")]
        assert len(names) == len(set(names))
        references = set(re.findall(r'(?:href="#|url\(#|labelledby=")([^")]+)', report))
        assert references <= set(names)

    def test_every_figure_has_an_alternative_text_and_a_caption(self, report: str) -> None:
        drawn = [attributes for tag, attributes in Page(report).elements if tag == "svg"]
        assert len(drawn) == 6
        for attributes in drawn:
            assert attributes["role"] == "img"
            assert len(attributes["aria-label"] or "") > 40
        assert Page(report).count("figcaption") == 6

    def test_headings_are_in_order(self, report: str) -> None:
        levels = [int(tag[1]) for tag, _ in Page(report).elements if re.fullmatch("h[1-6]", tag)]
        assert levels.count(1) == 1
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))

    def test_a_program_of_several_iterations_shows_one_of_them_larger(self) -> None:
        profile = replace(pipeline_profile(), options={"device iterations": 4})
        assert Page(html_report(profile)).count("svg") == 7


class TestContents:
    def test_the_summary_has_the_numbers_of_the_profile(self, report: str) -> None:
        words = " ".join(Page(report).texts)
        for number in ("548,900 of 638,976 bytes (85.9 %)", "12,072 samples/s", "host loader", "8 min 07 s"):
            assert number in words

    def test_every_section_is_there_and_linked(self, report: str) -> None:
        names = ("summary", "limits", "advice", "execution", "memory", "ops", "options")
        assert re.findall(r'<section id="([a-z]+)"', report) == list(names)
        assert re.findall(r'<li><a href="#([a-z]+)"', report) == list(names)

    def test_advice_says_what_it_gains_and_costs(self, report: str) -> None:
        words = " ".join(Page(report).texts)
        assert "x 1.71 samples/s" in words
        assert "+298,000 bytes on the fullest tile: does not fit" in words
        assert all(item.how in words and item.explanation in words for item in ADVICE)

    def test_without_advice_there_is_no_section_for_it(self) -> None:
        assert 'id="advice"' not in html_report(inference_profile())

    def test_all_ops_are_there_folded(self, report: str) -> None:
        assert f"All ops: {len(pipeline_profile().ops)} rows" in report
        assert report.count("convolution_90_back: weight gradient") == 1

    def test_notes_and_options_are_told(self, report: str) -> None:
        words = " ".join(Page(report).texts)
        assert pipeline_profile().notes[0] in words
        assert "[64, 3, 64, 64] float16, [64] int32" in words
        assert "IPU-POD4" in words

    def test_a_program_that_does_not_fit_is_said_to_be_hypothetical(self) -> None:
        assert "what it would take if it fitted" in html_report(pipeline_profile(fits=False))

    def test_room_is_never_negative(self) -> None:
        """Where what is always live is larger than a tile, nothing else has room."""
        profile = inference_profile()
        memory = pipeline_profile().memory
        (first, *_) = memory.ipus
        assert first.always_live_bytes > 200_000
        full = replace(profile, memory=replace(memory, tile_bytes=200_000))
        assert "with no room at all" in pictures.DESCRIBED["liveness"](full)
        assert "room for -" not in pictures.DESCRIBED["liveness"](full)

    def test_numbers_are_modelled_and_nothing_else(self, report: str) -> None:
        captions = re.findall(r"<caption>(.*?)</caption>", report)
        plain = ("What was modelled", "On which machine")
        assert captions
        assert all("modelled" in caption for caption in captions if caption not in plain)


class TestSize:
    def test_a_model_of_900_ops_takes_less_than_2_megabytes(self) -> None:
        profile = pipeline_profile(fits=False)
        ops = (profile.ops * 2)[:900]
        assert len(html_report(replace(profile, ops=ops), ADVICE).encode()) < 2_000_000

    def test_sixteen_ipus_take_less_than_2_megabytes(self) -> None:
        assert len(html_report(wide_profile(16)).encode()) < 2_000_000

    def test_of_thousands_of_ops_the_cheap_ones_are_left_out_and_counted(self, without_pictures: None) -> None:
        profile = pipeline_profile()
        page = html_report(replace(profile, ops=profile.ops * 4))
        assert "The 800 most expensive ops (profile.json has all)" in page


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
        assert page.count("script") == 1
        assert page.count("img") == 0
        assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
        assert HOSTILE in "".join(page.texts)

    @settings(max_examples=5, phases=[Phase.generate])  # making a failing example small would take minutes
    @given(PROFILES)
    def test_any_profile_gives_a_page_with_pictures(self, profile: Profile) -> None:
        page = Page(html_report(profile))
        assert page.closed
        assert page.count("svg") >= 6

    def test_characters_that_no_page_may_hold_are_spelled_out(self, without_pictures: None) -> None:
        page = html_report(replace(inference_profile(), name="a\x00b\x1b[1m\ud800"))
        assert "a\\x00b\\x1b[1m\\xd800" in page
        page.encode("utf-8")


class TestWithoutMatplotlib:
    def test_the_page_has_its_tables_and_says_what_is_missing(self) -> None:
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
        assert page.count("svg") == 0
        assert "Pictures need matplotlib" in " ".join(page.texts)
        # What the figures show is still told in words and tables.
        assert "IPU 0 works 92.6 % of it" in " ".join(page.texts)
        assert page.count("table") >= 10

    def test_another_missing_module_is_not_taken_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "ipu_model.report.figures", raising=False)
        monkeypatch.delattr("ipu_model.report.figures", raising=False)
        monkeypatch.setitem(sys.modules, "ipu_model.report.figures", None)
        with pytest.raises(ModuleNotFoundError):
            pictures.pictures(inference_profile())
