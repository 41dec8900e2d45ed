"""Programs in files: they come back as they were, and a file can do no more than describe one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from tracing_support import traced

from ipu_model import stored
from ipu_model.compute.replay import Arithmetic, build
from ipu_model.graph import Graph, TensorSpec
from ipu_model.step import Phase, Placement

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    PLAIN
    | st.sampled_from([torch.float16, torch.strided, torch.channels_last, torch.device("cpu"), Phase.BACKWARD])
    | st.builds(Placement, st.text(), st.integers(), st.integers())
    | st.builds(TensorSpec, st.just((2, 3)), st.just(torch.int32), st.just((3, 1))),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.dropout(self.norm(self.conv(x)), 0.5, True) * torch.tensor([0.1, 2.5]).reshape(2, 1, 1)
        return out, out.clamp(-1.0, float("inf")).mean()


def graph() -> Graph:
    return traced(Conv(), torch.zeros(2, 1, 5, 5), training=False)


def through_json(of: Graph) -> Graph:
    form, constants = stored.graph_form(of)
    return stored.graph_of(json.loads(json.dumps(form)), constants)


@given(VALUES)
def test_a_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    read = stored.decode(json.loads(json.dumps(stored.encode(value))))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("value", [object(), print, nn.Linear(1, 1), Path("a"), 1j, type("Kind", (int,), {})(3)])
def test_what_is_outside_the_closed_set_is_refused(value: Any) -> None:
    with pytest.raises(stored.NotStorable, match=type(value).__name__):
        stored.encode(value)


class TestGraphs:
    def test_all_of_one_comes_back(self) -> None:
        original = graph()
        read = through_json(original)
        assert str(read.ops) == str(original.ops)
        assert [node.meta for node in read.ops.nodes] == [node.meta for node in original.ops.nodes]
        for name in ("variables", "inputs", "input_nodes", "outputs", "gradients", "loss", "mutated", "assigned"):
            assert getattr(read, name) == getattr(original, name)
        assert read.rebuild_outputs([1, 2]) == (1, 2)

    def test_a_replay_computes_the_same_bits(self) -> None:
        original = graph()
        values = [torch.randn(v.spec.shape).abs() for v in original.variables]
        results = []
        for each in (original, through_json(original)):
            torch.manual_seed(0)
            copies = [value.clone() for value in values]
            results.append(build(each, Arithmetic()).module(*copies, torch.ones(2, 1, 5, 5))[0])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def change(what: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    form, _ = stored.graph_form(graph())
    form = json.loads(json.dumps(form))
    what(form)
    return dict(form)


def set_node(position: int, value: Any) -> Callable[[dict[str, Any]], None]:
    """Change one field of the first op: kind, name, op, arguments, keywords, description."""

    def apply(form: dict[str, Any]) -> None:
        next(node for node in form["nodes"] if node[0] == "call_function")[position] = value

    return apply


@pytest.mark.parametrize(
    "what",
    [
        set_node(1, "x = __import__('os').getpid()"),
        set_node(1, "lambda"),
        set_node(2, "os.system"),
        set_node(2, "aten.from_file.default"),
        set_node(2, "aten.__class__.default"),
        set_node(2, "prim.device.default"),
        set_node(0, "call_module"),
        set_node(3, {"tuple": [{"node": "later"}]}),
        set_node(3, {"os.getpid": []}),
        set_node(3, {"dtype": "load"}),
        set_node(4, {"dict": [["a=__import__('os')", 1]]}),
        lambda form: form["nodes"][0].__setitem__(2, "x=print()"),
        lambda form: form.pop("outputs"),
        lambda form: form.__setitem__("structure", {"eval": []}),
        lambda form: form["nodes"].append(
            ["get_attr", "missing", "missing", {"tuple": []}, {"dict": []}, {"dict": []}]
        ),
    ],
)
def test_a_file_that_says_anything_else_than_a_program_is_refused(what: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(stored.Invalid):
        stored.graph_of(change(what), stored.graph_form(graph())[1])


TENSORS = {
    "scalar": torch.tensor(3.5), "half": torch.randn(3, 2).half(), "bool": torch.tensor([True, False]),
    "long": torch.arange(6).reshape(2, 3).t(), "bfloat16": torch.ones(2, dtype=torch.bfloat16),
    "empty": torch.empty(0, 3), "channels_last": torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last),
}  # fmt: skip


class TestContainer:
    def test_tensors_keep_type_shape_strides_and_bits(self, tmp_path: Path) -> None:
        stored.write(tmp_path / "file", stored.Contents({"a": [1, None]}, TENSORS))
        read = stored.read(tmp_path / "file")
        assert read.values == {"a": [1, None]}
        assert read.tensors.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert read.tensors[name].stride() == tensor.stride() or not tensor.numel()
            assert read.tensors[name].dtype is tensor.dtype
            assert torch.equal(read.tensors[name], tensor)

    def test_a_tensor_that_repeats_its_memory_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(stored.NotStorable, match="expanded"):
            stored.write(tmp_path / "file", stored.Contents({}, {"expanded": torch.ones(1).expand(3)}))

    @given(at=st.integers(0, 400), bit=st.integers(0, 7), cut=st.booleans())
    def test_every_change_of_a_bit_and_every_cut_is_noticed(
        self, tmp_path_factory: pytest.TempPathFactory, at: int, bit: int, cut: bool
    ) -> None:
        file = tmp_path_factory.mktemp("files") / "file"
        stored.write(file, stored.Contents({"name": "value"}, {"tensor": torch.arange(64)}))
        data = bytearray(file.read_bytes())
        if cut:
            del data[at:]
        else:
            data[at] ^= 1 << bit
        file.write_bytes(data)
        with pytest.raises(stored.Invalid):
            stored.read(file)
