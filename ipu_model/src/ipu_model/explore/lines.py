"""The lines of PopTorch code that set an option, where they need more than a template."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from ipu_model.batching import Keep
from ipu_model.explore.blocks import has_checkpoints
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.step import FLOAT16

_RECOMPUTATION_TYPES = ("NoRecompute", "Standard", "NormOnly", "Pipeline", "RecomputeAll")
"""The members of PopART's RecomputationType, in its order, which is that of `Recomputation`."""
_WIDTH = 110


def module_of(name: str) -> str:
    """Return the expression for a submodule of `model`: `layers.3.norm` is `model.layers[3].norm`."""
    text = "model"
    for part in name.split(".") if name else []:
        text += f".{part}" if part.isidentifier() else f"[{part if part.isdecimal() else repr(part)}]"
    return text


def _items_of(names: Sequence[str]) -> str:
    """Return modules as items of a list; those that are called by numbers which follow one another as a slice."""
    items: list[str] = []
    for parent, group in groupby(names, lambda name: name.rpartition(".")[0]):
        row = list(group)
        first = row[0].rpartition(".")[2]
        numbers = range(int(first), int(first) + len(row)) if first.isdecimal() else range(0)
        if len(row) > 1 and row == [f"{parent}.{number}".removeprefix(".") for number in numbers]:
            items.append(f"*{module_of(parent)}[{numbers.start}:{numbers.stop}]")
        else:
            items += map(module_of, row)
    return ", ".join(items)


def split_lines(program: Program, blocks: Mapping[str, int]) -> str:
    begins = [f"poptorch.BeginBlock({module_of(name)}, ipu_id={ipu})" for name, ipu in blocks.items()]
    removed = ["poptorch.removeBlocks(model)"] if program.step.block_entries or not blocks else []
    # Without it, blocks on one IPU are one stage.
    automatic = "opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))"
    return "\n".join((*removed, *begins, *[automatic] * (0 in blocks.values())))


def checkpoint_lines(program: Program, names: Sequence[str]) -> str:
    own = "# These replace the model's own poptorch.recomputationCheckpoint calls: remove those.\n"
    return (
        f"{own if has_checkpoints(program.step) else ''}"
        "def keep(module, inputs, output):\n"
        "    return poptorch.recomputationCheckpoint(output)\n"
        "\n"
        f"for block in [{_items_of(names)}]:\n"
        "    block.register_forward_hook(keep)"
    )


def proportion_line(shares: Mapping[int, object]) -> str:
    pairs = ", ".join(f'"IPU{ipu}": {share}' for ipu, share in shares.items())
    return f"opts.setAvailableMemoryProportion({{{pairs}}})"


def execution_line(execution: Execution) -> str:
    if execution is Execution.INTERLEAVED:
        return "no PopTorch program can do this: it is a what-if"
    return f"opts.setExecutionStrategy(poptorch.{execution.value.capitalize()}Execution())"


def recomputation_line(mode: Recomputation) -> str:
    number = list(Recomputation).index(mode)
    return f'opts._Popart.set("autoRecomputation", {number})  # RecomputationType.{_RECOMPUTATION_TYPES[number]}'


def output_mode_line(program: Program, keep: Keep) -> str:
    mode = {Keep.ALL: "All", Keep.FINAL: "Final", Keep.SUM: "Sum", Keep.EVERY_N: f"EveryN, {program.returns.period}"}
    return f"opts.outputMode(poptorch.OutputMode.{mode[keep]})"


def optimiser_location_line(program: Program, **changed: bool) -> str:
    """Return the line that places optimiser state: off-chip storage and sharding are set together."""
    location = replace(program.locations.optimiser, **changed)
    sharding = f".useReplicatedTensorSharding({location.sharded})"
    is_sharding_set = location.sharded or program.locations.optimiser.sharded
    storage = f"poptorch.TensorLocationSettings().useOnChipStorage({location.on_chip})"
    return f"opts.TensorLocations.setOptimizerLocation({storage}{sharding if is_sharding_set else ''})"


def micro_batch_line(micro_batch: int, before: int) -> str:
    return f"batch_size={micro_batch}  # instead of {before}, in poptorch.DataLoader(...)"


def _class_of(spec: OptimiserSpec) -> str:
    classes = ("SGD", "AdamW", "Adam", "RMSprop", "LAMB")
    return next(name for name in classes if spec.family.startswith(name.upper()))


def has_first_moments(spec: OptimiserSpec) -> bool:
    return _class_of(spec) in ("Adam", "AdamW", "LAMB")


def optimiser_lines(spec: OptimiserSpec) -> str:
    """Return the line, or lines, that make an optimiser; several parameter groups stay those that there are."""
    several = len(spec.groups) > 1
    parameters = "optimizer.param_groups" if several else "model.parameters()"
    hyper = spec.groups[0] if spec.groups and not several else spec.default
    arguments = [parameters, *_arguments(spec, hyper)]
    called = f"optimizer = poptorch.optim.{_class_of(spec)}("
    given = ", ".join(arguments)
    return f"{called}{given})" if len(called + given) < _WIDTH else f"{called}\n    {given}\n)"


def _arguments(spec: OptimiserSpec, hyper: Hyper) -> Iterator[str]:
    usual = Hyper(weight_decay=0.01) if spec.family.startswith("ADAMW") else Hyper()
    names = ("lr", "momentum", "dampening", "nesterov", "betas", "alpha", "eps", "weight_decay", "max_weight_norm")
    for name in (*names, "velocity_scaling"):
        value = getattr(hyper, name)
        if name in spec.attributes and (name == "lr" or value != getattr(usual, name)):
            yield f"{name}={value!r}"
    is_half = FLOAT16 in (spec.accum_dtype, spec.first_dtype)
    others = {
        "use_combined_accum=True": spec.family == "SGD1",
        "centered=True": spec.family == "RMSPROP_CENTERED",
        "use_tf_variant=True": spec.use_tf_variant,
        "bias_correction=False": spec.family in ("LAMB_NO_BIAS", "ADAMW_NO_BIAS"),
        f"loss_scaling={spec.loss_scaling!r}": spec.loss_scaling != 1.0,
        f"max_grad_norm={spec.max_grad_norm!r}": math.isfinite(spec.max_grad_norm),
        "accum_type=torch.float16": is_half,
        "velocity_accum_type=torch.float16": is_half and spec.family == "SGD2",
        "first_order_momentum_accum_type=torch.float16": is_half and has_first_moments(spec),
    }
    yield from (text for text, is_given in others.items() if is_given)


def code_block(code: str) -> list[str]:
    return [textwrap.indent(code, "    ")] if code else []
