"""What the tensors of the device are to a program: on the device "ipu" (`isOnIpu` of PopTorch asks for that type),
parameters that stay `nn.Parameter`, since PopTorch moves the module as `module.to("ipu")` does, and tensors without
values as soon as the trace has ended.
"""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executor_support import Module, inference, training, trains_alike, with_loss
from torch import Tensor, nn

import poptorch
from poptorch import Error

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
HOST = torch.tensor([[5.0, 6.0]])


def penalised(function: Callable[[Any], Any]) -> Any:
    """Return a model that adds the squares of the parameters that `function(model)` finds, or moves, to its loss."""

    def forward(model: Any, x: Tensor) -> Any:
        found = function(model)
        out = model.layer(x) * model.w
        return out, poptorch.identity_loss(out.sum() + sum(p.pow(2).sum() for p in found), "sum")

    torch.manual_seed(0)
    return Module(forward, {"steps": torch.tensor(3)}, layer=nn.Linear(2, 2), w=nn.Parameter(torch.tensor([2.0, 3.0])))


@functools.singledispatch
def kind_of(value: object) -> str:
    return "object"


kind_of.register(Tensor)(lambda value: "tensor")
kind_of.register(nn.Parameter)(lambda value: "parameter")


def moved(m: Any) -> Any:
    m.w = m.w.to(device=m.layer.weight.device)
    m.layer.weight = m.layer.weight
    return [m.w, m.layer.weight]


def all_moved(m: Any) -> Any:
    m.to(next(m.parameters()).device)
    m.layer.to("ipu")
    return m.layer.to(device=m.w.device, dtype=torch.float32).parameters()


def told_apart(m: Any) -> Any:
    listed = [*m.parameters()]
    assert [p is q for p, q in zip(listed, [m.w, m.w, m.layer.bias])] == [True, False, True]
    assert len(set(listed)) == 3
    return [p for p in listed if p is not m.w]


def in_a_list(m: Any) -> Any:
    listed = nn.ParameterList([m.w, m.layer.bias])
    assert [name for name, _ in listed.named_parameters()] == ["0", "1"]
    return list(listed)


FINDS: dict[str, Any] = {
    "isinstance": lambda m: [p for p in m.parameters() if isinstance(p, nn.Parameter)],
    "equal types": lambda m: [p for p in m.parameters() if type(p) == nn.Parameter],  # noqa: E721
    "a table of types": lambda m: [p for p in m.parameters() if {nn.Parameter: True}.get(type(p))],
    "the name of the type": lambda m: [p for p in m.parameters() if type(p).__name__ == "Parameter"],
    "single dispatch": lambda m: [p for p in m.parameters() if kind_of(p) == "parameter"],
    "subclass": lambda m: [p for p in m.parameters() if issubclass(type(p), nn.Parameter)],
    "leaves that need a gradient": lambda m: [p for p in m.parameters() if p.is_leaf and p.requires_grad],
    "assigned and moved": moved,
    "the module moved": all_moved,
    "compared": told_apart,
    "a list of parameters": in_a_list,
    "made anew": lambda m: [p for p in map(nn.Parameter, m.parameters()) if isinstance(p, nn.Parameter)],
    "a copy cast": lambda m: [p.float().detach() for p in copy.deepcopy(m.layer).half().parameters()],
    "one vector": lambda m: [nn.utils.parameters_to_vector(m.parameters())],
    "a deep copy": lambda m: [copy.deepcopy(m.w).detach(), copy.deepcopy(m.layer).weight.detach()],
}


class TestParameters:
    @pytest.mark.parametrize("name", FINDS)
    def test_they_are_parameters_as_in_pytorch(self, name: str) -> None:
        plain = {
            "the module moved": lambda m: m.layer.parameters(),
            "assigned and moved": lambda m: [m.w, m.layer.weight],
        }
        trains_alike(penalised(FINDS[name]), penalised(plain.get(name, FINDS[name])), X)

    def test_other_tensors_are_none(self) -> None:
        seen: list[Any] = []

        def forward(m: Any, x: Tensor) -> Tensor:
            tensors = (x, m.w * 1, m.w.detach(), m.average, torch.zeros(2))
            seen.extend((kind_of(t), isinstance(t, nn.Parameter), type(t) == Tensor) for t in tensors)  # noqa: E721
            return x

        inference(Module(forward, {"average": torch.ones(2)}, w=nn.Parameter(torch.ones(2))))(X)
        assert seen == [("tensor", False, True)] * 5

    @pytest.mark.parametrize("value", [lambda p: p * 1, lambda p: nn.Parameter(torch.ones(2)), lambda p: p.data])
    def test_another_value_is_refused(self, value: Any) -> None:
        def forward(m: Any, x: Tensor) -> Tensor:
            del m.w
            m.w = value(x[0])
            return x

        with pytest.raises(Error, match="Parameter w is"):
            inference(Module(forward, w=nn.Parameter(torch.ones(2))))(X)


