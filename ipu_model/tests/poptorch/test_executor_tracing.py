"""What `forward` may do while it is traced (executor reference, section 4), and errors that depend on data.

A replay raises PopTorch's error class and names the op and the user's line.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, inference, runs, training, with_loss
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import poptorch

X = torch.tensor([1.0, 2.0])
GLOBAL = torch.tensor([3.0, 4.0])


def run(function: Callable[..., Any]) -> Any:
    return runs(function)(X)


class TestPythonRunsOnce:
    def test_what_depends_on_data_is_refused_with_its_line(self) -> None:
        """In which words: `test_mistakes.py`."""
        with pytest.raises(poptorch.Error, match=r"branches on data.*<lambda>") as refusal:
            run(lambda x: x * x[0].item())
        assert refusal.value.__suppress_context__  # so that Python prints no second traceback, from inside of torch
        assert not poptorch.isRunningOnIpu()

    def test_a_tensor_of_the_device_prints_without_values(self, capsys: pytest.CaptureFixture[str]) -> None:
        run(lambda x: (print(x, f"{x.half()}", [x > 1]), x)[1])
        assert capsys.readouterr().out == (
            "tensor(<unavailable>, size=(2,), device='ipu:0') "
            "tensor(<unavailable>, size=(2,), device='ipu:0', dtype=torch.float16) "
            "[tensor(<unavailable>, size=(2,), device='ipu:0')]\n"
        )

    def test_a_difference_of_bools_is_refused_in_its_line_of_forward(self) -> None:
        """As by PyTorch itself; fake tensors alone do not notice."""
        with pytest.raises(RuntimeError, match=r"Subtraction, the `-` operator, with .* bool tensor") as refusal:
            run(lambda x: (x > 0) - (x > 1))
        assert any(entry.frame.code.name == "forward" for entry in refusal.traceback)


class TestFactories:
    def test_many_short_lived_ones_are_not_taken_for_each_other(self) -> None:
        drawn = run(lambda x: torch.stack([x.sum() * 0 + torch.tensor(float(i)) for i in range(50)]))
        assert drawn.tolist() == list(range(50))

    def test_a_warning_says_so_once_for_each_function_and_compilation(self, caplog: pytest.LogCaptureFixture) -> None:
        assert run(lambda x: x + torch.zeros(2, device=x.device)).tolist() == [1, 2]
        assert run(lambda x: x + torch.zeros(2, device="ipu")).tolist() == [1, 2]
        assert "forcing" not in caplog.text, "a device was named"
        executor = runs(lambda x: x + torch.zeros(2) + torch.zeros(2))
        for _ in range(2):
            executor(X)
        assert caplog.text.count("No device set in torch.zeros(): forcing to IPU") == 1


class TestHostTensors:
    """A real tensor that the model does not hold never reaches the device; refusals: `test_mistakes.py`."""

    def test_layers_in_a_plain_list_and_weights_behind_the_modules_back_are_refused(self) -> None:
        model = with_loss(lambda m, x: m.head(m.layers[0](x)), layers=[nn.Linear(2, 2)], head=nn.Linear(2, 2))
        with pytest.raises(poptorch.Error, match=r"Expected an IPU tensor.*ModuleList"):
            training(model)(X[None])
        body = nn.Sequential(nn.Linear(2, 2))
        weight = body[0].weight
        with pytest.raises(poptorch.Error, match=r"'body.0.weight' is used through a reference kept outside"):
            inference(Module(lambda model, x: x @ weight, body=body))(X[None])

    def test_work_on_host_tensors_alone_happens_once_on_the_host(self) -> None:
        calls = []

        def forward(x: Tensor) -> Tensor:
            calls.append((torch.from_numpy(np.arange(3.0)) + GLOBAL.sum()).max().item())
            return x * calls[-1]

        executor = runs(forward)
        assert [executor(X).tolist() for _ in range(2)] == [[9, 18]] * 2
        assert calls == [9]


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_dropout_has_the_same_mask_in_both_passes_also_inside_a_checkpoint(reentrant: bool | None) -> None:
    """`torch.utils.checkpoint` changes nothing on the device, which has recomputation of its own."""

    def forward(model: Any, x: Tensor) -> Any:
        def dropped(x: Tensor) -> Tensor:
            return F.dropout(x * model.weight)

        return dropped(x) if reentrant is None else checkpoint(dropped, x, use_reentrant=reentrant)

    model = with_loss(forward, weight=nn.Parameter(torch.ones(64)))
    executor = training(model, lr=1.0)
    out, _loss = executor(torch.ones(1, 64))
    assert 0 < out.count_nonzero() < 64
    assert torch.equal(1 - model.weight, out[0]), "the gradient is 2 where an element was kept"


OUTSIDE = torch.tensor([7])


def looked_up(model: Any, tokens: Tensor) -> Tensor:
    found: Tensor = model.words(tokens)
    return found * 2


class TestDuringAReplay:
    def test_an_index_out_of_range_names_op_module_and_line_and_the_model_stays_usable(self) -> None:
        model: Any = Module(looked_up, words=nn.Embedding(3, 2))
        executor = inference(model)
        with pytest.raises(poptorch.Error) as failure:
            executor(OUTSIDE)
        text = failure.value.message
        assert text.startswith("index out of range in self (aten.embedding.default in module 'words', forward pass, ")
        assert "of looked_up in test_executor_tracing.py: found: Tensor = model.words(tokens)" in text
        assert failure.value.type == "poplar_application_runtime_error"
        assert isinstance(failure.value.__cause__, IndexError)
        assert torch.equal(executor(torch.tensor([2])), 2 * model.words.weight[2:].detach())

    @pytest.mark.parametrize(
        "function",
        [
            lambda x, i: torch.gather(x, 0, i),
            lambda x, i: x[i],
            lambda x, i: F.cross_entropy(x[None], i),
            lambda x, i: (x + 1).scatter(0, i, 1.0),
            lambda x, i: x.half()[i],
            lambda x, i: torch.zeros(3).index_put_((i,), x[:1]),
        ],
    )
    def test_other_ops(self, function: Any) -> None:
        with pytest.raises(poptorch.Error, match=r"out of bounds.*\(aten\..* of <lambda> in test_executor_tracing.py"):
            inference(Module(lambda model, *args: function(*args)))(torch.ones(3), OUTSIDE)


@pytest.mark.parametrize("value", [None, "", "0", "1"])
def test_the_first_op_whose_half_precision_results_were_clipped_is_named_if_that_is_asked_for(
    value: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In which words: `engine/test_half_values.py`."""
    if value is not None:
        monkeypatch.setenv("IPU_MODEL_REPORT_CLIPPING", value)
    large = torch.tensor([300.0, 1.0], dtype=torch.float16)  # 300 * 300 is beyond 65504
    assert runs(lambda x: (x * x).sum())(large).item() == 65504.0
    assert caplog.text.count("clipped to +-65504: 1 of 2 values (aten.mul.Tensor") == (value == "1")


