"""Rare names: errors raised on purpose (executor reference, 17) and the graph as text (execution reference, 14)."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from saving_support import Mixed, X, Y, options, training

import poptorch
from poptorch.poptorch_core import TestErrorType, _throwTestError

# Class, type and recovery action of each kind.
KINDS = {
    "Poptorch": (poptorch.Error, "poptorch_cpp_error", None),
    "Popart": (poptorch.Error, "popart_exception", None),
    "PopartInternal": (poptorch.Error, "popart_internal_exception", None),
    "Poplibs": (poptorch.Error, "poplibs_exception", None),
    "PoplarUnrecoverable": (poptorch.UnrecoverableError, "poplar_unrecoverable_runtime_error", None),
    "PoplarUnknown": (poptorch.Error, "poplar_unknown_runtime_error", None),
    "PoplarRecoverableFullReset": (poptorch.RecoverableError, "poplar_recoverable_runtime_error", "FULL_RESET"),
    "PoplarLinkError": (poptorch.Error, "poplar_link_error", None),
}


class TestErrors:
    def test_the_kinds_are_those_of_the_reference(self) -> None:
        assert [kind.name for kind in TestErrorType] == list(KINDS)

    @pytest.mark.parametrize("name", KINDS)
    def test_a_handler_can_be_tried_with_each_kind(self, name: str) -> None:
        expected, text, action = KINDS[name]
        with pytest.raises(poptorch.Error) as raised:
            _throwTestError(TestErrorType[name])
        assert type(raised.value) is expected
        assert raised.value.type == text
        assert str(raised.value).startswith(f"'{text}': {raised.value.message}")
        assert getattr(raised.value, "recovery_action", None) == action
        if action is not None:
            assert action in str(raised.value)
        again = pickle.loads(pickle.dumps(raised.value))
        assert (str(again), type(again)) == (str(raised.value), expected)

    def test_anything_else_is_no_kind(self) -> None:
        with pytest.raises(TypeError, match="TestErrorType"):
            _throwTestError("Poptorch")  # type: ignore[arg-type]


class TestGraph:
    def test_it_lists_the_ops_by_name_and_type(self) -> None:
        executor = poptorch.inferenceModel(Mixed().eval(), options())
        executor.compile(X)
        ops = json.loads(executor._debugGetPopartIR())["maingraph"]
        assert all(isinstance(op["name"], str) and op["type"].isidentifier() for op in ops)
        named = {op["name"]: op for op in ops}
        relu = named["Relu:0"]
        assert relu["type"] == "Relu"
        assert set(named) >= set(relu["inputs"])
        assert {op["name"] for op in ops if op["name"] in executor.getTensorNames()} >= {"Relu:0"}

    def test_the_backward_pass_is_in_it(self) -> None:
        forward = poptorch.inferenceModel(Mixed(), options())
        forward.compile(X, Y)
        both = training()
        both.compile(X, Y)
        counts = [len(json.loads(each._debugGetPopartIR())["maingraph"]) for each in (forward, both)]
        assert counts[1] > counts[0]

    def test_it_needs_a_compiled_model(self) -> None:
        with pytest.raises(poptorch.Error, match="not compiled"):
            poptorch.inferenceModel(torch.nn.Linear(1, 1), options())._debugGetPopartIR()
