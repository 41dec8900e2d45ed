"""Run one case and judge it: right, refused with a message, or a fault."""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

import poptorch
from fuzz.actions import ACTIONS, Interrupted
from fuzz.cases import OPTIMISERS, Case, inputs_of, network_of, options_of
from fuzz.leftovers import Leftovers
from fuzz.loading import batches_of
from fuzz.networks import Network
from fuzz.plain import PlainProgram, slices

RIGHT, REFUSED, FAULT = "right", "refused", "fault"
_CALLS = 2
_SHORTEST_MESSAGE = 15
_TOLERANCE = 2e-4


@dataclass(frozen=True)
class Outcome:
    """What came of a case: `kind` is RIGHT, REFUSED or FAULT; `text` the error's class and words."""

    kind: str
    text: str = ""


class Fault(Exception):
    """Something that must never happen."""


def run(case: Case) -> Outcome:
    """Run a case from its seed and return the verdict; nothing is raised."""
    torch.manual_seed(case.seed)
    before = Leftovers.now()
    network = network_of(case)
    try:
        outcome = _judged(case, network)
        gc.collect()
        _check(before.difference(), "left behind")
    except Fault as fault:
        outcome = Outcome(FAULT, str(fault))
    return outcome


def _judged(case: Case, network: Network) -> Outcome:
    try:
        wrapped = _wrapped(case, network)
    except Exception as error:
        return _refusal(case, error, network, None)
    plain = PlainProgram(network, OPTIMISERS[case.optimiser][1] if case.training else None, case)
    interrupted = False
    try:
        for number, inputs in enumerate(batches_of(case, _CALLS)):
            if number == 1:
                interrupted = _act(case, wrapped, inputs)
            _call(case, wrapped, plain, inputs, compare=not interrupted)
    except Fault:
        raise
    except Exception as error:
        return _refusal(case, error, network, wrapped)
    _destroyed(network, wrapped)
    if case.training and not interrupted and _comparable(case):
        _check(difference(_weights(network), _weights(plain.network), values=True), "weights")
    return Outcome(RIGHT)


def _wrapped(case: Case, network: Network) -> poptorch.PoplarExecutor:
    options = options_of(case)
    if not case.training:
        return poptorch.inferenceModel(network, options)
    return poptorch.trainingModel(network, options, OPTIMISERS[case.optimiser][0](network.parameters()))


def _act(case: Case, wrapped: Any, inputs: Any) -> bool:
    """Do the case's action between two calls; return whether results cannot be predicted after it."""
    try:
        return ACTIONS[case.action](case, wrapped, inputs)
    except Interrupted as interrupt:
        raise Fault(f"an interrupt was not handled: {interrupt}") from interrupt


def _call(case: Case, wrapped: Any, plain: PlainProgram, inputs: Any, *, compare: bool) -> None:
    if case.has("offline"):
        wrapped.compile(inputs)
        return
    state = torch.get_rng_state()
    given = torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), inputs)
    results = wrapped(inputs)
    if not torch.equal(state, torch.get_rng_state()):
        raise Fault("a call drew from the host's random generator")
    try:
        expected = plain.call(given)
    except Exception as error:
        if case.half or case.dtype != "float32":
            return  # Plain PyTorch has no such kernel, so there is nothing to compare with.
        raise Fault(f"plain PyTorch refuses what was computed: {type(error).__name__}: {error}") from error
    random = plain.network.kind.draws_random_numbers or case.has("synthetic data")
    if compare and not random:
        _check(difference(results, expected, values=_comparable(case)), "results")
    else:
        _check(difference(results, expected, values=False, nan=False), "shapes")


def _comparable(case: Case) -> bool:
    """Whether the program's arithmetic is plain PyTorch's: fp32, no rounding or scaling of its own."""
    own = {"stochastic rounding", "half partials", "synthetic data", "automatic loss scaling", "offline"}
    exact = case.dtype not in ("float16", "bfloat16", "float64") and not case.half
    known = not case.training or OPTIMISERS[case.optimiser][1] is not None
    return exact and known and not case.switches & own and case.network != "dropout"


def _destroyed(network: Network, wrapped: Any) -> None:
    """Destroy the executor and see that the module is a plain one again, with finite weights."""
    if not wrapped.isCompiled():
        return  # Such an executor unwraps its module when it is deleted.
    wrapped.destroy()
    if type(network).__name__.startswith("Poptorch"):
        raise Fault("the module is still wrapped after destroy()")
    if any(type(parameter) is not torch.nn.Parameter for parameter in network.parameters()):
        raise Fault("a parameter is still wrapped after destroy()")
    network.state_dict()


def _weights(network: Network) -> dict[str, torch.Tensor]:
    """Return what a device changes: integer buffers, such as counters of batches, are constants there."""
    return {name: value for name, value in network.state_dict().items() if value.is_floating_point()}


def _refusal(case: Case, error: Exception, network: Network, wrapped: Any) -> Outcome:
    """Judge an error: a documented class with a message, or what plain PyTorch says to the same data."""
    text = f"{type(error).__name__}: {error}"
    documented = isinstance(error, (poptorch.Error, AssertionError))
    documented = documented or (isinstance(error, ValueError) and wrapped is None)
    if wrapped is not None:
        _destroyed(network, wrapped)
    if not (documented and len(str(error)) >= _SHORTEST_MESSAGE) and not _plain_refuses(case, error):
        raise Fault(f"an error of no documented class: {text}") from error
    return Outcome(REFUSED, text)


def _plain_refuses(case: Case, error: Exception) -> bool:
    """Whether plain PyTorch raises the same class of error for one micro-batch."""
    network = network_of(case)
    plain = PlainProgram(network, None, case)
    try:
        plain.call(inputs_of(case, case.rows * max(1, slices(case))))
    except Exception as same:
        return type(same) is type(error)
    return False


def _check(complaint: str, what: str) -> None:
    if complaint:
        raise Fault(f"{what}: {complaint}")


def template(text: str) -> str:
    """Return an error's text without numbers and names, to count its kind."""
    return re.sub(r"'[^']*'|\[[^\]]*\]|\d+", "*", text.splitlines()[0])[:110]


def difference(got: Any, expected: Any, *, values: bool, nan: bool = True) -> str:
    """Return in words what is wrong with `got`, or nothing.

    `values` compares numbers too, `nan` refuses NaN where `expected` has none.
    """
    (ours, structure), (theirs, wanted) = tree_flatten(got), tree_flatten(expected)
    if structure != wanted:
        return f"the structure is {structure}, not {wanted}"
    for position, (value, reference) in enumerate(zip(ours, theirs, strict=True)):
        complaint = _leaf(value, reference, values, nan)
        if complaint:
            return f"leaf {position}: {complaint}"
    return ""


def _leaf(value: Any, reference: Any, values: bool, nan: bool) -> str:
    if not isinstance(reference, Tensor):
        return "" if value == reference else f"{value!r} instead of {reference!r}"
    if value.shape != reference.shape:
        return f"shape {tuple(value.shape)} instead of {tuple(reference.shape)}"
    if values and value.dtype != reference.dtype:
        return f"type {value.dtype} instead of {reference.dtype}"
    if nan and value.is_floating_point() and bool((value.isnan() & ~reference.isnan()).any()):
        return f"NaN where plain PyTorch has {reference[value.isnan()][:3].tolist()}"
    if not values:
        return ""
    a, b = value.detach().to(torch.float64), reference.detach().to(torch.float64)
    if torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        return ""
    return f"values {a.flatten()[:4].tolist()} instead of {b.flatten()[:4].tolist()}"
