"""What a call returns: structure, output modes, shapes (executor reference, section 7)."""

from __future__ import annotations

import copy
import io
import warnings
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from executor_support import Module, Net, X, inference, quiet, training
from torch import Tensor, nn

import poptorch

Pair = namedtuple("Pair", "left right")


def returns(function: Any) -> Any:
    """Returns what `function` makes of the inputs; trainable, so that both kinds of executor take it."""
    return Module(lambda model, *inputs: function(*inputs), weight=nn.Parameter(torch.ones(1)))


def outputs(function: Any, *inputs: Tensor, options: poptorch.Options | None = None) -> Any:
    return inference(returns(function), options)(*inputs)


class TestStructure:
    def test_nesting_and_types_are_those_of_forward(self) -> None:
        out = outputs(
            lambda x: (x, [x + 1, {"b": x + 2, "a": Pair(x + 3, None)}], OrderedDict(k=x + 4), "text", 5),
            torch.zeros(1),
        )
        assert [type(part) for part in out] == [Tensor, list, OrderedDict, str, int]
        nested = out[1][1]
        assert list(nested) == ["b", "a"], "the order of dict keys is kept"
        assert isinstance(nested["a"], Pair)
        assert nested["a"].right is None
        values = [out[0], out[1][0], nested["b"], nested["a"].left, out[2]["k"]]
        assert [value.item() for value in values] == [0, 1, 2, 3, 4]
        assert out[3:] == ("text", 5)

    def test_values_that_are_no_tensors_are_those_of_the_compilation(self) -> None:
        counter = iter(range(10))
        executor = inference(returns(lambda x: (x, next(counter))))
        assert [executor(torch.zeros(1))[1] for _ in range(3)] == [0, 0, 0]

    def test_a_tensor_returned_twice_arrives_as_two(self) -> None:
        first, second = outputs(lambda x: (y := x + 1, y), torch.zeros(2))
        first.add_(1)
        assert second.tolist() == [1, 1]

    def test_an_input_arrives_as_a_copy(self) -> None:
        x = torch.zeros(2)
        outputs(lambda x: x, x).add_(1)
        assert x.tolist() == [0, 0]

    def test_a_view_of_an_input_or_of_another_output_arrives_as_a_copy(self) -> None:
        x = torch.zeros(4)
        whole, part = outputs(lambda x: (y := x + 1, y[:2]), x)
        part.add_(1)
        assert whole.tolist() == [1] * 4

    def test_a_returned_weight_arrives_as_a_copy(self) -> None:
        model = Net()
        model.forward = lambda x: model.first.bias  # type: ignore[method-assign]  # the shortest such model
        first = inference(model)
        first(X).fill_(9)
        assert torch.equal(first(X), model.first.bias)

    def test_every_call_makes_new_tensors(self) -> None:
        executor = inference(Net())
        first = executor(X)
        kept = first.clone()
        executor(X + 1)
        assert torch.equal(first, kept)

    def test_a_custom_type_comes_back_through_its_parser(self) -> None:
        class Box:
            def __init__(self, tensor: Tensor, label: str) -> None:
                self.tensor, self.label = tensor, label

        class BoxParser(poptorch.ICustomArgParser):
            def yieldTensors(self, struct: Box) -> Any:
                yield struct.tensor

            def reconstruct(self, original_structure: Box, tensor_iterator: Any) -> Box:
                return Box(next(tensor_iterator), original_structure.label)

        poptorch.registerCustomArgParser(Box, BoxParser())
        try:
            executor = inference(Module(lambda model, box: Box(box.tensor * 2, box.label + "!")))
            out = executor(Box(torch.ones(2), "a"))
            assert (out.label, out.tensor.tolist()) == ("a!", [2, 2])
            with pytest.raises(poptorch.Error, match=r"Shape mismatch for args\[0\]"):
                executor(Box(torch.ones(3), "a"))
        finally:
            poptorch.registerCustomArgParser(Box, None)


