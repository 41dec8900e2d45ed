"""Functions of torch in forward: picking, sorting, scanning, shaping, comparing, in place, of every element type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, inference, quiet
from test_operators import evaluated, lines, values
from torch import Tensor, nn
from zoo_support import agree, check_training, numbers, scaled

import ipu_model
import poptorch

A, SQUARE = numbers(3, 4), numbers(3, 3)
BYTES, WHOLE, SHORT = (torch.tensor([1, 2, 3], dtype=d) for d in (torch.uint8, torch.int32, torch.int16))


def assigned(x: Tensor) -> Tensor:
    x = x.clone()
    x[1:3, 0] = 5.0
    x[0] = x[1]
    x[x > 1] = 0.0
    return x


def mask_written_by_a_loop(features: Tensor) -> Tensor:
    mask = torch.ones((6, 6), dtype=torch.bool).fill_diagonal_(0)
    for row in range(3):
        mask[row, 3 + row] = mask[3 + row, row] = 0
    return (features @ features.T)[mask].reshape(6, -1)


def normalised(images: Tensor) -> Tensor:
    """As torchvision's normalize: it looks whether a deviation is zero."""
    deviation = torch.as_tensor([0.5, 0.2, 0.1], dtype=images.dtype, device=images.device)
    if (deviation == 0).any():
        raise ValueError("a deviation is zero")
    return images / deviation.view(-1, 1, 1)


def through_a_view(x: Tensor) -> Tensor:
    mask = torch.zeros_like(x)
    mask[0].fill_(1)
    return x[mask.bool()]


FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "assignments": (assigned, A),
    "types of numbers": (
        lambda x, i, j, k: (x[:, :3] * (i.float() / 255), x[:, :3] + j, (k + 3) // 2, k % 3, k.sum()),
        A, BYTES, SHORT, WHOLE),
    # Masks, numbers and choices that forward makes of constants are known when the graph is made.
    "a mask written by a loop": (mask_written_by_a_loop, numbers(6, 4)),
    "a mask written through a view": (through_a_view, SQUARE),
    "normalised images": (normalised, numbers(2, 3, 2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_pytorch(name: str) -> None:
    function, *args = FUNCTIONS[name]
    check_training(scaled(function), *args)


def all_of(line: str) -> Module:
    """Return a module of all expressions of a line, each of which scales its numbers by a parameter of its own."""
    functions = [evaluated(expression.partition(" -> ")[0]) for expression in line.split(" | ")]

    def forward(model: Any, *inputs: Tensor) -> list[Any]:
        results = [inputs[0] * model.scale[0]]  # a number with a gradient
        for index, function in enumerate(functions):
            scale = model.scale[index]
            results.append(function(*(x * scale if x.is_floating_point() else x.clone() for x in inputs)))
        return results

    return Module(forward, scale=nn.Parameter(torch.ones(len(functions))))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", lines("differentiable", "computed"))
def test_values_and_gradients_of_supported_operators_are_those_of_pytorch(line: str) -> None:
    check_training(all_of(line), *values(), rate=0.05, has_formulas="torch.addr(" not in line)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", lines("refused", "refused_estimated"))
def test_what_poptorch_refuses_runs_as_in_pytorch_if_that_is_asked_for(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(poptorch.Error, match=r"Unsupported ops found in compiled model: \[aten::"):
        inference(all_of(line))(*values())
    monkeypatch.setenv("IPU_MODEL_UNSUPPORTED_OPS", "warn")
    check_training(all_of(line), *values(), rate=0.05, has_formulas=line in lines("refused"))


class TestAnOpWithoutHandler:
    """PopTorch names all of them in one error; here it also says where they are and what to use instead."""

    class Several(nn.Module):
        def forward(self, x: Tensor) -> Any:
            torch.lgamma(x)  # nobody uses it: the compiler removes it before it looks for handlers
            return torch.nan_to_num(x).tril(), x.nan_to_num(), torch.linalg.inv(x @ x.T)

    TEXT = (
        r"^'poptorch_py_error': Unsupported ops found in compiled model: \[aten::nan_to_num, aten::tril, "
        r"aten::linalg_inv_ex\]\. Not all operations are supported yet by Graphcore's PyTorch compiler\. If you "
        r"believe any of these should be, please report this message to .*\n"
        r"aten::nan_to_num \(module 'model', line \d+ of forward in test_zoo_functions.py: return .*\): Use .*\n"
        r"aten::tril \(.*\): Use .*\naten::linalg_inv_ex \(.*\): Compute it on the host.*\n.*UNSUPPORTED_OPS=warn"
    )

    @pytest.mark.parametrize(
        "what", [lambda m: inference(m)(SQUARE), lambda m: ipu_model.profile_module(m, SQUARE, quiet())]
    )
    def test_stops_compilation_and_profiles(self, what: Any) -> None:
        with pytest.raises(poptorch.Error, match=self.TEXT):
            what(self.Several())

    def test_can_be_let_pass_with_one_warning_and_a_note(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("IPU_MODEL_UNSUPPORTED_OPS", "warn")
        wrapped = inference(self.Several())
        with caplog.at_level("WARNING", logger="poptorch::python"):
            wrapped(SQUARE)
        assert caplog.text.count("Unsupported ops found") == 1
        note = "PopTorch has no handler for aten::nan_to_num, aten::tril, aten::linalg_inv_ex: IPUs could not run"
        assert any(note in text for text in ipu_model.profile(wrapped).notes)

    def test_is_an_error_unless_the_variable_has_a_known_value(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("IPU_MODEL_UNSUPPORTED_OPS", "yes")
        with pytest.raises(poptorch.Error, match=r"must be 'error' .* or 'warn', not 'yes'"):
            inference(self.Several())(SQUARE)


MASK = torch.tensor([True, False, True])
# PyTorch refuses these; PopTorch converts the mask (review of public programs, F11).
DIFFERENCES: list[tuple[Any, list[float]]] = [
    (lambda b: 1.0 - b, [0.0, 1.0, 0.0]),
    (lambda b: 1 - b, [0, 1, 0]),
    (lambda b: b - 1.0, [0.0, -1.0, 0.0]),
    (lambda b: torch.rsub(b, 2.0), [1.0, 2.0, 1.0]),
    (lambda b: torch.full((3,), 3.0) - b, [2.0, 3.0, 2.0]),
    (lambda b: torch.sub(b, torch.full((3,), 3), alpha=2), [-5, -6, -5]),
    (lambda b: torch.full((3,), 3.0).sub_(b), [2.0, 3.0, 2.0]),
    (lambda b: (1.0 - b[None, None]).half().squeeze() * -10000.0, [-0.0, -10000.0, -0.0]),
]


@pytest.mark.parametrize(("function", "expected"), DIFFERENCES)
def test_a_mask_in_a_difference_is_one_or_zero(function: Any, expected: list[float]) -> None:
    found = inference(Module(lambda model, mask: function(mask)))(MASK)
    assert found.tolist() == expected
    assert found.is_floating_point() == isinstance(expected[0], float)


NARROW: dict[str, tuple[Any, ...]] = {
    "classes": (
        lambda x, i: (F.cross_entropy(x, i), F.one_hot(i, 4) * x, torch.take_along_dim(x, i[:, None], 1)), [0, 2, 1]),
    "gather and scatter": (lambda x, i: (x.gather(0, index=i), x.scatter_add(0, i, x)), [[0], [2]]),
    "filled": (lambda x, i: x.index_fill(0, i, 2.0), [0, 2]),
    "rows": (lambda x, i: (x[i], x.index_select(0, i), F.embedding(i, x)), [0, 2]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16])
@pytest.mark.parametrize("name", NARROW)
def test_indices_of_16_and_32_bits_give_what_64_bit_ones_give(name: str, dtype: torch.dtype) -> None:
    function, index = NARROW[name]
    if name == "rows" and dtype == torch.int16:
        dtype = torch.int32  # torch itself takes no shorter ones for these three
    wide, narrow = (inference(scaled(function))(A, torch.tensor(index, dtype=d)) for d in (torch.int64, dtype))
    agree(narrow, wide)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_a_scatter_in_place_reaches_tensors_of_every_type(dtype: torch.dtype) -> None:
    def scattered(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        counts = torch.zeros(3, dtype=dtype)
        counts.scatter_add_(0, index, torch.ones(3, dtype=dtype))
        counts.scatter_(0, index[:1], 7)
        return x, counts

    wrapped = inference(scaled(scattered))
    assert wrapped(A, torch.tensor([1, 1, 2], dtype=torch.int32))[1].tolist() == [0, 7, 1]


def test_an_op_that_fails_in_the_trace_logs_nothing_besides_its_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="same reduction dim"):
        inference(scaled(lambda x: x @ x))(A)
    assert "Traceback" not in capfd.readouterr().err


def masks_and_lengths(model: Any, x: Tensor) -> Any:
    y, lengths = model.layer(x), model.lengths.tolist()
    picked = y.view(3, 2, 3)[model.mask[:, :2]], y[:, :3].masked_select(model.mask)
    return picked, torch.repeat_interleave(y, model.lengths, 0), y.split(lengths, 1), [y[:n].sum() for n in lengths]


def test_masks_and_lengths_in_buffers_are_constants_of_the_device() -> None:
    buffers = {"mask": torch.ones(3, 3).tril().bool(), "lengths": torch.tensor([2, 1, 3])}
    check_training(Module(masks_and_lengths, buffers, layer=nn.Linear(4, 6)), A)


def counting(model: Any, x: Tensor) -> Tensor:
    model.calls += 1
    return x * model.calls.item()


def test_a_buffer_that_forward_changes_has_no_known_value() -> None:
    with pytest.raises(poptorch.Error, match="branches on data"):
        inference(Module(counting, {"calls": torch.tensor(0)}))(SQUARE)
