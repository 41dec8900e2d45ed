"""Recurrent networks: every kind, language models, state that is carried from call to call."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from modelling_support import quiet
from torch import Tensor, nn
from zoo_support import agree, check_inference, check_training

import ipu_model
import poptorch

SEQUENCE = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(14).reshape(2, 7)


class LanguageModel(nn.Module):
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


NETWORKS: dict[str, Any] = {
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
    "a rectifier": lambda: (nn.RNN(6, 8, nonlinearity="relu"), SEQUENCE),
    "language model": lambda: (LanguageModel(), IDS, (IDS + 1) % 20),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_training_agrees_with_pytorch(name: str) -> None:
    check_training(*NETWORKS[name]())


def test_an_lstm_is_one_op_for_each_layer_and_direction_however_many_steps() -> None:
    network = nn.LSTM(6, 8, 2, bidirectional=True)
    profile = ipu_model.profile_module(network, torch.zeros(50, 3, 6), quiet(), training=False)
    assert [op.target for op in profile.ops if op.family == "recurrent"] == ["ipu_model.lstm.default"] * 4
    assert any("recurrent layers" in note for note in profile.notes)


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


def test_inference_agrees_with_pytorch() -> None:
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
