"""Networks by family, trained wrapped and in plain PyTorch: of images, of sequences, and transformers up to BERT."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision.models as tv
from modelling_support import quiet
from torch import Tensor, nn
from zoo_support import Function, agree, check_inference, check_training, names, numbers, weights

import ipu_model
import poptorch

# Images: norms, convolutions of every rank, padding, pooling, interpolation, U-Net, ViT, DenseNet...

P = nn.utils.parametrizations


IMAGES, SIGNALS, VOLUMES = numbers(2, 8, 6, 6), numbers(2, 8, 7), numbers(1, 8, 4, 4, 4)

IMAGE_LAYERS: dict[str, Any] = {
    "GroupNorm": lambda: (nn.GroupNorm(2, 8), IMAGES),
    "InstanceNorm": lambda: (nn.InstanceNorm2d(8, affine=True, track_running_stats=True), IMAGES),
    "InstanceNorm of signals": lambda: (nn.InstanceNorm1d(8, affine=True), SIGNALS),
    "BatchNorm of rows": lambda: (nn.BatchNorm1d(7), numbers(4, 7)),
    "BatchNorm of volumes": lambda: (nn.BatchNorm3d(8), VOLUMES),
    "SyncBatchNorm": lambda: (nn.SyncBatchNorm(8), IMAGES),
    "LayerNorm": lambda: (nn.LayerNorm([6, 6]), IMAGES),
    "RMSNorm": lambda: (nn.RMSNorm(6), IMAGES),
    "LocalResponseNorm": lambda: (Function(nn.LocalResponseNorm(3)), IMAGES),
    "depthwise": lambda: (nn.Conv2d(8, 8, 3, groups=8, padding="same"), IMAGES),
    "padding by reflection": lambda: (nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"), IMAGES),
    "dilated signals": lambda: (nn.Conv1d(8, 4, 3, dilation=2), SIGNALS),
    "3-D": lambda: (nn.Conv3d(8, 4, 3, padding=1), VOLUMES),
    "transposed 1-D": lambda: (nn.ConvTranspose1d(8, 4, 4, 2), SIGNALS),
    "transposed 2-D": lambda: (nn.ConvTranspose2d(8, 4, 3, 2, padding=1, output_padding=1, groups=2), IMAGES),
    "transposed 3-D": lambda: (nn.ConvTranspose3d(8, 4, 2, 2), VOLUMES),
    "weight norm": lambda: (P.weight_norm(nn.Conv1d(8, 5, 3)), SIGNALS),
    "spectral norm": lambda: (P.spectral_norm(nn.Conv2d(8, 5, 3)), IMAGES),
    "MaxPool with indices": lambda: (Function(nn.MaxPool2d(2, return_indices=True)), IMAGES),
    "AvgPool": lambda: (Function(nn.AvgPool2d(3, 2, 1, count_include_pad=False)), IMAGES),
    "AdaptiveAvgPool": lambda: (Function(nn.AdaptiveAvgPool2d((2, 3))), IMAGES),
    "AdaptiveMaxPool": lambda: (Function(nn.AdaptiveMaxPool2d(2)), IMAGES),
    "AdaptiveMaxPool of signals": lambda: (Function(nn.AdaptiveMaxPool1d(1)), SIGNALS),
    "activations": lambda: (nn.Sequential(nn.PReLU(8), nn.ELU(), nn.Mish(), nn.Unflatten(1, (2, 4))), IMAGES),
    "3-D pools": lambda: (Function(nn.Sequential(nn.MaxPool3d(2), nn.AvgPool3d(2))), VOLUMES),
    "MaxUnpool": lambda: (
        Function(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)), IMAGES),
    "paddings": lambda: (Function(nn.Sequential(
        nn.ReflectionPad2d(2), nn.ReplicationPad2d(1), nn.CircularPad2d(1), nn.ConstantPad2d(1, 0.5))), IMAGES),
    "fold of unfold": lambda: (Function(lambda x: F.fold(F.unfold(x, 2, stride=2), (6, 6), 2, stride=2)), IMAGES),
    "pixel shuffles": lambda: (Function(nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(3))), IMAGES),
    "grid_sample": lambda: (
        Function(lambda x, grid: F.grid_sample(x, grid, align_corners=False)), IMAGES, numbers(2, 3, 3, 2).tanh()),
}  # fmt: skip

INTERPOLATIONS: list[tuple[Tensor, dict[str, Any]]] = [
    (IMAGES, {"scale_factor": 2}),
    (IMAGES, {"scale_factor": 2, "mode": "bilinear", "align_corners": True}),
    (IMAGES, {"scale_factor": 0.5, "mode": "bilinear", "antialias": True}),
    (IMAGES, {"size": (9, 7), "mode": "bicubic"}),
    (IMAGES, {"size": (3, 3), "mode": "area"}),
    (IMAGES, {"scale_factor": 1.5, "mode": "nearest-exact"}),
    (SIGNALS, {"scale_factor": 2, "mode": "linear"}),
    (VOLUMES, {"scale_factor": 2, "mode": "trilinear"}),
]


class UNet(nn.Module):
    """Two levels down and up again, with skips: one transposed convolution, one interpolation."""

    def __init__(self, width: int = 4, channels: int = 3) -> None:
        super().__init__()
        self.down, self.middle = self.block(channels, width), self.block(2 * width, 4 * width)
        self.lower = self.block(width, 2 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.left, self.top = self.block(4 * width, 2 * width), self.block(3 * width, width)
        self.upsample, self.out = nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(width, 2, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Sequential:
        convolutions = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)]
        norms = [nn.InstanceNorm2d(outputs, affine=True) for _ in convolutions]
        return nn.Sequential(*(m for pair in zip(convolutions, norms) for m in (*pair, nn.ReLU(inplace=True))))

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        low = self.lower(F.max_pool2d(high, 2))
        low = self.left(torch.cat([self.up(self.middle(F.max_pool2d(low, 2))), low], dim=1))
        return self.out(self.top(torch.cat([self.upsample(low), high], dim=1)))


IMAGE_NETWORKS: dict[str, Any] = {
    "U-Net": lambda: UNet(),
    "ViT": lambda: tv.VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=5),
    "MobileNet": lambda: tv.MobileNetV2(5, 0.25, [[1, 16, 1, 1], [6, 24, 1, 2]], dropout=0.0),
    "DenseNet": lambda: tv.DenseNet(8, (2, 2), 8, num_classes=5),
    "ConvNeXt": lambda: tv.ConvNeXt([tv.convnext.CNBlockConfig(8, None, 2)], num_classes=5),
    "Swin": lambda: tv.SwinTransformer([2, 2], 8, [2], [2], [2, 2], num_classes=5, stochastic_depth_prob=0.0),
}


@pytest.mark.parametrize("name", IMAGE_LAYERS)
def test_layers_of_image_networks_train_as_in_pytorch(name: str) -> None:
    check_training(*IMAGE_LAYERS[name]())


@pytest.mark.parametrize(("images", "options"), INTERPOLATIONS, ids=str)
def test_interpolations_train_as_in_pytorch(images: Tensor, options: dict[str, Any]) -> None:
    check_training(Function(lambda x: F.interpolate(x, **options)), images)


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_image_networks_train_as_in_pytorch(name: str) -> None:
    check_training(IMAGE_NETWORKS[name](), numbers(4, 3, 16, 16), rate=1e-3)


def test_an_image_network_infers_as_in_pytorch() -> None:
    check_inference(tv.VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=5), numbers(4, 3, 16, 16))


DROPOUTS = [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU]


@pytest.mark.parametrize("kind", DROPOUTS)
def test_dropout_draws_other_numbers_in_every_call_and_none_in_inference(kind: Any) -> None:
    wrapped = poptorch.inferenceModel(kind().train(), quiet())
    assert not torch.equal(wrapped(IMAGES), wrapped(IMAGES))
    wrapped.destroy()
    wrapped.eval()
    assert torch.equal(wrapped(IMAGES), kind().eval()(IMAGES))


# Recurrent networks: every kind, language models, state that is carried from call to call.

SEQUENCE = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(0))
WORDS = torch.arange(14).reshape(2, 7)


class RecurrentLanguageModel(nn.Module):
    """Next words from an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(20, 8), nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 20)

    def forward(self, words: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.rnn(self.words(words))
        logits = self.out(states)
        return logits, F.cross_entropy(logits.view(-1, 20), following.view(-1))


class Unrolled(nn.Module):
    """A loop over the steps of a cell."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for step in x.unbind(0):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs)


class LearntState(nn.Module):
    """The first hidden state and the first cells are weights."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.state = nn.LSTM(6, 8), nn.Parameter(torch.full((2, 1, 1, 8), 0.1))

    def forward(self, x: Tensor) -> Any:
        hidden, cells = self.state.expand(2, 1, x.shape[1], 8).unbind(0)
        return self.rnn(x, (hidden.contiguous(), cells.contiguous()))


class Only(nn.Module):
    """A part of what a network returns."""

    def __init__(self, network: nn.Module, part: Any) -> None:
        super().__init__()
        self.network, self.part = network, part

    def forward(self, x: Tensor) -> Any:
        return self.part(self.network(x))


RECURRENT: dict[str, Any] = {
    **{kind.__name__: lambda kind=kind: (kind(6, 8), SEQUENCE) for kind in (nn.LSTM, nn.GRU, nn.RNN)},
    **{f"{kind.__name__}, two ways, two layers": lambda kind=kind: (
        kind(6, 8, num_layers=2, bidirectional=True, batch_first=True), SEQUENCE) for kind in (nn.LSTM, nn.GRU)},
    **{kind.__name__: lambda kind=kind: (Unrolled(kind), SEQUENCE) for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)},
    "an initial state": lambda: (nn.LSTM(6, 8), SEQUENCE, (torch.ones(1, 3, 8), torch.zeros(1, 3, 8))),
    "no biases": lambda: (nn.LSTM(6, 8, bias=False), SEQUENCE),
    "a projection": lambda: (nn.LSTM(6, 8, 2, proj_size=5), SEQUENCE),
    "one sequence": lambda: (nn.LSTM(6, 8), SEQUENCE[:, 0]),
    "one step": lambda: (nn.LSTM(6, 8, bidirectional=True), SEQUENCE[:1]),
    "a learnt state": lambda: (LearntState(), SEQUENCE),
    "only the last state": lambda: (Only(nn.LSTM(6, 8, 2, bidirectional=True), lambda out: out[1][1]), SEQUENCE),
    "a projection, two ways": lambda: (nn.LSTM(6, 8, 2, proj_size=5, bidirectional=True), SEQUENCE),
    "a GRU without biases": lambda: (nn.GRU(6, 8, 2, bias=False), SEQUENCE),
    "a GRU's initial state": lambda: (nn.GRU(6, 8), SEQUENCE, torch.ones(1, 3, 8)),
    "a rectifier": lambda: (nn.RNN(6, 8, nonlinearity="relu"), SEQUENCE),
    "language model": lambda: (RecurrentLanguageModel(), WORDS, (WORDS + 1) % 20),
}  # fmt: skip


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_networks_train_as_in_pytorch(name: str) -> None:
    check_training(*RECURRENT[name]())


