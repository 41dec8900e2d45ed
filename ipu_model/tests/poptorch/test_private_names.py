"""What public programs and companion packages import from PopTorch's private modules."""

from __future__ import annotations

import copy
import gc
import importlib.util
import logging
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from executor_support import Module, inference, quiet, training
from torch import Tensor, nn

import poptorch
from ipu_model.capture import tracing
from ipu_model.capture.graph import info_of
from ipu_model.custom_ops import register, unregister
from poptorch import _impl, _logging, _poplar_executor, _utils
from poptorch._args_parser import ArgsParser
from poptorch._dataloader.items import ItemStructure

ONE, TWO = torch.ones(2), torch.full((2,), 2.0)
DEVICE_OPS = torch.ops.poptorch


def calls(function: Callable[..., Any]) -> Module:
    """Return a model that calls a function on a layer's output."""
    return Module(lambda model, x: function(model.layer(x)), layer=nn.Linear(2, 2))


def run(function: Callable[..., Any], x: Tensor = ONE, **settings: Any) -> Tensor:
    return inference(calls(function), quiet(**settings))(x)


class TestTracing:
    def test_forward_is_traced_by_dispatch_with_tensors_on_the_ipu_that_have_different_ids(self) -> None:
        seen: list[Any] = []

        def look(x: Tensor) -> Tensor:
            y = x + 1
            seen.extend([_impl.isDispatchTracing(), poptorch.isOnIpu(y), *map(poptorch.getIpuTensorId, (x, y))])
            return y

        _impl.setIpuContext(True)  # as programs may say by themselves
        assert poptorch.isRunningOnIpu()
        _impl.setIpuContext(False)
        assert not poptorch.isRunningOnIpu()
        run(look)
        assert (seen[:2], seen[2] != seen[3]) == ([True, True], True)
        assert (_impl.isDispatchTracing(), poptorch.isOnIpu(ONE)) == (False, False)

    def test_scopes_and_attributes_last_until_they_are_popped_and_cleared(self) -> None:
        def scoped(x: Tensor) -> Tensor:
            DEVICE_OPS.push_name_scope("outer")
            DEVICE_OPS.set_attribute("__outline", "layer", "first")
            x = x.relu()
            DEVICE_OPS.pop_name_scope()
            DEVICE_OPS.clear_attribute("__outline", "layer")
            return x.sigmoid()

        DEVICE_OPS.pop_name_scope()  # without a push it does nothing
        model = calls(scoped)
        hook = _impl.NameScopeHook(model)
        executor = inference(model, quiet().disableModuleNamescope())
        executor.compile(ONE)
        assert executor._compiled is not None
        assert {"layer/Gemm:0", "outer/Relu:0", "Sigmoid:0"} <= set(executor.getTensorNames())
        *_, relu, sigmoid = (node for node in executor._compiled.graph.ops.nodes if node.op == "call_function")
        assert [info_of(node).attributes for node in (relu, sigmoid)] == [{"__outline": {"layer": "first"}}, {}]
        hook.remove()
        assert not model.layer._forward_hooks
        assert not model.layer._forward_pre_hooks

    def test_a_scope_that_a_failed_trace_left_open_does_not_outlive_the_next_one(self) -> None:
        traces: list[weakref.ref[Any]] = []

        def scoped(x: Tensor) -> Tensor:
            DEVICE_OPS.push_name_scope("outer")
            traces.append(weakref.ref(tracing.current()))
            return x / (len(traces) - 1)

        with pytest.raises(ZeroDivisionError):
            run(lambda x: 1 / (scoped(x) is None))
        run(scoped)
        gc.collect()
        assert traces[0]() is None


