"""The options that can change without capturing the program again: one table for what-ifs, sweeps and advice."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any, TypeVar

from ipu_model.batching import Keep
from ipu_model.errors import Error
from ipu_model.explore.blocks import has_checkpoints, with_checkpoints
from ipu_model.explore.module_names import items_of, module_of
from ipu_model.explore.split import split_before
from ipu_model.optimiser import OptimiserSpec
from ipu_model.predict.hardware import System, system_named
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.predict.recomputation import recomputation_over
from ipu_model.step import FLOAT16, FLOAT32, UINT8, DType, Step, Tensor, fewest_micro_batches, ipus_in_use, with_tensors

Chosen = TypeVar("Chosen", bound=Enum)


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
class Option:
    """One option, and the texts that describe it.

    `set_to(program, value)` returns the program with the option at that value. `change(program, value)` describes the
    change in a few words, and `line(program, value)` is the line that a PopTorch user writes for it. `explanation`
    describes the effect to expect; `explanation_off` describes the effect of switching the option off, if it needs a
    different text. `risk` is what the change may do to the results.
    """

    name: str
    set_to: Callable[[Program, Any], Program]
    change: Callable[[Program, Any], str]
    line: Callable[[Program, Any], str]
    explanation: str
    explanation_off: str = ""
    risk: Risk = Risk.NONE

    def explained(self, value: object) -> str:
        """Return the effect to expect of this value."""
        return self.explanation_off if self.explanation_off and value in (False, "none") else self.explanation


def with_options(program: Program, **options: Any) -> Program:
    """Return the program with some options changed, by their names in `OPTIONS`.

    Raises:
        Error: an unknown option, an invalid value, or a pipeline with too few micro-batches for its stages.
    """
    for name, value in options.items():
        program = option_named(name).set_to(program, value)
    if options:
        _check_pipeline(program)
    return program


def option_named(name: object) -> Option:
    """Return an option of the table.

    Raises:
        Error: there is none of that name.
    """
    found = OPTIONS.get(str(name))
    if found is None:
        near = difflib.get_close_matches(str(name), OPTIONS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise Error(f"There is no option {str(name)!r} to change.{hint} Options: {', '.join(OPTIONS)}.")
    return found


def _check_pipeline(program: Program) -> None:
    """Refuse what PopTorch would refuse: a pipeline with fewer micro-batches than stages."""
    stages = len(program.step.stages)
    if stages == 1 or program.execution is Execution.SHARDED:
        return
    needed = fewest_micro_batches(stages, training=program.training)
    if program.training and program.batching.accumulation < needed:
        raise Error(
            f"gradient_accumulation must be at least 2 x {stages} - 1 = {needed} for a pipeline of "
            f"{stages} stages; it is {program.batching.accumulation}. execution='sharded' has no such minimum."
        )
    if not program.training and program.batching.device_iterations < needed:
        raise Error(
            f"device_iterations must be at least {needed}, the number of stages of the pipeline; it is "
            f"{program.batching.device_iterations}. execution='sharded' has no such minimum."
        )


# --- how options are set: those that change how many IPUs a program uses forget how many it has reserved


def _accumulation(program: Program, value: object) -> Program:
    count = checked_count("accumulation", value)
    return replace(program, batching=replace(program.batching, accumulation=count))


def _device_iterations(program: Program, value: object) -> Program:
    count = checked_count("device_iterations", value)
    return replace(program, batching=replace(program.batching, device_iterations=count))


def _replicas(program: Program, value: object) -> Program:
    count = checked_count("replicas", value)
    return replace(program, batching=replace(program.batching, replicas=count), reserved_ipus=None)


def _processes(program: Program, value: object) -> Program:
    return replace(program, processes=checked_count("processes", value), reserved_ipus=None)


def _prefetch_depth(program: Program, value: object) -> Program:
    return replace(program, prefetch_depth=checked_count("prefetch_depth", value))


def checked_count(name: str, value: object) -> int:
    """Return a value that is a whole number from 1 on.

    Raises:
        Error: it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Error(f"{name} must be a whole number from 1 on, not {value!r}.")
    return value


def _execution(program: Program, value: object) -> Program:
    """Change the execution, and with it PopTorch's default for recomputation."""
    execution = _choice("execution", Execution, value)
    recomputation = recomputation_over(program, execution, len(ipus_in_use(program.step)))
    return replace(program, execution=execution, recomputation=recomputation)


def _recomputation(program: Program, value: object) -> Program:
    return replace(program, recomputation=_choice("recomputation", Recomputation, value))