@pytest.mark.parametrize(("network", "op"), [
    (nn.LSTM(6, 8, 2, bidirectional=True), "lstm"), (nn.LSTM(6, 8, 2, bidirectional=True, proj_size=5), "lstm"),
    (nn.GRU(6, 8, 2, bidirectional=True), "gru"), (nn.RNN(6, 8, 2, bidirectional=True), "rnn_tanh"),
    (nn.RNN(6, 8, 2, bidirectional=True, nonlinearity="relu"), "rnn_relu"),
])  # fmt: skip
def test_a_recurrent_layer_is_one_op_for_each_direction_however_many_steps(network: nn.Module, op: str) -> None:
    profile = ipu_model.profile_module(network, torch.zeros(50, 3, 6), quiet(), training=False)
    assert [found.target for found in profile.ops if found.family == "recurrent"] == [f"ipu_model.{op}.default"] * 4
    assert any("recurrent layers" in note for note in profile.notes)


@pytest.mark.parametrize("bias", [True, False])
def test_an_lstm_in_float32_has_the_very_bits_of_pytorchs_fused_layer(bias: bool) -> None:
    network = nn.LSTM(6, 8, 2, bidirectional=True, bias=bias)
    (output, (hidden, cells)), expected = poptorch.inferenceModel(network, quiet())(SEQUENCE), network(SEQUENCE)
    for found, wanted in zip((output, hidden, cells), (expected[0], *expected[1])):
        assert torch.equal(found, wanted)


