"""How modules print: with their blocks in front of them."""

from __future__ import annotations

import builtins

from torch import nn

_global_print = builtins.print


def module_repr(m: nn.Module) -> str:
    """Return the nested text of a module with its forward pre-hooks in front of each type name."""
    lines = m.extra_repr().split("\n") if m.extra_repr() else []
    children = [
        f"({name}): " + module_repr(child).replace("\n", "\n  ")
        for name, child in m._modules.items()
        if child is not None
    ]
    hooks = "".join(f"{hook!r} " for hook in m._forward_pre_hooks.values())
    head = f"{hooks}{m._get_name()}("
    if len(lines) <= 1 and not children:
        return head + "".join(lines) + ")"
    return head + "\n  " + "\n  ".join(lines + children) + "\n)"


def print(m: object) -> None:
    """Print like the built-in, after a line of its own for a module with its block annotations."""
    if isinstance(m, nn.Module):
        _global_print(module_repr(m))
    _global_print(m)
