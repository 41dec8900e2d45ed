"""The names that users know ops and tensors by: the path of the module, and what happens there.

The engine's own names ("mm_default_100") number the ops of a graph; readers of a report know their modules instead:
"encoder.layers.4.linear1: weight gradient", "bn1: batch norm, mean", "fc.weight".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ipu_model.predict.ops import rule_of
from ipu_model.predict.ops.contractions import BIAS_GRADIENT, DATA_GRADIENT, GRADIENT_PARTS, PRODUCTS, WEIGHT_GRADIENT
from ipu_model.predict.remembered import remembered
from ipu_model.step import Op, Source, Step, Tensor


@dataclass(frozen=True)
class Naming:
    ops: Mapping[str, str]
    tensors: Mapping[str, str]

    def part(self, node: str, part: str) -> str:
        """Return the name of one part of an op ("data gradient", "bias"), of the op itself if `part` is empty."""
        name = self.ops.get(node, node)
        if not part:
            return name
        scope, colon, what = name.rpartition(": ")
        return f"{scope}{colon}{part}" if part in GRADIENT_PARTS else f"{scope}{colon}{what}, {part}"


def path_of(op: Op) -> str:
    """Return the path of an op: its module, with the program's own name scopes where they were entered."""
    if not op.name_scopes:
        return op.scope
    parts = [part for part in op.scope.split(".") if part]
    for shift, (depth, name) in enumerate(op.name_scopes):
        parts.insert(depth + shift, name)
    return ".".join(parts)


@remembered
def naming_of(step: Step) -> Naming:
    gradient_of = _makers_of_gradients(step)
    ops = {}
    for op in step.ops:
        path, what = path_of(op), _what(op, step, gradient_of)
        ops[op.name] = f"{path}: {what}" if path else what
    tensors = {name: _tensor(tensor, step, ops) for name, tensor in step.tensors.items()}
    return Naming(ops, {**tensors, **{variable.tensor: variable.name for variable in step.variables}})


def _what(op: Op, step: Step, gradient_of: Mapping[str, str]) -> str:
    rule = rule_of(op.kind)
    words = rule.words.get(op.kind, "") if rule is not None else ""
    if not words:  # `_embedding_bag_backward` is "embedding bag backward"
        words = op.kind.strip("_").removeprefix("native_").removesuffix("_default").replace("_", " ")
    if not op.is_backward or words.endswith(" backward"):
        return words
    if op.name in gradient_of:
        return gradient_of[op.name]
    if op.kind in PRODUCTS and any(tensor.of_weight for tensor in step.read_by(op)):
        return DATA_GRADIENT
    return f"backward {words}"


def _makers_of_gradients(step: Step) -> dict[str, str]:
    """Map the ops that make gradients of weights, or sums and casts of them, to what that is."""
    dimensions = {variable.name: len(step.tensors[variable.tensor].shape) for variable in step.variables}
    makers: dict[str, str] = {}
    for variable, gradient in step.gradients.items():
        pending, seen = [gradient], set[str]()
        while pending:
            op = step.producer(pending.pop())
            if op is None or not op.is_backward or op.name in seen:
                continue
            seen.add(op.name)
            if not op.is_view and not op.kind.endswith("_backward"):
                makers.setdefault(op.name, BIAS_GRADIENT if dimensions.get(variable) == 1 else WEIGHT_GRADIENT)
            if op.is_view or op.kind in ("_to_copy", "clone") or (op.kind == "add" and len(op.reads) > 1):
                pending += [tensor.name for tensor in step.read_by(op)]
    return makers


def _tensor(tensor: Tensor, step: Step, ops: Mapping[str, str]) -> str:
    """Return the name of a tensor: that of the op that makes it, and which of its results it is."""
    op = step.producer(tensor.name)
    if op is None:
        source, name = step.source(tensor.name), tensor.name.replace("_", " ")
        return {Source.SEED: "gradient of the loss", Source.CONSTANT: f"constant {name}"}.get(source, name)
    name = ops[op.name]
    if op.kind.endswith("convolution_backward"):
        scope, colon, _ = name.rpartition(": ")
        return f"{scope}{colon}{GRADIENT_PARTS[min(tensor.index, 2)]}"
    rule = rule_of(op.kind)
    further = (rule.further_results if rule is not None else ())[tensor.index - 1 : tensor.index]
    return f"{name}, {''.join(further) or f'result {tensor.index + 1}'}" if tensor.index else name
