"""The weight update of a compiled program: state, streamed scalars, and the step itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ipu_model.capture.graph import torch_dtype
from ipu_model.compute.rounding import Rounding
from ipu_model.compute.update_rules import LOSS_SCALING, Context, Entry, UpdateRule, rule_for, scalar_name
from ipu_model.errors import Error
from ipu_model.optimiser import OptimiserSpec, weight_update
from ipu_model.step import FLOAT16, DType

_COMPILED_IN = {
    "max_grad_norm": "max_grad_norm",
    "use_tf_variant": "use_tf_variant",
    "accum_dtype": "accum_type",
    "velocity_dtype": "velocity_accum_type",
    "first_dtype": "first_order_momentum_accum_type",
    "second_dtype": "second_order_momentum_accum_type",
}


class Updater:
    """Updates float32 `weights` in place, on the float16 grid by `dtypes`, with the numbers of their `group_of`."""

    def __init__(
        self,
        spec: OptimiserSpec,
        weights: Mapping[str, Tensor],
        dtypes: Mapping[str, torch.dtype],
        group_of: Mapping[str, int | None],
        rounding: Rounding,
    ) -> None:
        spec.validate()
        self._weights = dict(weights)
        self._half = {name: dtypes[name] == torch.float16 for name in weights}
        self._group_of = {name: group_of[name] for name in weights}
        self._rounding = rounding
        self._weight_storages = {w.untyped_storage().data_ptr() for w in self._weights.values()}
        self._rules = self._rules_of(spec)
        self._fresh = set(self._weights)
        self.state: dict[str, Tensor] = {
            f"{slot.prefix}___{name}": torch.full((), slot.initial, dtype=torch.float32)
            if slot.single
            else torch.full_like(self._weights[name], slot.initial, dtype=torch.float32, requires_grad=False)
            for name, rule in self._rules.items()
            for slot in rule.compiled.slots
        }
        self._stream(spec)

    def set_spec(self, spec: OptimiserSpec) -> None:
        """Use the numbers of `spec` from the next step on; `Error`, with no change, if what is compiled in differs."""
        spec.validate()
        groups = sorted(set(self._group_of.values()), key=lambda group: (group is None, group or 0))
        check_replacement(self.spec, spec, groups)
        for name, rule in self._rules_of(spec).items():
            if rule != self._rules[name]:
                raise Error(
                    f"Can not add or remove the optimiser state of {name} (such as a velocity) in "
                    "a compiled program. Keep the kind of optimiser, or destroy and compile again."
                )
        if spec.family == "SGD2" and spec.loss_scaling != self.loss_scaling:
            # The separate velocity is kept multiplied by the loss scaling.
            for tensor in self.state.values():
                tensor.mul_(spec.loss_scaling / self.loss_scaling)
            self._round_loaded(set(self.state))
        self._stream(spec)

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], scale: float) -> None:
        """Update the weights named in `gradients`, in place; the gradient tensors may be overwritten.

        Each gradient (float32, the weight's shape) is the sum over micro-batches and replicas, still multiplied by the
        loss scaling; `scale` is what remains to be multiplied in: 1/(A*R*P) for a mean, else 1.
        """
        limit = self.spec.max_grad_norm
        if limit != float("inf") and gradients:  # for the norm of all true gradients together
            norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients.values()])
            norm = float(torch.linalg.vector_norm(norms)) * abs(scale / self.loss_scaling)
            scale *= 1.0 if norm <= limit else limit / norm
        context = Context(scale, self.loss_scaling, self._rounding)
        shared = Counter(g.untyped_storage().data_ptr() for g in gradients.values())
        # All entries before any update: a gradient may be another weight, which must not have moved yet.
        work = [(key, self._entries(key[0], names, gradients, shared)) for key, names in self._batches.items()]
        for (rule, scalars), entries in work:
            if entries:
                rule.update(entries, dict(scalars), context)
        self._fresh.difference_update(gradients)

    def parameters(self) -> dict[str, Tensor]:
        """Return the streamed scalars, float32: `<scalar>___specific___<weight>` and `lossScaling_FLOAT`."""
        scalars = {
            scalar_name(key, name): torch.tensor(value, dtype=torch.float32)
            for name, values in self._scalars.items()
            for key, value in values.items()
        }
        scalars[LOSS_SCALING] = torch.tensor(self.loss_scaling, dtype=torch.float32)
        return scalars

    def read_state(self) -> dict[str, Tensor]:
        return {name: tensor.to(torch_dtype(self._state_dtype(name)), copy=True) for name, tensor in self.state.items()}

    def load_state(self, state: Mapping[str, Tensor] | None, parameters: Mapping[str, Tensor] | None) -> list[str]:
        """Load a checkpoint; warnings name missing and unknown entries, `Error` refuses other shapes unchanged."""
        warnings: list[str] = []
        if state is not None:
            known = self.state.keys() & state.keys()
            for name in known:
                if state[name].shape != self.state[name].shape:
                    raise Error(
                        f"The loaded optimiser state {name} has shape {tuple(state[name].shape)}, the compiled program "
                        f"needs {tuple(self.state[name].shape)}. Load the state of the same model."
                    )
            warnings += _differences("state", self.state, state)
            for name in known:
                self.state[name].copy_(state[name])
                if bool(self.state[name].any()):
                    self._fresh.discard(name.split("___", 1)[1])
            self._round_loaded(known)
        if parameters is not None:
            warnings += _differences("parameter", self.parameters(), parameters)
            for name, values in self._scalars.items():
                for key in values:
                    if (full := scalar_name(key, name)) in parameters:
                        values[key] = float(parameters[full])
            if LOSS_SCALING in parameters:
                self.loss_scaling = float(parameters[LOSS_SCALING])
            self._batches = self._group()
        return warnings

    def _round_loaded(self, names: set[str]) -> None:
        Rounding(overflow=self._rounding.overflow)(
            [self.state[name] for name in names if self._state_dtype(name) == FLOAT16]
        )

    def _state_dtype(self, name: str) -> DType:
        prefix, weight = name.split("___", 1)
        return next(slot.dtype for slot in self._rules[weight].compiled.slots if slot.prefix == prefix)

    def _rules_of(self, spec: OptimiserSpec) -> dict[str, UpdateRule]:
        return {name: rule_for(weight_update(spec, spec.hyper(group))) for name, group in self._group_of.items()}

    def _stream(self, spec: OptimiserSpec) -> None:
        self.spec = spec
        # The gradients given to `step` must have been multiplied by this number.
        self.loss_scaling = spec.loss_scaling
        self._scalars: dict[str, dict[str, float]] = {
            name: rule.scalars(spec.hyper(self._group_of[name]), spec.loss_scaling)
            for name, rule in self._rules.items()
        }
        self._batches = self._group()

    def _group(self) -> dict[tuple[UpdateRule, tuple[tuple[str, float], ...]], list[str]]:
        together: dict[tuple[UpdateRule, tuple[tuple[str, float], ...]], list[str]] = {}
        for name, scalars in self._scalars.items():
            together.setdefault((self._rules[name], tuple(scalars.items())), []).append(name)
        return together

    def _entries(
        self, rule: UpdateRule, names: list[str], gradients: Mapping[str, Tensor], shared: Mapping[int, int]
    ) -> list[Entry]:
        entries = []
        for name in names:
            if name not in gradients:
                continue
            weight, gradient, owned = self._weights[name], gradients[name], rule.consumes_gradient
            storage = gradient.untyped_storage().data_ptr()
            aliased = storage in self._weight_storages or (owned and shared[storage] > 1)
            if aliased or (owned and gradient.stride() != weight.stride()):
                gradient = torch.empty_like(weight).copy_(gradient)
            state = {slot.prefix: self.state[f"{slot.prefix}___{name}"] for slot in rule.compiled.slots}
            entries.append(Entry(weight, gradient, state, self._half[name], name in self._fresh))
        return entries


def _differences(kind: str, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    missing = [f"ignoring missing {kind} {n}: the device keeps its value" for n in expected if n not in given]
    unknown = [f"ignoring unexpected {kind} {n}: the compiled program has none" for n in given if n not in expected]
    return [*missing, *unknown]


def check_replacement(old: OptimiserSpec, new: OptimiserSpec, groups: Collection[int | None]) -> None:
    """Raise `Error` unless `new` may replace `old` in a compiled program whose weights belong to `groups`."""
    if new.family != old.family:
        raise Error(
            f"Can not replace the compiled {old.family} optimiser by one of type {new.family}: the update is part of "
            f"the executable. Set an optimiser of type {old.family}, or destroy and compile again."
        )
    for attribute, public in _COMPILED_IN.items():
        before, after = (getattr(spec, attribute) for spec in (old, new))
        if isinstance(before, DType) and isinstance(after, DType):
            before, after = torch_dtype(before), torch_dtype(after)
        if before != after:
            raise Error(
                f"Can not change {public} from {before} to {after}: it is compiled in. "
                "Keep its value, or destroy and compile again."
            )
    before, after = ((spec.loss_scaling, spec.loss_scaling_variable) for spec in (old, new))
    _compare("loss_scaling of the optimiser", before, after)
    for group in groups:
        if group is not None and group >= len(new.groups):
            raise Error(
                f"The compiled program has weights in parameter group {group}, but the new optimiser has only "
                f"{len(new.groups)} groups. Give it a group for each one that was compiled."
            )
        where = "the defaults" if group is None else f"group {group}"
        for attribute in old.attributes:
            # `nesterov` selects code and is never variable.
            before, after = (
                (getattr(hyper, attribute), attribute != "nesterov" and attribute in hyper.variable)
                for hyper in (old.hyper(group), new.hyper(group))
            )
            _compare(f"{attribute} of {where}", before, after)


def _compare(what: str, old: tuple[object, bool], new: tuple[object, bool]) -> None:
    """Raise unless a number may change as asked: `old` and `new` are its values, and whether they are variable."""
    (before, was_variable), (after, is_variable) = old, new
    attribute = what.partition(" ")[0]
    hint = (
        "It selects code: destroy and compile again"
        if attribute == "nesterov"
        else "Use an optimiser of poptorch.optim and mark it before compiling with "
        f'opt.variable_attrs.markAsVariable("{attribute}")'
    )
    if was_variable and not is_variable:
        raise Error(
            f"Can not replace a non constant value with a constant value: {what} was compiled as a variable. {hint}, "
            "on the new optimiser too."
        )
    if is_variable and not was_variable:
        raise Error(
            f"Can not replace a constant value with a non constant value: {what} was compiled in as {before}. {hint}, "
            "or mark it as a constant on the new optimiser."
        )
    if not is_variable and before != after:
        raise Error(
            f"Values are constant but do not match: {what} was compiled in as {before}, the new optimiser has {after}. "
            f"{hint} if it is to change."
        )
