"""Published programs of convolutional networks: ResNets, EfficientNet, and the pipelining tutorial's for digits.

B1 to B15 and F1 to F4 are the programs' numbers in the ids of `published.toml`.
"""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import nn

from ipu_model.batching import Batching, Keep, Returns
from ipu_model.capture.graph import Graph, dtype_of
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.program import Program, Recomputation
from ipu_model.step import FLOAT16, FLOAT32, DType
from published import building
from published.building import FLOAT, HALF, Classifier, begin_block, captured, images, networks, program_of


def adamw(dtype: torch.dtype) -> OptimiserSpec:
    """Return the workshop's AdamW: half accumulators and first moments for a half model."""
    state, hyper = dtype_of(dtype), Hyper(lr=1e-3, weight_decay=0.01)
    return OptimiserSpec("ADAMW", hyper, loss_scaling=1000.0, accum_dtype=state, first_dtype=state)


def momentum_sgd(dtype: DType = FLOAT16) -> OptimiserSpec:
    """Return the SGD of the published convolutional networks: momentum, and gradients accumulated apart from it.

    TensorFlow accumulates in a tensor of its own, and the public PyTorch application asks for the same with
    `use_combined_accum=False`. Both tensors are of `dtype`: half in a 16.16 program, single in a 16.32 one.
    """
    hyper = Hyper(lr=0.1, momentum=0.9, weight_decay=1e-4)
    return OptimiserSpec("SGD2", hyper, accum_dtype=dtype, velocity_dtype=dtype)


# --- ResNet-101 and ResNet-50 on small images: the workshop's


@lru_cache(maxsize=8)
def day03(dtype: torch.dtype = HALF, batch: int = 64, *, eight_bit: bool = False) -> Graph:
    """Return ResNet-101 on 64 x 64 images, cut before layer3[8]."""
    network = networks().get_model("resnet101")
    begin_block(network.layer3[8], 1)
    module = Classifier(network, normalises=eight_bit, dtype=dtype).to(dtype)
    return captured(module, *images(batch, 3, 64, torch.uint8 if eight_bit else dtype))


def day03_program(
    *, dtype: torch.dtype = HALF, accumulation: int = 8, iterations: int = 1, eight_bit: bool = False
) -> Program:
    """Return one row of the day-03 ladder: ResNet-101 on CIFAR-10, two IPUs."""
    return program_of(
        day03(dtype, eight_bit=eight_bit),
        Batching(iterations, accumulation),
        optimiser=adamw(dtype),
        recomputation=Recomputation.PIPELINE,
        name="day03-resnet101",
    )


@lru_cache(maxsize=2)
def small_resnet50_program(*, ipus: int = 2) -> Program:
    """Return day 02's program (small) in fp32: two replicas of two IPUs (or one), accumulation 3.

    Its momentum SGD keeps gradient accumulators apart, PopTorch's default. The memory report says so: of what is not
    always live, 112 MiB never go away, which is one set of accumulators (97.5 MiB) and little else.
    """
    network = networks().get_model("resnet50")
    if ipus == 2:
        begin_block(network.layer4, 1)
    return program_of(
        captured(Classifier(network, dtype=FLOAT), *images(8, 3, 64, FLOAT)),
        Batching(1, 3, 2),
        optimiser=OptimiserSpec("SGD2", Hyper(lr=0.1, momentum=0.9), accum_dtype=FLOAT32),
        recomputation=Recomputation.PIPELINE,
        name="day02-resnet50",
    )


# --- ResNet-50 on ImageNet: MLPerf's, the user guides', and inference


@lru_cache(maxsize=4)
def mlperf_resnet50(batch: int = 20, *, checkpoints: bool = True) -> Graph:
    """Return ResNet-50 on 224 x 224 byte images, fp16. The checkpoints are those of the published configuration."""
    network = networks().get_model("resnet50")
    for name in ("layer1.0", "layer1.2", "layer2.0", "layer2.2", "layer3.0", "layer3.3") if checkpoints else ():
        building.checkpoint(network.get_submodule(name))
    return captured(Classifier(network, normalises=True).half(), *images(batch, 3, 224, torch.uint8))


