"""A profile in brief: its line at a prompt, and its card in a notebook."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from report_strategies import PROFILES
from report_support import Page, inference_profile, pipeline_profile

from ipu_model.predict.profile import Profile


def loads_or_runs(page: Page) -> list[object]:
    """Return everything in a piece of HTML that would be loaded or run."""
    tags = [tag for tag, _ in page.elements if tag in ("script", "link", "img", "iframe", "style")]
    attributes = [each for _, found in page.elements for each in found.items()]
    return [*tags, *((name, value) for name, value in attributes
                     if name in ("src", "href") or name.startswith("on") or "url(" in (value or ""))]  # fmt: skip


@settings(max_examples=60)
@given(PROFILES)
def test_any_profile_is_one_short_line_and_a_whole_piece_of_html_that_loads_nothing(profile: Profile) -> None:
    assert str(profile) == repr(profile)
    assert len(repr(profile)) < 400
    assert "\n" not in repr(profile)
    page = Page(profile._repr_html_())
    assert page.closed
    assert loads_or_runs(page) == []


@pytest.mark.parametrize("fits", [True, False])
def test_the_line_says_what_was_modelled_whether_it_fits_and_how_fast_it_is(fits: bool) -> None:
    profile = pipeline_profile(fits=fits)
    for part in ("resnet101", "training on 2 IPUs", "POD4", "3,037 samples/s", "limited by host loader"):
        assert part in repr(profile)
    assert f"; {profile.verdict} (" in repr(profile)


def test_the_card_has_the_verdict_the_rates_with_their_band_and_the_bottleneck() -> None:
    profile = pipeline_profile(fits=False)
    text = "".join(Page(profile._repr_html_()).texts)
    for part in (str(profile.verdict), "fullest tile at 111.7%", "(10,974 to 13,413)", "host loader"):
        assert part in text


def test_names_and_notes_are_texts_not_tags() -> None:
    page = Page(replace(inference_profile(), name="<b>&", notes=("<script>alert(1)</script>",))._repr_html_())
    assert "<b>&" in "".join(page.texts)
    assert loads_or_runs(page) == []


def test_a_bar_of_a_program_that_is_far_too_large_ends_at_the_edge() -> None:
    small = replace(inference_profile().memory, tile_bytes=10)
    assert "width:100.00%" in replace(inference_profile(), memory=small)._repr_html_()
