"""`ipu_print_tensor` (execution reference, section 11.1): the text, when it is printed, and what stays as it is."""

from __future__ import annotations

import contextlib
import io
import math
import re
from typing import Any

import pytest
import torch
from executor_support import X, Y, inference, quiet, training
from function_models import FunctionModel, in_training, on_device, quiet_options
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import poptorch
from ipu_model.capture.describe import step_of
from ipu_model.compute.printing import PrintLayout, printed_text
from ipu_model.predict.costs import costs_of
from poptorch import ipu_print_tensor


def printed(tensor: Tensor, **settings: Any) -> str:
    """Return what the device prints of an input, under the title `t`."""
    executor = on_device(lambda m, x: ipu_print_tensor(x, "t", **settings), quiet_options())
    with contextlib.redirect_stderr(io.StringIO()) as text:
        executor(tensor)
    return text.getvalue()


def numbers(text: str) -> list[float]:
    """Return all numbers of a printed tensor, title left out."""
    return [float(word) for word in re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?", text.partition(":")[2])]


def runs(executor: poptorch.PoplarExecutor, *inputs: Tensor) -> dict[str, list[Tensor]]:
    """Run once and return what was printed: for each title its tensors (flat), in order."""
    with contextlib.redirect_stderr(io.StringIO()) as text:
        executor(*inputs)
    found: dict[str, list[Tensor]] = {}
    for part in re.split(r"^(?=\S+: )", text.getvalue(), flags=re.MULTILINE):
        if part:
            found.setdefault(part.partition(":")[0], []).append(torch.tensor(numbers(part)))
    return found


MATRIX = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
BRACES: dict[str, Any] = {"open_bracket": "{", "close_bracket": "}", "separator": " "}

# A tensor, settings, and what stands after its title.
TEXTS: dict[str, tuple[Tensor, dict[str, Any], str]] = {
    "a line for each row": (MATRIX, BRACES, "{\n {1.000 2.000}\n {3.000 4.000}\n}"),
    "round brackets and one comma": (MATRIX, {}, "(\n (1.000,2.000)\n (3.000,4.000)\n)"),
    "one dimension": (torch.tensor([1.0, -2.5]), {}, "( 1.000,-2.500)"),
    "no dimension": (torch.tensor(1.5), {}, "1.500"),
    "three dimensions nest": (
        torch.arange(4, dtype=torch.int32).reshape(2, 1, 2), {}, "(\n (\n  (0,1)\n )\n (\n  (2,3)\n )\n)"),
    "a long row breaks after a separator and goes on three spaces in": (
        torch.tensor([[1.0, 2, 3, 4]]), {"max_line_width": 15}, "(\n (1.000,2.000,\n   3.000,4.000)\n)"),
    "only the first character of separator and brackets": (
        MATRIX[0], {"separator": "; ", "open_bracket": "[[", "close_bracket": "]]"}, "[1.000;2.000]"),
    "many elements are summarised in every dimension": (
        torch.arange(49.0).reshape(7, 7), {"summarise_threshold": 10, "edge_items": 1},
        "(\n ( 0.00,..., 6.00)\n ...\n (42.00,...,48.00)\n)"),
    "integers": (torch.tensor([1, -20], dtype=torch.int32), {}, "(  1,-20)"),
    "truth values": (torch.tensor([True, False]), {}, "(1,0)"),
    "eight digits are seven decimals from one to ten": (torch.tensor([1.5, 2]), {"digits": 8}, "(1.5000000,2.0000000)"),
    "the largest number decides": (torch.tensor([1.5, 250]), {}, "(  1.5,250.0)"),
    "the largest number below one decides": (torch.tensor([0.0125, -0.5]), {}, "( 0.0125,-0.5000)"),
    "very large ones are scientific": (torch.tensor([1.5, 25000]), {}, "(1.500e+00,2.500e+04)"),
    "very small ones are scientific": (torch.tensor([2.5e-6]), {}, "(2.500e-06)"),
    "a scientific format": (torch.tensor([1.5]), {"float_format": "scientific", "digits": 2}, "(1.5e+00)"),
    "a fixed format": (torch.tensor([25000.0]), {"float_format": "fixed"}, "(25000)"),
    "no format": (torch.tensor([1.5, 0.25]), {"float_format": "none"}, "( 1.5,0.25)"),
    "zero digits align nothing": (torch.tensor([1.5, 20]), {"digits": 0}, "(1.5,20)"),
    "what is not finite": (torch.tensor([1, math.nan, math.inf, -math.inf]), {}, "(1.000,  nan,  inf, -inf)")
}  # fmt: skip


@pytest.mark.parametrize(("tensor", "settings", "text"), TEXTS.values(), ids=TEXTS)
def test_text(tensor: Tensor, settings: dict[str, Any], text: str) -> None:
    assert printed(tensor, **settings) == f"t: {text}\n"


@given(st.integers(1, 40), st.integers(20, 100))
def test_no_line_is_wider_than_asked(columns: int, width: int) -> None:
    text = printed_text("t", torch.ones(2, columns), PrintLayout(max_line_width=width))
    assert max(map(len, text.splitlines())) <= width
    assert numbers(text) == [1.0] * 2 * columns


def test_zero_stands_for_no_limit() -> None:
    assert len(printed(torch.ones(1, 100), max_line_width=0).splitlines()) == 3
    # The threshold itself is printed in full.
    assert "..." not in printed(torch.ones(1000))
    assert "..." in printed(torch.ones(1001))
    assert "..." not in printed(torch.ones(2000), summarise_threshold=0)


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20), st.integers(1, 9))
def test_the_last_digit_of_the_largest_is_right(values: list[float], digits: int) -> None:
    text = printed_text("t", torch.tensor(values), PrintLayout(digits=digits))
    largest = max(map(abs, values))
    # Half a unit of the last digit, and numbers a hair above it that decimal places cannot tell from it.
    bound = 0.5000001 * 10.0 ** (math.floor(math.log10(largest)) + 1 - digits) if largest else 0.0
    assert all(abs(a - b) <= bound for a, b in zip(numbers(text), values, strict=True))


