"""The text of a compiled program's ops, in the form of PopART's: what tooling searches for names and kinds of ops."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from poptorch._tensor_names import ops_of

if TYPE_CHECKING:
    from ipu_model.graph import Graph
    from poptorch.options import Options


class GraphText:
    """The part of `PoplarExecutor` that shows its graph."""

    _options: Options
    _graph: Graph | None

    def _debugGetPopartIR(self) -> str:
        """Return the ops as JSON text: `maingraph` is a list of ops, each with `name`, `type` and `attributes`.

        The attributes are those of `poptorch.Attribute`, by the names of the graph attributes.

        Raises:
            AssertionError: not compiled, or destroyed.
        """
        assert self._graph is not None, "Model must be compiled before its graph can be shown. Call compile() first."
        ops = [
            {"name": name, "type": kind, "attributes": node.meta.get("attributes", {})}
            for node, name, kind in ops_of(self._graph, module_scopes=self._options._module_namescope_enabled)
        ]
        return json.dumps({"maingraph": ops})
