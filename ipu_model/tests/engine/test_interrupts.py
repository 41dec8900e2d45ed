"""An interrupt waits inside `interrupt_postponed()`, until `deliver_interrupt()` or the end; a second does not wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

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


def in_another_body() -> None:
    with interrupt_postponed():
        interrupt()


@pytest.mark.parametrize(("actions", "done"), [
    ((interrupt,), 1),  # it waits for the end of the body
    ((deliver_interrupt, interrupt, deliver_interrupt), 2),  # or for a check
    ((interrupt, interrupt), 1),  # a body that is stuck can be left
    ((in_another_body,), 1),  # a body in a body leaves the interrupt to the outer one
])  # fmt: skip
def test_an_interrupt_waits(actions: tuple[Callable[[], None], ...], done: int) -> None:
    finished = []
    with pytest.raises(KeyboardInterrupt), interrupt_postponed():  # noqa: PT012
        for action in actions:
            action()
            finished.append(action)
    assert len(finished) == done


def test_an_error_of_the_body_is_the_context_of_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as raised, interrupt_postponed():  # noqa: PT012
        interrupt()
        raise ValueError("of the body")
    assert isinstance(raised.value.__context__, ValueError)


@pytest.mark.parametrize("fails", [False, True])
def test_the_programs_own_handler_is_called_and_back_afterwards(fails: bool) -> None:
    calls = []
    own = lambda number, frame: calls.append(number)  # noqa: E731
    signal.signal(signal.SIGINT, own)
    try:
        with interrupt_postponed():
            interrupt()
            assert calls == []
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert signal.getsignal(signal.SIGINT) is own
    assert calls == [signal.SIGINT]


def test_a_program_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupt_postponed():
        interrupt()
        deliver_interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_leave_the_handler_alone() -> None:
    seen = []

    def work() -> None:
        with interrupt_postponed():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
