"""What public programs and companion packages import from PopTorch's private modules."""

from __future__ import annotations

import gc
import importlib.util
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from executor_support import quiet
from torch import Tensor, nn

import poptorch
from ipu_model.capture import tracing
from ipu_model.capture.graph import info_of
from ipu_model.custom_ops import register, unregister
from poptorch import _impl, _logging, _poplar_executor, _utils
from poptorch._args_parser import ArgsParser

ONE, TWO = torch.ones(2), torch.full((2,), 2.0)
DEVICE_OPS = torch.ops.poptorch


class Calls(nn.Module):
    """Calls a function on a layer's output."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self.layer(inputs[0]), *inputs[1:])


def names_with(function: Callable[..., Any]) -> list[str]:
    executor = poptorch.inferenceModel(Calls(function), quiet())
    executor.compile(ONE)
    return executor.getTensorNames()


class TestWhereItRuns:
    def test_a_program_can_say_that_it_runs_on_the_ipu(self) -> None:
        assert not poptorch.isRunningOnIpu()
        _impl.setIpuContext(True)
        try:
            assert poptorch.isRunningOnIpu()
        finally:
            _impl.setIpuContext(False)
        assert not poptorch.isRunningOnIpu()

    def test_forward_is_traced_by_dispatch(self) -> None:
        seen = []
        poptorch.inferenceModel(Calls(lambda x: (seen.append(_impl.isDispatchTracing()), x)[1]), quiet())(ONE)
        assert (seen, _impl.isDispatchTracing()) == ([True], False)

    def test_tensors_of_the_program_are_on_the_ipu_and_have_different_ids(self) -> None:
        seen: list[Any] = []

        def look(x: Tensor) -> Tensor:
            y = x + 1
            seen.extend([poptorch.isOnIpu(y), poptorch.getIpuTensorId(x), poptorch.getIpuTensorId(y)])
            return y

        poptorch.inferenceModel(Calls(look), quiet())(ONE)
        on_ipu, first, second = seen
        assert on_ipu
        assert first != second
        assert not poptorch.isOnIpu(ONE)
        with pytest.raises(poptorch.Error, match="not on the IPU"):
            poptorch.getIpuTensorId(ONE)


class TestNameScopes:
    def test_a_pushed_scope_is_in_front_of_the_names_until_it_is_popped(self) -> None:
        def scoped(x: Tensor) -> Tensor:
            DEVICE_OPS.push_name_scope("outer")
            x = x.relu()
            DEVICE_OPS.pop_name_scope()
            return x.sigmoid()

        DEVICE_OPS.pop_name_scope()  # without a push it does nothing
        names = names_with(scoped)
        assert [name for name in names if name.startswith("outer/")] == ["outer/Relu:0"]
        assert any(name.startswith("Sigmoid") for name in names)

    def test_the_hook_names_ops_after_submodules(self) -> None:
        model = Calls(torch.relu)
        hook = _impl.NameScopeHook(model)
        executor = poptorch.inferenceModel(model, quiet().disableModuleNamescope())
        executor.compile(ONE)
        assert "layer/Gemm:0" in executor.getTensorNames()
        hook.remove()
        assert not model.layer._forward_hooks
        assert not model.layer._forward_pre_hooks

    def test_a_scope_that_a_failed_trace_left_open_does_not_outlive_the_next_one(self) -> None:
        traces: list[weakref.ref[Any]] = []

        def scoped(x: Tensor) -> Tensor:
            DEVICE_OPS.push_name_scope("outer")
            if not traces:
                traces.append(weakref.ref(tracing.current()))
                raise ValueError("on purpose")
            DEVICE_OPS.pop_name_scope()
            return x

        with pytest.raises(ValueError, match="on purpose"):
            poptorch.inferenceModel(Calls(scoped), quiet())(ONE)
        poptorch.inferenceModel(Calls(scoped), quiet())(ONE)
        gc.collect()
        assert traces[0]() is None


class TestWrappedObjects:
    def test_an_unwrapped_model_is_a_plain_one_until_it_is_wrapped_again(self) -> None:
        model = Calls(lambda x: (x, poptorch.identity_loss(x, "sum")))
        trainer = poptorch.trainingModel(model, quiet(), poptorch.optim.SGD(model.parameters(), lr=1.0))
        before = model.layer.bias.detach().clone()
        trainer(ONE)
        _impl.unwrapModelIfNecessary(trainer.model)
        assert type(model) is Calls
        assert type(model.layer.weight) is nn.Parameter
        assert torch.equal(model.layer.bias, before - 1)  # the weights came along
        _impl.rewrapModelIfNecessary(trainer.model)
        assert all(map(_impl.isWrapped, (model, model.layer.weight, model.layer.bias)))
        trainer(ONE)
        assert torch.equal(model.layer.bias, before - 1 - 1)  # rounded twice, as the two updates are

    def test_a_destroyed_executor_leaves_nothing_to_wrap_again(self) -> None:
        model = Calls(lambda x: (x, poptorch.identity_loss(x, "sum")))
        trainer = poptorch.trainingModel(model, quiet(), poptorch.optim.SGD(model.parameters(), lr=1.0))
        trainer(ONE)
        _impl.unwrapModelIfNecessary(model)
        trainer.destroy()
        _impl.rewrapModelIfNecessary(model)
        assert not any(map(_impl.isWrapped, (model, *model.parameters())))
        poptorch.trainingModel(model, quiet())(ONE)

    def test_what_is_not_wrapped_stays_as_it_is(self) -> None:
        layer = nn.Linear(2, 2)
        _impl.unwrapModelIfNecessary(layer)
        _impl.rewrapModelIfNecessary(layer)
        assert type(layer) is nn.Linear
        assert _impl.unwrapIfWrapped(layer) is None

    def test_every_parameter_and_buffer_is_visited_after_the_model(self) -> None:
        norm = nn.BatchNorm1d(2)
        visited: list[Any] = []
        _impl.forEachParameterAndBuffer(norm, visited.append)
        assert visited[0] is norm
        assert {id(t) for t in visited[1:]} == {id(t) for t in norm.state_dict(keep_vars=True).values()}

    def test_a_dictionary_of_objects_does_not_compare_them_and_keeps_none_alive(self) -> None:
        kept, gone = torch.ones(2), torch.ones(2)
        found = _impl.WeakKeyPtrDict({kept: "kept"})
        found[gone] = "gone"
        assert (len(found), found[kept], found.get(torch.ones(2), "none")) == (2, "kept", "none")
        del gone
        assert (len(found), list(found)) == (1, [kept])

    def test_a_changed_address_is_an_error_that_names_the_buffer(self) -> None:
        norm = nn.BatchNorm1d(2)
        before = _impl.getBufferAndParameterAddresses(norm)
        _impl.errorOnBufferOrParameterAddressChanges(before, _impl.getBufferAndParameterAddresses(norm))
        norm.running_mean = torch.ones(2)
        with pytest.raises(poptorch.Error, match="running_mean"):
            _impl.errorOnBufferOrParameterAddressChanges(before, _impl.getBufferAndParameterAddresses(norm))


class TestCacheLock:
    def test_one_process_needs_no_lock(self, tmp_path: Path) -> None:
        with _impl.distributedCacheLock("model", quiet().enableExecutableCaching(str(tmp_path))) as locked:
            assert not locked

    def test_several_processes_with_a_cache_take_turns(self, tmp_path: Path) -> None:
        options = quiet().enableExecutableCaching(str(tmp_path / "cache"))
        options.Distributed.configureProcessId(0, 2)
        with _impl.distributedCacheLock("model", options) as locked:
            assert locked
            assert list((tmp_path / "cache").glob("*.lock"))


class Substituted:
    """Counts what the executor asks of it."""

    calls: ClassVar[list[str]] = []

    def replace(self) -> None:
        self.calls.append("replace")

    def restore(self) -> None:
        self.calls.append("restore")


class TestSubstitution:
    @pytest.fixture(autouse=True)
    def registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kinds = list(_poplar_executor._OverwriteContextManager._subsitution_manager_types)
        monkeypatch.setattr(_poplar_executor._OverwriteContextManager, "_subsitution_manager_types", kinds)
        Substituted.calls.clear()
        _poplar_executor._OverwriteContextManager.registerSubsitutionManager(Substituted)

    def test_managers_replace_before_the_trace_and_restore_after_it(self) -> None:
        seen: list[list[str]] = []
        executor = poptorch.inferenceModel(Calls(lambda x: (seen.append(list(Substituted.calls)), x)[1]), quiet())
        executor(ONE)
        executor(ONE)
        assert seen == [["replace"]]
        assert Substituted.calls == ["replace", "restore"]

    def test_they_restore_after_a_failed_trace_too(self) -> None:
        with pytest.raises(ZeroDivisionError):
            poptorch.inferenceModel(Calls(lambda x: 1 / 0), quiet())(ONE)
        assert Substituted.calls == ["replace", "restore"]

    def test_compilations_in_several_threads_take_turns(self) -> None:
        models = [poptorch.inferenceModel(Calls(lambda x: (time.sleep(0.05), x)[1]), quiet()) for _ in range(3)]
        threads = [threading.Thread(target=model, args=(ONE,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Substituted.calls == ["replace", "restore"] * 3

    def test_checkpoints_of_activations_look_at_the_cpu(self) -> None:
        kind = torch.utils.checkpoint.DefaultDeviceType
        before, seen = kind.get_device_type(), []
        poptorch.inferenceModel(Calls(lambda x: (seen.append(kind.get_device_type()), x)[1]), quiet())(ONE)
        assert (seen, kind.get_device_type()) == (["cpu"], before)


class TestStructures:
    def test_tensors_come_out_in_order_and_go_back_in(self) -> None:
        value = {"b": [ONE, 3], "a": (TWO, {"c": ONE})}
        assert [id(t) for t in _utils.flattenTensorStructure(value)] == [id(ONE), id(TWO), id(ONE)]
        made = _utils.reconstructTensorStructure(value, [1, 2, 3])
        assert made == {"b": [1, 3], "a": (2, {"c": 3})}

    def test_only_tensors_that_the_filter_takes_are_replaced(self) -> None:
        made = _utils.reconstructTensorStructure([ONE, TWO], iter(["new"]), lambda tensor: tensor is TWO)
        assert made[0] is ONE
        assert made[1] == "new"

    def test_a_canonical_structure_orders_the_keys(self) -> None:
        found = _utils.flattenTensorStructure({"a": ONE, "b": TWO}, {"b": None, "a": None})
        assert [id(tensor) for tensor in found] == [id(TWO), id(ONE)]

    def test_batches_are_joined_position_by_position(self) -> None:
        batches = [[ONE, torch.tensor(1)], (TWO, torch.tensor(2))]
        joined = list(_utils.combine_batch_tensors_gen(batches))
        assert [tensor.tolist() for tensor in joined] == [[1, 1, 2, 2], [1, 2]]


class TestSmallFunctions:
    def test_a_deprecated_function_says_so_and_works(self, caplog: pytest.LogCaptureFixture) -> None:
        @_utils.deprecated("poptorch", "2.0", "it is slow")
        def old(x: int) -> int:
            return x + 1

        with caplog.at_level(logging.WARNING, "poptorch::python"):
            assert old(1) == 2
        assert "poptorch.old is deprecated since version 2.0" in caplog.text
        assert "it is slow" in caplog.text

    def test_signatures_match_if_every_argument_is_taken_in_the_same_order(self) -> None:
        def reference(a: int, b: int) -> None: ...
        def same(a: int, b: int, c: int = 0) -> None: ...
        def less(a: int) -> None: ...
        def swapped(b: int, a: int) -> None: ...

        _utils.assert_signatures_match(same, reference)
        for other, said in ((less, "lacks arguments of its reference: b"), (swapped, "another order")):
            with pytest.raises(TypeError, match=said):
                _utils.assert_signatures_match(other, reference)

    def test_attributes_are_found_by_their_id(self) -> None:
        attributes = {"scale": 2.0}
        assert poptorch.accessAttributes(f"{_utils.ATTR_PREFIX}{hex(id(attributes))}") is attributes
        for wrong in ("2.0", 3):
            with pytest.raises(ValueError, match="attribute_id_str"):
                poptorch.accessAttributes(wrong)

    def test_an_internal_cast_changes_the_type(self) -> None:
        for dtype in (torch.float16, torch.float32):
            assert _impl.internal_cast(ONE, dtype).dtype is dtype
        with pytest.raises(ValueError, match=r"Expecting torch\.float or torch\.half"):
            _impl.internal_cast(ONE, torch.int32)


class TestTorchOps:
    @pytest.mark.parametrize(
        ("op", "function"),
        [
            (lambda x: DEVICE_OPS.nop(x), poptorch.nop),
            (lambda x: DEVICE_OPS.internal_cast(x, "FLOAT16"), lambda x: x.half()),
            (lambda x: DEVICE_OPS.identity_loss(x, 1), lambda x: x.mean()),
            (lambda x: DEVICE_OPS.recomputation_checkpoint(x), lambda x: x),
            (lambda x: DEVICE_OPS.set_available_memory(x, 0.5), lambda x: x),
            (lambda x: DEVICE_OPS.ipu_print_tensor(x, "x"), lambda x: x),
            (lambda x: DEVICE_OPS.dynamic_slice(x, 0, torch.tensor([1]), 1, 1), lambda x: x[1:2]),
        ],
    )
    def test_an_op_is_the_function_of_poptorch(self, op: Callable[..., Any], function: Callable[..., Any]) -> None:
        model = Calls(op)
        on_device = poptorch.inferenceModel(model, quiet())(torch.ones(2, 2))
        assert torch.equal(on_device, function(model.layer(torch.ones(2, 2))))

    def test_a_custom_operation_takes_its_attributes_by_id(self) -> None:
        op = register("Scaled", "test.names", 1, lambda x, *, scale: x * scale)
        attributes = {"scale": 3.0}
        text = f"{_utils.ATTR_PREFIX}{hex(id(attributes))}"
        model = Calls(lambda x: DEVICE_OPS.custom_operation([x], "Scaled", "test.names", 1, 1, [x], text)[0])
        try:
            assert torch.equal(poptorch.inferenceModel(model, quiet())(ONE), model.layer(ONE) * 3)
        finally:
            unregister(op)

    def test_ops_around_a_body_are_refused_with_what_works(self) -> None:
        with pytest.raises(poptorch.Error, match=r"start_for_loop is not supported.*Use poptorch\.for_loop"):
            DEVICE_OPS.start_for_loop([ONE])

    @pytest.mark.parametrize(
        ("call", "error", "said"),
        [
            (lambda: DEVICE_OPS.begin_ipu_block("a", -1, 0), poptorch.Error, "must be an int, 0 or more; got 'a'"),
            (lambda: DEVICE_OPS.begin_ipu_block(0, -1, -1), poptorch.Error, "ipu_id must be an int, 0 or more; got -1"),
            (lambda: DEVICE_OPS.identity_loss(ONE, 3), poptorch.Error, "0 (sum), 1 (mean) or 2 (none); got 3"),
            (lambda: DEVICE_OPS.internal_cast(ONE, "INT"), poptorch.Error, "the type must be one of FLOAT"),
            (lambda: DEVICE_OPS.set_attribute(1, "key", "value"), AssertionError, "must be strings; got 1"),
            (lambda: DEVICE_OPS.push_name_scope(3), AssertionError, "must be a string; got 3"),
        ],
    )
    def test_bad_arguments_are_named(self, call: Callable[[], Any], error: type[Exception], said: str) -> None:
        with pytest.raises(error, match=re.escape(said)):
            call()

    def test_an_attribute_lasts_until_it_is_cleared(self) -> None:
        seen: list[Any] = []

        def attributed(x: Tensor) -> Tensor:
            trace = tracing.current()
            assert trace is not None
            DEVICE_OPS.set_attribute("__outline", "layer", "first")
            inside = x.relu()
            DEVICE_OPS.clear_attribute("__outline", "layer")
            outside = inside.sigmoid()
            for tensor in (inside, outside):
                node = trace.node_of(tensor)
                assert node is not None
                seen.append(info_of(node).attributes)
            return outside

        poptorch.inferenceModel(Calls(attributed), quiet())(ONE)
        assert seen == [{"__outline": {"layer": "first"}}, {}]

    def test_an_unknown_op_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'no_such_op'"):
            DEVICE_OPS.no_such_op(ONE)


def test_the_logger_is_that_of_poptorchs_python_part() -> None:
    assert poptorch.logger is logging.getLogger("poptorch::python")


class TestNativeModule:
    def test_it_answers_about_what_a_model_is_compiled_to(self) -> None:
        executor = poptorch.inferenceModel(Calls(torch.relu), quiet().randomSeed(7))
        executor(ONE)
        core, executable = poptorch.poptorch_core, executor._executable
        assert core.isAttachedToDevice(executable)
        assert core.getRandomSeed(executable) == 7
        assert core.getRngState(executable) == executor.rng_state
        executor.detachFromDevice()
        assert not core.isAttachedToDevice(executable)

    def test_its_log_level_is_not_that_of_the_python_part(self) -> None:
        loggers = poptorch.logger, _logging.native_logger
        before = [each.level for each in loggers]
        try:
            poptorch.poptorch_core.setLogLevel(1)
            assert [each.level for each in loggers] == [before[0], logging.DEBUG]
        finally:
            for each, level in zip(loggers, before, strict=True):
                each.setLevel(level)

    def test_steps_of_the_compiler_are_refused_by_name(self) -> None:
        with pytest.raises(poptorch.Error, match=r"poptorch_core\.startDispatch is not supported"):
            poptorch.poptorch_core.startDispatch()
        assert not hasattr(poptorch.poptorch_core, "noSuchStep")


class TestArgsParser:
    def test_an_executor_has_the_arguments_that_it_is_compiled_for(self) -> None:
        executor = poptorch.inferenceModel(Calls(torch.relu), quiet())
        assert executor._executable_inputs is None
        executor(torch.ones(3, 2))
        assert executor._executable_inputs is not None
        assert [argument.shape for argument in executor._executable_inputs.args] == [(3, 2)]
        executor.destroy()
        assert executor._executable_inputs is None

    def test_arguments_are_bound_as_a_call_of_forward_binds_them(self) -> None:
        class Model(nn.Module):
            def forward(self, a: Tensor, b: Tensor, c: int = 3) -> Tensor:
                return a + b + c

        found = ArgsParser(Model())((ONE,), {"b": TWO})
        assert found.names == ("a", "b", "c")
        assert [id(value) for value in found.positional[:2]] == [id(ONE), id(TWO)]
        assert found.positional[2] == 3

    def test_of_a_model_with_its_optimiser_it_is_the_models_forward_that_counts(self) -> None:
        model = Calls(torch.relu)
        both = _impl.OptimizerWrapper(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert torch.equal(both(ONE), model(ONE))
        assert ArgsParser(both)((ONE,), {}).positional == (ONE,)


class TestKeywordNames:
    """PopTorch programs write these by name."""

    def test_phases_channels_and_options(self) -> None:
        assert poptorch.Phase("a", "b").stage(idx=0).blocks == ("a", "b")
        with poptorch.profiling.Channel("c").tracepoint(name="t"):
            pass
        options = quiet()
        assert options.exists(option="log_dir")
        options.deleteIfExists(option="log_dir")
        assert not options.exists("log_dir")

    def test_state_of_optimisers_and_parsers_of_arguments(self) -> None:
        sgd = poptorch.optim.SGD([nn.Parameter(ONE.clone())], lr=0.1)
        sgd.load_state_dict(state=sgd.state_dict())
        variables = poptorch.optim.VariableAttributes(variable_attributes=["lr"], allowed_attributes=["lr", "eps"])
        assert variables._allowed_attributes == ["lr", "eps"]
        assert not variables.isConstant("lr")
        assert variables.isConstant("eps")
        poptorch.registerCustomArgParser(arg_data_type=Substituted, arg_parser=None)


@pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is not None, reason="PyTorch Geometric is installed")
def test_without_pytorch_geometric_no_parser_of_graphs_is_registered() -> None:
    before = dict(_utils.custom_arg_parsers)
    poptorch.registerGeometricCustomArgParsers()
    assert _utils.custom_arg_parsers == before
