"""The results of a call: forward's return value in its own structure, and the anchored tensors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ipu_model.capture.assemble import with_results
from ipu_model.capture.graph import Graph
from ipu_model.compute.gradients import FINAL
from ipu_model.compute.session import RETURNED_DTYPE
from ipu_model.compute.update_rules import is_scalar_name
from ipu_model.errors import Error
from ipu_model.step import Step
from poptorch._backend.tensor_names import Source, tensor_names
from poptorch.options import Options

_SHOWN = 5

Anchors = Mapping[str, Source]
"""The tensors that `anchorTensor` names, by their short names."""


def names_of(graph: Graph, step: Step, options: Options, numbers: Sequence[str] = ()) -> dict[str, Source]:
    names = tensor_names(graph, step, module_scopes=options._module_namescope_enabled, numbers=numbers)
    if graph.loss is not None and options._backend.adapts_loss_scaling:
        names[FINAL] = Source(updated=FINAL)
    return names


def anchors_of(graph: Graph, step: Step, options: Options, numbers: Sequence[str] = ()) -> Anchors:
    """Find the tensors that the options anchor; `numbers` are the names of the optimiser's numbers."""
    wanted = {short_name: long_name for short_name, (long_name, *_) in options.anchored_tensors.items()}
    known = names_of(graph, step, options, numbers) if wanted else {}
    for short_name, long_name in wanted.items():
        if long_name not in known:
            raise _unknown(short_name, long_name, list(known))
    return {short_name: known[long_name] for short_name, long_name in wanted.items()}


def _unknown(short_name: str, long_name: str, known: list[str]) -> Error:
    nearest = difflib.get_close_matches(long_name, known, n=_SHOWN, cutoff=0.5)
    inside = [name for name in known if str(long_name).lower() in name.lower() and name not in nearest]
    shown = [*nearest, *inside][:_SHOWN]
    kind = "The nearest names are" if shown else "There are for instance"
    hint = f"{kind}: {', '.join(shown or known[:_SHOWN])}."
    return Error(
        f"anchorTensor('{short_name}', '{long_name}'): the compiled model has no tensor named '{long_name}'. {hint} "
        "Compile the model without this anchor and call getTensorNames() to see all of them."
    )


def with_anchors(graph: Graph, step: Step, options: Options) -> Graph:
    """Return `graph` with the anchored tensors as outputs after those of forward; without any, `graph` itself.

    Numbers of the optimiser are not tensors of the graph and are skipped here.
    """
    numbers = [long_name for long_name, *_ in options.anchored_tensors.values() if is_scalar_name(long_name)]
    sources = anchors_of(graph, step, options, numbers).values()
    wanted = [source.node for source in sources if source.node is not None]
    return with_results(graph, wanted) if wanted else graph


def by_short_name(graph: Graph, anchors: Anchors, results: Sequence[Tensor]) -> dict[str, Tensor]:
    """Pick the anchored tensors from all results of a call: those of forward, of the graph, then updated variables."""
    own = sum(output.node is not None and not output.anchored for output in graph.outputs)
    ordered = sorted(anchors, key=lambda short_name: anchors[short_name].node is None)
    return dict(zip(ordered, results[own:], strict=True))


def present(graph: Graph, results: Sequence[Tensor]) -> Any:
    """Put computed results and compile-time constants into the structure that forward returned."""
    computed, leaves = iter(results), []
    for output in graph.outputs:
        if output.anchored:
            continue
        leaf = output.value if output.node is None else next(computed)
        if isinstance(leaf, Tensor):
            if output.node is None:
                leaf = leaf.detach().to(RETURNED_DTYPE.get(leaf.dtype, leaf.dtype), copy=True)
            leaf.__dict__.update(backward=_refuse_backward, __getstate__=_no_state)
        leaves.append(leaf)
    return graph.rebuild_outputs(leaves)


def _no_state() -> None:
    """Let outputs be pickled as plain tensors, so that files with them load without PopTorch."""


def _refuse_backward(*args: Any, **kwargs: Any) -> NoReturn:
    raise Error(
        "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a trainingModel, the "
        "backwards pass is performed automatically when invoking the model. If you're using an inferenceModel, you "
        "should use a trainingModel instead."
    )


def synthetic(inputs: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Return synthetic inputs as the device makes them: normally distributed numbers, and zeros for integers."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(t.shape, generator=generator).to(t.dtype) if t.is_floating_point() else torch.zeros_like(t)
        for t in inputs
    ]