def mlperf_program(
    *, batch: int = 20, accumulation: int = 10, replicas: int = 16, system: str = "POD16", processes: int = 8
) -> Program:
    """Return MLPerf's submission, by default for a POD16: replicas of one IPU, shared out to host processes."""
    return program_of(
        mlperf_resnet50(batch),
        Batching(1, accumulation, replicas // processes),
        system,
        processes=processes,
        optimiser=momentum_sgd(),
        proportions={0: 0.15},
        recomputation=Recomputation.ALL,
        name="mlperf-resnet50",
    )


# B1: MLPerf v1.1's submission for a POD64. B2: MLPerf v2.0's for a Bow Pod64.
mlperf_pod64_program = partial(mlperf_program, accumulation=3, replicas=64, system="POD64", processes=32)
mlperf_bow_pod64_program = partial(mlperf_program, accumulation=4, replicas=64, system="Bow-POD64", processes=32)
# B3, B24 and F3: the application for PyTorch on 16 Bow IPUs, with MLPerf's checkpoints.
user_guide_program = partial(mlperf_program, batch=18, accumulation=57, system="Bow-POD16")
# F3: the largest micro-batch that ran on a Bow IPU.
bow_training_program = partial(mlperf_program, batch=22, system="Bow-POD16")


@lru_cache(maxsize=8)
def resnet50_inference_program(batch: int, *, dtype: torch.dtype = HALF, io_tiles: int = 0) -> Program:
    """Return ResNet-50 on one C600 card (B4 to B7, F1; F2 in fp32): 100 micro-batches a call, of synthetic data."""
    network = networks().get_model("resnet50").eval().to(dtype)
    return program_of(
        captured(network, images(batch, 3, 224, dtype)[0], training=False),
        Batching(100),
        "C600-server",
        half_partials=dtype == HALF,
        synthetic_data=True,
        io_tiles=io_tiles,
        name="resnet50-inference",
    )


# --- EfficientNet


@lru_cache(maxsize=2)
def efficientnet_program(cut: int = 4) -> Program:
    """Return EfficientNet-B4's training on a Bow Pod16 (B15): eight replicas of two IPUs, in 16.32.

    The network has groups of 16 channels, and its norms have four groups, as in the public command that trains it
    (`--groups=4` and no `--batch-norm`: docs/benchmarks.md). The second IPU begins at stage `cut`: where the published
    program cuts the network is not known; stage 4 is the middle of its modelled time.
    """
    # torchvision's blocks of EfficientNet-B4, with a ratio of 4 where it has 6: blocks with groups of 16 widen their
    # input four times instead of six ("Making EfficientNet More Efficient", Masters et al. 2021).
    blocks = [
        (1, 3, 1, 32, 16, 1),
        (4, 3, 2, 16, 24, 2),
        (4, 5, 2, 24, 40, 2),
        (4, 3, 2, 40, 80, 3),
        (4, 5, 1, 80, 112, 3),
        (4, 5, 2, 112, 192, 4),
        (4, 3, 1, 192, 320, 1),
    ]
    models = networks()
    settings = [models.efficientnet.MBConvConfig(*block, width_mult=1.4, depth_mult=1.8) for block in blocks]
    norm = partial(nn.GroupNorm, 4)
    network = models.EfficientNet(settings, dropout=0.4, last_channel=1792, norm_layer=norm)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and layer.groups > 1:
            _regroup(layer)
    begin_block(network.features[cut], 1)
    graph = captured(Classifier(network, normalises=True).half(), *images(4, 3, 380, torch.uint8))
    return building.on_pod16(graph, Batching(4, 32, 8), momentum_sgd(FLOAT32), (0.1, 0.1), "efficientnet-b4")


def _regroup(layer: nn.Conv2d) -> None:
    """Let a depthwise convolution work on groups of 16 channels, or on fewer groups where 16 do not divide them."""
    layer.groups = max(1, layer.in_channels // 16)
    while layer.in_channels % layer.groups:
        layer.groups -= 1
    layer.weight = nn.Parameter(torch.empty(layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size))


# --- handwritten digits


@lru_cache(maxsize=2)
def digits(*, training: bool = True) -> Graph:
    """Return the tutorial's network over four IPUs in fp32: micro-batch 40 with a loss, or 8 for inference."""
    first = nn.Sequential(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU())
    third = nn.Sequential(nn.Flatten(), nn.Linear(320, 256), nn.ReLU())
    network = nn.Sequential(first, second, third, nn.Linear(256, 10))
    for ipu, layer in enumerate(network):
        begin_block(layer, ipu)
    if not training:
        return captured(network.eval(), images(8, 1, 28, FLOAT)[0], training=False)
    return captured(Classifier(network, dtype=FLOAT), *images(40, 1, 28, FLOAT))


def digits_program() -> Program:
    """Return the pipelining tutorial's training program (mnist): accumulation 10, 10 device iterations, all outputs."""
    return program_of(
        digits(),
        Batching(10, 10),
        returns=Returns(Keep.ALL),
        optimiser=adamw(FLOAT),
        recomputation=Recomputation.PIPELINE,
        name="mnist-pipeline",
    )


def digits_inference_program() -> Program:
    """Return the pipelining tutorial's test program: 100 device iterations."""
    return program_of(digits(training=False), Batching(100), returns=Returns(Keep.ALL), name="mnist-inference")