def test_lines_of_a_program_are_those_of_the_module_as_it_was_loaded_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In profiles, in errors while tracing and in errors of a run; a notebook reloads modules that were edited."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    edited: Any = None
    for number, function in enumerate(("sin", "cos", "tanh")):
        text = f"import torch\n\n\n\ndef right(m, x):\n    return torch.{function}(x)  # edit {number}\n"
        text += f"\n\ndef wrong(m, x):\n    return x * x[0, {number}].item()\n"
        text += f"\n\ndef late(m, x):\n    return torch.bernoulli(-x.abs() - {number})\n"
        (tmp_path / "edited_module.py").write_text(text)
        os.utime(tmp_path / "edited_module.py", (number, number))
        edited = importlib.import_module("edited_module") if edited is None else importlib.reload(edited)
        with pytest.raises(poptorch.Error, match=rf"line 10 of wrong in .*x\[0, {number}\]"):
            inference(Module(edited.wrong))(torch.ones(2, 3))
        executor = inference(Module(edited.right))
        executor.compile(torch.ones(2, 3))
        lines = {op.line for op in executor._compiled.step.ops}
        assert lines == {f"line 6 of right in edited_module.py: return torch.{function}(x) # edit {number}"}
        with pytest.raises(poptorch.Error, match=rf"line 14 of late in .*bernoulli\(-x\.abs\(\) - {number}\)"):
            inference(Module(edited.late))(torch.ones(2, 3))
    del sys.modules["edited_module"]
