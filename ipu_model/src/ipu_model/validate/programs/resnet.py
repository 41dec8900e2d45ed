"""ResNets: the workshop's on two IPUs, MLPerf's and the user guides' on many, and inference on one card."""

from __future__ import annotations

from functools import lru_cache

import torch

from ipu_model.batching import Batching
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.hardware import system_named
from ipu_model.predict.program import Program, Recomputation
from ipu_model.step import FLOAT32
from ipu_model.validate.programs.building import (
    FLOAT,
    HALF,
    Classifier,
    adamw,
    begin_block,
    captured,
    checkpoint,
    images,
    momentum_sgd,
    settings_on,
    torchvision_model,
)

MLPERF_CHECKPOINTS = ("layer1.0", "layer1.2", "layer2.0", "layer2.2", "layer3.0", "layer3.3")


@lru_cache(maxsize=8)
def day03(dtype: torch.dtype = HALF, batch: int = 64, *, eight_bit: bool = False) -> Graph:
    """Return ResNet-101 on 64 x 64 images, cut before layer3[8]."""
    network = torchvision_model("resnet101")
    begin_block(network.layer3[8], 1)
    module = Classifier(network, normalises=eight_bit, dtype=dtype).to(dtype)
    return captured(module, *images(batch, 3, 64, torch.uint8 if eight_bit else dtype))


@lru_cache(maxsize=4)
def mlperf_resnet50(batch: int = 20, *, checkpoints: bool = True) -> Graph:
    """Return ResNet-50 on 224 x 224 byte images, fp16.

    The checkpoints are those of the published configuration.
    """
    network = torchvision_model("resnet50")
    for name in MLPERF_CHECKPOINTS if checkpoints else ():
        checkpoint(network.get_submodule(name))
    return captured(Classifier(network, normalises=True).half(), *images(batch, 3, 224, torch.uint8))


@lru_cache(maxsize=2)
def small_resnet50(ipus: int = 2) -> Graph:
    """Return ResNet-50 on eight 64 x 64 images in fp32, with two IPUs its last group of blocks on IPU 1."""
    network = torchvision_model("resnet50")
    if ipus == 2:
        begin_block(network.layer4, 1)
    return captured(Classifier(network, dtype=FLOAT), *images(8, 3, 64, FLOAT))


def day03_program(
    *, dtype: torch.dtype = HALF, accumulation: int = 8, iterations: int = 1, eight_bit: bool = False
) -> Program:
    """Return one row of the day-03 ladder."""
    return Program(
        step=step_of(day03(dtype, eight_bit=eight_bit)), training=True, batching=Batching(iterations, accumulation),
        optimiser=adamw(dtype), recomputation=Recomputation.PIPELINE, name="day03-resnet101",
    )  # fmt: skip


def small_resnet50_program(*, ipus: int = 2, replicas: int = 2) -> Program:
    """Return day 02's program: two replicas of two IPUs (or one), accumulation 3.

    Its momentum SGD keeps gradient accumulators apart, PopTorch's default. The memory report says so: of what is not
    always live, 112 MiB never go away, which is one set of accumulators (97.5 MiB) and little else.
    """
    momentum = OptimiserSpec("SGD2", Hyper(lr=0.1, momentum=0.9), accum_dtype=FLOAT32)
    return Program(
        step=step_of(small_resnet50(ipus)), training=True, batching=Batching(1, 3, replicas), optimiser=momentum,
        recomputation=Recomputation.PIPELINE, name="day02-resnet50",
    )  # fmt: skip


def mlperf_program(
    *, batch: int = 20, accumulation: int = 10, replicas: int = 16, system: str = "POD16", processes: int = 8
) -> Program:
    """Return MLPerf's submission, by default for a POD16: replicas of one IPU, shared out to host processes."""
    machine = system_named(system)
    return Program(
        step=step_of(mlperf_resnet50(batch)), training=True, processes=processes,
        batching=Batching(1, accumulation, replicas // processes), optimiser=momentum_sgd(), system=machine,
        recomputation=Recomputation.ALL, name="mlperf-resnet50", settings=settings_on(machine, proportions={0: 0.15}),
    )  # fmt: skip


def mlperf_pod64_program() -> Program:
    """Return MLPerf v1.1's submission for a POD64: accumulation 3."""
    return mlperf_program(accumulation=3, replicas=64, system="POD64", processes=32)


def mlperf_bow_pod64_program() -> Program:
    """Return MLPerf v2.0's submission for a Bow Pod64: accumulation 4."""
    return mlperf_program(accumulation=4, replicas=64, system="Bow-POD64", processes=32)


def user_guide_program() -> Program:
    """Return the PyTorch program of the ALCF user guides on 16 Bow IPUs: micro-batch 18, accumulation 57."""
    return mlperf_program(batch=18, accumulation=57, system="Bow-POD16")


def bow_training_program() -> Program:
    """Return the program with the largest micro-batch that ran on a Bow IPU: 22."""
    return mlperf_program(batch=22, system="Bow-POD16")


@lru_cache(maxsize=8)
def resnet50_inference(batch: int, dtype: torch.dtype = HALF) -> Graph:
    """Return ResNet-50 on 224 x 224 images, to logits."""
    network = torchvision_model("resnet50").eval().to(dtype)
    return captured(network, images(batch, 3, 224, dtype)[0], training=False)


def resnet50_inference_program(batch: int, *, dtype: torch.dtype = HALF, io_tiles: int = 0) -> Program:
    """Return ResNet-50 on one C600 card: 100 micro-batches a call, of data that the device makes up itself."""
    card = system_named("C600-server")
    return Program(
        step=step_of(resnet50_inference(batch, dtype)), training=False, batching=Batching(100), system=card,
        synthetic_data=True, settings=settings_on(card, half_partials=dtype == HALF), io_tiles=io_tiles,
        name="resnet50-inference",
    )  # fmt: skip