class TestWrappedObjects:
    def test_an_unwrapped_model_is_a_plain_one_until_it_is_wrapped_again(self) -> None:
        model = calls(lambda x: (x, poptorch.identity_loss(x, "sum")))
        trainer = training(model, lr=1.0)
        before = model.layer.bias.detach().clone()
        trainer(ONE)
        _impl.unwrapModelIfNecessary(trainer.model)
        assert type(model) is Module
        assert type(model.layer.weight) is nn.Parameter
        assert torch.equal(model.layer.bias, before - 1)  # the weights came along
        _impl.rewrapModelIfNecessary(trainer.model)
        assert all(map(_impl.isWrapped, (model, model.layer.weight, model.layer.bias)))
        trainer(ONE)
        assert torch.equal(model.layer.bias, before - 1 - 1)  # rounded twice, as the two updates are
        # A destroyed executor leaves nothing to wrap again.
        _impl.unwrapModelIfNecessary(model)
        trainer.destroy()
        _impl.rewrapModelIfNecessary(model)
        assert not any(map(_impl.isWrapped, (model, *model.parameters())))
        trainer = training(model)
        assert _impl.isWrapped(model)
        for wrapped, kind in ((model.layer.bias, nn.Parameter), (model, Module), (nn.Linear(2, 2), nn.Linear)):
            assert _impl.unwrapIfWrapped(wrapped) is wrapped
            assert type(wrapped) is kind

    def test_every_parameter_and_buffer_is_visited_and_changed_addresses_are_an_error(self) -> None:
        norm = nn.BatchNorm1d(2)
        visited: dict[str, Any] = {}
        _impl.forEachParameterAndBuffer(norm, visited.__setitem__)
        state = norm.state_dict(keep_vars=True)
        assert {name: id(tensor) for name, tensor in visited.items()} == {name: id(state[name]) for name in state}
        before = _impl.getBufferAndParameterAddresses(norm)
        _impl.errorOnBufferOrParameterAddressChanges(before, _impl.getBufferAndParameterAddresses(norm))
        norm.running_mean = torch.ones(2)
        with pytest.raises(poptorch.Error, match="running_mean"):
            _impl.errorOnBufferOrParameterAddressChanges(before, _impl.getBufferAndParameterAddresses(norm))

    def test_a_dictionary_of_objects_does_not_compare_them_and_keeps_none_alive(self) -> None:
        kept, gone = torch.ones(2), torch.ones(2)
        found = _impl.WeakKeyPtrDict({kept: "kept"})
        found[gone] = "gone"
        assert (len(found), found[kept], found.get(torch.ones(2), "none")) == (2, "kept", "none")
        del gone
        assert (len(found), list(found)) == (1, [kept])

    def test_of_a_model_with_its_optimiser_it_is_the_models_forward_that_counts(self) -> None:
        model = calls(torch.relu)
        both = _impl.OptimizerWrapper(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert torch.equal(both(ONE), model(ONE))
        assert ArgsParser(both)((ONE,), {}).positional == (ONE,)


class Counting(ArgsParser):
    """Sets the fields that PopTorch's parser has, and takes any number of arguments."""

    def __init__(self) -> None:
        self._has_variadic_arguments, self._varnames, self._defaults = True, ["first"], [7]


class Derived(poptorch.PoplarExecutor):
    """As mmcv's: another parser, a property that the model has, too, and transfers only where they are allowed."""

    def __init__(self, model: nn.Module, *args: Any, note: str = "", **kwargs: Any) -> None:
        self.note = note
        super().__init__(model, *args, **kwargs)
        self._args_parser = Counting()

    @property
    def training(self) -> bool:
        return self._training

    def attachToDevice(self) -> None:
        if self.isCompiled() and not self._is_attached:
            self.note += " again"
            super().attachToDevice()


class TestDerivedExecutors:
    @pytest.mark.parametrize("trains", [True, False])
    def test_they_are_made_with_the_arguments_of_poptorch(self, trains: bool) -> None:
        model = calls(lambda x: poptorch.identity_loss(x, "sum"))
        user, optimizer = (model, torch.optim.SGD(model.parameters(), lr=1.0)) if trains else (None, None)
        arguments = {"poptorch_version": poptorch.__version__, "optimizer": optimizer, "user_model": user}
        executor = Derived(copy.copy(model), options=quiet(), training=trains, note="attached", **arguments)
        assert isinstance(executor._model, _impl.OptimizerWrapper) == executor.training == trains
        assert (executor.model is model, _impl.isWrapped(model), executor._is_attached) == (trains, trains, False)
        expected = model(ONE)
        assert torch.equal(executor(ONE), expected)
        executor.detachFromDevice()
        for _ in range(2):
            executor.attachToDevice()
        assert (executor._is_attached, executor.note) == (True, "attached again")
        executor(ONE)
        # At rate 1 a step moves each of the two outputs by the sum of squares of 1, 1 and the bias's 1.
        torch.testing.assert_close(model(ONE), expected - (2 * 2 * 3 if trains else 0))

    def test_a_parser_of_theirs_binds_the_arguments(self) -> None:
        model = Module(lambda model, *args: sum(args))
        assert Derived(model, quiet(), False, "3.4")(ONE, TWO, ONE).tolist() == [4, 4]
        assert Derived(model, quiet(), False, "3.4")() == 7


@pytest.mark.parametrize("processes", [1, 2])
def test_several_processes_with_a_cache_take_turns(tmp_path: Path, processes: int) -> None:
    options = quiet().enableExecutableCaching(str(tmp_path / "cache"))
    options.Distributed.configureProcessId(0, processes)
    with _impl.distributedCacheLock("model", options) as locked:
        assert locked == bool(list((tmp_path / "cache").glob("*.lock"))) == (processes > 1)


class Substituted:
    calls: ClassVar[list[str]] = []
    replace, restore = (lambda self, name=name: self.calls.append(name) for name in ("replace", "restore"))


class TestSubstitution:
    @pytest.fixture(autouse=True)
    def registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        managers = _poplar_executor._OverwriteContextManager
        monkeypatch.setattr(managers, "_subsitution_manager_types", [*managers._subsitution_manager_types])
        Substituted.calls.clear()
        managers.registerSubsitutionManager(Substituted)

    def test_managers_replace_before_the_trace_and_restore_after_it(self) -> None:
        seen: list[list[str]] = []
        executor = inference(calls(lambda x: (seen.append(list(Substituted.calls)), x)[1]))
        executor(ONE)
        executor(ONE)
        assert seen == [["replace"]]
        with pytest.raises(ZeroDivisionError):
            run(lambda x: 1 / 0)
        assert Substituted.calls == ["replace", "restore"] * 2

    def test_compilations_in_several_threads_take_turns(self) -> None:
        models = [inference(calls(lambda x: (time.sleep(0.05), x)[1])) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda model: model(ONE), models))
        assert Substituted.calls == ["replace", "restore"] * 3

    def test_checkpoints_of_activations_look_at_the_cpu(self) -> None:
        kind = torch.utils.checkpoint.DefaultDeviceType
        before, seen = kind.get_device_type(), []
        run(lambda x: (seen.append(kind.get_device_type()), x)[1])
        assert (seen, kind.get_device_type()) == (["cpu"], before)


