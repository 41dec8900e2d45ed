"""The options that can change without capturing the program again: one table for all of `explore`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from operator import attrgetter
from typing import Any, TypeVar

from ipu_model.batching import Keep
from ipu_model.errors import Error, checked_count, did_you_mean
from ipu_model.explore import lines
from ipu_model.explore.blocks import blocks_at, blocks_of, has_checkpoints, split_before, with_checkpoints
from ipu_model.optimiser import OptimiserSpec
from ipu_model.predict.hardware import System, system_named
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.predict.recomputation import default_recomputation, recomputation_over
from ipu_model.report.findings import explained
from ipu_model.step import FLOAT16, FLOAT32, UINT8, Step, fewest_micro_batches, ipus_in_use, with_tensors

Chosen = TypeVar("Chosen", bound=Enum)
Getter = Callable[[Program], Any]
Setter = Callable[[Program, Any], Program]


class Risk(IntEnum):
    """What a change may do to the results of a program.

    `NONE`: the same numbers in the same order. `SCHEDULE`: the same numbers, but work is shared out otherwise, so that
    sums may be rounded in another order, and the program around the options may have to change. `NUMERICS`: other
    numbers, so that the training may need another look (types, global batch).
    """

    NONE = 0
    SCHEDULE = 1
    NUMERICS = 2

    def __str__(self) -> str:
        return ("same results", "same results except for rounding", "numerics change")[self]


@dataclass(frozen=True)
class Change:
    """One change to a program: what it is in a few words, the line of code for it, and its risk."""

    text: str
    line: str
    risk: Risk


@dataclass(frozen=True)
class Option:
    """One option: how it is read and set, the line that a PopTorch user writes, and what describes a change of it.

    `what` names the option in the description of a change (default: its name), in which `shown(value)` is a value;
    `described(program, value)` replaces that description.
    """

    name: str
    now: Getter
    set_to: Setter
    line: Callable[[Program, Any], str]
    risk: Risk = Risk.NONE
    what: str = ""
    shown: Callable[[Any], object] = str
    described: Callable[[Program, Any], str] | None = None

    @property
    def explanation(self) -> str:
        return explained("options", self.name)

    def change(self, program: Program, value: Any) -> str:
        if self.described is not None:
            return self.described(program, value)
        what = self.what or self.name.replace("_", " ")
        return f"{what}: {self.shown(self.now(program))} -> {self.shown(value)}"


def with_options(program: Program, **options: Any) -> Program:
    """Return the program with options of `OPTIONS`, such as `half_partials=True`; `Error` for what cannot be."""
    for name, value in options.items():
        program = option_named(name).set_to(program, value)
    if options:
        _check_pipeline(program)
    return program


def option_named(name: object) -> Option:
    option = OPTIONS.get(str(name))
    if option is None:
        hint = did_you_mean(str(name), OPTIONS)
        raise Error(f"There is no option {str(name)!r} to change.{hint} Options: {', '.join(OPTIONS)}.")
    return option


def _check_pipeline(program: Program) -> None:
    stages = len(program.step.stages)
    if stages == 1 or program.execution is Execution.SHARDED:
        return
    needed = fewest_micro_batches(stages, training=program.training)
    if program.training:
        name, count = "gradient_accumulation", program.batching.accumulation
        least = f"2 x {stages} - 1 = {needed} for a pipeline of {stages} stages"
    else:
        name, count = "device_iterations", program.batching.device_iterations
        least = f"{needed}, the number of stages of the pipeline"
    if count < needed:
        raise Error(f"{name} must be at least {least}; it is {count}. execution='sharded' has no such minimum.")


# --- how options are read and set


def _field(path: str, read: Callable[[Any], Any] = bool, forgets: str = "") -> tuple[Getter, Setter]:
    """Return what reads a field and what sets it, which leaves the field `forgets` without a value."""

    def set_to(program: Program, value: Any) -> Program:
        changed: Program = _replaced(program, path.split("."), read(value))
        if forgets:
            changed = _replaced(changed, forgets.split("."), None)
        return changed

    return attrgetter(path), set_to


def _replaced(thing: Any, path: Sequence[str], value: object) -> Any:
    name, *rest = path
    return replace(thing, **{name: _replaced(getattr(thing, name), rest, value) if rest else value})


def _count(path: str, forgets: str = "") -> tuple[Getter, Setter]:
    return _field(path, lambda value: checked_count(path.rpartition(".")[2], value), forgets)


def _choice(name: str, kind: type[Chosen]) -> Callable[[object], Chosen]:
    def read(value: object) -> Chosen:
        try:
            return kind(value)
        except ValueError:
            raise Error(f"{name} must be one of {', '.join(repr(k.value) for k in kind)}, not {value!r}.") from None

    return read


def _execution(program: Program, value: object) -> Program:
    execution = _choice("execution", Execution)(value)
    recomputation = recomputation_over(program, execution, len(ipus_in_use(program.step)))
    return replace(program, execution=execution, recomputation=recomputation)


def _proportions(program: Program, value: Any) -> dict[int, Any]:
    if isinstance(value, Mapping):
        return {_ipu(program, name): share for name, share in value.items()}
    return dict.fromkeys(program.step.ipus, value)


def _ipu(program: Program, name: object) -> int:
    """Return the number of an IPU that is named as a number or, as PopTorch does, as "IPU0"."""
    number = name.removeprefix("IPU") if isinstance(name, str) else str(name)
    if isinstance(name, bool) or not number.isdecimal() or int(number) not in program.step.ipus:
        known = ", ".join(f"IPU{ipu}" for ipu in program.step.ipus)
        raise Error(f"available_memory_proportion: the program has no IPU {name!r}. It has {known}.")
    return int(number)


def _optimiser(program: Program, value: object) -> Program:
    if not program.training or not isinstance(value, OptimiserSpec):
        raise Error(
            f"optimizer takes the OptimiserSpec of another training program, and only training has one; got {value!r}."
        )
    value.validate()
    return replace(program, optimiser=value, groups={})


def has_half_state(program: Program) -> bool:
    """Whether accumulators and first moments are in float16 already, or there is no optimiser."""
    return program.optimiser is None or _half_state(program, True) == program.optimiser


def _half_state(program: Program, value: object) -> OptimiserSpec:
    """Return the optimiser with such accumulators and momentum; squares stay: the smallest would be 0 in float16."""
    if program.optimiser is None:
        raise Error("half_optimiser_state is for training with an optimiser: this program has none.")
    spec, kind = program.optimiser, FLOAT16 if value else FLOAT32
    return replace(
        spec,
        accum_dtype=kind,
        velocity_dtype=kind if spec.family == "SGD2" else spec.velocity_dtype,
        first_dtype=kind if lines.has_first_moments(spec) else spec.first_dtype,
    )


def on_machine(program: Program, system: System) -> Program:
    """Return the program on another machine, whose chip its ops are then costed for."""
    device = replace(program.settings.device, chip=system.chip)
    return replace(program, system=system, settings=replace(program.settings, device=device))


def in_half_precision(step: Step) -> Step:
    """Return the step with float16 in place of float32, as after `model.half()` with float16 inputs."""
    return with_tensors(step, lambda tensor: replace(tensor, dtype=FLOAT16) if tensor.dtype == FLOAT32 else tensor)


def with_byte_inputs(step: Step) -> Step:
    """Return the step with floating-point inputs sent as bytes; the cast on the device is not added."""
    sent = (replace(tensor, dtype=UINT8) if tensor.dtype.is_floating else tensor for tensor in step.inputs)
    return replace(step, inputs=tuple(sent))


def is_in_half_precision(program: Program) -> bool:
    """Whether half precision would change nothing: no float32 weights, nor float32 buffers in inference."""
    return not program.has_variables_of(FLOAT32, trained=program.training)


# --- how changes are described


def _switch(on: str, off: str) -> Callable[[Any], str]:
    return lambda value: on if value else off


def _proportion_change(program: Program, value: Any) -> str:
    shares = _proportions(program, value)
    if len(set(shares.values())) == 1 and len(shares) == len(program.step.ipus):
        return f"available memory proportion: {next(iter(shares.values()))} on every IPU"
    return f"available memory proportion: {', '.join(f'{share} on IPU{ipu}' for ipu, share in shares.items())}"


def _split_change(_: Program, value: Any) -> str:
    blocks = blocks_at(value)
    if not blocks:
        return "no split: all blocks on one IPU"
    on = {name: repr(name) + " (on IPU 0 again)" * (ipu == 0) for name, ipu in blocks.items()}
    return f"split over {len({0, *blocks.values()})} IPUs at {', '.join(on.values())}"


def _checkpoints_change(_: Program, value: Any) -> str:
    names = list(blocks_at(value))
    short = ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]} ({len(names)} modules)"
    return f"recomputation checkpoints: outputs of {short}"


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option(
            "gradient_accumulation",
            *_count("batching.accumulation"),
            lambda _, value: f"opts.Training.gradientAccumulation({value})",
            risk=Risk.NUMERICS,
        ),
        Option(
            "device_iterations",
            *_count("batching.device_iterations"),
            lambda _, value: f"opts.deviceIterations({value})",
        ),
        # Options that change how many IPUs a program uses forget how many it has reserved.
        Option(
            "replicas",
            *_count("batching.replicas", forgets="reserved_ipus"),
            lambda _, value: f"opts.replicationFactor({value})",
            risk=Risk.NUMERICS,
        ),
        Option(
            "processes",
            *_count("processes", forgets="reserved_ipus"),
            lambda program, value: (
                f"poprun --num-replicas {program.batching.replicas * value} --num-instances {value} python program.py"
            ),
            risk=Risk.NUMERICS,
        ),
        Option(
            "execution",
            attrgetter("execution"),
            _execution,
            lambda _, value: lines.execution_line(Execution(value)),
            risk=Risk.SCHEDULE,
            shown=lambda value: Execution(value).value,
        ),
        Option(
            "recomputation",
            *_field("recomputation", _choice("recomputation", Recomputation)),
            lambda _, value: lines.recomputation_line(Recomputation(value)),
            shown=lambda value: Recomputation(value).value,
        ),
        Option(
            "available_memory_proportion",
            attrgetter("settings.available_memory_proportion"),
            lambda program, value: _replaced(
                program, ("settings", "available_memory_proportion"), _proportions(program, value)
            ),
            lambda program, value: lines.proportion_line(_proportions(program, value)),
            described=_proportion_change,
        ),
        Option(
            "split",
            blocks_of,
            split_before,
            lambda program, value: lines.split_lines(program, blocks_at(value)),
            risk=Risk.SCHEDULE,
            described=_split_change,
        ),
        Option(
            "half_partials",
            *_field("settings.half_partials", forgets="settings.half_partials_of_convolutions"),
            lambda _, value: f"opts.Precision.setPartialsType(torch.{'half' if value else 'float'})",
            risk=Risk.NUMERICS,
            shown=_switch("float16", "float32"),
        ),
        Option(
            "half_precision",
            is_in_half_precision,
            lambda program, value: replace(program, step=in_half_precision(program.step)) if value else program,
            lambda *_: "model.half(), inputs in float16; an optimiser with accum_type=torch.float16 and a loss scaling",
            risk=Risk.NUMERICS,
            shown=_switch("float16", "float32"),
        ),
        Option(
            "eight_bit_inputs",
            lambda program: all(not tensor.dtype.is_floating for tensor in program.step.inputs),
            lambda program, value: replace(program, step=with_byte_inputs(program.step)) if value else program,
            lambda *_: "send uint8 images, cast and normalise them at the start of forward",
            risk=Risk.NUMERICS,
            described=lambda *_: "8-bit inputs",
        ),
        Option(
            "optimizer",
            attrgetter("optimiser"),
            _optimiser,
            lambda _, value: f"poptorch.trainingModel(model, opts, optimizer=...): {value.family}",
            risk=Risk.NUMERICS,
            what="optimiser",
            shown=lambda spec: spec.family if spec else "none",
        ),
        Option(
            "half_optimiser_state",
            has_half_state,
            lambda program, value: replace(program, optimiser=_half_state(program, value)),
            lambda program, value: lines.optimiser_lines(_half_state(program, value)),
            risk=Risk.NUMERICS,
            what="types of accumulators and first moments",
            shown=_switch("float16", "float32"),
        ),
        Option(
            "checkpoints",
            lambda program: has_checkpoints(program.step),
            lambda program, value: replace(program, step=with_checkpoints(program.step, blocks_at(value))),
            lambda program, value: lines.checkpoint_lines(program, list(blocks_at(value))),
            described=_checkpoints_change,
        ),
        Option(
            "optimiser_off_chip",
            lambda program: not program.locations.optimiser.on_chip,
            _field("locations.optimiser.on_chip", lambda value: not value)[1],
            lambda program, value: lines.optimiser_location_line(program, on_chip=not value),
            what="optimiser state",
            shown=_switch("off chip", "on chip"),
        ),
        Option(
            "optimiser_sharded",
            *_field("locations.optimiser.sharded"),
            lambda program, value: lines.optimiser_location_line(program, sharded=bool(value)),
            risk=Risk.SCHEDULE,
            what="optimiser state in each replica",
            shown=_switch("its share", "all of it"),
        ),
        Option(
            "prefetch_depth",
            *_count("prefetch_depth"),
            lambda _, value: f'opts._Popart.set("defaultBufferingDepth", {value})',
        ),
        Option(
            "synthetic_data",
            *_field("synthetic_data"),
            lambda _, value: f"opts.enableSyntheticData({bool(value)})",
            shown=_switch("on", "off"),
        ),
        Option(
            "output_mode",
            *_field("returns.keep", _choice("output_mode", Keep)),
            lambda program, value: lines.output_mode_line(program, Keep(value)),
            shown=lambda value: Keep(value).value,
        ),
        Option(
            "machine",
            attrgetter("system"),
            lambda program, value: on_machine(
                program, value if isinstance(value, System) else system_named(str(value))
            ),
            lambda _, value: f"IPU_MODEL_MACHINE={getattr(value, 'name', value)} python program.py",
            shown=lambda value: getattr(value, "name", value),
        ),
    )
}
"""All options by name, in the order in which messages list them."""


# --- all lines of a changed program

_ONE_LINE_EACH = (
    "device_iterations", "gradient_accumulation", "replicas", "execution", "recomputation",
    "available_memory_proportion", "half_partials", "optimiser_off_chip", "optimiser_sharded",
)  # fmt: skip
_LOSS_SCALING = "# Gradients are in float16: give the optimizer a loss_scaling, or the small ones become 0."
_LEGEND = {"model": "your module", "opts": "its poptorch.Options", "optimizer": "its optimizer"}


def code_of(base: Program, program: Program, changed: Mapping[str, Any], micro_batch: int | None) -> str:
    """Return the changed lines in the order in which they run, after one on where they belong; "" if none."""
    values = dict(changed)
    default = default_recomputation(program.execution, len(ipus_in_use(program.step)), training=program.training)
    if program.training and program.recomputation is not default:
        values["recomputation"] = program.recomputation
    is_half, optimiser = "half_precision" in changed, program.optimiser
    has_half_gradients = is_half or bool(changed.get("half_optimiser_state"))
    is_unscaled = optimiser is not None and optimiser.loss_scaling == 1.0
    parts = [
        ["model.half()  # and the floating-point inputs in float16"] * is_half
        + [_LOSS_SCALING] * (has_half_gradients and is_unscaled),
        [OPTIONS["split"].line(base, changed["split"])] if "split" in changed else [],
        [OPTIONS["checkpoints"].line(base, changed["checkpoints"])] if changed.get("checkpoints") else [],
        list(dict.fromkeys(OPTIONS[name].line(program, values[name]) for name in _ONE_LINE_EACH if name in values)),
        [OPTIONS["half_optimiser_state"].line(program, True)] if changed.get("half_optimiser_state") else [],
        [] if micro_batch is None else [lines.micro_batch_line(micro_batch, base.samples_per_micro_batch)],
        [f"# on this machine: IPU_MODEL_MACHINE={program.system.name} python program.py"] * ("machine" in changed),
    ]
    code = "\n\n".join("\n".join(part) for part in parts if part)
    used = [f"{name} is {what}" for name, what in _LEGEND.items() if re.search(rf"^[^#]*\b{name}\b", code, re.M)]
    wrapping = f"poptorch.{'training' if program.training else 'inference'}Model"
    return f"# These lines come before {wrapping}: {', '.join(used)}.\n{code}" if used else code
