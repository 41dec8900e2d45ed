"""Fits, does not fit, or too close to call; and what the error says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_support import FLOAT, adamw, memory_of_program, program_of, squares

from ipu_model.errors import Error
from ipu_model.predict.memory.out_of_memory import note_on_memory, out_of_memory
from ipu_model.predict.profile import (
    CloseBand,
    IpuMemory,
    LivenessStep,
    Memory,
    MemoryCategory,
    Verdict,
    close_band,
)
from ipu_model.predict.program import Program, Recomputation
from published.record import close_band_of

LIMIT = 638_976
ALWAYS = ("variables", "optimiser state", "gradient accumulators", "internal exchange code")


def memory_with(*ipus: dict[str, float]) -> Memory:
    """Return memory in which tile 1 of each IPU holds these categories, and tile 0 half of them."""
    found = []
    for number, held in enumerate(ipus):
        full = sum(held.values())
        categories = tuple(MemoryCategory(n, b, 1.5 * b, n in ALWAYS) for n, b in held.items())
        liveness = (LivenessStep("mm_default", "forward", held.get("activations", 0.0), 0.0),)
        found.append(IpuMemory(number, categories, (full / 2, full), liveness))
    return Memory(tuple(found), LIMIT)


def program(ipus: int = 1, **options: object) -> Program:
    return program_of(squares(ipus, width=16, ipus=ipus), **options)


class TestVerdict:
    @given(st.floats(0, 2))
    def test_follows_the_share_of_the_fullest_tile(self, share: float) -> None:
        """Between the ends of the band the model cannot tell; both ends belong to it but for what still fits."""
        band = CloseBand(0.9, 1.1)
        expected = Verdict.FITS if share <= 0.9 else Verdict.CLOSE if share <= 1.1 else Verdict.DOES_NOT_FIT
        assert band.verdict(share) is expected

    def test_the_fullest_ipu_decides(self) -> None:
        memory = memory_with({"variables": 1000.0}, {"variables": 800_000.0})
        assert memory.verdict is Verdict.DOES_NOT_FIT

    def test_a_sure_verdict_never_contradicts_whether_the_fullest_tile_has_room(self) -> None:
        """`profile.fits` asks for no more than a full tile."""
        low, high = close_band()
        assert low <= 1.0 <= high
        assert close_band_of(ran=[0.5], failed=[1.5], overestimate=-0.1) == (1.0, 1.0)

    def test_the_band_reaches_from_the_least_that_failed_to_the_largest_error_of_a_report(self) -> None:
        assert close_band_of(ran=[0.9], failed=[0.9785, 1.3], overestimate=0.0213) == (0.978, 1.022)

    def test_a_program_that_ran_beyond_it_widens_the_band_above_a_full_tile_only(self) -> None:
        assert close_band_of(ran=[0.9, 1.0356], failed=[0.9785, 1.3], overestimate=0.0213) == (0.978, 1.036)

    def test_a_program_that_failed_at_a_round_share_is_too_close_to_call(self) -> None:
        assert close_band_of(ran=[0.5], failed=[0.97], overestimate=0.0).verdict(0.97) is Verdict.CLOSE
        assert close_band_of(ran=[0.5], failed=[1.0], overestimate=0.0).verdict(1.0) is Verdict.CLOSE

    @given(st.lists(st.floats(0.1, 1.5), min_size=1), st.lists(st.floats(0.5, 2.0), min_size=1), st.floats(-0.2, 0.2))
    def test_the_band_leaves_no_published_program_on_the_wrong_side(
        self, ran: list[float], failed: list[float], overestimate: float
    ) -> None:
        band = close_band_of(ran, failed, overestimate)
        assert all(band.verdict(each) is not Verdict.DOES_NOT_FIT for each in ran)
        assert all(band.verdict(each) is not Verdict.FITS for each in failed)

    def test_has_three_values_in_words(self) -> None:
        assert [str(verdict) for verdict in Verdict] == ["fits", "too close to call", "does not fit"]

    @pytest.mark.parametrize(("wanted", "is_error", "is_note"), [(500e3, 0, 0), (639e3, 0, 1), (690e3, 1, 0)])
    def test_only_clear_misses_are_errors(self, wanted: float, is_error: bool, is_note: bool) -> None:
        memory = memory_with({"activations": wanted})
        assert (out_of_memory(memory, program()) is not None) == is_error
        assert (note_on_memory(memory, program()) is not None) == is_note


class TestMessage:
    @pytest.fixture
    def error(self) -> Error:
        held = {"variables": 100_000.0, "activations": 876_476.0 - 100_000.0}
        error = out_of_memory(memory_with({"variables": 1.0}, held), program(2))
        assert error is not None
        return error

    def test_type(self, error: Error) -> None:
        assert error.type == "poplar_graph_memory_allocation_error"
        assert str(error).startswith("'poplar_graph_memory_allocation_error': ")

    def test_names_the_tile_and_both_numbers(self, error: Error) -> None:
        """The guide's example, 6.1: a tile that needs 876,476 bytes of 638,976."""
        assert "out of memory on tile 1 of IPU 1" in error.message
        assert "876,476 bytes used but tiles only have 638,976 bytes" in error.message

    def test_says_that_it_is_modelled(self, error: Error) -> None:
        assert "modelled; 1 tile is over" in error.message

    def test_says_that_the_program_does_not_fit(self, error: Error) -> None:
        assert "does not fit" in error.message

    def test_a_close_call_names_the_share_and_the_band(self) -> None:
        note = note_on_memory(memory_with({"activations": 1.01 * LIMIT}), program())
        assert note is not None
        low, high = close_band()
        assert "too close to call" in note
        assert f"101.0% (modelled; the model cannot tell between {low:.1%} and {high:.1%} of a tile)" in note

    def test_both_messages_name_the_section_of_the_catalogue_that_explains_them(self, error: Error) -> None:
        note = note_on_memory(memory_with({"activations": 1.01 * LIMIT}), program())
        assert note is not None
        catalogue = (Path(__file__).resolve().parents[3] / "docs" / "errors.md").read_text(encoding="utf-8")
        for message in (error.message, note):
            section = re.search(r"The section '(.+?)' of the course's docs/errors.md", message)
            assert section is not None
            assert f"\n## {section[1]}\n" in catalogue

    def test_lists_categories_by_weight(self, error: Error) -> None:
        assert error.message.index("activations 776,476") < error.message.index("variables 100,000")