def _output_mode(program: Program, value: object) -> Program:
    return replace(program, returns=replace(program.returns, keep=_choice("output_mode", Keep, value)))


def _choice(name: str, kind: type[Chosen], value: object) -> Chosen:
    try:
        return kind(value)
    except ValueError:
        raise Error(f"{name} must be one of {', '.join(repr(k.value) for k in kind)}, not {value!r}.") from None


def _proportion(program: Program, value: object) -> Program:
    proportions = _proportions(program, value)
    return replace(program, settings=replace(program.settings, available_memory_proportion=proportions))


def _proportions(program: Program, value: Any) -> dict[int, Any]:
    """Return the shares by IPU; one share is for every IPU."""
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


def _split(program: Program, value: Any) -> Program:
    return split_before(program, _names(value))


def _names(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _half_partials(program: Program, value: object) -> Program:
    settings = replace(program.settings, half_partials=bool(value), half_partials_of_convolutions=None)
    return replace(program, settings=settings)


def _half_precision(program: Program, value: object) -> Program:
    return replace(program, step=in_half_precision(program.step)) if value else program


def _eight_bit_inputs(program: Program, value: object) -> Program:
    return replace(program, step=with_byte_inputs(program.step)) if value else program


def _optimiser(program: Program, value: object) -> Program:
    if not program.training or not isinstance(value, OptimiserSpec):
        raise Error(
            f"optimizer takes the OptimiserSpec of another training program, and only training has one; got {value!r}."
        )
    value.validate()
    return replace(program, optimiser=value, groups={})


_OPTIMISER_CLASSES = {
    "SGD1": "SGD", "SGD2": "SGD", "ADAM": "Adam", "ADAMW": "AdamW", "ADAMW_NO_BIAS": "AdamW", "RMSPROP": "RMSprop",
    "RMSPROP_CENTERED": "RMSprop", "LAMB": "LAMB", "LAMB_NO_BIAS": "LAMB",
}  # fmt: skip
_WITH_FIRST_MOMENTS = frozenset({"Adam", "AdamW", "LAMB"})


def has_half_state(program: Program) -> bool:
    """Whether accumulators and first moments are in float16 already, or there is no optimiser."""
    spec = program.optimiser
    return spec is None or _with_state_type(spec, FLOAT16) == spec


def _with_state_type(spec: OptimiserSpec, kind: DType) -> OptimiserSpec:
    """Return the optimiser with accumulators, velocities and first moments of that type.

    What RMSprop and Adam keep of squares stays as it is: the smallest of them would be zero in float16.
    """
    moments = _OPTIMISER_CLASSES[spec.family] in _WITH_FIRST_MOMENTS
    return replace(
        spec,
        accum_dtype=kind,
        velocity_dtype=kind if spec.family == "SGD2" else spec.velocity_dtype,
        first_dtype=kind if moments else spec.first_dtype,
    )


def _half_state(program: Program, value: object) -> Program:
    if program.optimiser is None:
        raise Error("half_optimiser_state is for training with an optimiser: this program has none.")
    return replace(program, optimiser=_with_state_type(program.optimiser, FLOAT16 if value else FLOAT32))


def _half_state_line(program: Program, value: object) -> str:
    spec = program.optimiser
    return "" if spec is None else f"poptorch.optim.{optimiser_class(spec)}(..., {state_type_arguments(spec, value)})"


def optimiser_class(spec: OptimiserSpec) -> str:
    """Return the name of the class of `poptorch.optim`."""
    return _OPTIMISER_CLASSES[spec.family]


def state_type_arguments(spec: OptimiserSpec, half: object) -> str:
    """Return the arguments of the optimiser for the types of accumulators, velocities and first moments."""
    names = ["accum_type"]
    if spec.family == "SGD2":
        names.append("velocity_accum_type")
    if _OPTIMISER_CLASSES[spec.family] in _WITH_FIRST_MOMENTS:
        names.append("first_order_momentum_accum_type")
    return ", ".join(f"{name}=torch.float{'16' if half else '32'}" for name in names)


def _checkpoints(program: Program, value: Any) -> Program:
    return replace(program, step=with_checkpoints(program.step, _names(value)))


_OWN_CHECKPOINTS = "# These replace the model's own poptorch.recomputationCheckpoint calls: remove those."


def _checkpoints_line(program: Program, value: Any) -> str:
    names = _names(value)
    numbered = all(name.rpartition(".")[2].isdecimal() for name in names)
    blocks = items_of(names) if numbered else ", ".join(map(module_of, names))
    return "\n".join((
        *([_OWN_CHECKPOINTS] if has_checkpoints(program.step) else []),
        "def keep(module, inputs, output):",
        "    return poptorch.recomputationCheckpoint(output)",
        "",
        f"for block in [{blocks}]:",
        "    block.register_forward_hook(keep)",
    ))  # fmt: skip


def _optimiser_off_chip(program: Program, value: object) -> Program:
    location = replace(program.locations.optimiser, on_chip=not value)
    return replace(program, locations=replace(program.locations, optimiser=location))


def _optimiser_sharded(program: Program, value: object) -> Program:
    location = replace(program.locations.optimiser, sharded=bool(value))
    return replace(program, locations=replace(program.locations, optimiser=location))


def _synthetic_data(program: Program, value: object) -> Program:
    return replace(program, synthetic_data=bool(value))


def _machine(program: Program, value: object) -> Program:
    return on_machine(program, value if isinstance(value, System) else system_named(str(value)))


def on_machine(program: Program, system: System) -> Program:
    """Return the program on another machine, whose chip its ops are then costed for."""
    device = replace(program.settings.device, chip=system.chip)
    return replace(program, system=system, settings=replace(program.settings, device=device))


def in_half_precision(step: Step) -> Step:
    """Return the step with float16 in place of float32, as after `model.half()` with float16 inputs."""

    def halved(tensor: Tensor) -> Tensor:
        return replace(tensor, dtype=FLOAT16) if tensor.dtype == FLOAT32 else tensor

    return with_tensors(step, halved)


def with_byte_inputs(step: Step) -> Step:
    """Return the step with floating-point inputs sent as bytes; the cast on the device is not added."""

    def sent(tensor: Tensor) -> Tensor:
        return replace(tensor, dtype=UINT8) if tensor.dtype.is_floating else tensor

    return replace(step, inputs=tuple(map(sent, step.inputs)))


def has_variables_of(program: Program, dtype: DType, *, trainable: bool = False) -> bool:
    """Whether weights or buffers are of that type; only weights that are trained with `trainable`."""
    step = program.step
    return any(step.tensors[v.tensor].dtype == dtype for v in step.variables if v.trainable or not trainable)


def has_single_precision(program: Program) -> bool:
    """Whether half precision would change anything: float32 weights, or float32 buffers in inference."""
    return has_variables_of(program, FLOAT32, trainable=program.training)


# --- what they are called


def _from_to(
    what: str, now: Callable[[Program], object], shown: Callable[[Any], object] = str
) -> Callable[[Program, Any], str]:
    return lambda program, value: f"{what}: {shown(now(program))} -> {shown(value)}"


def _yes_no(yes: str, no: str) -> Callable[[Any], str]:
    return lambda value: yes if value else no


def _proportion_change(program: Program, value: Any) -> str:
    shares = _proportions(program, value)
    if len(set(shares.values())) == 1 and len(shares) == len(program.step.ipus):
        return f"available memory proportion: {next(iter(shares.values()))} on every IPU"
    named = ", ".join(f"{share} on IPU{ipu}" for ipu, share in shares.items())
    return f"available memory proportion: {named}"


_MOST_SPELT_OUT = 4
"""Shares of more IPUs are written as a comprehension if they are equal."""


def _proportion_line(program: Program, value: Any) -> str:
    shares = _proportions(program, value)
    several, ipus = len(shares) > _MOST_SPELT_OUT, list(shares)
    if several and len(set(shares.values())) == 1 and ipus == list(range(len(ipus))):
        each = f'f"IPU{{ipu}}": {shares[0]} for ipu in range({len(ipus)})'
        return f"opts.setAvailableMemoryProportion({{{each}}})"
    pairs = ", ".join(f'"IPU{ipu}": {share}' for ipu, share in shares.items())
    return f"opts.setAvailableMemoryProportion({{{pairs}}})"


def _shortened(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]} ({len(names)} modules)"


