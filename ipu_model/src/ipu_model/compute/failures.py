"""Add the op and the line of the user's program to errors that torch raises during a replay."""

from __future__ import annotations

import re
import traceback

import torch.fx

from ipu_model.errors import Error

# A line of the code that torch.fx generates for a graph: the node's name, perhaps its type, and its call.
_ASSIGNS = re.compile(r"(\w+)( : [^=]+)? = ")
_GENERATED = "<eval_with_key>"


def located(error: Exception, ops: torch.fx.Graph) -> Error | None:
    """Return an error that says which op of `ops`, and which line of the program, raised `error`.

    Returns `None` if there is nothing to add: for the package's own errors, and for errors of Python functions that the
    program itself passed to an op.
    """
    node = None if isinstance(error, Error) else _failed(error, ops)
    if node is None or "function" in node.meta.get("hints", {}):
        return None
    what = str(error).strip().rstrip(".") or type(error).__name__
    return Error(f"{what} ({place_of(node)}).", type="poplar_application_runtime_error")


def place_of(node: torch.fx.Node) -> str:
    """Name a node's op, its module, its pass and the line of the program that it comes from."""
    words = [f"{node.target} in module '{node.meta.get('scope') or 'model'}'"]
    if "phase" in node.meta:
        words.append(f"{node.meta['phase'].value} pass")
    if node.meta.get("line") is not None:
        words.append(str(node.meta["line"]))
    return ", ".join(words)


def _failed(error: Exception, ops: torch.fx.Graph) -> torch.fx.Node | None:
    """Return the node whose line of generated code raised `error`."""
    lines = [frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_GENERATED)]
    found = _ASSIGNS.match(lines[-1]) if lines and lines[-1] else None
    if found is None:
        return None
    return next((node for node in ops.nodes if node.name == found.group(1)), None)