def advice(held: dict[str, float], subject: Program | None = None) -> str:
    error = out_of_memory(memory_with(held), subject or program())
    assert error is not None
    return error.message.partition("What usually helps: ")[2]


class TestRemedies:
    """Guide notes, 6.4: what helps depends on what a tile is full of."""

    def test_a_hill_of_activations(self) -> None:
        assert "recomputation" in advice({"activations": 800e3}).split(";")[0]

    def test_recomputation_is_not_proposed_twice(self) -> None:
        found = advice({"activations": 800e3}, program(recomputation=Recomputation.ALL))
        assert "compute activations again" not in found
        assert "recomputationCheckpoint" in found

    def test_a_peak_in_one_op(self) -> None:
        found = advice({"temporaries": 800e3})
        assert "available memory proportion" in found.split(";")[0]
        assert "mm_default" in found

    def test_a_floor_of_parameters(self) -> None:
        found = advice({"optimiser state": 800e3}, program(optimiser=adamw(FLOAT)))
        assert "half precision" in found.split(";")[0]
        assert "setOptimizerLocation" in found

    def test_a_floor_of_code(self) -> None:
        assert "blocks identical" in advice({"internal exchange code": 1.6e6}).split(";")[0]

    def test_an_ipu_with_room(self) -> None:
        error = out_of_memory(memory_with({"activations": 800e3}, {"activations": 100e3}), program(2))
        assert error is not None
        assert "move blocks from IPU 0 to IPU 1" in error.message

    def test_an_ipu_that_is_too_full_itself_has_no_room(self) -> None:
        error = out_of_memory(memory_with({"activations": 1.4 * LIMIT}, {"activations": 1.1 * LIMIT}), program(2))
        assert error is not None
        assert "move blocks" not in error.message

    def test_replicas_can_share_state_out(self) -> None:
        several = replace(program(optimiser=adamw(FLOAT)), processes=4)
        assert "useReplicatedTensorSharding" in advice({"optimiser state": 800e3}, several)
        assert "useReplicatedTensorSharding" not in advice({"optimiser state": 800e3}, program(optimiser=adamw(FLOAT)))


def test_a_program_that_is_too_large() -> None:
    """800 million bytes of weights and state on one IPU of 940 million, and as many activations."""
    too_large = program_of(squares(8, width=4096, batch=4096), optimiser=adamw(FLOAT))
    memory = memory_of_program(too_large)
    error = out_of_memory(memory, too_large)
    assert error is not None
    assert f"{memory.max_tile_bytes:,.0f} bytes used" in error.message