class TestStructures:
    def test_tensors_come_out_in_order_and_go_back_in(self) -> None:
        value = {"b": [ONE, 3], "a": (TWO, {"c": ONE})}
        assert [id(t) for t in _utils.flattenTensorStructure(value)] == [id(ONE), id(TWO), id(ONE)]
        assert _utils.reconstructTensorStructure(value, [1, 2, 3]) == {"b": [1, 3], "a": (2, {"c": 3})}
        # Only what the filter takes is replaced, and a canonical structure orders the keys.
        made = _utils.reconstructTensorStructure([ONE, TWO], iter(["new"]), lambda tensor: tensor is TWO)
        assert (id(made[0]), made[1]) == (id(ONE), "new")
        found = _utils.flattenTensorStructure({"a": ONE, "b": TWO}, {"b": None, "a": None})
        assert [id(tensor) for tensor in found] == [id(TWO), id(ONE)]

    def test_batches_are_joined_and_results_compared_position_by_position(self) -> None:
        joined = _utils.combine_batch_tensors_gen([[ONE, torch.tensor(1)], (TWO, torch.tensor(2))])
        assert [tensor.tolist() for tensor in joined] == [[1, 1, 2, 2], [1, 2]]
        assert poptorch.testing.allclose((ONE, [ONE]), (ONE, [ONE + 1e-9]))
        for other in ((ONE, [ONE + 1]), (ONE,), (ONE, ONE), ONE):
            assert not poptorch.testing.allclose((ONE, [ONE]), other)


class Parser(_utils.ICustomArgParser):
    """Does nothing; only which parser is found matters here."""

    yieldTensors, reconstruct = (lambda self, struct: []), (lambda self, structure, tensors: structure)


Grandparent = type("Grandparent", (), {})
Parent = type("Parent", (Grandparent,), {})
Child = type("Child", (Parent,), {})


class TestCustomArgParsers:
    @pytest.fixture(autouse=True)
    def forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_utils, "custom_arg_parsers", {})

    def test_the_exact_type_comes_first_and_then_the_order_of_registration(self) -> None:
        for_grandparent, for_parent = Parser(), Parser()
        poptorch.registerCustomArgParser(Grandparent, for_grandparent)
        poptorch.registerCustomArgParser(Parent, for_parent)
        found = [_utils.getCustomParser(value) for value in (Grandparent(), Parent(), Child(), 3)]
        assert found == [for_grandparent, for_parent, for_grandparent, None]
        for _ in range(2):
            poptorch.registerCustomArgParser(arg_data_type=Grandparent, arg_parser=None)
        assert _utils.getCustomParser(Child()) is for_parent

    def test_a_loader_whose_parser_was_taken_away_says_so(self) -> None:
        poptorch.registerCustomArgParser(Parent, Parser())
        structure = ItemStructure.of(Parent())
        assert structure.flatten(Child()) == []  # a derived type has the same parser
        poptorch.registerCustomArgParser(Parent, None)
        with pytest.raises(ValueError, match="must look like the first one, a Parent"):
            structure.flatten(Parent())
        with pytest.raises(AssertionError, match="parser of Parent was unregistered while a loader still uses it"):
            structure.rebuild([])

    @pytest.mark.skipif(
        importlib.util.find_spec("torch_geometric") is not None, reason="PyTorch Geometric is installed"
    )
    def test_without_pytorch_geometric_no_parser_of_graphs_is_registered(self) -> None:
        poptorch.registerGeometricCustomArgParsers()
        assert _utils.custom_arg_parsers == {}


