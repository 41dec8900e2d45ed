"""The options of ``bench`` that change a benchmark: from the command line to settings."""

from __future__ import annotations

import argparse
from typing import Any

from ipu_course.programs.bench.settings import (
    DATA,
    NO_SPLIT,
    NORMALISATIONS,
    OPTIMISERS,
    PRECISIONS,
    SCHEDULES,
    Settings,
)
from ipu_course.programs.options import positive_integer

RUN_STEPS, RUN_BATCH = 3, 2  # of a small run on this machine
# Options in the page's spelling where it differs, each with the setting it belongs to.
COUNTS = {
    "batch_size": (("--batch-size",), "micro-batch size"),
    "image_size": (("--image-size",), "pixels in a row and in a column"),
    "gradient_accumulation": (
        ("--gradient-accumulation", "--gradient-accumulation-count"),
        "micro-batches per weight update",
    ),
    "device_iterations": (("--device-iterations",), "weight updates, or batches of inference, per step"),
    "replicas": (("--replicas", "--num-replicas"), "copies of the model, over all instances"),
    "instances": (("--instances", "--num-instances"), "host processes"),
    "shards": (("--shards", "--ipus-per-replica"), "IPUs of one replica"),
    "group_dim": (("--group-dim",), "EfficientNet: channels of a group of its middle convolutions; 1: depthwise"),
    "expand_ratio": (("--expand-ratio",), "EfficientNet: by how much a block's middle is wider than its ends"),
    "norm_groups": (("--norm-groups", "--groups"), "groups of group normalisation"),
    "repeat": (("--repeat",), "steps, one throughput value each"),
}
CHOICES = {
    "precision": (("--precision",), PRECISIONS, "bits of the computation, then of the weights"),
    "normalisation": (("--normalisation",), NORMALISATIONS, "kind of normalisation"),
    "schedule": (("--pipeline-schedule",), SCHEDULES, "order of the pipeline's work"),
    "optimiser": (("--optimiser",), OPTIMISERS, "optimiser"),
    "data": (("--data",), DATA, "loaded, made on the IPU, or random images from the host"),
}
SWITCHES = {
    "pipeline": (("--pipeline",), "let the shards work at the same time"),
    "recomputation": (("--recomputation", "--enable-recomputation"), "compute activations again for the backward pass"),
    "half_partials": (("--half-partials", "--enable-half-partials"), "sums inside matrix products in half precision"),
    "stable_norm": (("--stable-norm",), "the slower, more accurate formula of normalisation"),
    "eight_bit_io": (("--eight-bit-io",), "send images as uint8, normalise on the IPU"),
    "variable_offloading": (("--variable-offloading",), "keep the optimiser's state in streaming memory"),
}
SHARES = {
    "available_memory_proportion": (("--available-memory-proportion",), "of a tile, for a convolution's temporaries"),
    "momentum": (("--momentum",), "momentum of the optimiser"),
    "label_smoothing": (("--label-smoothing",), "label smoothing of the loss"),
}
# Options that the page has in place of a value.
WORDS = {
    "--synthetic-data": ("data", "synthetic"),
    "--generated-data": ("data", "generated"),
    "--batch-norm": ("normalisation", "batch"),
    "--disable-variable-offloading": ("variable_offloading", False),
}


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add one option for each setting; what is not given stays out of ``changes_from``."""
    group.add_argument("--model", metavar="NAME", help="a network; --list names them")
    kind = group.add_mutually_exclusive_group()
    kind.add_argument("--training", dest="training", action="store_const", const=True, help="training (default)")
    kind.add_argument("--inference", dest="training", action="store_const", const=False, help="inference")
    group.add_argument("--machine", metavar="NAME", help="M2000, POD16, POD64, Bow-POD16, ... (default: M2000)")
    for name, (names, text) in COUNTS.items():
        group.add_argument(*names, dest=name, type=positive_integer, metavar="N", help=text)
    for name, (names, choices, text) in CHOICES.items():
        group.add_argument(*names, dest=name, type=str.lower, choices=choices, help=text)
    for name, (names, text) in SWITCHES.items():
        group.add_argument(*names, dest=name, type=on_off, nargs="?", const=True, metavar="on|off", help=text)
    for option, (name, value) in WORDS.items():
        meaning = "off" if value is False else value
        text = f"the page's word for --{name.replace('_', '-')} {meaning}"
        group.add_argument(option, dest=name, action="store_const", const=value, help=text)
    for name, (names, text) in SHARES.items():
        group.add_argument(*names, dest=name, type=float, metavar="SHARE", help=text)
    group.add_argument(
        "--pipeline-splits",
        nargs="+",
        metavar="LAYER",
        help="last layers of stages in the page's names (b1/2/relu, block2c), or modules that begin one (layer3.4); "
        f"{NO_SPLIT}: one IPU",
    )


def changes_from(parsed: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given on the command line."""
    given = {name: value for name in Settings.__dataclass_fields__ if (value := _given(parsed, name)) is not None}
    splits = given.get("pipeline_splits")
    if splits is not None:
        given["pipeline_splits"] = () if splits == [NO_SPLIT] else tuple(splits)
    return given


def _given(parsed: argparse.Namespace, name: str) -> Any:
    return getattr(parsed, name, None)


def on_off(text: str) -> bool:
    """The value of a switch."""
    if text.lower() not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return text.lower() == "on"
