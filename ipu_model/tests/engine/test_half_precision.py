"""Half precision: every op computes in float32 and rounds its result to float16 once, or not at all if it need not.

Expected values come from the oracle of `half_support.py` (float64, rounded once by numpy) and, independently of the
captured graph, from PyTorch itself in float64. The bound, one float16 number for 99 % of the elements, is the project's
own. Rounding itself is numpy's (capture-and-replay-notes.md, section 6).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from half_support import (
    CONTRACTIONS,
    HALF,
    TABLE,
    Case,
    Run,
    half,
    infer,
    module_of,
    normal,
    on_grid,
    plain_pytorch,
    rounded,
    ulps,
)
from hypothesis import given
from hypothesis import strategies as st
from net_support import Net, ops_of, session_of, traced
from test_capture import MODELS, classifier
from test_operators import NAMES, evaluated, expressions, values
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ipu_model.compute import kernels
from ipu_model.compute.half_precision import EXACT, SELECTING, UNINITIALISED, overloads
from ipu_model.compute.replay import Arithmetic, build
from ipu_model.compute.rounding import (
    CHUNK,
    PER_CACHE,
    Overflow,
    Rounding,
    clip_to_half_,
    round_to_half_,
)
from ipu_model.errors import Error

# PyTorch announces a change of `kl_div`, and the end of `chain_matmul`.
pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss", "ignore:.*chain_matmul")


def example(expression: str) -> Case:
    """Return an example of the supported operators, and of its results the first that has a gradient."""
    used = {name: value for name, value in zip(NAMES, values()) if name in compile(expression, "", "eval").co_names}
    weights = {name: value.half() for name, value in used.items() if value.is_floating_point()}
    inputs = {name: value for name, value in used.items() if name not in weights}
    function = evaluated(expression, [*weights, *inputs])

    def first(*operands: Tensor) -> Tensor:
        results = [leaf for leaf in tree_leaves(function(*operands)) if leaf.is_floating_point()]
        return next((result for result in results if result.requires_grad), results[0])

    return Case(first, *weights.values(), inputs=[*inputs.values()])


CASES = TABLE | {expression: example(expression) for expression in expressions("differentiable")}


@cache
def run(name: str) -> Run:
    """Trace and replay a case once for all tests."""
    return Run(module_of(CASES[name]), *CASES[name].inputs)


@cache
def run_model(name: str) -> Run:
    """Trace and replay a model of `test_capture.py` once for all tests."""
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    x = inputs()
    labels = torch.randint(0, 11, (len(x),))
    return Run(classifier(make()).half(), x.half() if x.is_floating_point() else x, labels)


@pytest.mark.parametrize("name", CASES)
def test_every_op_of_the_graph_is_rounded_once_from_its_exact_result(name: str) -> None:
    assert not run(name).graph.unsupported, "PopTorch refuses it in training"
    assert run(name).distances, "no float16 result was compared"
    for op, distance in run(name).distances.items():
        assert int((distance > 1).sum()) <= (distance.numel() // 100 or 1), op
        assert int((distance > 0).sum()) <= (distance.numel() // 33 or 1), f"{op}: not rounded to nearest"


@pytest.mark.parametrize("name", CASES)
def test_results_are_float16_values_and_near_pytorchs_in_float64(name: str) -> None:
    """Some ops are made of several, each of which is rounded; another choice at a bound of a range is one of 100."""
    this = run(name)
    plain = plain_pytorch(CASES[name], this.seed)
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


# Rounding onto the grid.

# NaN of every kind; the ends of the range, where 65520 is the first number that is infinite; ties to even.
BITS = st.integers(0, 2**32 - 1) | st.sampled_from([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000])
EDGES = st.sampled_from([
    math.inf, -math.inf, 0.0, -0.0, 1e38, -65536.0, 65519.9, 65520.0, -65504.0, 2.0**-24, 2.0**-25, 1 + 2.0**-11,
    1 + 2.0**-11 + 2.0**-23, 1 + 3 * 2.0**-11,
])  # fmt: skip
# Patterns drawn uniformly are mostly far outside float16's range; these are the numbers where it matters.
NEAR = st.floats(-70000.0, 70000.0, width=32) | st.floats(-(2.0**-13), 2.0**-13, width=32)
FLOATS = st.one_of(
    st.lists(BITS, min_size=1, max_size=64).map(lambda bits: np.array(bits, dtype=np.uint32).view(np.float32)),
    st.lists(EDGES | NEAR, min_size=1, max_size=64).map(lambda values: np.array(values, dtype=np.float32)),
)


def stochastic_round_to_half_(x: Tensor, *settings: Any) -> Tensor:
    Rounding(*settings)([x])
    return x


def neighbours(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, from numpy, the float16 values next to `x` towards and away from zero (equal if x is one)."""
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = x.astype(np.float16)
        beyond = np.abs(nearest.astype(np.float64)) > np.abs(x.astype(np.float64))
        inner = np.where(beyond, np.nextafter(nearest, np.float16(0)), nearest)
        # Everything from 65536, which would be the next value of the grid, is infinity.
        inner = np.where(np.abs(x) >= 65536.0, nearest, inner)
        exact = inner.astype(np.float64) == x.astype(np.float64)
        outward = np.copysign(np.float16(np.inf), x.astype(np.float16))
        outer = np.where(exact, inner, np.nextafter(inner, outward))
    return inner.astype(np.float32), outer.astype(np.float32)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(FLOATS)
