"""Which optimiser may take over from the one that a program was compiled with."""

from __future__ import annotations

from collections.abc import Collection

from ipu_model.capture.graph import torch_dtype
from ipu_model.errors import Error
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.step import DType

_COMPILED_IN = {
    "max_grad_norm": "max_grad_norm",
    "use_tf_variant": "use_tf_variant",
    "accum_dtype": "accum_type",
    "velocity_dtype": "velocity_accum_type",
    "first_dtype": "first_order_momentum_accum_type",
    "second_dtype": "second_order_momentum_accum_type",
}


def check_replacement(old: OptimiserSpec, new: OptimiserSpec, groups: Collection[int | None]) -> None:
    """Raise `Error` unless `new` may replace `old` in a compiled program whose weights belong to `groups`."""
    if new.family != old.family:
        raise Error(
            f"Can not replace the compiled {old.family} optimiser by one of type {new.family}: "
            f"the update is part of the executable. Set an optimiser of type {old.family}, or destroy and "
            "compile again."
        )
    for attribute, public in _COMPILED_IN.items():
        before, after = (_as_in_torch(getattr(spec, attribute)) for spec in (old, new))
        if before != after:
            raise Error(
                f"Can not change {public} from {before} to {after}: it is compiled in. "
                "Keep its value, or destroy and compile again."
            )
    _compare(
        "loss_scaling",
        "the optimiser",
        (old.loss_scaling, old.loss_scaling_variable),
        (new.loss_scaling, new.loss_scaling_variable),
    )
    for group in groups:
        _check_group(old, new, group)


def _as_in_torch(value: object) -> object:
    return torch_dtype(value) if isinstance(value, DType) else value


def _check_group(old: OptimiserSpec, new: OptimiserSpec, group: int | None) -> None:
    where = "the defaults" if group is None else f"group {group}"
    if group is not None and group >= len(new.groups):
        raise Error(
            f"The compiled program has weights in parameter group {group}, but the new optimiser has "
            f"only {len(new.groups)} groups. Give it a group for each one that was compiled."
        )
    before, after = old.hyper(group), new.hyper(group)
    for attribute in old.attributes:
        _compare(attribute, where, _value(before, attribute), _value(after, attribute))


def _value(hyper: Hyper, attribute: str) -> tuple[object, bool]:
    """Return the value of one attribute and whether it is variable; `nesterov` chooses code and never is."""
    return getattr(hyper, attribute), attribute != "nesterov" and attribute in hyper.variable


def _hint(attribute: str) -> str:
    if attribute == "nesterov":
        return "It selects code: destroy and compile again"
    return (
        "Use an optimiser of poptorch.optim and mark it before compiling with "
        f'opt.variable_attrs.markAsVariable("{attribute}")'
    )


def _compare(attribute: str, where: str, old: tuple[object, bool], new: tuple[object, bool]) -> None:
    (before, was_variable), (after, is_variable) = old, new
    hint = _hint(attribute)
    if was_variable and not is_variable:
        raise Error(
            f"Can not replace a non constant value with a constant value: {attribute} of {where} was "
            f"compiled as a variable. {hint}, on the new optimiser too."
        )
    if is_variable and not was_variable:
        raise Error(
            f"Can not replace a constant value with a non constant value: {attribute} of {where} was "
            f"compiled in as {before}. {hint}, or mark it as a constant on the new optimiser."
        )
    if not is_variable and before != after:
        raise Error(
            f"Values are constant but do not match: {attribute} of {where} was compiled in as "
            f"{before}, the new optimiser has {after}. {hint} if it is to change."
        )
