"""The first screen of a report: what fills the fullest tile adds up, and the first thing to do is what was found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_support import ADVICE, pipeline_profile, search_result

from ipu_model.explore.options import Risk
from ipu_model.predict import profile_program
from ipu_model.predict.profile import LiveTensor, Memory, Profile
from ipu_model.report.breakdown import fullest_ipu
from ipu_model.report.first_steps import first_steps, holders
from published.convolutional import day03_program


def tensor(name: str, category: str, count: float) -> LiveTensor:
    return LiveTensor(name, category, (4, 4), "float16", count, 1472 * count, always_live=True, first=0, last=0)


def with_tensors(*tensors: LiveTensor) -> Profile:
    """Return a profile whose fullest tile has these tensors."""
    profile = pipeline_profile()
    fullest = fullest_ipu(profile)
    ipus = tuple(
        replace(each, live_at_peak=tensors) if place == fullest else each for place, each in enumerate(profile.memory)
    )
    return replace(profile, memory=Memory(ipus, profile.memory.tile_bytes))


class TestHolders:
    @pytest.mark.parametrize("profile", [pipeline_profile(), profile_program(day03_program())])
    def test_they_add_up_to_the_fullest_tile(self, profile: Profile) -> None:
        found = holders(profile)
        assert sum(each.bytes_on_tile for each in found) == pytest.approx(profile.memory.max_tile_bytes, rel=1e-3)
        assert sum(each.share for each in found) == pytest.approx(
            profile.memory.max_tile_bytes / profile.memory.tile_bytes, rel=1e-3
        )

    def test_the_largest_is_first_and_all_else_is_last(self) -> None:
        *named, rest = holders(profile_program(day03_program()))
        sizes = [each.bytes_on_tile for each in named]
        assert sizes == sorted(sizes, reverse=True)
        assert rest.name == "all else"

    def test_layers_of_a_list_count_as_one_module(self) -> None:
        tensors = [tensor(f"encoder.{n}.{part}.weight", "weights", 20_000) for n in range(4) for part in ("in", "out")]
        first = holders(with_tensors(*tensors, tensor("head.weight", "weights", 30_000)))[:2]
        assert [(each.name, each.what, each.bytes_on_tile) for each in first] == [
            ("encoder.*", "weights, 8 tensors", 160_000), ("optimiser state", "always", 137_400),
        ]  # fmt: skip

    def test_a_tensor_that_is_alone_keeps_its_name(self) -> None:
        (first, *_) = holders(with_tensors(tensor("layers.3.fc: weight gradient", "gradients", 200_000)))
        assert first.name == "layers.3.fc: weight gradient"


class TestFirstSteps:
    def test_a_search_gives_the_lines_of_the_fastest(self) -> None:
        steps = first_steps(pipeline_profile(fits=False), ADVICE, search_result())
        assert steps is not None
        assert steps.headline.startswith("With 1 change it fits and runs at ")
        assert steps.headline.endswith(" on 4 IPUs of POD4")
        assert steps.code == "poptorch.BeginBlock(model.layer, ipu_id=1)"
        assert [(each.text, each.risk) for each in steps.steps] == [("split over 4 IPUs", Risk.SCHEDULE)]

    def test_a_search_that_finds_nothing_says_what_keeps_it(self) -> None:
        steps = first_steps(pipeline_profile(fits=False), (), search_result(fastest=False))
        assert steps is not None
        assert steps.headline.startswith("Nothing fits for certain. The nearest: ")
        assert steps.explanation == "It is big."

    def test_advice_that_fits_is_the_next_best(self) -> None:
        steps = first_steps(pipeline_profile(), ADVICE, None)
        assert steps is not None
        assert (steps.title, steps.headline, steps.code) == ("The first thing to try", ADVICE[0].change, ADVICE[0].how)

    def test_where_no_single_change_is_enough_it_names_the_search(self) -> None:
        steps = first_steps(pipeline_profile(fits=False), ADVICE[1:], None)
        assert steps is not None
        assert steps.code == "python -m ipu_model fit FOLDER"
        assert ADVICE[1].change in steps.explanation

    def test_a_program_that_fits_may_need_nothing(self) -> None:
        assert first_steps(pipeline_profile(), (), None) is None
