"""Networks of images, of sequences, transformers, and less common styles, as in plain PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.models as tv
from executor_support import Module, inference, quiet
from torch import Tensor, nn
from zoo_support import check_inference, check_training, numbers, without_formula

import ipu_model
import poptorch

A, PICTURES = numbers(3, 4), numbers(4, 3, 16, 16)
IMAGES, SIGNALS, VOLUMES = numbers(2, 8, 6, 6), numbers(2, 8, 7), numbers(1, 8, 4, 4, 4)
SEQUENCE, STATE = numbers(4, 3, 6), torch.ones(1, 3, 8)
P = nn.utils.parametrizations


def side_by_side(*layers: nn.Module) -> Module:
    """Layers that each take the same input; the module returns what all of them make of it."""
    return Module(lambda m, x: [layer(x) for layer in m.layers], layers=nn.ModuleList(layers))


LAYERS: dict[str, Any] = {
    "norms": lambda: (side_by_side(
        nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True, track_running_stats=True), nn.SyncBatchNorm(8),
        nn.LayerNorm([6, 6]), nn.RMSNorm(6)), IMAGES),
    "BatchNorm of rows": lambda: (nn.BatchNorm1d(7), numbers(4, 7)),
    "convolutions": lambda: (side_by_side(
        nn.Conv2d(8, 8, 3, groups=8, padding="same"), nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"),
        nn.ConvTranspose2d(8, 4, 3, 2, padding=1, output_padding=1, groups=2)), IMAGES),
    "of signals": lambda: (side_by_side(
        nn.InstanceNorm1d(8, affine=True), nn.Conv1d(8, 4, 3, dilation=2), nn.ConvTranspose1d(8, 4, 4, 2)), SIGNALS),
    "of volumes": lambda: (side_by_side(
        nn.BatchNorm3d(8), nn.Conv3d(8, 4, 3, padding=1), nn.ConvTranspose3d(8, 4, 2, 2)), VOLUMES),
    "weight norm": lambda: (P.weight_norm(nn.Conv1d(8, 5, 3)), SIGNALS),
    "spectral norm": lambda: (P.spectral_norm(nn.Conv2d(8, 5, 3)), IMAGES),
    "activations": lambda: (nn.Sequential(nn.PReLU(8), nn.ELU(), nn.Mish(), nn.Unflatten(1, (2, 4))), IMAGES),
}  # fmt: skip

IMAGE_NETWORKS: dict[str, Any] = {
    "ViT": lambda: (tv.VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=5), PICTURES),
    "ConvNeXt": lambda: (tv.ConvNeXt([tv.convnext.CNBlockConfig(8, None, 2)], num_classes=5), PICTURES),
    "Swin": lambda: (
        tv.SwinTransformer([2, 2], 8, [2], [2], [2, 2], num_classes=5, stochastic_depth_prob=0.0), PICTURES),
}  # fmt: skip


def unrolled(m: Any, x: Tensor) -> Tensor:
    state, outputs = None, []
    for step in x.unbind(0):
        state = m.cell(step, state)
        outputs.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(outputs)


def learnt_state(m: Any, x: Tensor) -> Any:
    hidden, cells = m.state.expand(2, 1, x.shape[1], 8).unbind(0)
    return m.rnn(x, (hidden.contiguous(), cells.contiguous()))


RECURRENT: dict[str, Any] = {
    "layers": lambda: (side_by_side(
        nn.LSTM(6, 8), nn.GRU(6, 8), nn.RNN(6, 8), nn.RNN(6, 8, nonlinearity="relu"), nn.LSTM(6, 8, bias=False),
        nn.GRU(6, 8, 2, bias=False), nn.LSTM(6, 8, 2, proj_size=5),
        nn.LSTM(6, 8, 2, proj_size=5, bidirectional=True)), SEQUENCE),
    "two ways, two layers": lambda: (side_by_side(
        *(kind(6, 8, num_layers=2, bidirectional=True, batch_first=True) for kind in (nn.LSTM, nn.GRU))), SEQUENCE),
    **{kind.__name__: lambda kind=kind: (Module(unrolled, cell=kind(6, 8)), SEQUENCE)
       for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)},
    "an initial state": lambda: (nn.LSTM(6, 8), SEQUENCE, (STATE, torch.zeros(1, 3, 8))),
    "one sequence": lambda: (nn.LSTM(6, 8), SEQUENCE[:, 0]),
    "one step": lambda: (nn.LSTM(6, 8, bidirectional=True), SEQUENCE[:1]),
    "a learnt state": lambda: (
        Module(learnt_state, rnn=nn.LSTM(6, 8), state=nn.Parameter(torch.full((2, 1, 1, 8), 0.1))), SEQUENCE),
    "only the last state": lambda: (
        Module(lambda m, x: m.rnn(x)[1][1], rnn=nn.LSTM(6, 8, 2, bidirectional=True)), SEQUENCE),
    "a GRU's initial state": lambda: (nn.GRU(6, 8), SEQUENCE, STATE),
}  # fmt: skip

LENGTH, WIDTH = 5, 16
TOKENS = numbers(2, LENGTH, WIDTH)
PADDING = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]) == 0
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)


def layer(**kwargs: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True, **kwargs)


def attention(mask: str = "", **kwargs: Any) -> Module:
    """Attention of a sequence to itself; a second input is the keyword argument `mask`."""

    def forward(m: Any, x: Tensor, *masks: Tensor) -> Any:
        return m.inner(x, x, x, **dict(zip([mask], masks)), **kwargs)

    return Module(forward, inner=nn.MultiheadAttention(WIDTH, 4, batch_first=True))


def product(**kwargs: Any) -> Module:
    """Attention of one head; a second input is its mask."""

    def forward(m: Any, x: Tensor, *mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*m.qkv(x).chunk(3, dim=-1), *mask, **kwargs)

    return Module(forward, qkv=nn.Linear(WIDTH, 3 * WIDTH))


TRANSFORMERS: dict[str, Any] = {
    "MultiheadAttention, padding": lambda: (attention("key_padding_mask"), TOKENS, PADDING),
    "MultiheadAttention, causal": lambda: (attention("attn_mask", need_weights=False), TOKENS, CAUSAL),
    "TransformerEncoder, padding": lambda: (nn.TransformerEncoder(layer(), 2), TOKENS, None, PADDING),
    "TransformerEncoder, causal": lambda: (nn.TransformerEncoder(layer(), 1), TOKENS, CAUSAL),
    "norm first": lambda: (layer(norm_first=True, activation="gelu"), TOKENS),
    "TransformerDecoderLayer": lambda: (
        nn.TransformerDecoderLayer(WIDTH, 4, 32, 0.0, batch_first=True), TOKENS, TOKENS),
    "Transformer, causal target": lambda: (
        nn.Transformer(WIDTH, 4, 1, 1, 32, 0.0, batch_first=True), TOKENS, TOKENS, None, CAUSAL),
    "scaled_dot_product_attention": lambda: (product(), TOKENS),
    "scaled_dot_product_attention, mask": lambda: (product(), TOKENS, CAUSAL == 0),
}  # fmt: skip


def codebook(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """A vector quantiser whose codes are moving averages, changed in forward."""
    h = m.layer(x)
    nearest = ((h[:, None] - m.codes[None]) ** 2).sum(-1).argmin(dim=1)
    chosen = m.codes[nearest]
    if m.training:
        hits = F.one_hot(nearest, 6).to(h.dtype)
        with torch.no_grad():
            m.uses.mul_(0.9).add_(hits.sum(0), alpha=0.1)
            m.codes.mul_(0.9).add_(0.1 * (hits.t() @ h) / m.uses.unsqueeze(1))
    return h + (chosen - h).detach(), F.mse_loss(h, chosen.detach())


def rare_classes() -> Module:
    """A classifier of ten classes, of which the rare ones share projections."""

    def adaptive(m: Any, x: Tensor) -> Any:
        return m.softmax.log_prob(m.layer(x))

    softmax = nn.AdaptiveLogSoftmaxWithLoss(4, 10, cutoffs=[3, 6], div_value=2.0, head_bias=True)
    return Module(adaptive, layer=nn.Linear(4, 4), softmax=softmax)


def warp(m: Any, x: Tensor) -> Tensor:
    """Images moved by a flow that a convolution finds: the gradient reaches the grid, not the images."""
    ticks = torch.linspace(-1, 1, x.shape[-1])
    grid = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), dim=-1)
    return F.grid_sample(x, grid + 0.1 * m.flow(x).permute(0, 2, 3, 1), align_corners=True)


def anchored(m: Any, x: Tensor) -> Tensor:
    return m.layer(x).reshape(-1, m.width) * torch.tensor(m.anchors, dtype=x.dtype)


IDS = torch.tensor([[1, 5, 0], [3, 3, 9]])
STYLES: dict[str, Any] = {
    "embeddings": lambda: (side_by_side(
        nn.Embedding(10, 4, sparse=True), *(nn.EmbeddingBag(10, 4, mode="sum", sparse=s) for s in (True, False))), IDS),
    "adaptive softmax": lambda: (rare_classes(), A),
    "vector quantiser": lambda: (
        Module(codebook, {"codes": numbers(6, 4, seed=1), "uses": torch.ones(6)}, layer=nn.Linear(4, 4)), A),
    "arrays": lambda: (Module(anchored, layer=nn.Linear(4, 4), anchors=np.arange(4.0), width=np.int64(4)), A),
}  # fmt: skip

# PopTorch refuses them: its compiler has no handler for one of their ops (test_operators.py).
WITHOUT_HANDLER: dict[str, Any] = {
    "flow": lambda: (Module(warp, flow=nn.Conv2d(8, 2, 3, padding=1)), IMAGES),
    "TransformerEncoder, says causal": lambda: (
        Module(lambda m, x, mask: m.inner(x, mask, is_causal=True), inner=nn.TransformerEncoder(layer(), 1)),
        TOKENS, CAUSAL),
}  # fmt: skip

NETWORKS = LAYERS | IMAGE_NETWORKS | RECURRENT | TRANSFORMERS | STYLES | WITHOUT_HANDLER


@pytest.fixture(autouse=True)
def all_ops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "name" in request.fixturenames and request.getfixturevalue("name") in WITHOUT_HANDLER:
        monkeypatch.setenv("IPU_MODEL_UNSUPPORTED_OPS", "warn")


@pytest.mark.parametrize("name", NETWORKS)
def test_training_agrees_with_pytorch(name: str) -> None:
    torch.manual_seed(0)
    check_training(*NETWORKS[name](), rate=1e-3 if name in IMAGE_NETWORKS else 1e-2)


@pytest.mark.parametrize(
    "name",
    [
        "ViT", "TransformerEncoder, padding", "TransformerEncoder, causal", "vector quantiser", "adaptive softmax",
        "flow",
    ],
)  # fmt: skip
def test_inference_agrees_with_pytorch(name: str) -> None:
    torch.manual_seed(0)
    check_inference(*NETWORKS[name]())


@pytest.mark.parametrize(("network", "op"), [
    (nn.LSTM(6, 8, 2, bidirectional=True), "lstm"), (nn.LSTM(6, 8, 2, bidirectional=True, proj_size=5), "lstm"),
    (nn.GRU(6, 8, 2, bidirectional=True), "gru"), (nn.RNN(6, 8, 2, bidirectional=True), "rnn_tanh"),
    (nn.RNN(6, 8, 2, bidirectional=True, nonlinearity="relu"), "rnn_relu"),
])  # fmt: skip
def test_a_recurrent_layer_is_one_op_for_each_direction_however_many_steps(network: nn.Module, op: str) -> None:
    profile = ipu_model.profile_module(network, torch.zeros(50, 3, 6), quiet(), training=False)
    assert [other.target for other in profile.ops if other.family == "recurrent"] == [f"ipu_model.{op}.default"] * 4
    assert any("recurrent layers" in note for note in profile.notes)


@pytest.mark.parametrize("bias", [True, False])
def test_an_lstm_in_float32_has_the_very_bits_of_pytorchs_fused_layer(bias: bool) -> None:
    network = nn.LSTM(6, 8, 2, bidirectional=True, bias=bias)
    (output, (hidden, cells)), expected = inference(network)(SEQUENCE), network(SEQUENCE)
    for got, wanted in zip((output, hidden, cells), (expected[0], *expected[1])):
        assert torch.equal(got, wanted)


def test_the_available_memory_of_an_lstm_is_that_of_its_products() -> None:
    def temporary(proportion: float) -> list[float]:
        def forward(m: Any, x: Tensor) -> Tensor:
            return poptorch.identity_loss(poptorch.set_available_memory(m.rnn(x)[0], proportion), reduction="mean")

        limited = Module(forward, rnn=nn.LSTM(256, 512, batch_first=True))
        ops = ipu_model.profile_module(limited, torch.zeros(64, 50, 256), quiet(), training=True).ops
        phases = ("forward", "backward")
        return [max(op.temporary_bytes for op in ops if "lstm" in op.target and op.phase == phase) for phase in phases]

    assert all(little < much for little, much in zip(temporary(0.05), temporary(0.6)))


def test_a_language_model_in_half_precision_has_a_formula_for_every_op() -> None:
    """In a pipeline of three stages on two IPUs, with a weight that the first and the last share, without numbers."""

    def forward(m: Any, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        x = m.second(m.first(m.norm(m.tokens(ids)), src_key_padding_mask=mask == 0), src_key_padding_mask=mask == 0)
        with poptorch.Block("head", ipu_id=0):
            logits = F.linear(poptorch.recomputationCheckpoint(x), m.tokens.weight)
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

    options = quiet(accumulation=5)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options.Precision.setPartialsType(torch.float16)
    with torch.device("meta"):
        blocks = {"first": layer(activation="gelu"), "second": poptorch.BeginBlock(layer(norm_first=True), ipu_id=1)}
        model = Module(forward, tokens=nn.Embedding(40, WIDTH, 0), norm=nn.LayerNorm(WIDTH), **blocks).half()
        ids = torch.ones(5, 8, dtype=torch.long)
    profile = ipu_model.profile_module(model, (ids, ids, ids), options, training=True)
    assert len(profile.memory) == 2
    assert without_formula(profile) == set()
