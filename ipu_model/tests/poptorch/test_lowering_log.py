"""What a compilation tells: debug lines of its ops, `_debugGetPopartIR` (execution reference, 14), long errors."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_support import quiet
from function_models import in_training, on_device
from torch import Tensor

import poptorch
from poptorch import Liveness, SerialPhasedExecution

X = torch.arange(8.0).reshape(2, 4)


def lines(caplog: pytest.LogCaptureFixture, function: Any, **settings: Any) -> list[str]:
    """Compile `function` for inference and return its debug lines about ops, without the aten name in front."""
    with caplog.at_level(logging.DEBUG, logger="poptorch:cpp"):
        on_device(function, quiet(deviceIterations=2, **settings)).compile(X)
    marker = " was lowered to "
    return [text.partition(marker)[2] for text in caplog.messages if marker in text]


def in_blocks(model: Any, x: Tensor) -> Tensor:
    with poptorch.Block("A", ipu_id=0):
        x = x * 2 * x
    with poptorch.Block("B", ipu_id=1):
        return model.linear(x)


# The strategy, its name in a line, and what stands for the second block; section 5.2 multiplies phases by 2 or 4.
STRATEGIES: list[tuple[Any, str, str, str]] = [
    (poptorch.PipelinedExecution(), "Pipelined", "stage(0)", "stage(1)"),
    (poptorch.ShardedExecution("A", "B"), "Sharded", "stage(0)", "stage(1)"),
    (poptorch.ParallelPhasedExecution("A", "B"), "Phased", "phase(0)", "phase(1)"),
    *(
        (SerialPhasedExecution("A", "B").setTensorsLiveness(liveness), "Phased", "phase(0)", f"phase({number})")
        for liveness, number in ((Liveness.OffChipAfterFwdNoOverlap, 2), (Liveness.OffChipAfterEachPhase, 4))
    ),
]


@pytest.mark.parametrize(("strategy", "mode", "first", "second"), STRATEGIES)
def test_each_op_has_a_line_with_name_result_and_place(
    caplog: pytest.LogCaptureFixture, strategy: Any, mode: str, first: str, second: str
) -> None:
    assert lines(caplog, in_blocks, setExecutionStrategy=strategy) == [
        f"Mul:0 [Float(1, 4), mode({mode}), ipu(0), {first}]",
        f"Mul:0/1 [Float(1, 4), mode({mode}), ipu(0), {first}]",
        f"linear/Gemm:0 [Float(1, 4), mode({mode}), ipu(1), {second}]",
    ]


def test_element_types_are_spelled_as_in_poptorchs_graphs(caplog: pytest.LogCaptureFixture) -> None:
    found = lines(caplog, lambda m, x: ((x > 0).int() + 1, x.half()))
    assert [line.split()[1].partition("(")[0] for line in found] == ["[Bool", "[Int", "[Int", "[Half"]


def test_without_module_scopes_the_names_are_shorter(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="poptorch:cpp"):
        on_device(lambda m, x: m.linear(x), quiet().disableModuleNamescope()).compile(X)
    assert " was lowered to Gemm:0 [" in caplog.text


def test_a_model_without_any_op_is_said_to_run_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    """Execution reference, section 1."""
    with caplog.at_level(logging.INFO, logger="poptorch:cpp"):
        assert torch.equal(on_device(lambda m, x: x)(X), X)
    assert [(r.levelname, "host only" in r.getMessage()) for r in caplog.records] == [("INFO", True)]


def graph_of(executor: poptorch.PoplarExecutor) -> list[dict[str, Any]]:
    executor.compile(X)
    ops: list[dict[str, Any]] = json.loads(executor._debugGetPopartIR())["maingraph"]
    return ops


def test_the_ir_lists_the_ops_with_name_type_and_attributes_and_the_backward_pass() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        with poptorch.NameScope("outer"), poptorch.Attribute(__outline={"layer": "first"}):
            x = model.linear(x)
        return torch.relu(x)

    assert graph_of(on_device(forward)) == [
        {"name": "outer/linear/Gemm", "type": "Gemm", "attributes": {"__outline": {"layer": "first"}}},
        {"name": "Relu", "type": "Relu", "attributes": {}},
    ]
    ops = graph_of(in_training(lambda m, x: poptorch.identity_loss(m.linear(x).sum(), "none")))
    types = [op["type"] for op in ops]
    assert (types.count("Gemm"), "MatMul" in types) == (1, True)


@pytest.mark.parametrize(("count", "writable"), [(82, True), (81, True), (82, False)])
def test_an_error_of_more_than_80_line_ends_goes_to_a_file_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, writable: bool
) -> None:
    """Options reference, section 12.1."""

    def forward(model: Any, x: Tensor) -> Tensor:
        raise poptorch.createPoptorchError("\n".join(["What broke", *(f"detail {n}" for n in range(1, count))]))

    monkeypatch.chdir(tmp_path)
    file = tmp_path / "poptorch_error.log"
    if not writable:
        file.mkdir()
    with pytest.raises(poptorch.Error) as caught:
        on_device(forward)(torch.zeros(1, 4))
    if count > 81 and writable:
        assert caught.value.message == "What broke (the whole message is in poptorch_error.log)"
        assert str(caught.value) == f"'poptorch_py_error': {caught.value.message}"
        written = file.read_text(encoding="utf-8")
        assert written.startswith("'poptorch_py_error': What broke\ndetail 1\n")
        assert written.endswith("detail 81\n")
    else:
        assert caught.value.message.endswith(f"\ndetail {count - 1}")
        assert file.exists() is not writable
