"""Run one case and judge it: right, refused with a message, or a fault.

The oracle is what plain PyTorch computes for it, micro-batch by micro-batch, written without our engine.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

import ipu_model
import poptorch
from fuzz.cases import Case, inputs_of, network_of, optimiser_of, options_of, plain_optimiser_of
from fuzz.leftovers import Leftovers
from fuzz.networks import Network

RIGHT, REFUSED, FAULT = "right", "refused", "fault"
_CALLS = 2
_SHORTEST_MESSAGE = 15
_TOLERANCE = 2e-4
# An interrupt comes at some moment of a call of this length, in seconds.
_CALL = 0.006


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
    try:
        outcome = _judged(case, network_of(case))
        gc.collect()
        _check(before.difference(), "left behind")
        return outcome
    except Fault as fault:
        return Outcome(FAULT, str(fault))


def _judged(case: Case, network: Network) -> Outcome:
    wrapped = None
    try:
        wrapped = _wrapped(case, network)
        plain, predictable = PlainProgram(network, case), True
        for number, inputs in enumerate(_batches(case)):
            if number == 1:
                predictable = case.action == "nothing" or not ACTIONS[case.action](case, wrapped, inputs)
            _call(case, wrapped, plain, inputs, compare=predictable)
    except Fault:
        raise
    except Exception as error:
        return _refusal(case, error, network, wrapped)
    _destroy(network, wrapped)
    if predictable and plain.optimiser is not None and _comparable(case):
        _check(difference(_weights(network), _weights(plain.network), values=True), "weights")
    return Outcome(RIGHT)


def _wrapped(case: Case, network: Network) -> Any:
    if not case.training:
        return poptorch.inferenceModel(network, options_of(case))
    return poptorch.trainingModel(network, options_of(case), optimiser_of(case, network))


def _batches(case: Case) -> Iterator[Any]:
    """Yield the inputs of each call, straight or through a loader, which must deliver the rows in order."""
    data = inputs_of(case, case.rows * max(1, case.slices) + case.surplus)
    if case.loader == "tensors" or not isinstance(data, Tensor) or case.rows == 0:
        # Each call gets data of its own: a network may write into its inputs.
        same = (lambda tensor: tensor) if case.layout != "contiguous" else Tensor.clone
        yield from (tree_map_only(Tensor, same, data) for _ in range(_CALLS))
        return
    data = inputs_of(case, _CALLS * case.rows * case.slices + case.surplus).detach()
    others: dict[str, Any] = {"drop_last": case.drop_last, "num_workers": case.workers}
    if case.loader != "Sync":
        others["async_options"] = {"sharing_strategy": poptorch.SharingStrategy.Fork}
    mode = poptorch.DataLoaderMode[case.loader]
    loader = poptorch.DataLoader(options_of(case), data, batch_size=case.rows, mode=mode, **others)
    try:
        start = 0
        for item in loader:
            if not torch.equal(item, data[start : start + len(item)]):
                raise Fault(f"rows {start} to {start + len(item) - 1} came out as others")
            start += len(item)
            yield item
        left = len(data) - start
        if left and (not case.drop_last or left >= case.rows * case.slices):
            raise Fault(f"{left} rows of {len(data)} did not come out")
    finally:
        with suppress(AttributeError):
            loader.terminate()


def _call(case: Case, wrapped: Any, plain: PlainProgram, inputs: Any, *, compare: bool) -> None:
    if case.has("offline"):
        wrapped.compile(inputs)
        return
    state = torch.get_rng_state()
    given = tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), inputs)
    results = wrapped(inputs)
    if not torch.equal(state, torch.get_rng_state()):
        raise Fault("a call drew from the host's random generator")
    try:
        expected = plain.call(given)
    except Exception as error:
        if case.half or case.dtype != "float32":
            return  # Plain PyTorch has no such kernel, so there is nothing to compare with.
        raise Fault(f"plain PyTorch refuses what was computed: {type(error).__name__}: {error}") from error
    if compare and case.network != "dropout" and not case.has("synthetic data"):
        _check(difference(results, expected, values=_comparable(case)), "results")
    else:
        _check(difference(results, expected, values=False, nan=False), "shapes")


def _comparable(case: Case) -> bool:
    """Whether the program's arithmetic is plain PyTorch's: fp32, no rounding or scaling of its own."""
    own = {"stochastic rounding", "half partials", "synthetic data", "automatic loss scaling", "offline"}
    exact = case.dtype not in ("float16", "bfloat16", "float64") and not case.half
    known = not case.training or case.optimiser not in ("lamb", "rmsprop")
    return exact and known and not case.switches & own and case.network != "dropout"


def _destroy(network: Network, wrapped: Any) -> None:
    """Destroy the executor and see that the module is a plain one again."""
    if wrapped is None or not wrapped.isCompiled():
        return  # Such an executor unwraps its module when it is deleted.
    wrapped.destroy()
    if type(network).__name__.startswith("Poptorch"):
        raise Fault("the module is still wrapped after destroy()")
    if any(type(parameter) is not torch.nn.Parameter for parameter in network.parameters()):
        raise Fault("a parameter is still wrapped after destroy()")
    network.state_dict()


def _weights(network: Network) -> dict[str, Tensor]:
    """Return what a device changes: integer buffers, such as counters of batches, are constants there."""
    return {name: value for name, value in network.state_dict().items() if value.is_floating_point()}


def _refusal(case: Case, error: Exception, network: Network, wrapped: Any) -> Outcome:
    """Judge an error: a documented class with a message, or what plain PyTorch says to the same data."""
    text = f"{type(error).__name__}: {error}"
    documented = isinstance(error, (poptorch.Error, AssertionError))
    documented = documented or (isinstance(error, ValueError) and wrapped is None)
    _destroy(network, wrapped)
    if not (documented and len(str(error)) >= _SHORTEST_MESSAGE):
        try:
            PlainProgram(network_of(case), case).call(inputs_of(case, case.rows * max(1, case.slices)))
        except type(error):
            return Outcome(REFUSED, text)
        except Exception as other:
            raise Fault(f"an error of no documented class: {text}") from other
        raise Fault(f"an error of no documented class: {text}") from error
    return Outcome(REFUSED, text)


def _check(complaint: str, what: str) -> None:
    if complaint:
        raise Fault(f"{what}: {complaint}")


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
    a, b = value.detach().to(torch.float64), reference.detach().to(torch.float64)
    if not values or torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        return ""
    return f"values {a.flatten()[:4].tolist()} instead of {b.flatten()[:4].tolist()}"


# The actions of cases between two calls; each returns whether results cannot be predicted after it.


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except (poptorch.Error, AssertionError):
        return False
    raise Fault("a call that differs from the compiled one was not refused")


def _doubled(inputs: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: torch.cat((tensor, tensor)).detach(), inputs)


def _there_and_back(out: str, back: str) -> Callable[[Case, Any, Any], bool]:
    """Weights that go to the host and back lose what the plain program keeps.

    That is the state of an optimiser, and a counter in a buffer: an inference model never brings its buffers back.
    """

    def act(case: Case, wrapped: Any, inputs: Any) -> bool:
        if out == "state_dict":
            pickle.loads(pickle.dumps(copy.deepcopy(wrapped.model)))
            wrapped.load_state_dict(wrapped.state_dict())
        elif not case.has("offline"):
            getattr(wrapped, out)()
            getattr(wrapped, back)()
        return (case.training and case.optimiser != "sgd") or case.network == "in place"

    return act


def _latency(case: Case, wrapped: Any, inputs: Any) -> bool:
    low, high, average = wrapped.getLatency()
    if not low <= average <= high:
        raise Fault(f"latencies {low}, {high}, {average} are out of order")
    return False


def _evaluate_beside(case: Case, wrapped: Any, inputs: Any) -> bool:
    if case.training and not case.has("offline"):
        beside = poptorch.inferenceModel(wrapped.model, poptorch.Options().showCompilationProgressBar(False))
        beside(tree_map_only(Tensor, Tensor.detach, inputs))
        beside.destroy()
    return case.network == "in place"  # It counts its calls: a second model shares the count through the host.


def _new_optimiser(case: Case, wrapped: Any, inputs: Any) -> bool:
    if case.training:
        wrapped.setOptimizer(optimiser_of(case, wrapped.model))
    return case.training and case.optimiser != "sgd"


def _interrupt(case: Case, wrapped: Any, inputs: Any) -> bool:
    """Stop a call, or a compilation, as Ctrl-C does, at a moment that the seed decides."""
    if case.seed % 2:
        wrapped.destroy()
    before = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
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
    torch.save(wrapped, io.BytesIO())
    return False


ACTIONS: dict[str, Callable[[Case, Any, Any], bool]] = {
    "other rows": lambda case, wrapped, inputs: _refused(lambda: wrapped(_doubled(inputs))),
    "other type": lambda case, wrapped, inputs: _refused(lambda: wrapped([inputs])),
    "missing argument": lambda case, wrapped, inputs: _refused(wrapped),
    "detach and attach": _there_and_back("detachFromDevice", "attachToDevice"),
    "copy weights": _there_and_back("copyWeightsToHost", "copyWeightsToDevice"),
    "state dict": _there_and_back("state_dict", "load_state_dict"),
    "profile": lambda case, wrapped, inputs: ipu_model.profile(wrapped) is None,
    "latency": _latency,
    "evaluate beside": _evaluate_beside,
    "collect": lambda case, wrapped, inputs: gc.collect() < 0,
    "new optimiser": _new_optimiser,
    "compile again": lambda case, wrapped, inputs: wrapped.destroy() is None,
    "interrupt": _interrupt,
    "copy": _copy,
}


# --- the oracle

# What a device without 64-bit numbers gives back (execution reference, 5.4).
RETURNED = {torch.int64: torch.int32, torch.float64: torch.float32}
# The same types on the way in; the device computes them in 32 bits.
SENT = {torch.float64: torch.float32, torch.bfloat16: torch.float32}


class PlainProgram:
    """A copy of a network with an optimiser of its own; replicas share its parameters, and have their own buffers."""

    def __init__(self, network: Network, case: Case) -> None:
        self.case = case
        self.network = copy.deepcopy(network)
        self.optimiser = plain_optimiser_of(case, self.network)
        shared = {id(parameter): parameter for parameter in self.network.parameters()}
        others = (copy.deepcopy(self.network, dict(shared)) for _ in range(case.replicas - 1))
        self._replicas = [self.network, *others]

    def call(self, inputs: Any) -> Any:
        """Return what a call of the program returns, in the network's own structure."""
        case, steps = self.case, []
        with plain_kernels():
            for step in range(case.iterations * case.accumulation):
                if self.optimiser is not None and step % case.accumulation == 0:
                    self.optimiser.zero_grad()
                steps.append([self._micro_batch(inputs, step, replica) for replica in range(case.replicas)])
                if self.optimiser is not None and (step + 1) % case.accumulation == 0:
                    self.optimiser.step()
        return self._returned(steps)

    def _micro_batch(self, inputs: Any, step: int, replica: int) -> Any:
        case = self.case
        chunks = case.replicas // case.group
        chunk = replica % chunks if case.has("orthogonal groups") else replica // case.group

        def cut(tensor: Tensor) -> Tensor:
            part = tensor.detach().chunk(case.slices)[step * chunks + chunk].clone()
            return part.to(SENT.get(part.dtype, part.dtype))

        with torch.set_grad_enabled(self.optimiser is not None):
            result = self._replicas[replica](tree_map_only(Tensor, cut, inputs))
        if self.optimiser is not None:
            (result[1] / (1 if case.has("sum") else case.accumulation * case.replicas)).backward()
        return tree_map_only(Tensor, Tensor.detach, result)

    def _returned(self, steps: list[list[Any]]) -> Any:
        """Join micro-batch results as the output mode asks; results that are no tensors are those of any step."""
        flat = [[tree_flatten(result)[0] for result in step] for step in steps]
        leaves = []
        for position, leaf in enumerate(flat[0][0]):
            if isinstance(leaf, Tensor):
                if position not in self.network.kind.constants:
                    leaf = _joined(self.case, [[result[position] for result in step] for step in flat])
                leaf = leaf.to(RETURNED.get(leaf.dtype, leaf.dtype))
            leaves.append(leaf)
        return tree_unflatten(leaves, tree_flatten(steps[0][0])[1])


def _joined(case: Case, steps: list[list[Tensor]]) -> Any:
    mode = case.mode if case.mode != "Default" else "Final" if case.training else "All"
    if mode == "Sum":
        parts = [sum(rest, start=first).to(first.dtype) for first, *rest in zip(*steps, strict=True)]
    else:
        kept = {"All": steps, "Final": steps[-1:], "EveryN": steps[case.period - 1 :: case.period]}[mode]
        parts = [value for step in kept for value in step]
    if len(parts) == 1:
        return parts[0]
    return torch.stack(parts) if parts[0].dim() == 0 else torch.cat(parts)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Turn off PyTorch's fused inference of transformers: no half precision on many machines, zeros for padding."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
