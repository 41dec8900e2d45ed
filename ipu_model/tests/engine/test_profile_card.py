"""A profile in brief: its line at a prompt, and its card in a notebook."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from report_strategies import PROFILES
from report_support import inference_profile, pipeline_profile

from ipu_model.predict.profile import Profile

VOID = {"br", "img", "hr", "input", "meta", "link"}


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
        if tag in ("script", "link", "img", "iframe", "style"):
            self.suspicious.append(tag)
        self.suspicious += [name for name, value in attrs if name in ("src", "href") or name.startswith("on")]
        self.suspicious += [value for _, value in attrs if value and "url(" in value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


class TestLine:
    def test_it_says_what_was_modelled_whether_it_fits_and_how_fast_it_is(self) -> None:
        line = repr(pipeline_profile())
        for part in ("resnet101", "training on 2 IPUs", "POD4", "fits", "3,037 samples/s", "limited by host loader"):
            assert part in line

    @pytest.mark.parametrize("fits", [True, False])
    def test_the_verdict_is_in_the_words_of_the_model(self, fits: bool) -> None:
        profile = pipeline_profile(fits=fits)
        assert f"; {profile.verdict} (" in repr(profile)

    @given(PROFILES)
    def test_any_profile_is_one_short_line(self, profile: Profile) -> None:
        assert len(repr(profile)) < 400
        assert "\n" not in repr(profile)
        assert str(profile) == repr(profile)


class TestCard:
    @given(PROFILES)
    def test_any_profile_gives_a_whole_piece_of_html_that_loads_nothing(self, profile: Profile) -> None:
        page = Strict(profile._repr_html_())
        assert page.open == []
        assert page.suspicious == []

    def test_it_has_the_verdict_the_rates_with_their_band_and_the_bottleneck(self) -> None:
        profile = pipeline_profile(fits=False)
        text = Strict(profile._repr_html_()).text
        for part in (str(profile.verdict), "fullest tile at 111.7%", "(10,974 to 13,413)", "host loader"):
            assert part in text

    def test_names_and_notes_are_texts_not_tags(self) -> None:
        odd = replace(inference_profile(), name="<b>&", notes=("<script>alert(1)</script>",))
        page = Strict(odd._repr_html_())
        assert "<b>&" in page.text
        assert page.suspicious == []

    def test_a_bar_of_a_program_that_is_far_too_large_ends_at_the_edge(self) -> None:
        memory = inference_profile().memory
        small = replace(inference_profile(), memory=replace(memory, tile_bytes=10))
        assert "width:100.00%" in small._repr_html_()