class TestWhenItPrints:
    def test_once_for_each_micro_batch(self) -> None:
        executor = on_device(lambda m, x: ipu_print_tensor(x * 2, "t"), quiet_options().deviceIterations(3))
        x = torch.arange(12.0).reshape(3, 4)
        assert [value.tolist() for value in runs(executor, x)["t"]] == (x * 2).tolist()
        assert [value.tolist() for value in runs(executor, x + 1)["t"]] == (x * 2 + 2).tolist()

    def test_on_every_replica(self) -> None:
        executor = on_device(lambda m, x: ipu_print_tensor(x, "t"), quiet_options().replicationFactor(2))
        assert len(runs(executor, torch.ones(2, 4))["t"]) == 2

    def test_only_if_the_result_is_used(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            ipu_print_tensor(x, "t")
            return x * 2

        assert runs(on_device(forward), torch.ones(1, 4)) == {}

    def test_never_on_the_cpu(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert ipu_print_tensor(MATRIX, "t") is MATRIX
        FunctionModel(lambda m, x: ipu_print_tensor(m.linear(x), "t"))(torch.ones(1, 4)).sum().backward()
        assert capfd.readouterr() == ("", "")

    def test_in_a_call_and_not_while_compiling_to_stderr_which_pytest_captures_too(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        executor = on_device(lambda m, x: ipu_print_tensor(x, "a 'quoted' {title}"))
        executor.compile(torch.ones(1))
        assert capsys.readouterr() == ("", "")
        executor(torch.ones(1))
        assert capsys.readouterr() == ("", "a 'quoted' {title}: (1.000)\n")

    def test_in_every_iteration_of_a_loop(self) -> None:
        def forward(model: Any, x: Tensor) -> Any:
            return poptorch.for_loop(3, lambda v: ipu_print_tensor(v * 2, "t"), [x])

        assert [value.tolist() for value in runs(on_device(forward), torch.ones(1))["t"]] == [[2.0], [4.0], [8.0]]

    def test_in_the_order_of_the_computation(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            return ipu_print_tensor(ipu_print_tensor(x, "first") + 1, "second")

        assert list(runs(on_device(forward), torch.ones(1))) == ["first", "second"]


class Printing(nn.Module):
    """Prints what its first layer makes; `forward(x)` is inference, `forward(x, y)` returns `(output, loss)`."""

    def __init__(self, show: Any = ipu_print_tensor, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.loss = nn.MSELoss()
        self.show, self.settings = show, settings
        poptorch.BeginBlock(self.first, "a", ipu_id=0)
        poptorch.BeginBlock(self.second, "b", ipu_id=1)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        hidden = self.show(self.first(x), "hidden", **self.settings) if self.show else self.first(x)
        out = self.second(torch.tanh(hidden))
        return out if y is None else (out, self.loss(out, y))


def options(pipelined: bool = False, accumulation: int = 1) -> poptorch.Options:
    found = quiet() if pipelined else quiet().setExecutionStrategy(poptorch.ShardedExecution())
    found.Training.gradientAccumulation(accumulation)
    return found


def plain_hidden(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden tensor and its gradient as plain PyTorch computes them."""
    model = Printing(show=None)
    hidden = model.first(x)
    loss = model.loss(model.second(torch.tanh(hidden)), y)
    return hidden.detach(), torch.autograd.grad(loss, hidden)[0]


class TestTraining:
    @pytest.mark.parametrize("pipelined", [False, True])
    def test_value_and_gradient_of_each_micro_batch(self, pipelined: bool) -> None:
        executor = training(Printing(digits=8), options(pipelined, accumulation=4), lr=0.0)
        found = runs(executor, X, Y)
        parts = [plain_hidden(X[i : i + 1], Y[i : i + 1]) for i in range(4)]
        for title, expected in zip(("hidden", "hidden_gradient"), zip(*parts)):
            for value, wanted in zip(found[title], expected, strict=True):
                torch.testing.assert_close(value, wanted.flatten(), atol=1e-6, rtol=1e-5)

    def test_the_gradient_can_be_left_out(self) -> None:
        assert list(runs(training(Printing(print_gradient=False), options()), X, Y)) == ["hidden"]

    def test_inference_has_none(self) -> None:
        assert list(runs(inference(Printing(), options()), X)) == ["hidden"]

    def test_an_input_has_none_either(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            return poptorch.identity_loss(model.linear(ipu_print_tensor(x, "t")), "sum")

        assert list(runs(in_training(forward), torch.ones(1, 4))) == ["t"]

    def test_the_loss_itself(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            return ipu_print_tensor(nn.functional.mse_loss(model.linear(x), x), "loss", digits=8)

        executor = in_training(forward)
        with contextlib.redirect_stderr(io.StringIO()) as text:
            loss = executor(torch.ones(1, 4))
        # Differentiation starts at the loss function's own result: no gradient comes to the copy behind it.
        assert text.getvalue().startswith("loss: ")
        assert numbers(text.getvalue()) == [pytest.approx(float(loss), rel=1e-7)]

    def test_floating_point_exceptions_are_still_found(self) -> None:
        checked = quiet_options()
        checked.Precision.enableFloatingPointExceptions(True)
        executor = on_device(lambda m, x: ipu_print_tensor(1 / ipu_print_tensor(x, "t")), checked)
        with contextlib.redirect_stderr(io.StringIO()) as text, pytest.raises(poptorch.Error, match="divided by zero"):
            executor(torch.zeros(1))
        assert text.getvalue() == "t: (0.000)\n"

    def test_half_precision(self) -> None:
        found = runs(training(Printing(digits=8).half(), options()), X.half(), Y.half())
        hidden, gradient = plain_hidden(X, Y)
        torch.testing.assert_close(found["hidden"][0], hidden.flatten(), atol=2e-3, rtol=1e-2)
        torch.testing.assert_close(found["hidden_gradient"][0], gradient.flatten(), atol=2e-3, rtol=1e-2)
        # Eight digits of the largest number are seven decimals: what they show is a float16 value.
        torch.testing.assert_close(found["hidden"][0], found["hidden"][0].half().float(), atol=1e-7, rtol=0.0)

    @pytest.mark.parametrize("half", [False, True])
    def test_results_do_not_depend_on_it(self, half: bool) -> None:
        results = []
        for show in (None, ipu_print_tensor):
            model = Printing(show)
            model = model.half() if half else model
            executor = training(model, options())
            with contextlib.redirect_stderr(io.StringIO()):
                outputs = [executor(X.half(), Y.half()) if half else executor(X, Y) for _ in range(3)]
            results.append([*(leaf for pair in outputs for leaf in pair), *model.state_dict().values()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))

    def test_what_is_in_a_checkpoint_of_pytorch_is_printed_once(self) -> None:
        """The device does not compute it again for PyTorch's sake (see test_executor_tracing)."""

        def body(model: Any, x: Tensor) -> Tensor:
            return torch.tanh(ipu_print_tensor(model.linear(x), "t", print_gradient=False))

        def forward(model: Any, x: Tensor) -> Tensor:
            return poptorch.identity_loss(checkpoint(body, model, x, use_reentrant=False), "sum")

        assert len(runs(in_training(forward), torch.ones(1, 4))["t"]) == 1


class TestTitles:
    def test_without_one_the_name_of_the_tensor_is_printed(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            return poptorch.identity_loss(ipu_print_tensor(model.linear(ipu_print_tensor(x))), "sum")

        executor = in_training(forward)
        with contextlib.redirect_stderr(io.StringIO()) as text:
            executor(torch.ones(1, 4))
        titles = re.findall(r"^(\S+): ", text.getvalue(), flags=re.MULTILINE)
        assert titles == ["input", "linear/Gemm:0", "linear/Gemm:0_gradient"]

    def test_the_op_has_a_name_of_its_own(self) -> None:
        executor = on_device(lambda m, x: ipu_print_tensor(x, "t"))
        executor.compile(torch.ones(1))
        assert executor.getTensorNames()[-1] == "PrintTensor:0"


class TestErrors:
    def test_anything_but_a_tensor_is_refused(self) -> None:
        wrong: Any = [MATRIX]
        with pytest.raises(poptorch.Error, match=r"must take a torch\.tensor argument"):
            ipu_print_tensor(wrong)

    def test_an_unknown_format_is_refused(self) -> None:
        with pytest.raises(KeyError, match="auto, fixed, scientific, none"):
            ipu_print_tensor(MATRIX, float_format="hex")

    @pytest.mark.parametrize(("name", "wrong"), [
        ("summarise_threshold", -1), ("edge_items", 1.5), ("max_line_width", None), ("digits", "3")
    ])  # fmt: skip
    def test_counts_must_be_whole_numbers_from_0_on(self, name: str, wrong: Any) -> None:
        settings: dict[str, Any] = {name: wrong}
        with pytest.raises(poptorch.Error, match=f"{name} must be a whole number from 0 on"):
            ipu_print_tensor(MATRIX, **settings)


def test_the_performance_model_takes_it_as_free() -> None:
    def cycles(show: Any) -> float:
        executor = training(Printing(show), options())
        executor.compile(X, Y)
        assert executor._compiled is not None
        ops = costs_of(step_of(executor._compiled.graph)).ops
        return sum(op.work.cycles.compute + op.work.cycles.exchange for op in ops)

    assert cycles(ipu_print_tensor) == cycles(None)
