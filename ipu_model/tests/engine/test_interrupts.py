"""An interrupt waits inside `interrupt_postponed()`, until `deliver_interrupt()` or the end; a second does not wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from ipu_model.process import deliver_interrupt, interrupt_postponed


@pytest.fixture(autouse=True)
def _pythons_own_handler() -> Iterator[None]:
    """A process that a shell started in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_for_the_end_of_the_body() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupt_postponed():  # noqa: PT012
        interrupt()
        reached.append("end")
    assert reached == ["end"]


def test_an_interrupt_waits_for_a_check() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupt_postponed():  # noqa: PT012
        deliver_interrupt()
        interrupt()
        reached.append("before")
        deliver_interrupt()
        reached.append("after")
    assert reached == ["before"]


def test_the_second_interrupt_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), interrupt_postponed():  # noqa: PT012
        interrupt()
        interrupt()
        pytest.fail("a body that is stuck could not be left")


def test_a_body_in_a_body_leaves_the_interrupt_to_the_outer_one() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupt_postponed():  # noqa: PT012
        with interrupt_postponed():
            interrupt()
        reached.append("still inside")
    assert reached == ["still inside"]


def test_an_error_of_the_body_is_the_context_of_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as raised, interrupt_postponed():  # noqa: PT012
        interrupt()
        raise ValueError("of the body")
    assert isinstance(raised.value.__context__, ValueError)


@pytest.mark.parametrize("error", [None, ValueError], ids=["normal end", "error"])
def test_the_programs_own_handler_is_back_afterwards(error: type[Exception] | None) -> None:
    calls = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    own = signal.getsignal(signal.SIGINT)
    try:
        if error is None:
            with interrupt_postponed():
                interrupt()
                assert calls == []
        else:
            with pytest.raises(error), interrupt_postponed():  # noqa: PT012
                interrupt()
                raise error
        assert signal.getsignal(signal.SIGINT) is own
        assert calls == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_program_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_postponed():
            interrupt()
            deliver_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_the_handler_alone() -> None:
    seen = []

    def work() -> None:
        with interrupt_postponed():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
