"""What Python has for the backward pass has no effect on the device: PopART differentiates the ops of forward.

PopTorch traces forward in inference mode. A `torch.autograd.Function` therefore has the derivative of the ops in its
forward here, hooks on gradients are not called, and forward cannot ask for a gradient.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import WRAPPER_ASSIGNMENTS, partial, update_wrapper
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction, Function, FunctionCtx
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from ipu_model.capture import torch_private, tracing
from ipu_model.capture.tracing import Trace
from ipu_model.errors import Error
from ipu_model.source_lines import is_of_library, line_running
from ipu_model.step import Phase

_logger = logging.getLogger("poptorch::python")

_INSTEAD = (
    "A custom op with a gradient of its own reaches the device: ipu_model.custom_ops.register(name, domain, version, "
    "forward, backward), called with poptorch.custom_op."
)


@contextmanager
def without_effect(trace: Trace) -> Iterator[None]:
    """Let Python's backward have no effect on what the body records in `trace`; other threads are not affected."""
    with ExitStack() as stack:
        torch_private.class_of_functions.__getattribute__ = _attribute  # type: ignore[method-assign, assignment]
        stack.callback(delattr, torch_private.class_of_functions, "__getattribute__")
        stack.enter_context(torch_private.intercepted(torch_private.module_hooks, partial(_hooks, trace, ([], []))))
        stack.enter_context(torch_private.intercepted(torch_private.module_pre_hooks, partial(_hooks, trace, [])))
        stack.enter_context(torch_private.intercepted(torch_private.joint_hooks, partial(_register_jointly, trace)))
        stack.enter_context(torch_private.intercepted(torch_private.backward_run, partial(_run_backward, trace)))
        yield


# --- functions: forward runs as ordinary ops do, and autograd differentiates these

_own = type.__getattribute__


def _attribute(cls: type, name: str) -> Any:
    """Return an attribute of a class of functions, of which a trace replaces two."""
    own = _own(cls, name)
    # Functions of libraries have the derivative of what they compute, or are ops with a gradient of their own.
    if name not in ("forward", "setup_context") or tracing.current() is None or is_of_library(cls.__module__):
        return own
    if name == "forward":
        return _Forward(cls, own)
    return partial(_set_up, own) if _sets_up_apart(cls) else own


def _sets_up_apart(cls: type) -> bool:
    return _own(cls, "setup_context") is not _own(Function, "setup_context")


class _Context(FunctionCtx):
    """What a function gets in place of the node of autograd, on which it may keep what it likes."""

    to_save: tuple[Tensor, ...] = ()

    def __init__(self, node: Any) -> None:
        self.needs_input_grad = node.needs_input_grad

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        return self.to_save


class _Forward:
    """The forward of a class of functions, called with the node of autograd first unless this is set up apart."""

    def __init__(self, cls: type, forward: Any) -> None:
        binding = ("__code__", "__defaults__", "__kwdefaults__")  # by which PyTorch binds keyword arguments
        update_wrapper(self, forward, (*WRAPPER_ASSIGNMENTS, *binding))
        self._cls, self._forward = cls, forward

    def __call__(self, *args: Any) -> Any:
        trace = tracing.current()
        node: Any = args[0] if args and isinstance(args[0], BackwardCFunction) else None
        if trace is None or not self._has_gradient(trace, node, args):
            return self._forward(*args)
        _warn_of_function(trace, self._cls)
        if node is not None:
            args = (_Context(node), *args[1:])
        with torch_private.gradients_recorded(), torch_private.replaced(trace, in_function=True):
            result = self._forward(*args)
            results = tuple(_with_history(value) for value in (result if isinstance(result, tuple) else (result,)))
        if node is not None:
            _keep_history(trace, node, results)
        return results if isinstance(result, tuple) else results[0]

    def _has_gradient(self, trace: Trace, node: Any, args: tuple[Any, ...]) -> bool:
        if node is not None:
            return bool(node.next_functions)
        wanted = _sets_up_apart(self._cls) and trace.records_gradients
        return wanted and any(isinstance(value, Tensor) and value.requires_grad for value in args)