class TestOutputsAreResults:
    def test_they_have_no_history_and_refuse_backward(self) -> None:
        model = Net()
        executor = training(model)
        out, loss = executor(X, torch.ones(4, 2))
        assert not out.requires_grad
        for tensor in (out, loss):
            with pytest.raises(
                poptorch.Error,
                match=r"backward\(\) cannot be called explicitly on outputs of a PopTorch model",
            ):
                tensor.backward()

    def test_new_tensors_computed_from_them_are_ordinary(self) -> None:
        weight = torch.ones(2, requires_grad=True)
        (outputs(lambda x: x, torch.ones(2)) * weight).sum().backward()
        assert weight.grad is not None
        assert weight.grad.tolist() == [1, 1]

    def test_they_are_saved_and_copied_as_plain_tensors(self) -> None:
        out = outputs(lambda x: x + 1, torch.ones(2))
        file = io.BytesIO()
        torch.save(out, file)
        assert b"poptorch" not in file.getvalue()
        file.seek(0)
        for twin in (torch.load(file, weights_only=True), copy.deepcopy(out), copy.copy(out)):
            assert type(twin) is Tensor
            assert twin.tolist() == [2, 2]


MODES = poptorch.OutputMode
# D, A, R, mode, period -> factor on dimension 0 of y, shape of the loss (the table of section 7.2).
TABLE = [
    *((1, 1, 1, mode, 1, 1, ()) for mode in (MODES.All, MODES.Final, MODES.Sum, MODES.EveryN)),
    (10, 1, 1, MODES.Final, 0, 1, ()),
    (10, 1, 1, MODES.Sum, 0, 1, ()),
    (10, 1, 1, MODES.All, 0, 10, (10,)),
    (10, 1, 1, MODES.EveryN, 5, 2, (2,)),
    (4, 8, 2, MODES.Final, 0, 2, (2,)),
    (4, 8, 2, MODES.Sum, 0, 2, (2,)),
    (4, 8, 2, MODES.All, 0, 64, (64,)),
    (4, 8, 2, MODES.EveryN, 2, 32, (32,)),
]


