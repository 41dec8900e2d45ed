"""Micro-batches of a host batch, what a call returns of them, random numbers (executor reference, 6, 7 and 13)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from executor_support import Module, inference, quiet, runs, saved, training
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch

ALL, FINAL, SUM, EVERY_N = (poptorch.OutputMode[name] for name in ("All", "Final", "Sum", "EveryN"))


def returns(function: Any) -> Any:
    """Returns what `function` makes of the inputs and a weight that is 0; the gradient is the sum of the first."""
    weight = nn.Parameter(torch.zeros(1))
    return Module(lambda m, x: (function(m.weight, x), poptorch.identity_loss(m.weight * x, "sum")), weight=weight)


def outputs(function: Any, *inputs: Tensor, **settings: Any) -> Any:
    return runs(function, **settings)(*inputs)


class TestSplitting:
    """Section 6: one host batch is laid out as [D, A, R, B, ...]."""

    @given(d=st.integers(1, 3), a=st.integers(1, 3), r=st.integers(1, 3), b=st.integers(1, 2))
    def test_every_micro_batch_is_the_right_rows(self, d: int, a: int, r: int, b: int) -> None:
        options = quiet(deviceIterations=d, replicationFactor=r, accumulation=a, outputMode=ALL)
        x = torch.arange(float(d * a * r * b))
        sums = training(returns(lambda weight, x: x.sum(0, keepdim=True)), options)(x)[0]
        assert sums.tolist() == x.reshape(d * a * r, b).sum(1).tolist()

    def test_the_worked_example_updates_where_the_reference_says(self) -> None:
        options = quiet(deviceIterations=2, replicationFactor=2, accumulation=2, outputMode=ALL)
        executor = training(returns(lambda weight, x: weight + 0 * x), options, lr=1.0)
        weights = executor(torch.arange(8.0))[0].tolist()
        # Rows 0 to 3 see the start, rows 4 to 7 the first update: minus the mean of 0, 1, 2, 3.
        assert weights == [0, 0, 0, 0, -1.5, -1.5, -1.5, -1.5]
        assert executor.model.weight.item() == -1.5 - 5.5

    def test_each_input_has_its_own_micro_batch_size(self) -> None:
        x, y = outputs(lambda x, y: (x, y), torch.arange(4.0), torch.arange(12.0).reshape(6, 2), deviceIterations=2)
        assert (x.shape, y.shape) == ((4,), (6, 2))
        with pytest.raises(AssertionError, match="Invalid batch dimension") as refusal:
            outputs(lambda x, y: x, torch.ones(12), torch.ones(8, 3), deviceIterations=2, replicationFactor=3)
        counts = ["deviceIterations(2)", "replicationFactor(3)", "inputReplicaGrouping(1)", "gradientAccumulation(1)"]
        for words in ("[8, 3]", *counts, "= 6", "6 and 12"):
            assert words in str(refusal.value)

    @pytest.mark.parametrize(("kind", "rows"), [("Consecutive", [0, 0, 1, 1]), ("Orthogonal", [0, 1, 0, 1])])
    def test_replica_groups_share_an_input(self, kind: str, rows: list[int]) -> None:
        settings = {"replicationFactor": 4, "inputReplicaGrouping": (2, poptorch.CommGroupType[kind])}
        assert outputs(lambda x: x, torch.tensor([0.0, 1.0]), **settings).tolist() == rows

    def test_synthetic_data_checks_inputs_but_does_not_use_them(self) -> None:
        executor = inference(nn.Identity(), quiet(enableSyntheticData=True))
        x = torch.full((1000,), 100.0)
        before = torch.get_rng_state()
        out = executor(x)
        assert torch.equal(torch.get_rng_state(), before)
        assert out.abs().max() < 50, "normal numbers"
        assert out.std() == pytest.approx(1, rel=0.2)
        with pytest.raises(poptorch.Error, match="Shape mismatch"):
            executor(x[:5])
        whole = outputs(lambda x: x, torch.ones(3, dtype=torch.int32), enableSyntheticData=True)
        assert whole.tolist() == [0, 0, 0]


class TestTensors:
    def test_each_arrives_as_one_of_its_own(self) -> None:
        """Inputs, weights, views, a tensor returned twice, the results of every call."""
        x = torch.zeros(4)
        layer = nn.Linear(4, 4)
        executor = inference(Module(lambda m, x: (x, y := x + 1, y, y[:2], m.layer.bias), layer=layer))
        results = executor(x)
        expected = [t.clone() for t in results]
        assert [t.tolist() for t in results[:4]] == [[0] * 4, [1] * 4, [1] * 4, [1] * 2]
        assert torch.equal(results[4], layer.bias)
        for index, tensor in enumerate(results):
            tensor.add_(1)
            assert all(torch.equal(t, e) for t, e in zip(results[index + 1 :], expected[index + 1 :]))
        assert x.tolist() == [0] * 4
        kept = [t.clone() for t in results]
        assert torch.equal(executor(x + 5)[4], layer.bias)
        assert all(torch.equal(t, e) for t, e in zip(results, kept))

    def test_they_have_no_history_and_refuse_backward(self) -> None:
        out, loss = training(returns(lambda weight, x: weight * x))(torch.ones(2))
        assert (out.shape, loss.shape) == ((2,), ())
        for tensor in (out, loss):
            assert not tensor.requires_grad
            words = r"backward\(\) cannot be called explicitly on outputs of a PopTorch model"
            with pytest.raises(poptorch.Error, match=words):
                tensor.backward()

    def test_they_are_saved_copied_and_used_as_plain_tensors(self) -> None:
        out = outputs(lambda x: x + 1, torch.ones(2))
        for twin in (saved(out, weights_only=True), copy.deepcopy(out), copy.copy(out)):
            assert type(twin) is type(out) is Tensor
            assert twin.tolist() == [2, 2]
        weight = torch.ones(2, requires_grad=True)
        (out * weight).sum().backward()
        assert weight.grad.tolist() == [2, 2]


class TestModes:
    @pytest.mark.parametrize(
        ("mode", "rows"),
        [
            (poptorch.OutputMode.Default, [6, 7]),
            (FINAL, [6, 7]),
            (ALL, [0, 1, 2, 3, 4, 5, 6, 7]),
            ((EVERY_N, 2), [2, 3, 6, 7]),
            (SUM, [0 + 2 + 4 + 6, 1 + 3 + 5 + 7]),
        ],
    )
    def test_rows_of_the_worked_example(self, mode: Any, rows: list[int]) -> None:
        options = quiet(deviceIterations=2, replicationFactor=2, accumulation=2, outputMode=mode)
        out, loss = training(returns(lambda weight, x: x * 1), options)(torch.arange(8.0))
        assert out.tolist() == rows
        assert loss.shape == (len(rows),), "one for each micro-batch, of a single row here"

    def test_inference_returns_all_by_default_and_dimension_0_grows_even_where_it_is_no_batch(self) -> None:
        assert outputs(lambda x: x, torch.arange(4.0)[:, None], deviceIterations=2).shape == (4, 1)
        assert outputs(lambda x: x.t(), torch.ones(4, 3), deviceIterations=2).shape == (6, 2)

    def test_no_pipeline_has_a_period(self) -> None:
        def two_ipus(x: Tensor) -> Tensor:
            with poptorch.Block("a", ipu_id=0):
                x = x + 1
            with poptorch.Block("b", ipu_id=1):
                return x + 1

        settings: dict[str, Any] = {"deviceIterations": 4, "outputMode": (EVERY_N, 2)}
        with pytest.raises(poptorch.Error, match=r"EveryN is not available.*OutputMode.All"):
            outputs(two_ipus, torch.ones(4), **settings)
        settings["setExecutionStrategy"] = poptorch.ShardedExecution()
        assert outputs(two_ipus, torch.arange(4.0), **settings).tolist() == [3, 5]

    def test_sums_of_integers_and_halves_keep_their_type(self) -> None:
        x = torch.tensor([1.0, 2.0, 3.0])
        whole, half = outputs(lambda x: (x.int(), x.half()), x, deviceIterations=3, outputMode=SUM)
        assert (whole.dtype, whole.tolist()) == (torch.int32, [6])
        assert (half.dtype, half.tolist()) == (torch.float16, [6])


class TestConstants:
    """Compile-time constants come back once, without the multiplier."""

    def test_values_made_in_forward_from_no_input(self) -> None:
        def forward(x: Tensor) -> Any:
            filled = torch.zeros(2)
            filled[0] = 5
            written = torch.zeros(2)
            written[1] = x.sum()
            return x, torch.arange(3), filled, written, torch.rand(2), torch.tensor(2.0) * 3

        x, steps, filled, written, drawn, number = outputs(forward, torch.ones(4), deviceIterations=4)
        assert x.shape == (4,)
        assert steps.tolist() == [0, 1, 2]
        assert filled.tolist() == [5, 0]
        assert (number.item(), number.shape) == (6, ())
        assert written.tolist() == [0, 1] * 4, "this one depends on an input"
        assert drawn.shape == (8,), "random numbers are no constants"
        assert len(set(drawn.tolist())) == 8
        settings = {"deviceIterations": 4, "replicationFactor": 2}
        for mode in (SUM, FINAL):
            out = outputs(lambda x: (x, torch.ones(3)), torch.ones(8), outputMode=mode, **settings)
            assert out[1].tolist() == [1, 1, 1]

    @pytest.mark.filterwarnings("error")
    def test_a_tensor_that_never_reached_the_device_comes_back_as_it_was_after_a_warning(self) -> None:
        """Every call gets its own. An integer buffer is a constant of the device."""
        constant = torch.tensor([3, 4])
        buffers = {"steps": torch.tensor([1, 2])}
        model: Any = Module(lambda m, x: (x, m.plain, constant * 2, m.steps), buffers, plain=torch.tensor([1.0, 2.0]))
        executor = inference(model, quiet(deviceIterations=2))
        with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
            x, plain, *whole = executor(torch.ones(4))
        assert x.shape == (4,)
        assert [out.tolist() for out in whole] == [[6, 8], [1, 2]]
        assert whole[1].dtype == torch.int32
        plain.zero_()
        assert executor(torch.ones(4))[1].tolist() == model.plain.tolist() == [1, 2]
        executor = inference(Module(lambda m, x: (x, m.steps), buffers))
        assert executor(x)[1].tolist() == [1, 2]


# Random numbers on the device (section 13).

ROWS = torch.zeros(4)


def noise(seed: int | None = 7, draw: Any = lambda x: x + torch.rand(x.shape), **settings: Any) -> Any:
    if seed is not None:
        settings["randomSeed"] = seed
    return inference(Module(lambda model, x: draw(x)), quiet(**settings))


class TestSeeds:
    def test_equal_seeds_give_equal_sequences_and_others_do_not(self) -> None:
        first, second, other = noise(7), noise(7), noise(8)
        for _ in range(2):
            drawn = first(ROWS)
            assert torch.equal(drawn, second(ROWS))
            assert not torch.equal(drawn, other(ROWS))
        assert not torch.equal(noise(None)(ROWS), noise(None)(ROWS))

    def test_the_seed_also_seeds_the_host_at_once_but_neither_generator_reaches_the_other(self) -> None:
        executor = noise(11, lambda x: (torch.manual_seed(0), x + torch.rand(x.shape))[1])
        drawn = torch.rand(3)
        torch.manual_seed(11)
        assert torch.equal(drawn, torch.rand(3))
        for drawing in (executor, noise()):
            drawing.compile(ROWS)
            before = torch.get_rng_state()
            assert not torch.equal(drawing(ROWS), drawing(ROWS))
            assert torch.equal(torch.get_rng_state(), before)

    def test_the_stream_advances_across_calls_micro_batches_and_replicas(self) -> None:
        """A replica draws what it would draw without the others."""
        executor = noise(deviceIterations=2, replicationFactor=2)
        beside = executor(ROWS)
        assert len({*beside.tolist(), *executor(ROWS).tolist()}) == 8
        alone = noise(deviceIterations=2)(torch.zeros(2))
        assert torch.equal(beside[::2], alone)  # [device iteration, replica]: every second row is replica 0's


class TestState:
    def test_before_the_first_run_it_is_what_was_asked_for_then_the_seed_and_the_states_words(self) -> None:
        without, executor = noise(None), noise(5)
        without.compile(ROWS)
        executor.compile(ROWS)
        assert (without.rng_state, executor.rng_state) == (None, [5])
        executor(ROWS)
        seed, *words = executor.rng_state
        assert seed == 5
        assert {type(word) for word in words} == {int}

    @pytest.mark.parametrize("attached", [False, True])
    def test_what_it_cannot_be_leaves_it_as_it_was(self, attached: bool) -> None:
        executor = noise(5)
        executor(ROWS)
        if not attached:
            executor.detachFromDevice()
        state = executor.rng_state
        for wrong, words in (
            ([], "has 0 entries, expected 1 or"),
            (state[:-1], "entries, expected 1 or"),
            ([*state, 0], "entries, expected 1 or"),
            ([0.5], "holds other values"),
            ([*state[:-1], 256], "holds other values"),
            ([*state[:-1], "7"], "holds other values"),
        ):
            with pytest.raises(ValueError, match=words):
                executor.rng_state = wrong
            assert executor.rng_state == state
        executor(ROWS)

    def test_setting_it_repeats_a_sequence(self) -> None:
        executor, other = noise(), noise(None)
        executor(ROWS)
        state = executor.rng_state
        second = executor(ROWS)
        other.compile(ROWS)
        for one in (executor, other):
            one.rng_state = state
        state.append(4)
        assert torch.equal(executor(ROWS), second)
        assert torch.equal(other(ROWS), second)

    @pytest.mark.parametrize("explicitly", [False, True])
    def test_detaching_does_not_change_the_sequence_but_a_new_compilation_starts_it_again(
        self, explicitly: bool
    ) -> None:
        straight, interrupted = noise(), noise()
        first = straight(ROWS)
        assert torch.equal(first, interrupted(ROWS))
        interrupted.detachFromDevice()
        if explicitly:
            interrupted.attachToDevice()
        assert torch.equal(straight(ROWS), interrupted(ROWS))
        straight.destroy()
        assert torch.equal(straight(ROWS), first)