def _quoted(value: str | Iterable[str]) -> str:
    return ", ".join(repr(name) for name in _names(value))


def _split_change(_: Program, value: Any) -> str:
    names = _names(value)
    return f"split over {len(names) + 1} IPUs at {_quoted(names)}" if names else "no split: all blocks on one IPU"


def _split_line(program: Program, value: Any) -> str:
    names = _names(value)
    begins = [f"poptorch.BeginBlock({module_of(name)}, ipu_id={ipu})" for ipu, name in enumerate(names, 1)]
    removed = ["poptorch.removeBlocks(model)"] if program.step.block_entries or not names else []
    return "\n".join((*removed, *begins))


def _execution_line(program: Program, value: Any) -> str:
    if (execution := Execution(value)) is Execution.INTERLEAVED:
        return "no PopTorch program can do this: it is a what-if"
    return f"opts.setExecutionStrategy(poptorch.{execution.value.capitalize()}Execution())"


_RECOMPUTATION_TYPES = {
    Recomputation.NONE: "NoRecompute", Recomputation.STANDARD: "Standard", Recomputation.NORM_ONLY: "NormOnly",
    Recomputation.PIPELINE: "Pipeline", Recomputation.ALL: "RecomputeAll",
}  # fmt: skip
"""The members of PopART's RecomputationType, in its order (options reference, section 9)."""


