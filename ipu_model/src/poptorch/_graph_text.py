"""`_debugGetPopartIR`: the ops of a compiled program as JSON, for tools that look for their names and types."""

from __future__ import annotations

import json
import operator
from typing import TYPE_CHECKING, Any

from poptorch._errors import createPoptorchError
from poptorch._tensor_names import kind_of, op_names

if TYPE_CHECKING:
    from ipu_model.graph import Graph
    from poptorch.options import Options


class GraphText:
    """The part of `PoplarExecutor` that writes out its program."""

    _graph: Graph | None
    _options: Options

    def _debugGetPopartIR(self) -> str:
        """Return JSON: an object whose `maingraph` lists the ops, each with `name`, `type`, `inputs` and `outputs`.

        The ops are those of the IPU Model's graph, forward and backward, without the weight update.

        Raises:
            Error: not compiled.
        """
        if self._graph is None:
            raise createPoptorchError("_debugGetPopartIR: the model is not compiled. Call it, or compile() it, first.")
        names = op_names(self._graph, module_scopes=self._options._module_namescope_enabled)
        nodes = [node for node in self._graph.ops.nodes if node.op == "call_function"]
        ops: list[dict[str, Any]] = []
        for node in nodes:
            # Ops that pick one of several results are none of the backend's.
            if node.target is not operator.getitem:
                results = [user.name for user in node.users if user.target is operator.getitem] or [node.name]
                shown = [names.get(result, result) for result in results]
                inputs = [names.get(each.name, each.name) for each in node.all_input_nodes]
                kind = kind_of(node).partition(":")[0]
                ops.append({"name": shown[0], "type": kind, "inputs": inputs, "outputs": shown})
        return json.dumps({"maingraph": ops})