class TestModes:
    @staticmethod
    def executor(d: int, a: int, r: int, mode: poptorch.OutputMode, period: int) -> poptorch.PoplarExecutor:
        def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            y = model.layer(x)
            return y, poptorch.identity_loss(y, "mean")

        options = quiet().deviceIterations(d).replicationFactor(r).outputMode(mode, period or None)
        options.Training.gradientAccumulation(a)
        return training(Module(forward, layer=nn.Linear(1, 10)), options)

    @pytest.mark.parametrize(("d", "a", "r", "mode", "period", "factor", "loss_shape"), TABLE)
    def test_shapes(
        self,
        d: int,
        a: int,
        r: int,
        mode: poptorch.OutputMode,
        period: int,
        factor: int,
        loss_shape: tuple[int, ...],
    ) -> None:
        b = 3
        y, loss = self.executor(d, a, r, mode, period)(torch.ones(b * d * a * r, 1))
        assert y.shape == (factor * b, 10)
        assert loss.shape == loss_shape

    @pytest.mark.parametrize(
        ("mode", "period", "rows"),
        [(MODES.Final, None, [6, 7]), (MODES.All, None, list(range(8))), (MODES.EveryN, 2, [2, 3, 6, 7]),
         (MODES.Sum, None, [0 + 2 + 4 + 6, 1 + 3 + 5 + 7])],
    )  # fmt: skip
    def test_rows_of_the_worked_example(self, mode: poptorch.OutputMode, period: int | None, rows: list[int]) -> None:
        def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            return x * 1, poptorch.identity_loss(x * model.weight, "sum")

        options = quiet().deviceIterations(2).replicationFactor(2).outputMode(mode, period)
        options.Training.gradientAccumulation(2)
        model = Module(forward, weight=nn.Parameter(torch.zeros(1)))
        assert training(model, options)(torch.arange(8.0))[0].tolist() == rows

    def test_dimension_0_grows_even_where_it_is_no_batch(self) -> None:
        out = outputs(lambda x: x.t(), torch.ones(4, 3), options=quiet().deviceIterations(2))
        assert out.shape == (6, 2)

    def test_the_default_is_final_for_training_and_all_for_inference(self) -> None:
        options = quiet().deviceIterations(2)
        x = torch.arange(4.0)[:, None]
        assert inference(nn.Identity(), options)(x).shape == (4, 1)
        assert self.executor(2, 1, 1, MODES.Default, 0)(x)[0].shape == (2, 10)

    @pytest.mark.parametrize(("iterations", "period"), [(3, 2), (2, 4)])
    def test_the_period_must_divide_the_iterations(self, iterations: int, period: int) -> None:
        options = quiet().deviceIterations(iterations).outputMode(MODES.EveryN, period)
        with pytest.raises(poptorch.Error, match=rf"Return period must be.*\({iterations}\)"):
            inference(nn.Identity(), options)(torch.ones(iterations, 1))

    def test_every_n_is_not_available_in_a_pipeline_over_several_ipus(self) -> None:
        def two_ipus(x: Tensor) -> Tensor:
            with poptorch.Block("a", ipu_id=0):
                x = x + 1
            with poptorch.Block("b", ipu_id=1):
                return x + 1

        options = quiet().deviceIterations(4).outputMode(MODES.EveryN, 2)
        with pytest.raises(poptorch.Error, match=r"EveryN is not available.*OutputMode.All"):
            inference(returns(two_ipus), options)(torch.ones(4))
        sharded = options.clone().setExecutionStrategy(poptorch.ShardedExecution())
        assert inference(returns(two_ipus), sharded)(torch.arange(4.0)).tolist() == [3, 5]

    def test_sums_of_integers_and_halves_keep_their_type(self) -> None:
        options = quiet().deviceIterations(3).outputMode(MODES.Sum)
        whole, half = outputs(lambda x: (x.int(), x.half()), torch.tensor([1.0, 2.0, 3.0]), options=options)
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

        x, steps, filled, written, drawn, number = outputs(forward, torch.ones(4), options=quiet().deviceIterations(4))
        assert x.shape == (4,)
        assert steps.tolist() == [0, 1, 2]
        assert filled.tolist() == [5, 0]
        assert number.item() == 6
        assert number.shape == ()
        assert written.tolist() == [0, 1] * 4, "this one depends on an input"
        assert drawn.shape == (8,), "random numbers are no constants"
        assert len(set(drawn.tolist())) == 8

    @pytest.mark.parametrize("mode", [MODES.Sum, MODES.Final])
    def test_in_other_modes_too(self, mode: poptorch.OutputMode) -> None:
        options = quiet().deviceIterations(4).replicationFactor(2).outputMode(mode)
        assert outputs(lambda x: (x, torch.ones(3)), torch.ones(8), options=options)[1].tolist() == [1, 1, 1]

    def test_a_tensor_that_never_reached_the_device_comes_back_as_it_was_after_a_warning(self) -> None:
        constant = torch.tensor([3, 4])
        with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
            x, out = outputs(lambda x: (x, constant * 2), torch.ones(4), options=quiet().deviceIterations(2))
        assert x.shape == (4,)
        assert out.tolist() == [6, 8]

    def test_so_does_one_that_the_model_holds_and_every_call_gets_its_own(self) -> None:
        model = returns(lambda x: (x, model.plain))
        model.plain = torch.tensor([1.0, 2.0])
        executor = inference(model)
        with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
            first = executor(torch.ones(1))[1]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first.zero_()
            assert executor(torch.ones(1))[1].tolist() == [1, 2]
        assert model.plain.tolist() == [1, 2]

    def test_an_integer_buffer_is_a_constant_of_the_device(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out = inference(
                Module(lambda m, x: (x, m.steps), {"steps": torch.tensor([1, 2])}), quiet().deviceIterations(2)
            )(torch.ones(2))[1]
        assert (out.dtype, out.tolist()) == (torch.int32, [1, 2])
