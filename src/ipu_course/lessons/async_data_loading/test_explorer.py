"""Lesson 05's explorer and the timeline behind it: events in order, and the closed form in the steady state."""

from __future__ import annotations

import pytest
from explorer_settings import some_of
from hypothesis import given
from hypothesis import strategies as st

from ipu_course.explorers import Choice, Slider
from ipu_course.lessons.async_data_loading.explorer import CALLS, CONTROLS, UNEVEN, view
from ipu_course.lessons.async_data_loading.loading import Loading, bound, timeline

SECONDS = st.floats(0.001, 10.0)
LOADINGS = st.builds(Loading, st.booleans(), st.integers(0, 4), st.integers(1, 8))


def ends_of(name: str) -> tuple[object, object]:
    control = CONTROLS[name]
    assert isinstance(control, Slider)
    return control.values[0], control.values[-1]


EXTREMES = some_of(
    (False, True), *(ends_of(name) for name in ("load_ms", "call_ms", "workers", "buffer")), (False, True)
)


@pytest.mark.parametrize(("asynchronous", "load", "call", "workers", "buffer", "uneven"), EXTREMES)
def test_an_extreme_has_a_picture_and_a_row(
    asynchronous: bool, load: int, call: int, workers: int, buffer: int, uneven: bool
) -> None:
    shown = view(asynchronous, load, call, workers, buffer, uneven)
    assert shown.figure is not None
    assert len(shown.rows) == 1


def test_the_menu_offers_both_modes() -> None:
    control = CONTROLS["asynchronous"]
    assert isinstance(control, Choice)
    assert control.options == {"Sync": False, "Async": True}


def test_a_buffer_evens_out_uneven_loads() -> None:
    assert sum(UNEVEN) == pytest.approx(len(UNEVEN))  # the mean stays
    assert (CALLS - 1) // 2 % len(UNEVEN) == 0  # the steady half holds whole rounds
    waits = [view(True, 150, 200, 0, slots, uneven=True).rows[0]["IPUs wait for data"] for slots in (1, 2, 3, 5, 8)]
    # One slot: (150 + 200) ms a call, of which 200 are the call; enough slots: no wait, as loading takes 150 ms.
    assert waits[0] == "43%"
    assert waits[-1] == "0%"
    shares = [int(str(wait).rstrip("%")) for wait in waits]
    assert shares == sorted(shares, reverse=True)


@given(st.lists(SECONDS, min_size=1, max_size=30), SECONDS, LOADINGS)
def test_events_happen_in_a_possible_order(loads: list[float], call: float, loading: Loading) -> None:
    computed = timeline(loads, call, loading)
    for load, run in zip(computed.loads, computed.calls):
        assert load.end <= run.start  # no call without its data
    for before, after in zip(computed.calls, computed.calls[1:]):
        assert before.end <= after.start
    for number, load in enumerate(computed.loads):
        if number >= loading.ahead:
            assert load.start >= computed.calls[number - loading.ahead].end  # no place was free before
    rows: dict[int | None, float] = {}
    for load in computed.loads:
        assert load.start >= rows.get(load.row, 0.0)
        rows[load.row] = load.end


@given(SECONDS, SECONDS, LOADINGS)
def test_even_loads_reach_the_closed_form(load: float, call: float, loading: Loading) -> None:
    steady = timeline([load] * 121, call, loading).seconds_per_call
    # The slower of the two, or their sum; workers need a place each, which a ring and torch's prefetching give.
    assert steady == pytest.approx(bound(load, call, loading), rel=1e-6)


@given(st.lists(SECONDS, min_size=2, max_size=30), SECONDS, LOADINGS)
def test_running_ahead_is_never_slower_than_sync(loads: list[float], call: float, loading: Loading) -> None:
    end = timeline(loads, call, loading).calls[-1].end
    assert end <= timeline(loads, call, Loading(False)).calls[-1].end * (1 + 1e-9)


def test_impossible_counts_are_refused() -> None:
    for arguments in ((True, -1, 3), (True, 0, 0)):
        with pytest.raises(ValueError, match="there are no"):
            Loading(*arguments)
    with pytest.raises(ValueError, match="at least one load"):
        timeline([], 1.0, Loading(True))