class TestDevice:
    def test_every_tensor_of_the_program_is_on_the_ipu_and_one_of_the_host_when_it_was_moved(self) -> None:
        seen: dict[str, Any] = {}

        def forward(m: Any, x: Tensor) -> Tensor:
            there = {"input": x, "weight": m.w, "average": m.average, "count": m.count, "result": x.half() + 1}
            there |= {"new": torch.zeros(2), "like": torch.zeros_like(x), "same": torch.ones(1, device=x.device)}
            seen.update({name: (str(t.device), t.is_cpu, t.is_ipu, t.get_device()) for name, t in there.items()})
            assert x.device == m.w.device == torch.device("ipu:0")
            assert poptorch.isOnIpu(x)
            assert poptorch.isOnIpu(m.count)
            seen["host"] = str(m.host.device)
            moved = m.host.to(x.device)
            seen["moved"] = str(moved.device)
            with x.device:
                x = x + torch.ones(2)
            with torch.autocast(x.device.type, enabled=False):
                return x * m.w + moved + m.count

        buffers = {"average": torch.ones(2), "count": torch.tensor(3)}
        model = Module(forward, buffers, w=nn.Parameter(torch.full((2,), 2.0)), host=HOST)
        assert inference(model)(X).tolist() == [[12, 15], [16, 19]]
        assert (seen.pop("host"), seen.pop("moved")) == ("cpu", "ipu:0")
        assert set(seen.values()) == {("ipu:0", False, True, 0)}
        assert len(seen) == 8

    def test_a_default_device_of_the_program_changes_nothing(self) -> None:
        model = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
        with torch.device("cpu"):
            computed = inference(model)(torch.ones(1, 3, 4))
        torch.testing.assert_close(computed, model(torch.ones(1, 3, 4)).detach())

    def test_moving_to_the_device_one_is_on_is_no_change(self) -> None:
        def forward(m: Any, x: Tensor) -> list[Tensor]:
            assert all(x.to(where) is x for where in (x.device, "ipu", "ipu:0", torch.device("ipu"), x, m.w))
            assert x.to(device=x.device, dtype=x.dtype) is x.ipu() is x
            assert x.to(x.device, copy=True) is not x
            return [x]

        inference(Module(forward, w=nn.Parameter(torch.ones(2))))(X)

    @pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
    def test_what_is_on_the_cpu_can_be_moved(self) -> None:
        """That it has to be: `test_mistakes.py`."""

        def forward(m: Any, x: Tensor) -> list[Tensor]:
            made = torch.full((1, 2), 5.0, device="cpu") + torch.arange(2.0, device=HOST.device)
            ways = (lambda t: t.to(x.device), lambda t: t.to(x), lambda t: t.to("ipu"), torch.tensor)
            return [x + way(t) for t in (HOST, torch.FloatTensor([[5, 6]]), made) for way in ways]

        assert [found.tolist() for found in inference(Module(forward))(X)] == [(X + HOST).tolist()] * 12


def kept_by(keep: Callable[[Any, Tensor], Any]) -> Tensor:
    """Return the tensor that a model's `found` list has, or its layer's attribute, after it has run."""

    def forward(m: Any, x: Tensor) -> Any:
        out = m.layer(x)
        keep(m, out)
        return out, poptorch.identity_loss(out, "sum")

    model: Any = Module(forward, layer=nn.Linear(2, 2), found=[])
    training(model)(X)
    kept: Tensor = model.layer.seen if hasattr(model.layer, "seen") else model.found[0]
    return kept


KEEPS: dict[str, Any] = {
    "a list": lambda m, t: m.found.append(t),
    "an attribute": lambda m, t: setattr(m.layer, "seen", t),
    "a view": lambda m, t: m.found.append(t[0]),
    "a parameter": lambda m, t: m.found.append(m.layer.weight),
    "without gradient": lambda m, t: m.found.append(t.detach().half()),
}

USES: dict[str, Any] = {
    "mean": lambda t: t.mean(),
    "item": lambda t: t.sum().item(),
    "array": lambda t: t.numpy(),
    "save": lambda t: torch.save(t, io.BytesIO()),
    "float": float,
    "bool": bool,
    "add": lambda t: 1 + t,
    "cpu": lambda t: t.cpu(),
    "data": lambda t: t.data,
    "stack": lambda t: torch.stack([HOST[0], t]),
    "in another model": lambda t: inference(Module(lambda m, x: x + t))(X),
    "as an input": lambda t: inference(Module(lambda m, x: x))(t),
    "backward": lambda t: t.backward(),
    "layer": lambda t: nn.functional.linear(t, t),
    "equal": lambda t: torch.allclose(t, t),
    "pointer": lambda t: t.data_ptr(),
    "iteration": list,
}


class TestKeptTensors:
    @pytest.mark.parametrize("use", USES)
    def test_every_use_of_the_values_is_refused(self, use: str) -> None:
        with pytest.raises(Error, match=r"IPU tensor that a hook.*kept when .* was traced.*no data.*anchorTensor"):
            USES[use](kept_by(KEEPS["a list"]))

    @pytest.mark.parametrize("keep", KEEPS)
    def test_shape_and_type_are_known(self, keep: str) -> None:
        kept = kept_by(KEEPS[keep])
        shape = (2,) if keep == "a view" else (2, 2)
        assert (kept.shape, kept.size(0), kept.dim(), kept.device.type) == (shape, 2, len(shape), "ipu")
        assert kept.dtype == (torch.float16 if keep == "without gradient" else torch.float32)
        assert "<unavailable>" in f"{kept} {[kept]}"
        with pytest.raises(Error, match="'sum' is asked of"):
            kept.sum()

    def test_an_attribute_is_as_before_when_the_module_is_traced_again_or_exported(self) -> None:
        def forward(layer: Any, x: Tensor) -> Tensor:
            if layer.mask is None:
                layer.mask = torch.ones(2)
            layer.calls.append(x)
            return x * layer.mask

        inner: Any = Module(forward, mask=None, calls=[])
        model = with_loss(lambda m, x: m.inner(x) * m.w, inner=inner, w=nn.Parameter(torch.ones(2)))
        training(model)(X)
        assert len(copy.deepcopy(model).inner.calls) == 1
        with pytest.raises(Error, match="no data"):
            model(X)
        assert torch.equal(inference(model)(X)[0], X)
        assert len(inner.calls) == 1
