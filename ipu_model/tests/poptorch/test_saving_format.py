"""Files of plain values: they come back as they were, damage is noticed, and nothing in them is executed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch
from ipu_model.capture.describe import digest_of
from poptorch._backend import files

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    PLAIN | st.sampled_from([torch.float16, torch.bool]),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
)
TENSORS = {
    "scalar": torch.tensor(3.5), "half": torch.randn(3, 2).half(), "bool": torch.tensor([True, False]),
    "long": torch.arange(6).reshape(2, 3).t(), "bfloat16": torch.ones(2, dtype=torch.bfloat16),
    "empty": torch.empty(0, 3), "channels_last": torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last),
}  # fmt: skip


@given(value=VALUES)
def test_a_value_comes_back_equal_and_of_the_same_type(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    files.write(path, {"value": value})
    read = files.read(path)["value"]
    assert read == value
    assert type(read) is type(value)


def test_tensors_keep_type_shape_strides_and_bits(tmp_path: Path) -> None:
    files.write(tmp_path / "file", TENSORS)
    read = files.read(tmp_path / "file")
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].stride() == tensor.stride()
        assert read[name].dtype is tensor.dtype
        assert torch.equal(read[name], tensor)


def test_tensors_without_data_keep_shape_and_type(tmp_path: Path) -> None:
    files.write(tmp_path / "file", {"look": torch.empty(1 << 40, 3, dtype=torch.int16, device="meta")})
    read = files.read(tmp_path / "file")["look"]
    assert (read.shape, read.dtype, read.device.type) == ((1 << 40, 3), torch.int16, "meta")


@pytest.mark.parametrize("value", [object(), print, nn.Linear(1, 1), Path("a"), lambda: 1])
def test_other_values_are_refused_and_leave_no_file(value: Any, tmp_path: Path) -> None:
    with pytest.raises(files.NotStorable):
        files.write(tmp_path / "file", {"value": [value]})
    assert list(tmp_path.iterdir()) == []


@given(at=st.integers(0, 400), bit=st.integers(0, 7), cut=st.booleans())
def test_every_change_of_a_bit_and_every_cut_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int, cut: bool
) -> None:
    file = tmp_path_factory.mktemp("files") / "file"
    files.write(file, {"name": "value", "tensor": torch.arange(64)})
    data = bytearray(file.read_bytes())
    if cut:
        del data[at:]
    else:
        data[at] ^= 1 << bit
    file.write_bytes(data)
    with pytest.raises(files.Invalid):
        files.read(file)


class Harmful:
    """Pickles as a call that makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_a_pickle_inside_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "_bytes_of", lambda values: pickle.dumps(values, protocol=2))
        files.write(tmp_path / "file", {"value": Harmful(tmp_path / "harm")})
    with pytest.raises(files.Invalid):
        files.read(tmp_path / "file")
    assert not (tmp_path / "harm").exists()


class Conv(nn.Module):
    def __init__(self, channels: int = 2, factor: float = 0.1, probability: float = 0.5) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3)
        self.factor, self.probability = factor, probability

    def forward(self, x: Tensor) -> Tensor:
        out = torch.dropout(self.conv(x), self.probability, True)
        return out * torch.tensor([self.factor, 2.5]).reshape(2, 1, 1)


class TestDigest:
    """Programs have the same digest if, and only if, they compute the same of their weights and inputs."""

    def digest(self, model: nn.Module, rows: int = 2) -> str:
        executor = poptorch.inferenceModel(model)
        executor.compile(torch.zeros(rows, 1, 5, 5))
        assert executor._executable is not None
        return digest_of(executor._executable.graph)

    def test_values_of_weights_do_not_count(self) -> None:
        assert self.digest(Conv()) == self.digest(Conv())

    def test_constants_arguments_and_sizes_do(self) -> None:
        found = [
            self.digest(Conv()), self.digest(Conv(factor=0.2)), self.digest(Conv(probability=0.4)),
            self.digest(Conv().half()), self.digest(Conv(), rows=3),
        ]  # fmt: skip
        assert len(set(found)) == len(found)