def test_nearest_rounding_is_numpys_and_clipping_changes_what_is_infinite_there(values: np.ndarray) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    clipped = np.where(np.isinf(expected), np.copysign(np.float32(65504), expected), expected)
    for function, result in ((round_to_half_, expected), (clip_to_half_, clipped)):
        x = torch.from_numpy(values.copy())
        assert function(x) is x
        np.testing.assert_array_equal(x.numpy(), result)


@pytest.mark.parametrize("elements", [2 * PER_CACHE, 2 * PER_CACHE + 1, 5 * PER_CACHE + 3])
def test_large_tensors_are_clipped_and_rounded_like_small_ones(elements: int) -> None:
    x = torch.randn(elements, generator=generator()) * 40000
    expected = torch.cat([clip_to_half_(part) for part in x.clone().split(1000)])
    assert torch.equal(clip_to_half_(x.clone()), expected)
    square = x[: elements // 8 * 8].view(8, -1)
    assert torch.equal(clip_to_half_(square.clone().t()), expected[: elements // 8 * 8].view(8, -1).t())


@given(FLOATS, st.integers(0, 2**31), st.sampled_from(Overflow))
def test_stochastic_rounding_gives_a_neighbour(values: np.ndarray, seed: int, overflow: Overflow) -> None:
    inner, outer = neighbours(values)
    if overflow is Overflow.CLIP:
        inner, outer = (np.clip(neighbour, -65504, 65504) for neighbour in (inner, outer))
    result = stochastic_round_to_half_(torch.from_numpy(values.copy()), generator(seed), overflow).numpy()
    nan = np.isnan(values)
    assert np.isnan(result[nan]).all()
    assert ((result == inner) | (result == outer))[~nan].all()
    assert (np.signbit(result) == np.signbit(values))[~nan].all()


@pytest.mark.parametrize("value", [
    1 + 0.25 * 2**-10,  # a quarter of the way between 1 and the next value
    -(3.0 + 0.9 * 2**-9),
    2.0**-14 * (1 + 0.3 * 2**-10),  # the smallest normal number and a bit
    2.0**-14 * (1 - 0.3 * 2**-10),  # just below: subnormal
    0.7 * 2.0**-24,  # below the smallest number
    -5.125 * 2.0**-24,
    65504.0 + 8.0,  # a quarter of the way to 65536, which is infinity
])  # fmt: skip
def test_stochastic_rounding_has_no_bias(value: float) -> None:
    count = 1 << 17
    x = torch.full((count,), value)
    inner, outer = (float(n[0]) for n in neighbours(x[:1].numpy()))
    top = math.copysign(65536.0, outer) if math.isinf(outer) else outer
    probability = (float(x[0]) - inner) / (top - inner)
    stochastic_round_to_half_(x, generator(1), Overflow.INFINITY)
    assert set(x.tolist()) <= {inner, outer}
    frequency = float((x == outer).double().mean())
    assert abs(frequency - probability) < 5 * math.sqrt(probability * (1 - probability) / count)


def test_elements_are_rounded_independently() -> None:
    """Neighbouring elements share a 64-bit draw: both go up as often as chance has it, 1 in 4."""
    x = torch.full((1 << 18,), 1 + 0.5 * 2**-10)
    stochastic_round_to_half_(x, generator(3))
    up = (x > 1).double()
    for distance in (1, 2, 3, 4):
        together = float((up[:-distance] * up[distance:]).mean())
        assert abs(together - 0.25) < 5 * math.sqrt(0.25 * 0.75 / len(up))


def test_every_shape_and_memory_layout_is_rounded_in_place() -> None:
    plain, more = ((), (0,), (3,), (5, 7), (CHUNK + 5,)), [(4, 6, 8, 2)] * 3
    tensors = [torch.rand(shape, generator=generator()) + 1.0 for shape in (*plain, *more)]
    *contiguous, a, b, c = tensors
    for x in (*contiguous, a.permute(3, 1, 0, 2), b.to(memory_format=torch.channels_last), c[:, ::2]):
        before, strides = x.clone(), x.stride()
        stochastic_round_to_half_(x, generator())
        assert x.stride() == strides
        assert on_grid(x)
        assert torch.allclose(x, before, atol=2.0**-10, rtol=0.0)
    several = [torch.rand(elements, generator=generator()) for elements in (1, 100, 3)]
    Rounding(generator())(several)
    assert all(on_grid(x) for x in several)
    Rounding(generator())([])  # nothing to do, nothing drawn


# Half partials (`Options.Precision.setPartialsType`) are an approximation: a reduction of K terms stores K / CHUNK
# partial sums. If the rounding errors are independent, each of relative size 2^-12.5 or so of the running total, their
# sum grows with the square root of the number of stores.


def computed(case: Case, *, half_partials: bool = True) -> dict[str, Tensor]:
    """Return output and gradients of `case` in half precision, as containers."""
    return Run(module_of(case), half_partials=half_partials).results


def exact(case: Case) -> dict[str, Tensor]:
    return plain_pytorch(case, Run(module_of(case)).seed)


def error(actual: Tensor, expected: Tensor) -> float:
    """Root mean square error relative to the root mean square of the expected values."""
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_results_are_rounded_partial_sums_of_the_right_ones(name: str) -> None:
    """At most 8 stores here (512 terms): 8 independent errors of up to 2^-11 of a total, and a final one."""
    results, truth = computed(CONTRACTIONS[name]), exact(CONTRACTIONS[name])
    for key, tensor in results.items():
        assert on_grid(tensor), key
        assert tensor.shape == truth[key].shape
        assert error(tensor, truth[key]) < 9**0.5 * 2.0**-11, key


@pytest.mark.parametrize("name", ["mm", "bmm", "conv2d", "conv2d grouped", "conv_transpose2d"])
def test_more_stores_mean_more_error_growing_like_their_square_root(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, truth = CONTRACTIONS[name], exact(CONTRACTIONS[name])["output 0"]
    single = error(computed(case, half_partials=False)["output 0"], truth)
    assert error(computed(case)["output 0"], truth) > 1.3 * single
    errors = []
    for chunk in (512, 64, 16, 4):
        monkeypatch.setattr(kernels, "CHUNK", chunk)
        errors.append(error(computed(case)["output 0"], truth))
    assert errors == sorted(errors)
    assert 1.3 < errors[3] / errors[2] < 3.0, "4 times the stores: about twice the error"


def test_a_reduction_of_one_chunk_is_not_changed() -> None:
    case = Case(torch.mm, normal(8, kernels.CHUNK), normal(kernels.CHUNK, 24))
    assert torch.equal(computed(case)["output 0"], computed(case, half_partials=False)["output 0"])


def test_gradients_of_weights_store_partials_too_but_that_of_a_bias_is_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 samples of 2x2 positions: with 8 channels times 9 taps a chunk, a store after 18 samples."""
    case = Case(F.conv2d, normal(64, 8, 4, 4), normal(8, 8, 3, 3, scale=0.2), normal(8))
    truth = exact(case)["gradient of w1"]
    plain = error(computed(case)["gradient of w1"], truth)
    monkeypatch.setattr(kernels, "CHUNK", 1)
    run = Run(module_of(case), half_partials=True)
    assert error(run.results["gradient of w1"], truth) > 1.3 * plain
    assert torch.equal(run.results["gradient of w2"], round_to_half_(run.seed.float().sum([0, 2, 3])))


def test_a_partial_sum_that_overflows_is_clipped_where_it_is_stored() -> None:
    """60000 + 60000 - 60000: within a chunk the sum is exact; a store between clips it to 65504, or is infinite."""
    x, ones = torch.zeros(1, 130), torch.ones(130, 1)
    x[0, :3] = torch.tensor([60000.0, 60000.0, -60000.0])
    assert kernels.mm(x, ones).item() == 60000.0
    x[0, 2], x[0, 129] = 0.0, -60000.0
    assert kernels.mm(x, ones).item() == 65504.0 - 60000.0
    assert kernels.mm(x, ones, clips=False).item() == math.inf


def test_empty_products_and_ignored_biases_are_what_they_are_in_pytorch() -> None:
    for shapes in (((3, 0), (0, 2)), ((0, 70), (70, 2)), ((3, 70), (70, 0))):
        a, b = (torch.ones(shape) for shape in shapes)
        assert torch.equal(kernels.mm(a, b), torch.mm(a, b))
    # PyTorch's documentation: if beta is 0, the input is ignored, and nan and inf in it are not propagated.
    for shape in ((4, 4), (2, 4, 4)):
        ones = torch.ones(shape)
        assert kernels.addmm(torch.full(shape, math.nan), ones, ones, beta=0, alpha=0.5).eq(2.0).all()


def test_float32_contractions_are_left_alone() -> None:
    graph, products = traced(module_of(CONTRACTIONS["linear"], torch.float32)), overloads("mm addmm")
    kept = [
        n.target
        for n in build(graph, Arithmetic(half_partials=True), torch.Generator()).module.graph.nodes
        if n.target in products
    ]
    assert kept == [n.target for n in ops_of(graph) if n.target in products]
    assert len(kept) == 3


# --- `Options.Precision.enableFloatingPointExceptions` (options reference, section 5): what raises

INF, NAN = math.inf, math.nan
Function = Callable[[Tensor], Tensor]
UNDEFINED, DIVIDED, OVERFLOWED = "no real result", "divided by zero", "overflowed"
COMPARED = "compared numbers with NaN"
# The last rows raise only in half precision, where results would be clipped without a word.
RAISING: list[tuple[Function, float, str, bool]] = [
    (lambda x: x - x, INF, UNDEFINED, False), (lambda x: x * 0, INF, UNDEFINED, False),
    (lambda x: x / 0, 1.0, DIVIDED, False), (lambda x: x / 0, 0.0, UNDEFINED, False),
    (torch.sqrt, -1.0, UNDEFINED, False), (torch.log, 0.0, DIVIDED, False), (torch.log, -2.0, UNDEFINED, False),
    (lambda x: x < 1, NAN, COMPARED, False), (lambda x: x >= x, NAN, COMPARED, False),
    (lambda x: x.clone().log_(), 0.0, DIVIDED, False),
    (lambda x: x.float().mul(1e38).mul(10), 60000.0, OVERFLOWED, False),
    (lambda x: (x.float() * 2).half().to(x.dtype), 60000.0, OVERFLOWED, False),
    (lambda x: x * 2, 60000.0, OVERFLOWED, True), (lambda x: x.clone().mul_(2), 60000.0, OVERFLOWED, True),
    (lambda x: x @ x, 60000.0, OVERFLOWED, True), (torch.exp, 80.0, OVERFLOWED, True),
    (lambda x: x * torch.tensor([100_000]), 1.0, OVERFLOWED, True),
]  # fmt: skip


@pytest.mark.parametrize(("function", "value", "words", "only_half"), RAISING)
def test_undefined_and_infinite_results_raise(function: Function, value: float, words: str, only_half: bool) -> None:
    for x in (half(1.0, value), torch.tensor([1.0, value])):
        infer(function, x)  # by default it goes on silently
        if only_half and x.dtype is torch.float32:
            infer(function, x, floating_point_exceptions=True)
            continue
        with pytest.raises(Error, match=words) as caught:
            infer(function, x, floating_point_exceptions=True)
        assert caught.value.type == "poplar_application_runtime_error"


@pytest.mark.parametrize(("function", "value"), [
    (lambda x: x + 1, NAN), (lambda x: x * 2, INF), (lambda x: x.clone().add_(1), NAN),
    (lambda x: x == x, NAN),
    (lambda x: x.isnan(), NAN), (lambda x: x.masked_fill(x == 3, -INF).softmax(0), 3.0), (torch.relu, NAN),
    (lambda x: torch.where(x == 3, x, -INF), 2.0), (lambda x: 1 / x, INF),
    (lambda x: F.pad(x, (1, 0), value=INF), 1.0),
    (lambda x: torch.full_like(x, INF), 1.0), (lambda x: x + INF, 1.0), (torch.exp, -100.0),
])  # fmt: skip
def test_what_was_not_finite_before_or_is_written_does_not_raise(function: Function, value: float) -> None:
    for x in (half(1.0, value), torch.tensor([1.0, value])):
        infer(function, x, floating_point_exceptions=True)


def test_uninitialised_storage_is_not_looked_at() -> None:
    """Dropout fills fresh storage with random bits first; whatever lay there before means nothing."""
    torch.empty(1 << 16).fill_(NAN)  # what the allocator may hand out next
    (result,) = infer(nn.Dropout(0.5), torch.ones(1 << 16), floating_point_exceptions=True)
    assert set(result.unique().tolist()) == {0.0, 2.0}


def test_the_message_names_op_module_and_pass() -> None:
    model = Net(
        lambda net, x: F.mse_loss(net.second(net.first(x)), torch.zeros(2)),
        first=nn.Linear(2, 2),
        second=Net(lambda net, x: x.sqrt()),
    )
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    session = session_of(model, torch.ones(2), arithmetic=Arithmetic(floating_point_exceptions=True))
    # sqrt(0) = 0 is fine; its derivative, 0 / (2 * sqrt(0)), is not.
    with pytest.raises(Error, match=r"div.* in module 'second', backward pass, line \d+ of <lambda>"):
        session.run([torch.ones(2)])
