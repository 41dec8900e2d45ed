"""Half precision: every op computes in float32 and rounds its result to float16 once, or not at all if it need not.

Expected values come from the oracle of `half_support.py` (float64, rounded once by numpy) and, independently of the
captured graph, from PyTorch itself in float64. The bound, one float16 number for 99 % of the elements, is the project's
own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from half_support import HALF, TABLE, Run, module_of, on_grid, plain_pytorch, rounded, ulps
from test_replay import MODELS, classifier
from torch import Tensor

from ipu_model.compute.half_precision import EXACT, SELECTING, UNINITIALISED, overloads
from ipu_model.compute.replay import Arithmetic, build
from ipu_model.compute.rounding import clip_to_half_, round_to_half_

# PyTorch announces a change of `kl_div`.
pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")


@cache
def run(name: str) -> Run:
    """Trace and replay a case once for all tests."""
    return Run(module_of(TABLE[name]), *TABLE[name].inputs)


@cache
def run_model(name: str) -> Run:
    """Trace and replay a model of `test_replay.py` once for all tests."""
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    x = inputs()
    labels = torch.randint(0, 11, (len(x),))
    return Run(classifier(make()).half(), x.half() if x.is_floating_point() else x, labels)


@pytest.mark.parametrize("name", TABLE)
def test_every_op_of_the_graph_is_rounded_once_from_its_exact_result(name: str) -> None:
    assert run(name).distances, "no float16 result was compared"
    for op, distance in run(name).distances.items():
        assert int((distance > 1).sum()) <= (distance.numel() // 100 or 1), op
        if distance.numel() >= 100:
            assert int((distance == 0).sum()) >= 0.97 * distance.numel(), f"{op}: not rounded to nearest"


@pytest.mark.parametrize("name", TABLE)
def test_results_are_float16_values_and_near_pytorchs_in_float64(name: str) -> None:
    """Some ops are made of several, each of which is rounded; another choice at a bound of a range is one of 100."""
    this = run(name)
    plain = plain_pytorch(TABLE[name], this.seed)
    assert this.results.keys() == plain.keys()
    for result, tensor in this.results.items():
        expected = rounded(plain[result])
        assert on_grid(tensor), result
        far = (tensor.double() - expected).abs() > 2.0**-6 * expected.abs().max()
        assert int(far.sum()) <= far.numel() // 100, result
        assert int(ulps(tensor, expected).median()) <= 4, result


@pytest.mark.parametrize("name", MODELS)
def test_every_op_of_a_model_reads_values_of_the_grid_and_is_rounded_once(name: str) -> None:
    this = run_model(name)  # raises where an operand is off the grid
    assert all(on_grid(tensor) for tensor in this.results.values())
    total = torch.cat(list(this.distances.values()))
    assert len(total) > 1000
    assert int((total > 0).sum()) <= 0.001 * len(total)
    for op, distance in this.distances.items():
        assert int((distance > 1).sum()) <= max(distance.numel() // 100, 1), op


def test_resnet_rounds_each_inexact_result_once_and_nothing_else() -> None:
    """Convolutions, sums of gradients and normalisation are rounded; rectifiers, pools and views are not."""
    rewritten = build(run_model("resnet18").graph, Arithmetic(), torch.Generator()).module.graph
    values = [n.args[0] for n in rewritten.nodes if n.target in (round_to_half_, clip_to_half_)]
    sources = {v.args[0].target if v.target is operator.getitem else v.target for v in values}
    assert not sources & overloads("relu_ threshold_backward max_pool2d_with_indices")
    computed = [v for v in values if v.op == "call_function"]
    assert len(computed) == len(set(computed))
    statistics = [v for v in values if v.op == "placeholder"]
    assert len(statistics) == 2 * 20, "mean and variance of 20 batch norms, held in half-precision buffers"
    assert [v.target for v in computed].count(torch.ops.aten.convolution.default) == 20


# Ops that need no rounding: on all 65,536 bit patterns they give what the native op gives.

aten = torch.ops.aten
ALL = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(HALF)
_mixed = torch.randperm(2**16, generator=torch.Generator().manual_seed(0))
x, y = ALL[_mixed].view(256, 256), ALL[_mixed.flip(0)].view(256, 256)
image, volume = x.view(4, 4, 64, 64), x.view(2, 2, 16, 32, 32)
rows = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(1))
index = torch.randint(0, 256, (256, 256), generator=torch.Generator().manual_seed(2))
mask = index % 2 == 0
number = 0.333251953125  # on the grid; what happens to others is the subject of test_half_values.py
RANDOM = overloads("bernoulli bernoulli.p bernoulli_.float bernoulli_.Tensor")
OPERANDS: dict[str, tuple[Any, ...]] = {
    "relu relu_ neg neg_ abs abs_ sign sgn round floor ceil trunc clone max min tril triu zeros_like ones_like": (x,),
    "zero_ amax amin sort sort.stable": (x,),
    "max.dim min.dim median.dim cummax cummin": (x, 1),
    "maximum minimum": (x, y), "kthvalue": (x, 7, 1), "topk": (x, 9, 1), "cat stack": ([x, y],),
    "max_pool2d_with_indices": (image, [3, 3], [2, 2], [1, 1]),
    "max_pool3d_with_indices": (volume, [2, 2, 2], [2, 2, 2]),
    "adaptive_max_pool2d": (image, [5, 5]), "adaptive_max_pool3d": (volume, [5, 5, 5]),
    "index.Tensor _unsafe_index.Tensor": (x, [rows]), "embedding": (x, rows),
    "index_select": (x, 0, rows), "gather": (x, 0, index), "index_copy": (x, 0, torch.arange(9), y[:9]),
    "scatter.src scatter_.src": (x, 0, index, y), "_unsafe_view _reshape_copy": (x, [65536]),
    "flip": (x, [0]), "roll": (x, [3], [1]), "repeat": (x, [1, 2]), "im2col": (image, 3, 1, 0, 1),
    "pixel_shuffle pixel_unshuffle": (image, 2),
    "select_backward": (x, [256, 3, 256], 1, 1), "slice_backward": (x, [256, 300], 1, 5, 261, 1),
    "diagonal_backward": (x.view(4096, 16), [4096, 16, 16], 0, 1, 2),
    "slice_scatter": (x, y[:5], 0, 3, 8), "select_scatter": (x, y[0], 0, 3), "diagonal_scatter": (x, y[0]),
    "unsafe_split.Tensor": (x, 100), "unsafe_split_with_sizes": (x, [6, 250]),
    "reflection_pad1d replication_pad1d": (x, [3, 2]),
    "reflection_pad2d replication_pad2d": (image, [3, 2, 1, 0]),
    "reflection_pad3d replication_pad3d": (volume, [3, 2, 1, 0, 1, 1]),
    "upsample_nearest1d": (image[0], [100]), "upsample_nearest2d": (image, [99, 130]),
    "upsample_nearest3d": (volume, [17, 33, 40]),
    "zeros ones": ([4],), "new_zeros new_ones": (x, [4]),
    "bernoulli": (x.isfinite().to(x.dtype),), "bernoulli.p bernoulli_.float": (x, 0.3),
    "bernoulli_.Tensor": (x, x.isfinite().to(x.dtype)),
    "clamp clamp_ hardtanh hardtanh_": (x, -number, number), "hardtanh_backward": (x, y, -number, number),
    "clamp_min clamp_min_ clamp_max clamp_max_ hardshrink fill.Scalar fill_.Scalar full_like": (x, number),
    "threshold threshold_": (x, 0.5, number), "threshold_backward": (x, y, 0.5),
    "where.self": (mask, x, y), "where.ScalarOther": (mask, x, number), "where.ScalarSelf": (mask, number, x),
    "masked_fill.Scalar masked_fill_.Scalar": (x, mask, number),
    "masked_fill.Tensor masked_fill_.Tensor": (x, mask, y[0, 0]),
    "full": ([4], number), "new_full": (x, [4], number), "scalar_tensor": (number,),
    "constant_pad_nd": (x, [1, 2], number), "scatter.value scatter_.value": (x, 0, index, number),
    "index_fill.int_Scalar index_fill_.int_Scalar": (x, 0, rows, number),
}  # fmt: skip
CALLS = {op: operands for names, operands in OPERANDS.items() for op in overloads(names)}


def call(op: Callable[..., Any], convert: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Call `op` on copies of its operands; return its floating results."""

    def prepared(value: Any) -> Any:
        if isinstance(value, list):
            return [prepared(item) for item in value]
        return convert(value).clone() if isinstance(value, Tensor) and value.is_floating_point() else value

    stable = {"stable": True} if op is aten.sort.stable else {}
    result = op(*(prepared(value) for value in CALLS[op]), **stable)
    return [t for t in (result if isinstance(result, (tuple, list)) else [result]) if t.is_floating_point()]


@pytest.mark.parametrize("op", sorted((EXACT | SELECTING) - UNINITIALISED, key=str), ids=str)
def test_results_on_all_float16_values_are_float16_values(op: Callable[..., Any]) -> None:
    results = call(op, Tensor.float)
    assert results
    assert all(on_grid(result) for result in results)
    if op not in RANDOM | overloads("zeros ones full scalar_tensor"):
        for mine, native in zip(results, call(op, Tensor.half), strict=True):
            assert int(ulps(mine, native.float()).max()) == 0
            zero = mine == 0
            assert torch.equal(mine.signbit() & zero, native.signbit() & zero)
