"""The report as a page: complete without anything else, safe for any name, small enough; and the card in a notebook.

tests/browser/test_report_page.py has what the page's scripts make of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from report_support import ADVICE, PROFILES, Page, inference_profile, pipeline_profile, resized, search_result

from ipu_model.predict.profile import Profile, close_band
from ipu_model.report.findings import describe_liveness
from ipu_model.report.page import html_report

COLLAPSED = pipeline_profile(accumulation=24, loader=0.3)
HOSTILE = "</title><script>alert('x')</script>&\"'<img src=x onerror=alert(1)>"


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(text)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(html_report(COLLAPSED, ADVICE))


class TestPage:
    def test_every_element_is_closed_and_nothing_is_loaded(self, page: Page) -> None:
        assert page.closed
        for tag, attributes in page.elements:
            for name in ("src", "href", "xlink:href", "action", "data"):
                value = attributes.get(name) or "#"
                assert value.startswith("#"), (tag, name, value)
        assert "@import" not in page.text
        assert "default-src 'none'" in page.text
        assert not re.search(r"url\((?!#)", page.text)

    def test_every_picture_has_an_alternative_text_and_a_caption(self, page: Page) -> None:
        """Scripts draw four pictures into their places, and give them the label of the place."""
        places = {attributes["id"]: attributes for _, attributes in page.elements if attributes.get("class") == "drawn"}
        assert list(places) == ["roofline-picture", "timeline-picture", "tiles", "liveness"]
        assert all(len(attributes["data-label"] or "") > 40 for attributes in places.values())
        assert page.count("figcaption") == len(places)
        for tag, attributes in page.elements:
            if tag == "svg" and "aria-hidden" not in attributes:
                assert attributes["role"] == "img"
                assert attributes["aria-label"]

    def test_headings_are_in_order_and_numbers_are_modelled_and_nothing_else(self, page: Page) -> None:
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
        assert levels.count(1) == 1
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        captions = re.findall(r"<caption>(.*?)</caption>", page.text)
        plain = ("What was modelled", "On which machine", "What published measurements leave open, by family")
        assert captions
        assert all("modelled" in caption for caption in captions if caption not in plain)

    def test_it_has_the_numbers_of_the_profile_its_notes_its_options_and_advice(self, page: Page) -> None:
        for part in (
            "548,900 of 638,976 bytes (85.9 %)", f"{1536 / COLLAPSED.device_seconds_per_call:,.0f} samples/s",
            "host loader", "8 min 07 s", "IPU-POD4", COLLAPSED.notes[0], "[64, 3, 64, 64] float16, [64] int32",
            "x 1.71 samples/s", "+291 KiB on the fullest tile: does not fit",
            *(text for item in ADVICE for text in (item.how, item.explanation)),
        ):  # fmt: skip
            assert part in page.words

    def test_every_section_is_there_and_linked_advice_and_search_only_where_there_are_any(self, page: Page) -> None:
        names = ["summary", "limits", "timeline", "memory", "ops", "advice", "trust", "options"]
        assert re.findall(r'<section id="([a-z]+)"', page.text) == names
        assert re.findall(r'<li><a href="#([a-z]+)"', page.text) == names
        without = html_report(inference_profile())
        assert re.findall(r'<section id="([a-z]+)"', without) == [name for name in names if name != "advice"]

    def test_the_verdict_is_one_of_three_and_room_is_never_negative(self) -> None:
        profile = pipeline_profile()
        close = profile.memory.max_tile_bytes / (sum(close_band()) / 2)
        for tile_bytes, words in ((900_000, "fits"), (close, "too close to call"), (300_000, "does not fit")):
            page = Page(html_report(resized(profile, tile_bytes)))
            assert page.texts[page.texts.index("Does it fit?") + 1] == words
            assert ("what it would take if it fitted" in page.words) == (words == "does not fit")
        # Where what is always live is larger than a tile, nothing else has room.
        crowded = resized(profile, 200_000)
        assert crowded.memory[0].always_live_bytes > 200_000
        words = describe_liveness(crowded)
        assert "with no room at all" in words
        assert "room for -" not in words


def test_texts_are_there_once_rows_on_one_axis_and_runs_of_tiles_are_every_tile(page: Page) -> None:
    data, profile = data_of(page.text), COLLAPSED
    texts = data["texts"]
    assert len(texts) == len(set(texts))
    assert [texts[place] for place in data["ops"]["scope"]] == [op.scope for op in profile.work]
    assert {len(column) for column in data["ops"].values()} == {len(profile.work)}
    assert [name for name, _ in data["rows"]] == ["loader", "host", "IPU 0", "IPU 1"]
    drawn = {(name, start) for name, spans in data["rows"] for start in spans["start"]}
    assert drawn == {(span.resource, round(span.start, 9)) for span in profile.timeline}
    for drawn_memory, memory in zip(data["memory"], profile.memory, strict=True):
        runs = drawn_memory["tiles"]
        tiles = [value for count, value in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]
        assert tiles == pytest.approx(memory.tiles, rel=1e-6)


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
        assert (page.count("script"), page.count("img")) == (2, 0)
        assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
        assert HOSTILE in "".join(page.texts)
        assert HOSTILE in data_of(page.text)["texts"]

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


def test_what_the_pictures_show_is_told_in_words_and_tables_too() -> None:
    """IPU 0 waits for 3,570,026 of 56,089,226 cycles."""
    page = Page(html_report(pipeline_profile()))
    assert page.closed
    assert "IPU 0 works 93.6 % of it" in page.words
    assert page.count("table") >= 8


def test_a_search_has_a_section_with_what_fits_its_code_and_every_setting_or_what_keeps_it() -> None:
    page = Page(html_report(inference_profile(), fit=search_result()))
    for part in (
        "The fastest and the cheapest that was found", "split over 4 IPUs",
        "poptorch.BeginBlock(model.layer, ipu_id=1)",
        "3 settings, of which 1 fits with 5 % of the fullest tile free",
    ):  # fmt: skip
        assert part in page.words
    assert [(c["marks"], c["share"], c["ipus"], c["split"]) for c in data_of(page.text)["fit"]] == [
        ("fastest, cheapest", 0.6, 4, "layer on IPU 1"), ("", 1.0, 2, "as it is"), ("as it is", 2.0, 1, "as it is"),
    ]  # fmt: skip
    words = Page(html_report(inference_profile(), fit=search_result(fastest=False))).words
    assert "Nothing fits with 5 % of the fullest tile free. It is big." in words
    assert "The nearest" in words


def test_in_a_notebook_a_search_is_a_table_of_what_was_found_with_the_code_and_the_words() -> None:
    found = search_result()
    assert found.fastest is not None
    hostile = replace(found.fastest, changes=(replace(found.fastest.changes[0], text=HOSTILE),), code=HOSTILE)
    shown = Page(replace(found, cheapest=hostile, binds=HOSTILE)._repr_html_())
    assert shown.closed
    assert {tag for tag, _ in shown.elements} == {"table", "tr", "th", "td", "details", "summary", "pre", "p"}
    assert shown.texts[:18] == [
        "samples/s", "IPUs", "of a tile", "memory", "changes",
        "as it is", "100.0", "1", "200%", "does not fit",
        "cheapest", "1,330,000.0", "4", "0%", "fits", HOSTILE,
        "fastest", "1,330,000.0",
    ]  # fmt: skip
    code = "poptorch.BeginBlock(model.layer, ipu_id=1)"
    assert shown.texts[22:-1] == ["Lines of the cheapest", HOSTILE, "Lines of the fastest", code]
    assert shown.texts[-1].startswith(f"{HOSTILE} All figures are modelled")
    assert [attributes for tag, attributes in shown.elements if tag == "details"] == [{}, {"open": None}]


# --- a profile in brief: its line at a prompt, and its card in a notebook


def card_of(profile: Profile) -> Page:
    """Return a card, which is a whole piece of HTML that loads and runs nothing."""
    card = Page(profile._repr_html_())
    assert card.closed
    assert {tag for tag, _ in card.elements} <= {"div", "span", "b"}
    assert {name for _, attributes in card.elements for name in attributes} <= {"style", "role", "aria-label"}
    assert not [value for _, attributes in card.elements for value in attributes.values() if "url(" in (value or "")]
    return card


@settings(max_examples=30)
@given(PROFILES)
def test_any_profile_is_one_short_line_and_a_card(profile: Profile) -> None:
    line = repr(profile)
    assert len(line) < 400
    assert "\n" not in line
    assert str(profile) == line
    card_of(profile)


@pytest.mark.parametrize("fits", [True, False])
def test_they_say_what_was_modelled_whether_it_fits_how_fast_it_is_and_what_limits_it(fits: bool) -> None:
    profile = pipeline_profile(fits=fits)
    line, text = repr(profile), card_of(profile).words
    for part in ("resnet101", "training on 2 IPUs", "POD4", "3,041 samples/s", "host loader", str(profile.verdict)):
        assert part in line
        assert part in text
    assert f"; {profile.verdict} (" in line
    assert "(11,037 to 13,490)" in text
    assert ("fullest tile at 111.7%" in text) == ("fullest tile at 111.7%" in line) == (not fits)


def test_names_and_notes_are_texts_and_a_long_note_ends_with_a_whole_sentence_or_with_dots() -> None:
    notes = ("<script>alert(1)</script>", f"{'a' * 80}. {'b' * 80}. {'c' * 80}.", "word " * 60)
    card = card_of(replace(resized(inference_profile(), 10), name="<b>&", notes=notes))
    text = "".join(card.texts)
    assert "<b>&" in text
    assert f"{'b' * 80}." in text
    assert "c" * 80 not in text
    assert "word ..." in text
    assert "width:100.00%" in card.text  # the bar of a program that is far too large ends at the edge