def _set_up(setup: Any, node: Any, inputs: Any, outputs: Any) -> None:
    trace = tracing.current()
    if trace is None or not node.next_functions:
        setup(node, inputs, outputs)
        return
    setup(_Context(node), inputs, outputs)
    _keep_history(trace, node, outputs if isinstance(outputs, tuple) else (outputs,))


def _with_history(value: Any) -> Any:
    """Return a result of forward as a view: of other tensors PyTorch forgets here how they came about."""
    needed = isinstance(value, Tensor) and value.requires_grad
    return torch.ops.aten.alias.default(value) if needed else value


def _keep_history(trace: Trace, node: Any, results: tuple[Any, ...]) -> None:
    """Let autograd leave the history of results as it is, in place of an edge to the function's own backward."""
    made = [value for value in results if isinstance(value, Tensor)]
    node.mark_non_differentiable(*made)
    trace.function_results += [value for value in made if value.requires_grad]


def end_functions(trace: Trace) -> None:
    """Let what functions have returned be changed in place, as other results are."""
    for result in trace.function_results:
        torch_private.made_by_default(result)
    trace.function_results.clear()


def _warn_of_function(trace: Trace, cls: type) -> None:
    if trace.is_first(cls):
        _logger.warning(
            "The backward of %s, a torch.autograd.Function, is not run on the device: PopART differentiates the ops "
            "of its forward. Its gradient is the same if backward is the derivative of forward, not if it is that of a "
            "straight-through estimator or a surrogate. %s",
            cls.__qualname__,
            _INSTEAD,
        )


# --- hooks


def register_nothing(trace: Trace, hook: object) -> RemovableHandle:
    """Stand for the methods of a tensor that register hooks on its gradient."""
    warn_of_hooks(trace, [hook], "a tensor")
    return RemovableHandle(OrderedDict())


def _register_jointly(trace: Trace, register: Any, tensors: Any, hook: object, **kwargs: Any) -> Any:
    return register(tensors, hook, **kwargs) if tracing.current() is not trace else register_nothing(trace, hook)


def _hooks(trace: Trace, none: Any, hooks_of: Any, module: nn.Module) -> Any:
    hooks = hooks_of(module)
    if tracing.current() is not trace:
        return hooks
    warn_of_hooks(trace, tree_leaves(hooks), f"a {type(module).__name__}")
    return none


def warn_of_hooks(trace: Trace, hooks: Iterable[object], owner: str) -> None:
    for hook in hooks:
        name = getattr(hook, "__qualname__", type(hook).__qualname__)
        if trace.training and trace.is_first((name, owner)):
            _logger.warning(
                "The hook %s on the gradient of %s is not called on the device: PopART differentiates the ops of "
                "forward. %s",
                name,
                owner,
                _INSTEAD,
            )


# --- gradients that forward asks for


def _run_backward(trace: Trace, run: Any, *args: Any, **kwargs: Any) -> Any:
    if tracing.current() is trace and trace.phase is Phase.FORWARD:
        refuse_derivative(trace)
    return run(*args, **kwargs)


def refuse_derivative(trace: Trace) -> NoReturn:
    """Refuse `torch.autograd.grad`, `backward` and the transforms of `torch.func` in forward."""
    place = f"module '{trace.scopes[-1] or 'model'}', {line_running() or 'unknown line'}"
    raise Error(
        f"forward asks for a gradient ({place}): element 0 of tensors does not require grad and does not have a "
        "grad_fn. PopTorch traces forward in inference mode, and PopART differentiates the loss alone: "
        "torch.autograd.grad, backward() and torch.func.grad, jvp, hessian and the like have no graph to work on. "
        "Write the derivative as ops of forward, or compute it in plain PyTorch on the host."
    )
