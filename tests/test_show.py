"""What a notebook shows of a profile: words and tables say what the figures draw."""

from __future__ import annotations

import pytest
import torch

import poptorch
from ipu_course import engine, figures, show
from ipu_model import Profile


@pytest.fixture(scope="module")
def profile() -> Profile:
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    found = engine.profile_module(module, (torch.zeros(16, 64),), poptorch.Options())
    assert found is not None
    return found


def test_a_table_is_html_with_headings_and_text_in_columns() -> None:
    rows = [{"name": "a<b", "size": 1}, {"name": "long name", "size": 22}]
    page = show.table_html(rows, index="name")
    assert '<th scope="col">size</th>' in page
    assert '<th scope="row">a&lt;b</th><td>1</td>' in page
    assert show.table_text(rows) == "name       size\na<b        1\nlong name  22"
    assert show.table_html([]) == show.table_text([]) == ""


def test_a_table_without_rows_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show.table([], index="name")
    assert capsys.readouterr().out == "The table has no rows.\n"


@pytest.mark.parametrize("view", [show.memory_per_tile, show.timeline, show.host_and_device, show.cycles])
def test_every_view_is_described_as_modelled(
    view: object, profile: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    view(profile, "It is busy.")  # type: ignore[operator]  # one of the functions above
    assert "(modelled)" in capsys.readouterr().out


def test_memory_of_several_programs_stands_side_by_side(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    show.memory({"one": profile, "other": profile, "missing": None}, "They are equally full.")
    out = capsys.readouterr().out
    kib = f"{profile.memory.max_tile_bytes / 1024:.0f} KiB"
    assert f"one {kib} in all" in out
    assert [line.split()[:4] for line in out.splitlines()[-2:]] == [[n, *kib.split(), "624"] for n in ("one", "other")]


@pytest.mark.parametrize("view", [show.memory, show.memory_per_tile, show.cycles, show.timeline])
def test_without_a_profile_one_line_says_what_would_show_it(view: object, capsys: pytest.CaptureFixture[str]) -> None:
    view(None, "It is busy.")  # type: ignore[operator]  # one of the functions above
    assert capsys.readouterr().out == f"{engine.NOT_HERE}\n"


def test_a_figure_that_a_profile_does_not_have_is_refused(profile: Profile) -> None:
    with pytest.raises(ValueError, match="no figure 'pie' of a profile; there are memory,"):
        engine.figure("pie", profile)


def test_a_module_captured_once_is_profiled_with_other_options(profile: Profile) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    modelled = engine.modelled_module(module, (torch.zeros(16, 64),), poptorch.Options())
    assert modelled is not None
    assert modelled.profile().device_seconds_per_call == profile.device_seconds_per_call
    points = modelled.sweep("device_iterations", [1, 4, 0])
    assert [point.profile and point.profile.samples_per_call for point in points] == [16, 64, None]
    assert "whole number" in points[2].refused


def outputs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    monkeypatch.setattr(show, "display_raw", lambda data, metadata: found.append({**data, **metadata}))
    return found


def test_the_takeaway_is_the_caption_and_the_description_the_alternative_text(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outputs(monkeypatch)
    show.figure(figures.bars_figure(["a"], {"b": [1.0]}, "c", "d"), "One is enough.", "One bar of height 1.")
    picture, caption = found
    assert picture["text/plain"] == "One bar of height 1."
    assert picture["image/png"]["alt"] == "One bar of height 1."  # type: ignore[index]  # metadata
    assert caption == {"text/markdown": "*One is enough.*", "text/plain": "One is enough."}


def test_a_drawing_brings_its_own_description(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outputs(monkeypatch)
    show.drawing(figures.Drawing(figures.bars_figure(["a"], {"b": [1.0]}, "c", "d"), "One bar."), "One is enough.")
    assert [each["text/plain"] for each in found] == ["One bar.", "One is enough."]


def test_a_profile_is_shown_with_its_point(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    found = outputs(monkeypatch)
    show.timeline(profile, "The IPU is never idle.")
    show.memory(profile, "There is room.")
    assert [each["text/plain"] for each in found][1::2][:2] == ["The IPU is never idle.", "There is room."]
    assert "(modelled)" in str(found[0]["text/plain"])


@pytest.mark.parametrize("view", [show.memory, show.cycles, show.timeline])
def test_what_is_not_modelled_is_said_to_be_missing(view: object, capsys: pytest.CaptureFixture[str]) -> None:
    view(engine.NOT_MODELLED, "It is busy.")  # type: ignore[operator]  # one of the functions above
    assert capsys.readouterr().out == f"{engine.NOT_HERE}\n"
