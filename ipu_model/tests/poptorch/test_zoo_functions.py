"""Functions of torch in forward: picking, sorting, scanning, shaping, comparing, in place, of every element type."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, inference, quiet
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zoo_support import agree, check_training, numbers, scaled

import ipu_model
import poptorch

A, SQUARE, BATCH = numbers(3, 4), numbers(3, 3), numbers(2, 3, 4)
WHERE = A > 0
ROWS, COLUMNS = torch.tensor([2, 0]), torch.tensor([[0, 3], [1, 1], [2, 0]])
BYTES, WHOLE, SHORT = (torch.tensor([1, 2, 3], dtype=d) for d in (torch.uint8, torch.int32, torch.int16))


def assigned(x: Tensor) -> Tensor:
    x = x.clone()
    x[1:3, 0] = 5.0
    x[0] = x[1]
    x[x > 1] = 0.0
    return x


def in_place(x: Tensor) -> Tensor:
    return (x * 1).add_(1).mul_(2).clamp_(min=0).sub_(0.5).masked_fill_(x > 1, 3.0)


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
    "where": (lambda x, c: torch.where(c, x, 0.0), A, WHERE),
    "masked_fill": (lambda x, c: x.masked_fill(~c, -1e4).softmax(-1), A, WHERE),
    "gather": (lambda x, i: x.gather(1, i), A, COLUMNS),
    "scatter": (lambda x, i: torch.zeros(3, 4).scatter(1, i, x[:, :2]), A, torch.tensor([[0, 1], [2, 3], [1, 0]])),
    "scatter_": (
        lambda x, i: (torch.zeros_like(x).scatter_(1, i, 1.0) * x, torch.zeros(3, 4).scatter_add(1, i, x[:, :2]),
                      torch.zeros(3, 4).scatter_reduce(1, i, x[:, :2], "amax"), torch.take_along_dim(x, i, 1)),
        A, COLUMNS),
    "rows by index": (
        lambda x, i: (x.index_select(0, i), x[torch.arange(2), i], x.index_put((i,), torch.ones(2, 4)),
                      F.one_hot(i, 3).float() @ x, torch.zeros(4).scatter_add_(0, i, x[0, :2])), A, ROWS),
    "sort": (lambda x: (x.topk(2), x.sort(descending=True), x.argsort(dim=0)), A),
    "median": (lambda x: x.median(1), A),
    "cumsum": (lambda x: (x.cumsum(1), x.cumprod(0)), A),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), BATCH, BATCH.flip(0)),
    "products": (lambda x, y: (torch.baddbmm(y @ y.mT, x, y.mT), torch.outer(x[0, 0], y[0, 0])), BATCH, BATCH.flip(0)),
    "roll and flip": (lambda x: (x.roll((1, 2), (0, 1)), x.flip(0), torch.rot90(x), x.unfold(1, 2, 1)), A),
    "triangles": (lambda x: (x.triu(1), x.diagonal(), torch.diag(x[0]), torch.diag(x, 1)), SQUARE),
    "norms": (lambda x: (x.norm(dim=1), F.normalize(x), F.cosine_similarity(x, x.flip(0)), torch.dist(x, x + 1)), A),
    "statistics": (lambda x: (x.std(1), x.var(0, unbiased=False), x.logsumexp(1), x.amax(0), x.max(1), x.max()), A),
    "shapes": (lambda x: (x.view(x.size(0), -1) / x.numel(), x.movedim(0, -1), x.tile(2, 1, 1)), BATCH),
    "slices": (lambda x: (x[..., None, ::2], x[:, -1], x[1], x[:, 1:]), BATCH),
    "chunks": (lambda x: (*x.chunk(2, 1), *x.split([1, 3], 1), torch.stack([x, x]), torch.cat([x, x], -1)), A),
    "repeated": (lambda x: (x.repeat_interleave(2, 0), torch.meshgrid(x[0], x[1], indexing="ij")), A),
    "assignments": (assigned, A),
    "in place": (in_place, A),
    "whole numbers": (lambda x, i: (x, (i + 3) // 2, i % 3, i.sum()), A, WHOLE),
    "bytes and short": (lambda x, i, j: (x[:, :3] * (i.float() / 255), x[:, :3] + j), A, BYTES, SHORT),
    "truth values": (lambda x, c: (x * c, ~c & c | c ^ c, c.sum(), torch.logical_not(c)), A, WHERE),
    "comparisons": (lambda x: (x, x == 0, x.isnan(), torch.isfinite(x), torch.isclose(x, x + 1)), A),
    "choices": (lambda x: (x, x.argmax(), (x > 0).any(1), (x > 9).all(), F.pad(x, (1, 2, 0, 1), value=3.0)), A),
    "rounded": (lambda x: (torch.fmod(x, 0.7), x % 0.7), A),
    "special": (lambda x: (torch.asinh(x), torch.atanh(x / 9)), A),
    "elementary": (lambda x: (x.abs() ** 1.5, torch.erf(x), torch.atan2(x, x + 3), x.expm1(), x.abs().log1p()), A),
    "powers": (lambda x: (x.exp(), x.abs().log(), x.cos(), 1 - x, x.round() + x), A),
    "activations": (lambda x: (F.silu(x), F.softplus(x), F.leaky_relu(x), F.hardtanh(x), x.sigmoid()), A),
    "divergence": (lambda x, y: F.kl_div(x.log_softmax(-1), y, reduction="batchmean"), A, A.softmax(0)),
    "connectionist classification": (
        lambda x, text, lengths, words: F.ctc_loss(x.log_softmax(-1), text, lengths, words),
        numbers(10, 2, 5), torch.tensor([[1, 2, 2], [4, 3, 1]]), torch.tensor([10, 9]), torch.tensor([3, 2])),
    "half": (lambda x: (x.half() * 2).float(), A),
    "made in forward": (
        lambda x: (x + torch.tensor([1.0, 2, 3, 4]), x + torch.tensor(2), x.new_ones(4) + torch.linspace(0, 1, 4) * x,
                   x * torch.full((4,), 5.0) + torch.ones(4) - torch.zeros(4) + torch.arange(4),
                   x + torch.as_tensor([7.0, 8, 9, 0]), x + torch.scalar_tensor(3.0)), A),
    "made on its device": (lambda x: x + torch.arange(4, device=x.device, dtype=x.dtype).to(x.device).type_as(x), A),
    "a distribution": (lambda x: torch.distributions.Normal(x, 1.0).log_prob(torch.ones(4)), A),
    "a checkpoint": (lambda x: checkpoint(torch.sin, x, use_reentrant=False), A),
    "vmap": (lambda x: torch.vmap(lambda row: row.cumsum(0))(x), A),
    "bilinear": (lambda x: F.bilinear(x, x, torch.ones(2, 4, 4)), A),
    "distances": (lambda x: torch.cdist(x, x[1:] + 1), A),
    "several chances": (lambda x: torch.distributions.Categorical(logits=x).entropy(), A),
    # Masks, numbers and choices that forward makes of constants are known when the graph is made.
    "pairs of views": (lambda x: (x @ x.T)[torch.diag(torch.ones(3)).repeat(2, 2).bool()], numbers(6, 4)),
    "all but itself": (lambda x: (x @ x.T)[~torch.diag(torch.ones(6)).bool().to(x.device)].view(6, 5), numbers(6, 4)),
    "a mask written by a loop": (mask_written_by_a_loop, numbers(6, 4)),
    "a mask written through a view": (through_a_view, SQUARE),
    "normalised images": (normalised, numbers(2, 3, 2, 2)),
    "upper triangle": (lambda x: x[:, torch.ones_like(x[0]).triu(1).bool()], numbers(2, 3, 3)),
    "a mask and a number or indices": (
        lambda x: (x[1, torch.tensor([True, False, True])],
                   x[torch.tensor([0, 1]), torch.tensor([True, False, True])]), SQUARE),
    "chosen by constants": (
        lambda x: (x.masked_select(torch.tensor([True, False, True])), x[torch.unique(torch.tensor([2, 0, 2]))],
                   x[torch.nonzero(torch.tensor([0, 1, 1])).squeeze(1)]), SQUARE),
    "counted": (
        lambda x: (x * torch.bincount(torch.tensor([0, 1, 1, 2])), F.one_hot(torch.arange(3) % 2).float() @ x[:2]),
        SQUARE),
    "counted data": (
        lambda x, i: (x * torch.bincount(i, minlength=4), x * torch.bincount(i, i / 4, 4),
                      x * i.int().bincount(weights=x[0, :2].detach(), minlength=4)), A, ROWS),
    "cov": (lambda x: (torch.cov(x), torch.cov(x, fweights=torch.tensor([1, 2, 1, 1])), torch.corrcoef(x)), A),
    "combinations": (
        lambda x: (torch.combinations(x), torch.combinations(x, 3, with_replacement=True)), numbers(5)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_pytorch(name: str) -> None:
    function, *args = FUNCTIONS[name]
    check_training(scaled(function), *args)


# What PopTorch refuses, by its list of handlers, and runs here if the user asks for it.
WITHOUT_HANDLER: dict[str, tuple[Any, ...]] = {
    "rows added": (lambda x, i: (x.index_add(0, i, torch.ones(2, 4)), x.clone().index_add_(0, i, x[:2])), A, ROWS),
    "rows copied and put": (
        lambda x, i: (torch.zeros(3, 4).index_copy(0, i, x[:2]), x.put(i, torch.ones(2)), x.take(i)), A, ROWS),
    "mode": (lambda x: (x.mode(1), x.kthvalue(2), x.cummax(1).values), A),
    "triangle": (lambda x: x.tril(), SQUARE),
    "shifted": (lambda x, i: (x, i << 1, i >> 1), A, WHOLE),
    "rounded": (lambda x: (x.lerp(x + 1, 0.3), torch.nan_to_num(x / 0)), A),
    "special": (lambda x: (torch.lgamma(x.abs() + 1), torch.i0(x), torch.xlogy(x.abs(), x.exp())), A),
    "rfft": (lambda x: torch.fft.rfft(x).abs(), A),
    "affine_grid": (lambda x: F.affine_grid(x, (2, 3, 4, 4), False), numbers(2, 2, 3)),
    "searchsorted": (lambda x: (x, torch.searchsorted(torch.arange(4.0), x.detach())), A),
    "inverse": (lambda x: torch.linalg.inv(x + 4 * torch.eye(3)), SQUARE),
    "symmetric eigenvalues": (lambda x: torch.linalg.eigvalsh(x @ x.mT + 4 * torch.eye(3)), SQUARE),
    "angles": (lambda x: torch.angle(torch.complex(x, x + 1)), A),
    "repeat_interleave of a fixed size": (lambda x: x[0].repeat_interleave((x[0] > -9).int(), output_size=3), SQUARE),
    "resized": (
        lambda x: (F.interpolate(x[None], scale_factor=2, mode="trilinear"),
                   F.interpolate(x, scale_factor=2, mode="nearest-exact")), numbers(1, 2, 2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_HANDLER)
def test_what_poptorch_refuses_runs_as_in_pytorch_if_that_is_asked_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, *args = WITHOUT_HANDLER[name]
    with pytest.raises(poptorch.Error, match=r"Unsupported ops found in compiled model: \[aten::"):
        inference(scaled(function))(*args)
    monkeypatch.setenv("IPU_MODEL_UNSUPPORTED_OPS", "warn")
    check_training(scaled(function), *args, has_formulas=False)


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


REFUSED: dict[str, tuple[Any, str]] = {
    "masked_select": (lambda x: x.masked_select(x > 0), r"shape of a result depends on data .*torch\.where"),
    "nonzero": (lambda x: (x, x.nonzero()), r"shape of a result depends on data .*torch\.where"),
    "where": (lambda x: torch.where(x > 0)[0], r"torch\.where\(mask\) alone; keep a fixed number .* topk"),
    "argwhere": (lambda x: torch.argwhere(x > 0), "A mask made of constants is fine"),
    "unique": (lambda x: x.unique(), "shape of a result depends on data .*on the host, in the data set"),
    "repeat_interleave": (lambda x: x[0].repeat_interleave((x[0] > 0).int()), "an index that is a buffer"),
    "adaptive softmax": (
        lambda x: nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3])(x, x[:, 0].argsort()),
        r"\[aten::nonzero\].*depends on data",
    ),
    "gaussian_nll_loss": (lambda x: F.gaussian_nll_loss(x, x + 1, x.abs()), "branches on data: .*torch.where"),
    "bincount": (lambda x: (x, torch.bincount((x[0] > 0).int())), r"depends on data .*number of values as minlength="),
    "a mask written with data": (lambda x: x[torch.zeros(3, 4).bool().logical_or_(x > 0)], "shape of a result depends"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_static_graph_cannot_have_is_refused_with_its_module_and_line(name: str) -> None:
    function, words = REFUSED[name]
    with pytest.raises(poptorch.Error, match=words) as refusal:
        inference(scaled(function))(A)
    assert re.search("module 'model', line [0-9]+ of <lambda> in test_zoo_functions.py: ", str(refusal.value))


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