def _recomputation_line(program: Program, value: Any) -> str:
    mode = Recomputation(value)
    number, name = list(_RECOMPUTATION_TYPES).index(mode), _RECOMPUTATION_TYPES[mode]
    return f'opts._Popart.set("autoRecomputation", {number})  # RecomputationType.{name}'


def _output_mode_line(program: Program, value: Any) -> str:
    keep = Keep(value)
    mode = {Keep.ALL: "All", Keep.FINAL: "Final", Keep.SUM: "Sum", Keep.EVERY_N: f"EveryN, {program.returns.period}"}
    return f"opts.outputMode(poptorch.OutputMode.{mode[keep]})"


def _optimiser_location(set_to: Callable[[Program, Any], Program]) -> Callable[[Program, Any], str]:
    """Return the line for the location of optimiser state, which sets off-chip storage and sharding together."""

    def line(program: Program, value: Any) -> str:
        where = set_to(program, value).locations.optimiser
        on_chip = f".useOnChipStorage({where.on_chip})"
        sharding = f".useReplicatedTensorSharding({where.sharded})"
        is_sharding_set = where.sharded or program.locations.optimiser.sharded
        settings = f"poptorch.TensorLocationSettings(){on_chip}{sharding if is_sharding_set else ''}"
        return f"opts.TensorLocations.setOptimizerLocation({settings})"

    return line


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option(
            "gradient_accumulation",
            _accumulation,
            _from_to("gradient accumulation", lambda program: program.batching.accumulation),
            lambda _, value: f"opts.Training.gradientAccumulation({value})",
            "With more micro-batches per weight update, filling and draining the pipeline and updating the weights "
            "take a smaller share of the time. The global batch grows too, so you may have to change the learning "
            "rate.",
            risk=Risk.NUMERICS,
        ),
        Option(
            "device_iterations",
            _device_iterations,
            _from_to("device iterations", lambda program: program.batching.device_iterations),
            lambda _, value: f"opts.deviceIterations({value})",
            "The same work needs fewer calls, so the host's overhead of a call is shared by more samples.",
        ),
        Option(
            "replicas",
            _replicas,
            _from_to("replicas", lambda program: program.batching.replicas),
            lambda _, value: f"opts.replicationFactor({value})",
            "Idle IPUs of the machine work on more samples of a larger global batch. The host must load data for all "
            "of them.",
            risk=Risk.NUMERICS,
        ),
        Option(
            "processes",
            _processes,
            _from_to("processes", lambda program: program.processes),
            lambda program, value: (
                f"poprun --num-replicas {program.batching.replicas * value} --num-instances {value} python program.py"
            ),
            "Each process runs its own replicas and loads the samples for them.",
            risk=Risk.NUMERICS,
        ),
        Option(
            "execution",
            _execution,
            _from_to("execution", lambda program: program.execution.value, lambda value: Execution(value).value),
            _execution_line,
            "A pipeline keeps all IPUs busy; sharded execution runs them one after another and needs no stashes.",
            risk=Risk.SCHEDULE,
        ),
        Option(
            "recomputation",
            _recomputation,
            _from_to("recomputation", lambda program: program.recomputation, lambda value: Recomputation(value).value),
            _recomputation_line,
            "The backward pass computes activations again, which saves memory and costs time.",
            "Activations are kept instead of being computed again, which is faster if they fit.",
        ),
        Option(
            "available_memory_proportion",
            _proportion,
            _proportion_change,
            _proportion_line,
            "This is the share of a tile that one convolution or matrix product may use for temporary data. A smaller "
            "share saves memory, a larger one saves cycles.",
        ),
        Option(
            "split",
            _split,
            _split_change,
            _split_line,
            "A pipeline runs at the speed of its slowest stage. With blocks that begin at these modules, the modelled "
            "times of the stages are most even.",
            risk=Risk.SCHEDULE,
        ),
        Option(
            "half_partials",
            _half_partials,
            _from_to("half partials", lambda program: program.settings.half_partials, _yes_no("float16", "float32")),
            lambda _, value: f"opts.Precision.setPartialsType(torch.{'half' if value else 'float'})",
            "Matrix products keep their partial sums in float16, which doubles their rate and reduces exchange, but "
            "causes more rounding.",
            risk=Risk.NUMERICS,
        ),
        Option(
            "half_precision",
            _half_precision,
            _from_to(
                "half precision", lambda program: not has_single_precision(program), _yes_no("float16", "float32")
            ),
            lambda *_: "model.half(), inputs in float16; an optimiser with accum_type=torch.float16 and a loss scaling",
            "Matrix units multiply float16 at twice the rate, and every tensor takes half the memory. Small gradients "
            "need loss scaling. The types of the optimiser state stay as they are.",
            risk=Risk.NUMERICS,
        ),
        Option(
            "eight_bit_inputs",
            _eight_bit_inputs,
            lambda *_: "8-bit inputs",
            lambda *_: "send uint8 images, cast and normalise them at the start of forward",
            "The host link carries only a half or a quarter of the bytes. The time that the host saves by not "
            "converting them is not included, so measure your loader both ways.",
            risk=Risk.NUMERICS,
        ),
        Option(
            "optimizer",
            _optimiser,
            _from_to("optimiser", lambda program: program.optimiser, lambda spec: spec.family if spec else "none"),
            lambda _, value: f"poptorch.trainingModel(model, opts, optimizer=...): {value.family}",
            "The other optimiser has different state, and its weight updates take a different number of cycles.",
            risk=Risk.NUMERICS,
        ),
        Option(
            "half_optimiser_state",
            _half_state,
            _from_to("types of accumulators and first moments", has_half_state, _yes_no("float16", "float32")),
            _half_state_line,
            "Gradient accumulators and first moments take half the memory, but sums of many small gradients are "
            "rounded more.",
            risk=Risk.NUMERICS,
        ),
        Option(
            "checkpoints",
            _checkpoints,
            lambda _, value: f"recomputation checkpoints: outputs of {_shortened(_names(value))}",
            _checkpoints_line,
            "With recomputation, the outputs of these modules are kept and everything between two of them is computed "
            "again, so only one module's activations are live at a time.",
        ),
        Option(
            "optimiser_off_chip",
            _optimiser_off_chip,
            _from_to(
                "optimiser state",
                lambda program: not program.locations.optimiser.on_chip,
                _yes_no("off chip", "on chip"),
            ),
            _optimiser_location(_optimiser_off_chip),
            "Optimiser state in streaming memory frees space on the tiles, but it has to be fetched for every weight "
            "update.",
        ),
        Option(
            "optimiser_sharded",
            _optimiser_sharded,
            _from_to(
                "optimiser state in each replica",
                lambda program: program.locations.optimiser.sharded,
                _yes_no("its share", "all of it"),
            ),
            _optimiser_location(_optimiser_sharded),
            "Each replica keeps and updates a part of the state, and the replicas exchange the weights.",
            risk=Risk.SCHEDULE,
        ),
        Option(
            "prefetch_depth",
            _prefetch_depth,
            _from_to("prefetch depth", lambda program: program.prefetch_depth),
            lambda _, value: f'opts._Popart.set("defaultBufferingDepth", {value})',
            "The host prepares more micro-batches ahead.",
        ),
        Option(
            "synthetic_data",
            _synthetic_data,
            _from_to("synthetic data", lambda program: program.synthetic_data, _yes_no("on", "off")),
            lambda _, value: f"opts.enableSyntheticData({bool(value)})",
            "No data is sent or fetched, so only the time of the IPUs remains.",
        ),
        Option(
            "output_mode",
            _output_mode,
            _from_to("output mode", lambda program: program.returns.keep, lambda value: Keep(value).value),
            _output_mode_line,
            "Fetching fewer results takes less time on the host link.",
        ),
        Option(
            "machine",
            _machine,
            _from_to("machine", lambda program: program.system, lambda value: getattr(value, "name", value)),
            lambda _, value: f"IPU_MODEL_MACHINE={getattr(value, 'name', value)} python program.py",
            "Other chips have different clocks and tile sizes, and larger systems have room for more replicas.",
        ),
    )
}
"""All options by name, in the order in which messages list them."""
