"""What a compilation tells: debug lines of its ops, `_debugGetPopartIR` (execution reference, 14), long errors."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from function_models import in_training, on_device, quiet_options
from torch import Tensor

import poptorch
from poptorch import Liveness

X = torch.arange(8.0).reshape(2, 4)


def lines(
    caplog: pytest.LogCaptureFixture, function: Any, strategy: Any = None, options: poptorch.Options | None = None
) -> list[str]:
    """Compile `function` for inference and return its debug lines about ops, without the aten name in front."""
    options = options or quiet_options()
    if strategy is not None:
        options.setExecutionStrategy(strategy)
    with caplog.at_level(logging.DEBUG, logger="poptorch:cpp"):
        on_device(function, options.deviceIterations(2)).compile(X)
    marker = " was lowered to "
    return [text.partition(marker)[2] for text in (record.getMessage() for record in caplog.records) if marker in text]


def in_blocks(model: Any, x: Tensor) -> Tensor:
    with poptorch.Block("A", ipu_id=0):
        x = x * 2 * x
    with poptorch.Block("B", ipu_id=1):
        return model.linear(x)


@pytest.mark.parametrize(
    ("strategy", "first", "second"),
    [
        (poptorch.PipelinedExecution(), "mode(Pipelined), ipu(0), stage(0)", "mode(Pipelined), ipu(1), stage(1)"),
        (poptorch.ShardedExecution("A", "B"), "mode(Sharded), ipu(0), stage(0)", "mode(Sharded), ipu(1), stage(1)"),
        (
            poptorch.ParallelPhasedExecution("A", "B"),
            "mode(Phased), ipu(0), phase(0)",
            "mode(Phased), ipu(1), phase(1)",
        ),
        # Section 5.2: the number of a phase is multiplied by 2 or 4 with these two.
        (
            poptorch.SerialPhasedExecution("A", "B").setTensorsLiveness(Liveness.OffChipAfterFwdNoOverlap),
            "mode(Phased), ipu(0), phase(0)",
            "mode(Phased), ipu(1), phase(2)",
        ),
        (
            poptorch.SerialPhasedExecution("A", "B").setTensorsLiveness(Liveness.OffChipAfterEachPhase),
            "mode(Phased), ipu(0), phase(0)",
            "mode(Phased), ipu(1), phase(4)",
        ),
    ],
    ids=["pipelined", "sharded", "parallel phases", "every second phase", "every fourth phase"],
)
def test_each_op_has_a_line_with_name_result_and_place(
    caplog: pytest.LogCaptureFixture, strategy: Any, first: str, second: str
) -> None:
    assert lines(caplog, in_blocks, strategy) == [
        f"Mul:0 [Float(1, 4), {first}]",
        f"Mul:0/1 [Float(1, 4), {first}]",
        f"linear/Gemm:0 [Float(1, 4), {second}]",
    ]


def test_without_module_scopes_the_names_are_shorter(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = lines(caplog, lambda m, x: m.linear(x), options=quiet_options().disableModuleNamescope())
    assert line.startswith("Gemm:0 [")


def test_element_types_are_spelled_as_in_poptorchs_graphs(caplog: pytest.LogCaptureFixture) -> None:
    found = lines(caplog, lambda m, x: ((x > 0).int() + 1, x.half()))
    assert [line.split()[1].partition("(")[0] for line in found] == ["[Bool", "[Int", "[Int", "[Half"]


def test_a_model_without_any_op_is_said_to_run_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    """Execution reference, section 1."""
    with caplog.at_level(logging.INFO, logger="poptorch:cpp"):
        result = on_device(lambda m, x: x)(X)
    assert torch.equal(result, X)
    assert [(r.levelname, "host only" in r.getMessage()) for r in caplog.records] == [("INFO", True)]


class TestDebugGetPopartIR:
    def test_it_lists_the_ops_with_name_type_and_attributes(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            with poptorch.NameScope("outer"), poptorch.Attribute(__outline={"layer": "first"}):
                x = model.linear(x)
            return torch.relu(x)

        executor = on_device(forward)
        executor.compile(X)
        assert json.loads(executor._debugGetPopartIR())["maingraph"] == [
            {"name": "outer/linear/Gemm", "type": "Gemm", "attributes": {"__outline": {"layer": "first"}}},
            {"name": "Relu", "type": "Relu", "attributes": {}},
        ]

    def test_a_training_model_shows_its_backward_pass_too(self) -> None:
        executor = in_training(lambda m, x: poptorch.identity_loss(m.linear(x).sum(), "none"))
        executor.compile(X)
        types = [op["type"] for op in json.loads(executor._debugGetPopartIR())["maingraph"]]
        assert types.count("Gemm") == 1
        assert "MatMul" in types

    def test_a_model_that_is_not_compiled_has_none(self) -> None:
        with pytest.raises(AssertionError, match="must be compiled"):
            on_device(lambda m, x: x)._debugGetPopartIR()


# Very long errors of a compilation (options reference, section 12.1).


def error_of(lines: int) -> poptorch.Error:
    """Return the error of a compilation whose message has that many lines."""

    def forward(model: Any, x: Tensor) -> Tensor:
        raise poptorch.createPoptorchError("\n".join(["What broke", *(f"detail {n}" for n in range(1, lines))]))

    with pytest.raises(poptorch.Error) as caught:
        on_device(forward)(torch.zeros(1, 4))
    return caught.value


def test_a_message_of_more_than_80_line_ends_goes_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = error_of(82)
    assert error.message == "What broke (the whole message is in poptorch_error.log)"
    assert str(error) == f"'poptorch_py_error': {error.message}"
    written = (tmp_path / "poptorch_error.log").read_text(encoding="utf-8")
    assert written.startswith("'poptorch_py_error': What broke\ndetail 1\n")
    assert written.endswith("detail 81\n")


def test_a_shorter_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert error_of(81).message.endswith("\ndetail 80")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_leaves_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poptorch_error.log").mkdir()
    monkeypatch.chdir(tmp_path)
    assert error_of(82).message.endswith("\ndetail 81")