class TestSmallFunctions:
    def test_a_deprecated_function_says_so_and_works(self, caplog: pytest.LogCaptureFixture) -> None:
        old = _utils.deprecated("poptorch", "2.0", "it is slow")(lambda x: x + 1)
        with caplog.at_level(logging.WARNING, "poptorch::python"):
            assert old(1) == 2
        assert "poptorch.<lambda> is deprecated since version 2.0" in caplog.text
        assert "it is slow" in caplog.text

    def test_signatures_match_if_every_argument_is_taken_in_the_same_order(self) -> None:
        reference = lambda a, b: None  # noqa: E731
        _utils.assert_signatures_match(lambda a, b, c=0: None, reference)
        with pytest.raises(TypeError, match="lacks arguments of its reference: b"):
            _utils.assert_signatures_match(lambda a: None, reference)
        with pytest.raises(TypeError, match="another order"):
            _utils.assert_signatures_match(lambda b, a: None, reference)

    def test_channels_do_nothing(self) -> None:
        channel = poptorch.profiling.Channel("c")
        assert channel.instrument(ONE, "step") is ONE
        with pytest.raises(ZeroDivisionError), channel.tracepoint(name="t"):
            raise ZeroDivisionError


@pytest.mark.parametrize(("op", "function"), [
    (lambda x: DEVICE_OPS.nop(x), poptorch.nop),
    (lambda x: DEVICE_OPS.internal_cast(x.half(), "FLOAT"), lambda x: _impl.internal_cast(x.half(), torch.float32)),
    (lambda x: _impl.internal_cast(DEVICE_OPS.internal_cast(x, "FLOAT16"), torch.float16), lambda x: x.half()),
    (lambda x: DEVICE_OPS.identity_loss(x, 1), lambda x: x.mean()),
    (lambda x: DEVICE_OPS.recomputation_checkpoint(x), lambda x: x),
    (lambda x: DEVICE_OPS.set_available_memory(x, 0.5), lambda x: x),
    (lambda x: DEVICE_OPS.ipu_print_tensor(x, "x"), lambda x: x),
    (lambda x: DEVICE_OPS.dynamic_slice(x, 0, torch.tensor([1]), 1, 1), lambda x: x[1:2]),
])  # fmt: skip
def test_an_op_is_the_function_of_poptorch(op: Callable[..., Any], function: Callable[..., Any]) -> None:
    model = calls(op)
    assert torch.equal(inference(model)(torch.ones(2, 2)), function(model.layer(torch.ones(2, 2))))


def test_a_custom_operation_takes_its_attributes_by_id() -> None:
    op = register("Scaled", "test.names", 1, lambda x, *, scale: x * scale)
    attributes = {"scale": 3.0}
    text = f"{_utils.ATTR_PREFIX}{hex(id(attributes))}"
    assert poptorch.accessAttributes(text) is attributes
    model = calls(lambda x: DEVICE_OPS.custom_operation([x], "Scaled", "test.names", 1, 1, [x], text)[0])
    try:
        assert torch.equal(inference(model)(ONE), model.layer(ONE) * 3)
    finally:
        unregister(op)


class TestNativeModule:
    def test_it_answers_about_what_a_model_is_compiled_to(self) -> None:
        executor = inference(calls(torch.relu), quiet().randomSeed(7))
        assert executor._executable_inputs is executor._executable is None  # PyTorch Lightning asks
        executor(torch.ones(3, 2))
        core, executable = poptorch.poptorch_core, executor._executable
        assert [argument.shape for argument in executor._executable_inputs.args] == [(3, 2)]
        assert core.isAttachedToDevice(executable)
        assert core.getRandomSeed(executable) == 7
        assert core.getRngState(executable) == executor.rng_state
        executor.detachFromDevice()
        assert not core.isAttachedToDevice(executable)
        executor.destroy()
        assert executor._executable_inputs is executor._executable is None

    def test_its_log_level_is_not_that_of_the_python_part(self, caplog: pytest.LogCaptureFixture) -> None:
        assert poptorch.logger is logging.getLogger("poptorch::python")
        before = poptorch.logger.level
        with caplog.at_level(logging.WARNING, "poptorch:cpp"):
            poptorch.poptorch_core.setLogLevel(1)
            assert (poptorch.logger.level, _logging.native_logger.level) == (before, logging.DEBUG)
        assert not hasattr(poptorch.poptorch_core, "noSuchStep")
