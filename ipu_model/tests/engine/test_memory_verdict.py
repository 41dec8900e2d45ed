"""Fits, does not fit, or too close to call; and what the error says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cost_support import FLOAT, adamw, program_of, squares
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.errors import Error
from ipu_model.predict.memory.out_of_memory import note_on_memory, out_of_memory
from ipu_model.predict.profile import CloseBand, IpuMemory, LivenessStep, Memory, MemoryCategory, Verdict, close_band
from ipu_model.predict.program import Program, Recomputation
from published.record import close_band_of

LIMIT = 638_976
ALWAYS = ("variables", "optimiser state", "gradient accumulators", "internal exchange code")


def memory_with(*ipus: dict[str, float]) -> Memory:
    """Return memory in which tile 1 of each IPU holds these categories, and tile 0 half of them."""
    memories = []
    for number, sizes in enumerate(ipus):
        full = sum(sizes.values())
        categories = tuple(MemoryCategory(n, b, 1.5 * b, n in ALWAYS) for n, b in sizes.items())
        liveness = (LivenessStep("mm_default", "forward", sizes.get("activations", 0.0), 0.0),)
        memories.append(IpuMemory(number, categories, (full / 2, full), liveness))
    return Memory(tuple(memories), LIMIT)


def program(ipus: int = 1, **options: object) -> Program:
    return replace(program_of(squares(ipus, width=16, ipus=ipus)), **options)


def refusal(*ipus: dict[str, float], **options: object) -> Error:
    error = out_of_memory(memory_with(*ipus), program(len(ipus), **options))
    assert error is not None
    return error


# --- the verdict


@given(st.floats(0, 2))
def test_it_follows_the_share_of_the_fullest_tile(share: float) -> None:
    """Between the ends of the band the model cannot tell; both ends belong to it but for what still fits."""
    expected = Verdict.FITS if share <= 0.9 else Verdict.CLOSE if share <= 1.1 else Verdict.DOES_NOT_FIT
    assert CloseBand(0.9, 1.1).verdict(share) is expected


def test_the_fullest_ipu_decides_and_a_full_tile_is_in_the_band() -> None:
    """So a sure verdict never contradicts `profile.fits`, which asks for no more than a full tile."""
    assert memory_with({"variables": 1000.0}, {"variables": 800_000.0}).verdict is Verdict.DOES_NOT_FIT
    low, high = close_band()
    assert low <= 1.0 <= high


@pytest.mark.parametrize(
    ("ran", "failed", "overestimate", "band"),
    [
        (0.5, 1.5, -0.1, (1.0, 1.0)),
        # From the least that failed to the largest error of a report. A program that ran beyond it widens the band
        # above a full tile only.
        (0.9, 0.9785, 0.0213, (0.978, 1.022)),
        (1.0356, 0.9785, 0.0213, (0.978, 1.036)),
        # What failed at a round share is too close to call.
        (0.5, 0.97, 0.0, (0.969, 1.0)),
        (0.5, 1.0, 0.0, (0.999, 1.0)),
    ],
)
def test_the_band_follows_from_published_outcomes(ran, failed, overestimate, band) -> None:
    assert close_band_of([0.5, ran], [failed, 1.6], overestimate) == band


@given(st.lists(st.floats(0.1, 1.5), min_size=1), st.lists(st.floats(0.5, 2.0), min_size=1), st.floats(-0.2, 0.2))
def test_it_leaves_no_published_program_on_the_wrong_side(ran, failed, overestimate) -> None:
    band = close_band_of(ran, failed, overestimate)
    assert Verdict.DOES_NOT_FIT not in map(band.verdict, ran)
    assert Verdict.FITS not in map(band.verdict, failed)


# --- the message


@pytest.mark.parametrize(("size", "is_error", "is_note"), [(500e3, 0, 0), (639e3, 0, 1), (690e3, 1, 0)])
def test_only_clear_misses_are_errors(size: float, is_error: bool, is_note: bool) -> None:
    memory = memory_with({"activations": size})
    assert (out_of_memory(memory, program()) is not None) == is_error
    assert (note_on_memory(memory, program()) is not None) == is_note


def test_an_error_and_a_close_call_name_the_tile_both_numbers_and_the_page() -> None:
    """The guide's example, 6.1: a tile that needs 876,476 bytes of 638,976."""
    error = refusal({"variables": 1.0}, {"variables": 100_000.0, "activations": 776_476.0})
    assert str(error).startswith("'poplar_graph_memory_allocation_error': ")
    for part in (
        "the program does not fit, out of memory on tile 1 of IPU 1: 876,476 bytes used but tiles only have "
        "638,976 bytes of memory (modelled; 1 tile is over)",
        "Most of that tile's bytes: activations 776,476, variables 100,000.",
        "The section 'Does not fit' of the course's docs/errors.md explains this message.",
    ):
        assert part in error.message
    assert "2 tiles are over" in refusal({"activations": 2.1 * LIMIT}).message
    note = note_on_memory(memory_with({"activations": 1.01 * LIMIT}), program())
    low, high = close_band()
    assert note is not None
    assert note.startswith("Memory is too close to call: tile 1 of IPU 0 holds 645,366 of 638,976 bytes")
    assert f"101.0% (modelled; the model cannot tell between {low:.1%} and {high:.1%} of a tile)" in note
    assert "The section 'Too close to call' of the course's docs/errors.md" in note


ADAM = {"optimiser": adamw(FLOAT)}
STATE = {"optimiser state": 800e3}
FULL, HALF_EMPTY = {"activations": 800e3}, {"activations": 100e3}


@pytest.mark.parametrize(
    ("ipus", "options", "first", "other", "never"),
    [
        ([FULL], {}, "recomputation", "smaller micro-batch with more gradient accumulation", "move blocks"),
        ([FULL], {"recomputation": Recomputation.ALL}, "recomputationCheckpoint", "", "compute activations again"),
        ([FULL], {"training": False}, "use a smaller micro-batch;", "", "accumulation"),
        ([{"temporaries": 800e3}], {}, "available memory proportion of IPU 0", "fullest during mm_default", ""),
        ([STATE], ADAM, "half precision", "setOptimizerLocation", "useReplicatedTensorSharding"),
        ([STATE], {**ADAM, "processes": 4}, "half precision", "useReplicatedTensorSharding", ""),
        ([{"internal exchange code": 1.6e6}], {}, "blocks identical", "", ""),
        ([FULL, HALF_EMPTY], {}, "move blocks from IPU 0 to IPU 1", "", ""),
        # an IPU that is too full itself has no room
        ([{"activations": 1.4 * LIMIT}, {"activations": 1.1 * LIMIT}], {}, "recomputation", "", "move blocks"),
    ],
)
def test_remedies_follow_what_the_fullest_tile_is_full_of(ipus, options, first, other, never) -> None:
    """Guide notes, 6.4."""
    remedies = refusal(*ipus, **options).message.partition("What usually helps: ")[2]
    assert first in remedies.split("; ")[0] + ";"
    assert other in remedies
    assert not never or never not in remedies