def test_the_available_memory_of_an_lstm_is_that_of_its_products() -> None:
    class Limited(nn.Module):
        def __init__(self, proportion: float) -> None:
            super().__init__()
            self.rnn, self.proportion = nn.LSTM(256, 512, batch_first=True), proportion

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = poptorch.set_available_memory(self.rnn(x)[0], self.proportion)
            return poptorch.identity_loss(found, reduction="mean")

    def temporary(proportion: float, phase: str) -> float:
        x = torch.zeros(64, 50, 256)
        profile = ipu_model.profile_module(Limited(proportion), x, quiet(), training=True)
        return max(op.temporary_bytes for op in profile.ops if "lstm" in op.target and op.phase == phase)

    for phase in ("forward", "backward"):
        assert temporary(0.05, phase) < temporary(0.6, phase)


def test_a_recurrent_network_infers_as_in_pytorch() -> None:
    check_inference(nn.LSTM(6, 8, 2, dropout=0.5), SEQUENCE)


def test_a_state_kept_in_buffers_is_carried_from_call_to_call() -> None:
    class Streaming(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(6, 8)
            self.register_buffer("state", torch.zeros(1, 3, 8))

        def forward(self, x: Tensor) -> Tensor:
            out, state = self.rnn(x, self.state)
            self.state.copy_(state.detach())
            return out

    model = Streaming()
    reference = copy.deepcopy(model)
    wrapped = poptorch.inferenceModel(model, quiet())
    for _ in range(3):
        with torch.no_grad():
            agree(wrapped(SEQUENCE), reference(SEQUENCE))


def test_packed_sequences_are_refused_by_name() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(6, 8)

        def forward(self, x: Tensor, lengths: Tensor) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])[0]

    with pytest.raises(poptorch.Error, match=r"Packed sequences are not supported: .*ignore_index, or a mask"):
        poptorch.inferenceModel(Packed(), quiet())(SEQUENCE, torch.tensor([4, 3, 2]))


