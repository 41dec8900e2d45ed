"""The lines of PopTorch code that turn one program into another."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ipu_model.explore.options import optimiser_class, option_named, state_type_arguments
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.program import Program
from ipu_model.predict.recomputation import default_recomputation
from ipu_model.step import FLOAT16, ipus_in_use

_OPTION_LINES = (
    "device_iterations", "gradient_accumulation", "replicas", "execution", "recomputation",
    "available_memory_proportion", "half_partials", "optimiser_off_chip", "optimiser_sharded",
)  # fmt: skip


_NAMES = (
    ("model", "your module"),
    ("opts", "its poptorch.Options"),
    ("optimizer", "its optimizer"),
)
_WIDTH = 110
_LOSS_SCALING = "# Gradients are in float16: give the optimizer a loss_scaling, or the small ones become 0."


def code_of(base: Program, program: Program, changed: Mapping[str, Any], micro_batch: int | None) -> str:
    """Return the changed lines of a program, in the order in which they run; "" if nothing changes.

    `changed` are options of `explore.options.OPTIONS` that turn `base` into `program`, and `micro_batch` is a new one.
    The first line says what the names stand for.
    """
    parts = [
        _precision(program, changed),
        _blocks(base, changed),
        _checkpoints(base, changed),
        _options(program, changed),
        _optimiser(program, changed),
        [] if micro_batch is None else [micro_batch_line(micro_batch, base.samples_per_micro_batch)],
        _machine(program, changed),
    ]
    code = "\n\n".join("\n".join(part) for part in parts if part)
    return f"{_legend(code, program)}{code}"


def _legend(code: str, program: Program) -> str:
    """Return the comment that says where the code belongs and what the names in it stand for."""
    used = [f"{name} is {what}" for name, what in _NAMES if re.search(rf"^[^#]*\b{name}\b", code, re.MULTILINE)]
    wrapping = f"poptorch.{'training' if program.training else 'inference'}Model"
    return f"# These lines come before {wrapping}: {', '.join(used)}.\n" if used else ""


def micro_batch_line(micro_batch: int, before: int) -> str:
    """Return the argument of the loader that changes."""
    return f"batch_size={micro_batch}  # instead of {before}, in poptorch.DataLoader(...)"


def _precision(program: Program, changed: Mapping[str, Any]) -> list[str]:
    lines = ["model.half()  # and the floating-point inputs in float16"] if "half_precision" in changed else []
    has_half_gradients = bool(lines) or bool(changed.get("half_optimiser_state"))
    is_scaled = program.optimiser is None or program.optimiser.loss_scaling != 1.0
    return [*lines, *([] if is_scaled or not has_half_gradients else [_LOSS_SCALING])]


def _blocks(base: Program, changed: Mapping[str, Any]) -> list[str]:
    return [option_named("split").line(base, changed["split"])] if "split" in changed else []


def _checkpoints(base: Program, changed: Mapping[str, Any]) -> list[str]:
    names = changed.get("checkpoints", ())
    return [option_named("checkpoints").line(base, names)] if names else []


def _options(program: Program, changed: Mapping[str, Any]) -> list[str]:
    values = dict(changed)
    ipus = len(ipus_in_use(program.step))
    default = default_recomputation(program.execution, ipus, training=program.training)
    if program.training and program.recomputation is not default:
        values["recomputation"] = program.recomputation.value
    lines = [option_named(name).line(program, values[name]) for name in _OPTION_LINES if name in values]
    return list(dict.fromkeys(lines))


def _optimiser(program: Program, changed: Mapping[str, Any]) -> list[str]:
    if "half_optimiser_state" not in changed or program.optimiser is None:
        return []
    return [optimiser_line(program.optimiser)]


def optimiser_line(spec: OptimiserSpec) -> str:
    """Return the line, or lines, that make an optimiser; several parameter groups stay those that there are."""
    several = len(spec.groups) > 1
    parameters = "optimizer.param_groups" if several else "model.parameters()"
    hyper = spec.groups[0] if spec.groups and not several else spec.default
    arguments = [parameters, *_numbers(spec, hyper), *_settings(spec)]
    if FLOAT16 in (spec.accum_dtype, spec.first_dtype):
        arguments.append(state_type_arguments(spec, True))
    called = f"optimizer = poptorch.optim.{optimiser_class(spec)}("
    given = ", ".join(arguments)
    return f"{called}{given})" if len(called + given) < _WIDTH else f"{called}\n    {given}\n)"


def _numbers(spec: OptimiserSpec, hyper: Hyper) -> Iterator[str]:
    """Yield the numbers of the optimiser that differ from what its class has without them."""
    usual = Hyper(weight_decay=0.01) if spec.family.startswith("ADAMW") else Hyper()
    given = {
        "lr": (hyper.lr, None),
        "momentum": (hyper.momentum, usual.momentum),
        "dampening": (hyper.dampening, usual.dampening),
        "nesterov": (hyper.nesterov, usual.nesterov),
        "betas": (hyper.betas, usual.betas),
        "alpha": (hyper.alpha, 0.99),
        "eps": (hyper.eps, usual.eps),
        "weight_decay": (hyper.weight_decay, usual.weight_decay),
        "max_weight_norm": (hyper.max_weight_norm, usual.max_weight_norm),
        "velocity_scaling": (hyper.velocity_scaling, usual.velocity_scaling),
    }
    return (
        f"{name}={given[name][0]!r}" for name in given if name in spec.attributes and given[name][0] != given[name][1]
    )


def _settings(spec: OptimiserSpec) -> Iterable[str]:
    """Return the other arguments of the class."""
    found = [
        ("use_combined_accum=True", spec.family == "SGD1"),
        ("centered=True", spec.family == "RMSPROP_CENTERED"),
        ("use_tf_variant=True", spec.use_tf_variant),
        ("bias_correction=False", spec.family in ("LAMB_NO_BIAS", "ADAMW_NO_BIAS")),
        (f"loss_scaling={spec.loss_scaling!r}", spec.loss_scaling != 1.0),
        (f"max_grad_norm={spec.max_grad_norm!r}", math.isfinite(spec.max_grad_norm)),
    ]
    return [text for text, is_given in found if is_given]


def _machine(program: Program, changed: Mapping[str, Any]) -> list[str]:
    return [f"# on this machine: IPU_MODEL_MACHINE={program.system.name} python program.py"] * ("machine" in changed)


def code_block(code: str) -> list[str]:
    """Return code as an indented paragraph; no code is no paragraph."""
    return ["\n".join(f"    {line}".rstrip() for line in code.splitlines())] if code else []
