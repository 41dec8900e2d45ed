"""`ipu_print_tensor` (execution reference, section 11.1): the text, when it is printed, and what stays as it is."""

from __future__ import annotations

import contextlib
import io
import math
import re
from typing import Any

import pytest
import torch
from executor_support import FunctionModel, Module, X, Y, in_training, inference, on_device, quiet, training
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch
from ipu_model.capture.describe import step_of
from ipu_model.compute.printing import PrintLayout, printed_text
from ipu_model.predict.costs import costs_of
from poptorch import ipu_print_tensor as say


def said(executor: poptorch.PoplarExecutor, *inputs: Tensor) -> str:
    with contextlib.redirect_stderr(io.StringIO()) as text:
        executor(*inputs)
    return text.getvalue()


def printed(tensor: Tensor, **settings: Any) -> str:
    """Return what the device prints of an input, under the title `t`."""
    return said(on_device(lambda m, x: say(x, "t", **settings)), tensor)


def numbers(text: str) -> list[float]:
    """Return all numbers of a printed tensor, title left out."""
    return [float(word) for word in re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?", text.partition(": ")[2])]


def runs(executor: poptorch.PoplarExecutor, *inputs: Tensor) -> dict[str, list[Tensor]]:
    """Run once and return what was printed: for each title its tensors (flat), in order."""
    found: dict[str, list[Tensor]] = {}
    for part in re.split(r"^(?=\S+: )", said(executor, *inputs), flags=re.MULTILINE):
        if part:
            found.setdefault(part.partition(": ")[0], []).append(torch.tensor(numbers(part)))
    return found


MATRIX, ONE = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(1)
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


# A forward, options, inputs, and what one run prints: titles with values, in order.
RUNS: dict[str, tuple[Any, dict[str, int], Tensor, dict[str, list[list[float]]]]] = {
    "each micro-batch": (lambda x: say(x * 2, "t"), {"deviceIterations": 2}, MATRIX, {"t": [[2, 4], [6, 8]]}),
    "every replica": (lambda x: say(x, "t"), {"replicationFactor": 2}, MATRIX, {"t": [[1, 2], [3, 4]]}),
    "unused": (lambda x: (say(x, "t"), x * 2)[1], {}, MATRIX, {}),
    "a loop": (lambda x: poptorch.for_loop(3, lambda v: say(v * 2, "t"), [x]), {}, ONE, {"t": [[2], [4], [8]]}),
    "in order": (lambda x: say(say(x, "b") + 1, "a"), {}, ONE, {"b": [[1]], "a": [[2]]}),
}


class TestWhenItPrints:
    @pytest.mark.parametrize("name", RUNS)
    def test_once_whenever_it_is_computed(self, name: str) -> None:
        body, settings, x, expected = RUNS[name]
        executor = on_device(lambda m, x: body(x), quiet(**settings))
        for _ in range(2):
            found = [(title, [value.tolist() for value in values]) for title, values in runs(executor, x).items()]
            assert found == list(expected.items())

    def test_never_on_the_cpu(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert say(MATRIX, "t") is MATRIX
        FunctionModel(lambda m, x: say(m.linear(x), "t"))(torch.ones(1, 4)).sum().backward()
        assert capfd.readouterr() == ("", "")

    def test_in_a_call_and_not_while_compiling_to_stderr_which_pytest_captures_too(self, capsys) -> None:
        executor = on_device(lambda m, x: say(x, "a 'quoted' {title}"))
        executor.compile(ONE)
        assert executor.getTensorNames()[-1] == "PrintTensor:0"
        assert capsys.readouterr() == ("", "")
        executor(ONE)
        assert capsys.readouterr() == ("", "a 'quoted' {title}: (1.000)\n")


def printing(show: Any = say, **settings: Any) -> Module:
    """Return a model that prints what its first layer makes; with labels it returns `(output, loss)`."""
    torch.manual_seed(3)

    def forward(model: Any, x: Tensor, y: Tensor | None = None) -> Any:
        hidden = show(model.first(x), "hidden", **settings) if show else model.first(x)
        out = model.second(torch.tanh(hidden))
        return out if y is None else (out, nn.functional.mse_loss(out, y))

    model = Module(forward, first=nn.Linear(3, 4), second=nn.Linear(4, 2))
    poptorch.BeginBlock(model.first, "a", ipu_id=0)
    poptorch.BeginBlock(model.second, "b", ipu_id=1)
    return model


SHARDED = {"setExecutionStrategy": poptorch.ShardedExecution()}


def plain_hidden(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    model = printing(show=None)
    hidden = model.first(x)
    loss = nn.functional.mse_loss(model.second(torch.tanh(hidden)), y)
    return hidden.detach(), torch.autograd.grad(loss, hidden)[0]


class TestTraining:
    @pytest.mark.parametrize("settings", [{}, SHARDED], ids=["pipelined", "sharded"])
    def test_value_and_gradient_of_each_micro_batch(self, settings: dict[str, Any]) -> None:
        executor = training(printing(digits=8), quiet(accumulation=4, **settings), lr=0.0)
        found = runs(executor, X, Y)
        parts = [plain_hidden(X[i : i + 1], Y[i : i + 1]) for i in range(4)]
        for title, expected in zip(("hidden", "hidden_gradient"), zip(*parts)):
            for value, wanted in zip(found[title], expected, strict=True):
                torch.testing.assert_close(value, wanted.flatten(), atol=1e-6, rtol=1e-5)

    def test_the_gradient_can_be_left_out_and_inference_and_inputs_have_none(self) -> None:
        assert list(runs(training(printing(print_gradient=False), quiet(**SHARDED)), X, Y)) == ["hidden"]
        assert list(runs(inference(printing(), quiet(**SHARDED)), X)) == ["hidden"]
        executor = in_training(lambda m, x: poptorch.identity_loss(m.linear(say(x, "t")), "sum"))
        assert list(runs(executor, torch.ones(1, 4))) == ["t"]

    def test_the_loss_itself(self) -> None:
        """Differentiation starts at the loss function's own result: no gradient comes to the copy behind it."""
        executor = in_training(lambda m, x: say(nn.functional.mse_loss(m.linear(x), x), "loss", digits=8))
        x = torch.ones(1, 4)
        expected = nn.functional.mse_loss(executor.model.linear(x), x).item()
        found = {title: [value.item() for value in values] for title, values in runs(executor, x).items()}
        assert found == {"loss": [pytest.approx(expected)]}

    def test_floating_point_exceptions_are_still_found(self) -> None:
        checked = quiet()
        checked.Precision.enableFloatingPointExceptions(True)
        executor = on_device(lambda m, x: say(1 / say(x, "t")), checked)
        with contextlib.redirect_stderr(io.StringIO()) as text, pytest.raises(poptorch.Error, match="divided by zero"):
            executor(torch.zeros(1))
        assert text.getvalue() == "t: (0.000)\n"

    def test_half_precision(self) -> None:
        found = runs(training(printing(digits=8).half(), quiet(**SHARDED)), X.half(), Y.half())
        for title, expected in zip(("hidden", "hidden_gradient"), plain_hidden(X, Y)):
            torch.testing.assert_close(found[title][0], expected.flatten(), atol=2e-3, rtol=1e-2)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_neither_results_nor_modelled_cycles_depend_on_it(self, dtype: torch.dtype) -> None:
        results, cycles = [], []
        for show in (None, say):
            model = printing(show).to(dtype)
            executor = training(model, quiet(**SHARDED))
            with contextlib.redirect_stderr(io.StringIO()):
                outputs = [executor(X.to(dtype), Y.to(dtype)) for _ in range(3)]
            results.append([*(leaf for pair in outputs for leaf in pair), *model.state_dict().values()])
            assert executor._compiled is not None
            ops = costs_of(step_of(executor._compiled.graph)).ops
            cycles.append(sum(op.work.cycles.compute + op.work.cycles.exchange for op in ops))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        assert cycles[0] == cycles[1]

    def test_without_a_title_the_name_of_the_tensor_is_printed(self) -> None:
        executor = in_training(lambda m, x: poptorch.identity_loss(say(m.linear(say(x))), "sum"))
        assert list(runs(executor, torch.ones(1, 4))) == ["input", "linear/Gemm:0", "linear/Gemm:0_gradient"]
