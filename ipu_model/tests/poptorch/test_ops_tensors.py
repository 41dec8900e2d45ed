"""PopTorch's functions of tensors, loops and conditions (execution reference, 9 and 11), and empty tensors."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import groupby, pairwise, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, compiled_ops, gradient, inference, on_device, quiet, with_loss
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import ipu_model
import poptorch

X = torch.arange(72.0).reshape(2, 6, 6)


def start_at(position: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([position], dtype=dtype)


@pytest.mark.parametrize("dim", [1, 2, -1])
class TestSlices:
    @pytest.mark.parametrize(("size", "step"), [(1, 1), (2, 1), (3, 2), (6, 4)])
    def test_it_is_the_python_slice_at_a_start_known_at_run_time(self, dim: int, size: int, step: int) -> None:
        executor = on_device(lambda m, x, start: poptorch.dynamic_slice(x, dim, start, size, step))
        for start in range(7 - size):
            expected = X.transpose(0, dim)[start : start + size : step].transpose(0, dim)
            assert torch.equal(executor(X, start_at(start)), expected)
        for start in (-1, 6, *([7 - size] if step == 1 else [])):
            with pytest.raises(poptorch.Error, match="out of"):
                executor(X, start_at(start))

    @pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
    def test_on_the_cpu_it_is_a_copy_and_device_rules_do_not_apply(self, dim: int, dtype: torch.dtype) -> None:
        result = poptorch.dynamic_slice(tensor := X.clone(), dim, start_at(1, dtype), 4, 3)
        assert torch.equal(result, X.transpose(0, dim)[1:5:3].transpose(0, dim))
        result.zero_()
        assert torch.equal(tensor, X)

    @pytest.mark.parametrize("size", [1, 4, 6])  # a size needs not divide the dimension
    def test_an_update_is_a_copy_with_the_slice_replaced(self, dim: int, size: int) -> None:
        src, host = -torch.ones_like(X).narrow(dim, 0, size), X.clone()
        executor = on_device(lambda m, x, src, start: poptorch.dynamic_update(x, src, dim, start, size))
        for start in range(7 - size):
            expected = X.clone()
            expected.transpose(0, dim)[start : start + size] = -1
            assert torch.equal(executor(host, src, start_at(start)), expected)
            assert torch.equal(host, X)
        with pytest.raises(poptorch.Error, match="out of"):
            executor(X, src, start_at(7 - size))


# `fps` and `nearest`, against plain loops over the points.

# Whole numbers: distances are exact, and ties are met.
POINTS = torch.randint(-9, 9, (20, 3), generator=torch.Generator().manual_seed(0)).float()
OTHERS = torch.randint(-9, 9, (15, 3), generator=torch.Generator().manual_seed(1)).float()


def sampled(rows: list[list[float]], begin: int, count: int) -> list[int]:
    """Farthest point sampling as its definition says: the largest of the least distances, the first of equals."""
    picked = [0][:count]
    while len(picked) < count:
        least = [min(math.dist(row, rows[p]) for p in picked) for row in rows]
        picked.append(least.index(max(least)))
    return [begin + p for p in picked]


class TestFarthestPoints:
    @given(
        ends=st.lists(st.integers(0, 20), min_size=2, max_size=4).map(sorted),
        ratio=st.sampled_from([0.1, 0.25, 0.5, 1.0]),
    )
    def test_each_pick_is_the_farthest_from_those_before(self, ends: list[int], ratio: float) -> None:
        expected = [
            index
            for begin, end in pairwise(ends)
            for index in sampled(POINTS[begin:end].tolist(), begin, math.ceil((end - begin) * ratio))
        ]
        assert poptorch.fps(POINTS, ends, ratio).tolist() == expected

    def test_the_device_picks_what_the_cpu_picks_and_rows_can_be_taken(self) -> None:
        executor = on_device(lambda m, x: (x[poptorch.fps(x, [0, 8, 20])], poptorch.fps(x.half(), [0, 20], 0.3)))
        rows, of_half = executor(POINTS)
        assert torch.equal(rows, POINTS[poptorch.fps(POINTS, [0, 8, 20])])
        assert torch.equal(of_half.long(), poptorch.fps(POINTS, [0, 20], 0.3))

    def test_the_number_of_picks_is_computed_in_fp32(self) -> None:
        """As torch_cluster does; in fp64 0.07 * 100 is 7.000000000000001."""
        assert len(poptorch.fps(torch.rand(100, 1), [0, 100], 0.07)) == 7

    def test_a_random_start_is_any_row_of_its_sample_and_drawn_anew(self) -> None:
        executor = on_device(lambda m, x: poptorch.fps(x, [0, 8, 20], 0.1, random_start=True))
        starts = torch.stack([executor(POINTS) for _ in range(40)])
        assert all(0 <= first < 8 <= second < 20 for first, second in starts[:, [0, 1]].tolist())
        assert len(set(starts[:, 0].tolist())) > 3

    def test_in_training_the_points_get_gradients_through_what_is_taken(self) -> None:
        model = with_loss(lambda m, x: (y := m.layer(x))[poptorch.fps(y, [0, 20], 0.1)], layer=nn.Linear(3, 3))
        taken = POINTS[poptorch.fps(model.layer(POINTS), [0, 20], 0.1)]
        torch.testing.assert_close(gradient(model, POINTS), taken.sum(0).expand(3, 3))


def closest(x: Tensor, y: Tensor, batch_x: list[int], batch_y: list[int]) -> list[int]:
    rows = []
    for row, batch in zip(x.tolist(), batch_x):
        distances = [math.dist(row, o) if b == batch else math.inf for o, b in zip(y.tolist(), batch_y)]
        rows.append(distances.index(min(distances)))
    return rows


class TestNearest:
    @given(cut_x=st.integers(1, 19), cut_y=st.integers(1, 14), tensors=st.sampled_from(["none", "x", "y", "both"]))
    def test_it_is_the_nearest_row_of_the_same_batch_element(self, cut_x: int, cut_y: int, tensors: str) -> None:
        batch_x, batch_y = [0] * cut_x + [7] * (20 - cut_x), [0] * cut_y + [7] * (15 - cut_y)
        given_x = torch.tensor(batch_x, dtype=torch.int32) if tensors in ("x", "both") else batch_x
        given_y = torch.tensor(batch_y, dtype=torch.int32) if tensors in ("y", "both") else batch_y
        found = poptorch.nearest(POINTS, OTHERS, given_x, given_y)
        assert found.tolist() == closest(POINTS, OTHERS, batch_x, batch_y)

    def test_without_batch_vectors_all_rows_count_and_one_stands_beside_zeros(self) -> None:
        expected = closest(POINTS, OTHERS, [0] * 20, [0] * 15)
        assert poptorch.nearest(POINTS, OTHERS).tolist() == expected
        assert poptorch.nearest(POINTS, OTHERS, [0] * 20).tolist() == expected
        # One dimension is one feature.
        assert poptorch.nearest(torch.tensor([1.0, 9.0]), torch.tensor([8.0, 0.5, 3.0])).tolist() == [1, 0]

    def test_the_device_finds_what_the_cpu_finds_also_with_batches_known_at_run_time(self) -> None:
        batch_x, batch_y = torch.tensor([0] * 9 + [1] * 11), torch.tensor([0] * 5 + [1] * 10)
        executor = on_device(lambda m, x, y, a, b: (poptorch.nearest(x, y, a, b), poptorch.nearest(x, y)))
        found = executor(POINTS, OTHERS, batch_x, batch_y)
        assert found[0].tolist() == poptorch.nearest(POINTS, OTHERS, batch_x, batch_y).tolist()
        assert found[1].tolist() == poptorch.nearest(POINTS, OTHERS).tolist()

    def test_many_points_are_compared_piece_by_piece(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ipu_model.capture.device_ops.points._DISTANCES_AT_ONCE", 64)
        self.test_without_batch_vectors_all_rows_count_and_one_stands_beside_zeros()
        assert poptorch.nearest(POINTS[:0], OTHERS).shape == (0,)

    def test_close_neighbours_far_from_the_origin_keep_their_order(self) -> None:
        """A distance computed from products of coordinates would be all rounding here."""
        y = 4096 + torch.arange(64.0).reshape(64, 1) / 64
        assert poptorch.nearest(y, y).tolist() == list(range(64))


def test_each_is_one_op_of_the_graph() -> None:
    ops = compiled_ops(lambda m, x, y: (poptorch.fps(x, [0, 20]), poptorch.nearest(x, y)), POINTS, OTHERS)
    assert [str(op.target) for op in ops] == [
        "ipu_model.farthest_points.default", "ipu_model.nearest_points.default"
    ]  # fmt: skip


# `ctc_beam_search_decoder`, against a sum over all paths.

STEPS, SAMPLES, CLASSES = 5, 2, 3
SCORES = torch.randn(SAMPLES, STEPS, CLASSES, generator=torch.Generator().manual_seed(3)).log_softmax(-1)
LENGTHS = torch.tensor([5, 3])


def decoder(**settings: int) -> Any:
    """A model that takes `[N, T, C]`, so that the batch comes first."""
    return on_device(lambda m, x, lengths: poptorch.ctc_beam_search_decoder(x.transpose(0, 1), lengths, **settings))


def enumerated(scores: Tensor, blank: int) -> list[tuple[float, tuple[int, ...]]]:
    """All label sequences of one sample with their negative log-probabilities: every path counts, one by one."""
    probability: dict[tuple[int, ...], float] = defaultdict(float)
    rows = scores.double().exp().tolist()
    for path in product(range(scores.shape[1]), repeat=len(rows)):
        labels = tuple(label for label, _ in groupby(path) if label != blank)
        probability[labels] += math.prod(row[label] for row, label in zip(rows, path))
    return sorted((-math.log(p), labels) for labels, p in probability.items())


class TestDecoding:
    @pytest.mark.parametrize(("blank", "top_paths", "seed"), [(0, 1, 0), (1, 3, 1), (2, 6, 2), (0, 4, 3)])
    def test_a_beam_that_drops_nothing_finds_the_likeliest_sequences(self, blank, top_paths, seed) -> None:
        scores = torch.randn(1, STEPS, CLASSES, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
        found = decoder(blank=blank, beam_width=200, top_paths=top_paths)(scores, torch.tensor([STEPS]))
        expected, likeliest = zip(*enumerated(scores[0], blank)[:top_paths])
        torch.testing.assert_close(found[0][0], torch.tensor(expected))
        lengths = found[1][0].tolist()
        assert lengths == [len(labels) for labels in likeliest]
        assert [tuple(row[:n]) for row, n in zip(found[2][0].tolist(), lengths)] == list(likeliest)

    def test_samples_end_at_their_own_lengths(self) -> None:
        probabilities, sizes, labels = decoder(top_paths=2)(SCORES, LENGTHS)
        assert [tuple(t.shape) for t in (probabilities, sizes, labels)] == [(2, 2), (2, 2), (2, 2, STEPS)]
        for sample, length in enumerate(LENGTHS.tolist()):
            expected = enumerated(SCORES[sample, :length], 0)[:2]
            torch.testing.assert_close(probabilities[sample], torch.tensor([score for score, _ in expected]))

    def test_behind_a_path_is_minus_one_and_missing_paths_have_no_probability(self) -> None:
        """One step and two classes make two sequences: nothing, and the label."""
        scores = torch.tensor([[[0.75, 0.25]]]).log()
        probabilities, sizes, labels = decoder(top_paths=3)(scores, torch.tensor([1]))
        torch.testing.assert_close(probabilities[0], -torch.tensor([0.75, 0.25, 0.0]).log())
        assert sizes[0].tolist() == [0, 1, 0]
        assert labels[0].tolist() == [[-1], [1], [-1]]

    @pytest.mark.parametrize("width", [1, 2, 5, 30])
    def test_a_narrow_beam_never_finds_more_probability(self, width: int) -> None:
        probability = decoder(beam_width=width)(SCORES, LENGTHS)[0]
        best = torch.tensor([[enumerated(SCORES[n, :length], 0)[0][0]] for n, length in enumerate(LENGTHS.tolist())])
        assert bool((probability >= best - 1e-5).all())

    def test_an_empty_sample_and_impossible_scores_decode_to_nothing(self) -> None:
        nothing = decoder()(SCORES, torch.tensor([0, 0]))
        assert nothing[0].flatten().tolist() == [0.0, 0.0]  # probability one
        impossible = decoder()(torch.full((1, 3, 4), -math.inf), torch.tensor([3]))
        assert impossible[0].item() == math.inf
        assert impossible[1].item() == 0

    def test_half_precision_scores_give_half_precision_probabilities(self) -> None:
        found = decoder()(SCORES.half(), LENGTHS)
        assert found[0].dtype is torch.float16
        torch.testing.assert_close(found[0].float(), decoder()(SCORES, LENGTHS)[0], atol=0.02, rtol=0)

    def test_on_the_cpu_the_results_are_zeros_of_the_same_shapes(self) -> None:
        found = poptorch.ctc_beam_search_decoder(SCORES.transpose(0, 1), LENGTHS, top_paths=2)
        expected = decoder(top_paths=2)(SCORES, LENGTHS)
        assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in expected]
        assert not any(t.any() for t in found)


PAIR = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
# Of each number of dimensions.
RESIZES = [["nearest", "linear"], ["nearest", "bilinear", "bicubic"], ["nearest"]]
OPS: dict[str, Callable[[Tensor], Tensor]] = {
    **{f"{mode}, {n} d": (lambda rows, m=mode, n=n: F.interpolate(rows.reshape(0, 2, *[1] * n), scale_factor=2, mode=m))
       for n, modes in enumerate(RESIZES, start=1) for mode in modes},
    **{f"{loss.__name__}, {reduction}": (lambda rows, f=loss, r=reduction: f(rows, rows.detach(), reduction=r))
       for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss) for reduction in ("sum", "mean", "none")},
    "conv": lambda rows: F.conv2d(rows.reshape(0, 2, 1, 1), torch.ones(3, 2, 1, 1)),
    "linear": lambda rows: F.linear(rows, torch.ones(3, 2)), "cat": lambda rows: torch.cat([rows, rows]),
    "softmax": lambda rows: F.softmax(rows, 1), "maximum": lambda rows: rows.max(1)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_a_step_is_that_of_pytorch(name: str) -> None:
    """What is empty adds nothing to the gradient of the sum of all outputs; the mean of nothing is NaN."""

    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = model.layer(x)
        out = OPS[name](rows[:0])
        return out, poptorch.identity_loss(out.sum() + rows.sum(), "sum")

    model = Module(forward, layer=nn.Linear(2, 2, bias=False))
    torch.testing.assert_close(gradient(model, PAIR), PAIR.sum(0).expand(2, 2))
    out, _ = inference(model)(PAIR)
    torch.testing.assert_close(out, OPS[name](torch.zeros(0, 2)), equal_nan=True)


ROWS = torch.arange(1.0, 9.0).reshape(2, 4)
TRUE, FALSE = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])


class TestLoop:
    @pytest.mark.parametrize("count", [0, 1, 2, 6])
    def test_each_iteration_gets_what_the_last_one_returned(self, count: int) -> None:
        fibonacci = on_device(lambda m, a, b: poptorch.for_loop(count, lambda p, q: (q, p + q), [a, b]))
        a, b = ROWS, ROWS + 1
        result = fibonacci(a, b)
        for _ in range(count):
            a, b = b, a + b
        assert isinstance(result, list)
        assert poptorch.testing.allclose(result, [a, b])

    @pytest.mark.parametrize("wrap", [lambda t: t, lambda t: [t], lambda t: (t,)])
    def test_the_body_may_return_a_tensor_a_list_or_a_tuple(self, wrap: Any) -> None:
        (result,) = on_device(lambda m, x: poptorch.for_loop(3, lambda t: wrap(t * 2), [x]))(ROWS)
        assert torch.equal(result, ROWS * 8)

    def test_half_precision_rounds_once_in_each_iteration(self) -> None:
        expected = half = torch.linspace(-2, 2, 8).reshape(2, 4).half()
        for _ in range(3):
            expected = (expected.float() * 1.1).half()
        (result,) = on_device(lambda m, x: poptorch.for_loop(3, lambda t: t * 1.1, [x]))(half)
        torch.testing.assert_close(result, expected, rtol=0, atol=0)

    def test_the_body_reads_outer_tensors_parameters_and_layers(self) -> None:
        def forward(model: Any, x: Tensor) -> list[Tensor]:
            outer = x * 10
            return poptorch.for_loop(2, lambda t: model.linear(t) + outer + model.linear.bias, [x])

        executor = on_device(forward)
        layer, expected = executor.model.linear, ROWS
        for _ in range(2):
            expected = layer(expected) + ROWS * 10 + layer.bias
        torch.testing.assert_close(executor(ROWS)[0], expected.detach())

    def test_in_place_ops_in_the_body_stay_inside_and_others_are_as_in_eager_pytorch(self) -> None:
        def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            y = (x + 0).mul_(2)
            (looped,) = poptorch.for_loop(3, lambda t: t.add_(1), [y])
            looped.add_(100)
            y.sub_(1)
            return y, looped

        y, looped = on_device(forward)(ROWS)
        assert torch.equal(y, ROWS * 2 - 1)
        assert torch.equal(looped, ROWS * 2 + 103)

    def test_loops_may_be_on_different_ipus(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            with poptorch.Block("a", ipu_id=0):
                (x,) = poptorch.for_loop(3, lambda t: t + 1, [x])
            with poptorch.Block("b", ipu_id=1):
                (x,) = poptorch.for_loop(3, lambda t: t * 2, [x])
            return x

        assert torch.equal(on_device(forward, quiet().deviceIterations(2))(ROWS), (ROWS + 3) * 8)

    @pytest.mark.parametrize("table", ["input", "parameter", "constant"])
    def test_every_repeat_takes_its_time_although_only_the_last_one_counts(self, monkeypatch: Any, table: str) -> None:
        """A public benchmark: repeats of a gather in a loop on a Bow IPU. The code of its body exists once.

        128 of them and all that surrounds them were counted as 132,327 cycles (message-passing-cycles.csv).
        """
        monkeypatch.setenv("IPU_MODEL_MACHINE", "Bow-2000")

        def benchmark(count: int) -> poptorch.PoplarExecutor:
            def forward(model: Any, x: Tensor) -> Tensor:
                source = {"input": x, "parameter": model.linear.weight, "constant": model.table}[table]
                rows = source.new_zeros(32, 4)
                (rows,) = poptorch.for_loop(count, lambda _: source.index_select(0, model.index), [rows])
                return rows.flatten()[0]

            executor = on_device(forward, quiet().logCycleCount(True))
            executor.model.register_buffer("table", torch.ones(4, 4, dtype=torch.int32))
            executor.model.register_buffer("index", torch.arange(32) % 4)
            executor(torch.zeros(4, 4))
            return executor

        executors = {count: benchmark(count) for count in (0, 1, 128)}
        none, one, many = (executor.cycleCount() for executor in executors.values())
        once, often = (ipu_model.profile(executors[count]) for count in (1, 128))
        gathers = [op for op in often.ops if op.node.startswith("index_select")]
        assert len(gathers) == 128
        assert one - none > gathers[0].cycles > 0
        assert many - none == pytest.approx(128 * (one - none), rel=1e-3)
        assert none < 132_327
        code = [sum(c.bytes_on_fullest_tile for c in p.memory[0].categories if "code" in c.name) for p in (once, often)]
        assert code[0] == code[1]

    def test_what_no_result_needs_is_pruned(self) -> None:
        """PopART prunes a graph from its results, and a loop's results are those of its body's graph."""

        def products(function: Any) -> int:
            return sum("mm" in str(op.target) for op in compiled_ops(function, ROWS))

        def body(model: Any) -> Any:
            return lambda a, b: (a + 1, model.linear(b))

        assert products(lambda m, x: poptorch.for_loop(3, body(m), [x, x])[0]) == 3
        assert products(lambda m, x: poptorch.for_loop(3, lambda a: (m.linear(a), a + 1)[1], [x])) == 0
        assert products(lambda m, x: (poptorch.for_loop(3, body(m), [x, x]), x)[1]) == 0

    def test_on_the_cpu_the_body_runs_once_and_inputs_are_copies(self) -> None:
        original = ROWS.clone()
        (result,) = poptorch.for_loop(5, lambda t: t.mul_(2), [original])
        assert torch.equal(result, ROWS * 2)
        assert torch.equal(original, ROWS)


def never() -> Tensor:
    raise AssertionError("the other branch ran")


def cond(c: Tensor, *bodies: Any) -> Any:
    return poptorch.cond(c.sum() > 0, *bodies)


# Branches as functions of the input, and what they return for a true and a false condition.
CONDITIONS: dict[str, tuple[Any, list[Tensor], list[Tensor]]] = {
    "with inputs": (lambda c, x: cond(c, lambda a: a + 1, [x], lambda a, b: a * b, [x, x]), [ROWS + 1], [ROWS * ROWS]),
    "outer tensors": (
        lambda c, x: cond(c, lambda: [x * 1, x * 3], [], lambda: (x * 2, x * 6), []),
        [ROWS, ROWS * 3], [ROWS * 2, ROWS * 6],
    ),
    "the shape of the else branch": (
        lambda c, x: cond(c, lambda: x, [], lambda: -x.reshape(4, 2), []),
        [ROWS.reshape(4, 2)], [-ROWS.reshape(4, 2)],
    ),
    "infinities of the other branch": (lambda c, x: cond(c, lambda: x, [], lambda: x / 0, []), [ROWS], [ROWS / 0]),
}  # fmt: skip


class TestCondition:
    @pytest.mark.parametrize("name", CONDITIONS)
    def test_the_branch_is_chosen_at_run_time(self, name: str) -> None:
        branches, then, otherwise = CONDITIONS[name]
        executor = on_device(lambda m, c, x: branches(c, x))
        for condition, expected in ((TRUE, then), (FALSE, otherwise)):
            result = executor(condition, ROWS)
            assert isinstance(result, list)
            assert [torch.equal(a, b) for a, b in zip(result, expected, strict=True)] == [True] * len(expected)

    def test_on_the_cpu_it_evaluates_the_chosen_branch_only(self) -> None:
        assert cond(TRUE, lambda: ROWS + 1, [], never, [])[0].tolist() == (ROWS + 1).tolist()
        assert cond(FALSE, never, [], lambda a, b: a * b, [ROWS, ROWS])[0].tolist() == (ROWS * ROWS).tolist()

    @pytest.mark.parametrize(("outer", "inner", "factor"), [(TRUE, TRUE, 2), (TRUE, FALSE, 3), (FALSE, TRUE, 5)])
    def test_conditions_nest_and_bodies_are_used_again(self, outer: Tensor, inner: Tensor, factor: int) -> None:
        def times(number: int) -> Any:
            return lambda t: t * number

        def forward(model: Any, a: Tensor, b: Tensor, x: Tensor) -> list[Tensor]:
            return cond(a, lambda t: cond(b, times(2), [t], times(3), [t]), [x], times(5), [x])

        assert torch.equal(on_device(forward)(outer, inner, ROWS)[0], ROWS * factor)

    def test_in_place_ops_in_a_body_stay_inside(self) -> None:
        def forward(model: Any, c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x + 0
            (result,) = cond(c, lambda t: t.add_(1), [y], lambda t: t.mul_(7), [y])
            return y, result

        y, result = on_device(forward)(FALSE, ROWS)
        assert torch.equal(y, ROWS)
        assert torch.equal(result, ROWS * 7)
