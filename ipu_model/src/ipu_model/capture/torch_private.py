"""Every private or semi-private PyTorch name that the engine needs; each has a canary test."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as _checkpoint
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format as suggest_memory_format
from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.autograd.function import FunctionMeta
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules import transformer as _transformer
from torch.nn.utils import stateless as _stateless
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

fused_adam_, fused_adamw_, fused_sgd_ = torch._fused_adam_, torch._fused_adamw_, torch._fused_sgd_
mkldnn_enabled = torch._C._get_mkldnn_enabled
modes_disabled, tensors_swapped = _python_dispatch._disable_current_modes, _stateless._reparametrize_module
# Every class of functions is an object of it; what it has under a name comes before what the class has itself.
class_of_functions = FunctionMeta
where_module_moves = torch._C._nn._parse_to  # returns the device that it is given
function_modes_active = torch._C._is_torch_function_mode_enabled
without_torch_functions, without_subclass_functions = (
    torch._C.DisableTorchFunction,
    torch._C.DisableTorchFunctionSubclass,
)


def start_autograd() -> None:
    """Let autograd count devices before fake tensors add CUDA: its thread there would break every forked process."""
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.ones((), device="cpu", requires_grad=True)
        torch.autograd.grad(x * x, x)


def last_sequence_number() -> int:
    return torch._C._autograd._get_sequence_nr() - 1


def sequence_number_in_backward() -> int | None:
    """Return the number of the node that runs its own backward: -1 between nodes, `None` outside a backward pass."""
    if torch._C._current_graph_task_id() == -1:
        return None
    node: Any = torch._C._current_autograd_node()
    return -1 if node is None else int(node._sequence_nr())


def gradient_hooks(tensor: Tensor) -> list[Any]:
    """Return the hooks on the gradient of a parameter, and those that run after it is accumulated."""
    return [
        hook
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")
        for hook in (getattr(tensor, kind, None) or {}).values()
    ]


_transforms = torch._C._functorch
_DIFFERENTIATE = (_transforms.TransformType.Grad, _transforms.TransformType.Jvp)
_MAKES_DUAL, sets_grad_mode = torch._make_dual, torch._C._set_grad_enabled


def is_differentiated(func: Any) -> bool:
    """Whether a function starts a forward-mode derivative, or is called where `torch.func` takes one."""
    if func is _MAKES_DUAL:
        return True
    stack = _transforms.get_interpreter_stack() if func is not sets_grad_mode else None
    return any(level.key() in _DIFFERENTIATE for level in stack or ())


def made_by_default(view: Tensor) -> None:
    """Forget that a view comes from a function, whose results autograd lets nobody change in place."""
    torch._C._autograd._set_creation_meta(view, torch._C._autograd.CreationMeta.DEFAULT)


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextmanager
def switched(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def gradients_recorded() -> AbstractContextManager[None]:
    """Record gradients in the body, whose beginning and end no function mode sees."""
    return switched(torch.is_grad_enabled, _set_unseen, True)


def _set_unseen(enabled: bool) -> None:
    with without_torch_functions():
        torch.set_grad_enabled(enabled)


@contextmanager
def plain_ops_traced() -> Iterator[None]:
    """Trace fused kernels as the plain ops they stand for (LSTM, attention, transformer fast paths), and checkpoints.

    The device decides itself what it computes again. `torch.utils.checkpoint` would draw other random numbers the
    second time, and with `use_reentrant=True` refuse `torch.autograd.grad`: it calls its function like any other.
    """
    sdp, mha = torch.backends.cuda, torch.backends.mha
    with ExitStack() as stack:
        stack.enter_context(switched(mha.get_fastpath_enabled, mha.set_fastpath_enabled, False))
        # Despite its name it also decides whether attention on fp16 tensors is traced as fp16 ops on the CPU.
        half_math = sdp.fp16_bf16_reduction_math_sdp_allowed, sdp.allow_fp16_bf16_reduction_math_sdp
        stack.enter_context(switched(*half_math, True))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        # The workspaces of oneDNN's kernels have no fake counterpart. The public `torch.backends.mkldnn.flags` also
        # touches TF32 settings and warns about them.
        stack.enter_context(switched(mkldnn_enabled, torch._C._set_mkldnn_enabled, False))
        # Looking whether a mask's values are the causal ones only chooses a kernel.
        said = {"_detect_is_causal_mask": lambda mask, is_causal=None, size=None: is_causal is True}
        stack.enter_context(replaced(_transformer, **said))
        stack.enter_context(replaced(torch.distributions.Distribution, _validate_args=False))
        stand_ins = {"CheckpointFunction": _CalledOnce, _CHECKPOINT_GENERATOR: _nothing_around}
        stack.enter_context(replaced(_checkpoint, **stand_ins))
        # Fake tensors log the trace of an op that fails: the exception says it, as in plain PyTorch.
        stack.enter_context(replaced(logging.getLogger("torch._subclasses.fake_tensor"), disabled=True))
        yield


# Where a trace stands in front of torch, for `intercepted`: what returns the backward hooks of a module, registers one
# for several gradients, runs backward for `torch.autograd.grad` and its like, moves a module, makes a parameter.
module_hooks, module_pre_hooks = (nn.Module, "_get_backward_hooks"), (nn.Module, "_get_backward_pre_hooks")
joint_hooks, backward_run = (torch.autograd.graph, "register_multi_grad_hook"), (torch.autograd, "_engine_run_backward")
module_moved, parameter_made = (nn.Module, "_apply"), (nn.Parameter, "__new__")


def intercepted(place: tuple[Any, str], instead: Callable[..., Any]) -> AbstractContextManager[None]:
    """Let `instead` stand for a function; its first argument is the function."""
    owner, name = place
    original = getattr(owner, name)
    return replaced(owner, **{name: lambda *args, **kwargs: instead(original, *args, **kwargs)})


_CHECKPOINT_GENERATOR = "_checkpoint_without_reentrant_generator"
if hasattr(_checkpoint, f"{_CHECKPOINT_GENERATOR}_impl"):  # torch 2.14; the old name is there, but nothing calls it
    _CHECKPOINT_GENERATOR += "_impl"


class _CalledOnce:
    """In place of the autograd function of checkpoints with `use_reentrant=True`."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def _nothing_around(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Stand for the generator whose two halves run before and after the function of the other checkpoints."""
    yield
