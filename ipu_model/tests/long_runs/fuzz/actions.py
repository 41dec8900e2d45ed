"""What programs do between two calls: things that work, mistakes, and interrupts at any moment."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import signal
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import ipu_model
import poptorch
from fuzz.cases import OPTIMISERS, Case

# An interrupt comes at some moment of a call of this length, in seconds.
_CALL = 0.006


class Interrupted(Exception):
    """An interrupt did something else than to stop the call."""


class NotRefused(Exception):
    """A mistake went unnoticed."""


def _refused(action: Callable[[], object]) -> bool:
    """Do what must be refused."""
    try:
        action()
    except (poptorch.Error, AssertionError):
        return False
    raise NotRefused("a call that differs from the compiled one was not refused")


def _other_rows(case: Case, wrapped: Any, inputs: Any) -> bool:
    doubled = tree_map_only(Tensor, lambda tensor: torch.cat((tensor, tensor)).detach(), inputs)
    return _refused(lambda: wrapped(doubled))


def _forgets(case: Case) -> bool:
    """Whether weights that go to the host and back lose what the plain program keeps.

    That is the state of an optimiser, and a counter in a buffer: an inference model never brings its buffers back.
    """
    return (case.training and case.optimiser != "sgd") or case.network == "in place"


def _attach_again(case: Case, wrapped: Any, inputs: Any) -> bool:
    if not case.has("offline"):
        wrapped.detachFromDevice()
        wrapped.attachToDevice()
    return _forgets(case)


def _copy_weights(case: Case, wrapped: Any, inputs: Any) -> bool:
    if not case.has("offline"):
        wrapped.copyWeightsToHost()
        wrapped.copyWeightsToDevice()
    return _forgets(case)


def _state_dict(case: Case, wrapped: Any, inputs: Any) -> bool:
    state = wrapped.state_dict()
    pickle.loads(pickle.dumps(copy.deepcopy(wrapped.model)))
    wrapped.load_state_dict(state)
    return _forgets(case)


def _latency(case: Case, wrapped: Any, inputs: Any) -> bool:
    low, high, average = wrapped.getLatency()
    if not low <= average <= high:
        raise Interrupted(f"latencies {low}, {high}, {average} are out of order")
    return False


def _evaluate_beside(case: Case, wrapped: Any, inputs: Any) -> bool:
    if case.training and not case.has("offline"):
        beside = poptorch.inferenceModel(wrapped.model, poptorch.Options().showCompilationProgressBar(False))
        beside(tree_map_only(Tensor, Tensor.detach, inputs))
        beside.destroy()
    return case.network == "in place"  # It counts its calls: a second model shares the count through the host.


def _new_optimiser(case: Case, wrapped: Any, inputs: Any) -> bool:
    if case.training:
        wrapped.setOptimizer(OPTIMISERS[case.optimiser][0](wrapped.model.parameters()))
    return case.training and case.optimiser != "sgd"


def _compile_again(case: Case, wrapped: Any, inputs: Any) -> bool:
    wrapped.destroy()
    return True


def _interrupt(case: Case, wrapped: Any, inputs: Any) -> bool:
    """Stop a call, or a compilation, as Ctrl-C does, at a moment that the seed decides."""
    if case.seed % 2:
        wrapped.destroy()

    def stop(number: int, frame: types.FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, _CALL * (1 + 9 * (case.seed % 2)) * (case.seed % 997 + 1) / 997)
        wrapped.compile(inputs) if case.has("offline") else wrapped(inputs)
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return True


def _copy(case: Case, wrapped: Any, inputs: Any) -> bool:
    """Copy the wrapped module in every way that programs do; the program itself goes on undisturbed."""
    copy.copy(wrapped.model)
    copy.deepcopy(wrapped.model)
    pickle.loads(pickle.dumps(wrapped.model))
    with io.BytesIO() as file:
        torch.save(wrapped, file)
    return False


ACTIONS: dict[str, Callable[[Case, Any, Any], bool]] = {
    "nothing": lambda case, wrapped, inputs: False,
    "other rows": _other_rows,
    "other type": lambda case, wrapped, inputs: _refused(lambda: wrapped([inputs])),
    "detach and attach": _attach_again,
    "copy weights": _copy_weights,
    "state dict": _state_dict,
    "profile": lambda case, wrapped, inputs: ipu_model.profile(wrapped) is None,
    "latency": _latency,
    "evaluate beside": _evaluate_beside,
    "collect": lambda case, wrapped, inputs: gc.collect() < 0,
    "missing argument": lambda case, wrapped, inputs: _refused(wrapped),
    "new optimiser": _new_optimiser,
    "compile again": _compile_again,
    "interrupt": _interrupt,
    "copy": _copy,
}
