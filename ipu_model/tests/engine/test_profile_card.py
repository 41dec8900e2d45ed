"""A profile in brief: its line at a prompt, and its card in a notebook."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from report_strategies import PROFILES
from report_support import inference_profile, pipeline_profile

from ipu_model.predict.profile import Profile


class Strict(HTMLParser):
    """Notes tags that are not closed in order, the text, and everything that would be loaded or run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.suspicious: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("div", "span", "b"):
            self.suspicious.append(tag)
        self.suspicious += [name for name, value in attrs if name not in ("style", "role", "aria-label")]
        self.suspicious += [value for _, value in attrs if value and "url(" in value]
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@settings(max_examples=30)
@given(PROFILES)
def test_any_profile_is_one_short_line_and_a_whole_piece_of_html_that_loads_nothing(profile: Profile) -> None:
    line, page = repr(profile), Strict(profile._repr_html_())
    assert len(line) < 400
    assert "\n" not in line
    assert str(profile) == line
    assert page.open == page.suspicious == []


@pytest.mark.parametrize("fits", [True, False])
def test_they_say_what_was_modelled_whether_it_fits_how_fast_it_is_and_what_limits_it(fits: bool) -> None:
    profile = pipeline_profile(fits=fits)
    line, text = repr(profile), Strict(profile._repr_html_()).text
    for part in ("resnet101", "training on 2 IPUs", "POD4", "3,037 samples/s", "host loader", str(profile.verdict)):
        assert part in line
        assert part in text
    assert f"; {profile.verdict} (" in line
    assert "(10,974 to 13,413)" in text
    assert ("fullest tile at 111.7%" in text) == ("fullest tile at 111.7%" in line) == (not fits)


def test_names_and_notes_are_texts_not_tags() -> None:
    page = Strict(replace(inference_profile(), name="<b>&", notes=("<script>alert(1)</script>",))._repr_html_())
    assert "<b>&" in page.text
    assert page.suspicious == []


def test_a_bar_of_a_program_that_is_far_too_large_ends_at_the_edge() -> None:
    profile = inference_profile()
    small = replace(profile, memory=replace(profile.memory, tile_bytes=10))
    assert "width:100.00%" in small._repr_html_()


def test_a_long_note_ends_with_a_whole_sentence_or_with_dots() -> None:
    notes = (f"{'a' * 80}. {'b' * 80}. {'c' * 80}.", "word " * 60)
    text = Strict(replace(inference_profile(), notes=notes)._repr_html_()).text
    assert f"{'b' * 80}." in text
    assert "c" * 80 not in text
    assert "word ..." in text