# Transformers as programs write them for PopTorch: attention, encoders, language models, BERT over four IPUs.

VOCABULARY, LENGTH, WIDTH = 40, 5, 16
PADDING = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)
IDS = torch.arange(2 * LENGTH).reshape(2, LENGTH) % VOCABULARY


def tokens() -> Tensor:
    """Return two embedded sentences."""
    return torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Multi-head attention by hand."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), heads

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.size()
        split = [t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)]
        scores = split[0] @ split[1].transpose(-1, -2) / (width // self.heads) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
        mixed = (scores.softmax(dim=-1) @ split[2]).transpose(1, 2).contiguous()
        return self.out(mixed.view(batch, length, width))


class Called(nn.Module):
    """A module of torch whose last input is the keyword argument `mask`, called with other ones as they are."""

    def __init__(self, module: nn.Module, mask: str = "", **kwargs: Any) -> None:
        super().__init__()
        self.module, self.mask, self.kwargs = module, mask, kwargs

    def forward(self, *args: Any) -> Any:
        if not self.mask:
            return self.module(*args, **self.kwargs)
        return self.module(*args[:-1], **{self.mask: args[-1]}, **self.kwargs)


def layer(**kwargs: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True, **kwargs)


class SelfAttention(nn.MultiheadAttention):
    """Queries, keys and values are the same."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 4, batch_first=True)

    def forward(self, x: Tensor, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().forward(x, x, x, **kwargs)


class Product(nn.Module):
    """Attention of one head."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, dim=-1), **kwargs)


class LanguageModel(nn.Module):
    """A decoder whose first and last layer share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(8, WIDTH)
        self.blocks = nn.TransformerEncoder(layer(activation="gelu"), 1)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("seen", torch.ones(8, 8).tril().bool())

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        length = input_ids.size(1)
        x = self.tokens(input_ids) + self.places(torch.arange(length, device=input_ids.device))
        logits = self.head(self.norm(self.blocks(x, mask=~self.seen[:length, :length])))
        if labels is None:
            return {"logits": logits}
        shifted = logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1)
        return {"loss": F.cross_entropy(*shifted, ignore_index=-100), "logits": logits}


TRANSFORMERS: dict[str, Any] = {
    "by hand": lambda: (Attention(), tokens()),
    "by hand, masked": lambda: (Attention(), tokens(), PADDING),
    "MultiheadAttention": lambda: (SelfAttention(), tokens()),
    "MultiheadAttention, padding": lambda: (Called(SelfAttention(), "key_padding_mask"), tokens(), PADDING == 0),
    "MultiheadAttention, causal": lambda: (
        Called(SelfAttention(), "attn_mask", need_weights=False), tokens(), CAUSAL),
    "TransformerEncoder": lambda: (nn.TransformerEncoder(layer(), 2), tokens()),
    "TransformerEncoder, padding": lambda: (nn.TransformerEncoder(layer(), 1), tokens(), None, PADDING == 0),
    "TransformerEncoder, causal": lambda: (nn.TransformerEncoder(layer(), 1), tokens(), CAUSAL),
    "TransformerEncoder, says causal": lambda: (
        Called(nn.TransformerEncoder(layer(), 1), "mask", is_causal=True), tokens(), CAUSAL),
    "norm first": lambda: (layer(norm_first=True, activation="gelu"), tokens()),
    "TransformerDecoderLayer": lambda: (
        nn.TransformerDecoderLayer(WIDTH, 4, 32, 0.0, batch_first=True), tokens(), tokens()),
    "Transformer, causal target": lambda: (
        Called(nn.Transformer(WIDTH, 4, 1, 1, 32, 0.0, batch_first=True), "tgt_mask"), tokens(), tokens(), CAUSAL),
    "scaled_dot_product_attention": lambda: (Product(), tokens()),
    "scaled_dot_product_attention, causal": lambda: (Called(Product(), is_causal=True), tokens()),
    "scaled_dot_product_attention, mask": lambda: (Called(Product(), "attn_mask"), tokens(), CAUSAL == 0),
    "language model": lambda: (LanguageModel(), IDS),
    "language model with labels": lambda: (LanguageModel(), IDS, IDS.where(IDS != 7, -100)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_train_as_in_pytorch(name: str) -> None:
    check_training(*TRANSFORMERS[name]())


@pytest.mark.parametrize("name", ["TransformerEncoder, padding", "TransformerEncoder, causal", "language model"])
def test_transformers_infer_as_in_pytorch(name: str) -> None:
    check_inference(*TRANSFORMERS[name]())


def test_dropout_of_an_encoder_runs_in_training_only() -> None:
    wrapped = poptorch.inferenceModel(nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True), quiet())
    x = tokens()
    training = wrapped(x)
    wrapped.destroy()
    wrapped.eval()
    assert not torch.equal(training, wrapped(x))
    assert torch.equal(wrapped(x), wrapped(x))


class Bert(nn.Module):
    """An encoder whose last layer shares the embedding's weight; a quarter of its layers on each IPU."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places, self.kinds, self.norm = nn.Embedding(length, width), nn.Embedding(2, width), nn.LayerNorm(width)
        encoder = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.ModuleList(copy.deepcopy(encoder) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.tokens.weight
        for number, block in enumerate(self.layers):
            block.register_forward_hook(lambda module, inputs, output: poptorch.recomputationCheckpoint(output))
            self.layers[number] = poptorch.BeginBlock(block, f"Encoder{number}", ipu_id=4 * number // layers)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with poptorch.Block("Embedding", ipu_id=0):
            places = torch.arange(input_ids.size(1), device=input_ids.device)
            x = self.norm(self.tokens(input_ids) + self.places(places) + self.kinds(torch.zeros_like(input_ids)))
            padding = attention_mask == 0
        for block in self.layers:
            x = block(x, src_key_padding_mask=padding)
        with poptorch.Block("Head", ipu_id=0):
            logits = self.head(x)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return logits, loss


def bert_options(accumulation: int) -> poptorch.Options:
    """Return options as public BERT programs set them."""
    options = quiet()
    options.autoRoundNumIPUs(True)
    options.outputMode(poptorch.OutputMode.Final)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options.Training.gradientAccumulation(accumulation)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    options.setAvailableMemoryProportion({f"IPU{ipu}": 0.2 for ipu in range(4)})
    options.Precision.setPartialsType(torch.float16)
    options._Popart.set("autoRecomputation", 3)
    return options


def sentences(rows: int, vocabulary: int, length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, vocabulary, (rows, length), generator=generator)
    labels = ids.where(torch.arange(length) % 3 == 1, -100)
    return {"input_ids": ids, "attention_mask": torch.arange(length).expand(rows, -1).lt(length - 1).long(),
            "labels": labels}  # fmt: skip


def test_a_small_bert_pipelined_over_four_ipus_with_recomputation_learns_as_in_pytorch() -> None:
    model, accumulation = Bert(VOCABULARY, WIDTH, 4, 2, 8), 9
    reference = copy.deepcopy(model)
    batch = sentences(2 * accumulation, VOCABULARY, 8)
    options = bert_options(accumulation)
    options.Precision.setPartialsType(torch.float32)
    wrapped = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.05))
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.05)
    for _ in range(2):
        _, loss = wrapped(**batch)
        optimiser.zero_grad()
        for rows in zip(*(tensor.chunk(accumulation) for tensor in batch.values())):
            expected = reference(*rows)[1]
            (expected / accumulation).backward()
        optimiser.step()
        agree(loss, expected)
    wrapped.copyWeightsToHost()
    agree(weights(model), weights(reference))
    assert model.head.weight is model.tokens.weight


def test_a_bert_in_half_precision_has_a_profile_and_a_formula_for_every_op() -> None:
    """In a pipeline of five stages on four IPUs, described without any numbers."""
    with torch.device("meta"):
        model = Bert(VOCABULARY, WIDTH, 4, 2, 8).half()
    shapes = {name: tensor.to("meta") for name, tensor in sentences(9, VOCABULARY, 8).items()}
    profile = ipu_model.profile_module(model, shapes, bert_options(9), training=True)
    assert len(profile.memory) == 4
    assert names(profile) == set()
