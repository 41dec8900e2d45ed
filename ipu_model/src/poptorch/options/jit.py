"""`Options.Jit`: what is left of PopTorch's old tracing front end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poptorch._logging import logger
from poptorch.options.container import OptionsContainer

if TYPE_CHECKING:
    from typing_extensions import Self


class _JitOptions(OptionsContainer):
    """Deprecated options; none is stored."""

    def traceModel(self, trace_model: bool) -> Self:
        """Warn, and raise `ValueError` for a true value: the old front end is gone."""
        self.checkIsFrozen()
        logger.warning("[Deprecated] Jit.traceModel has no effect: the dispatcher is the only way to trace a model.")
        if trace_model:
            raise ValueError(
                "Tracing with torch.jit.trace is no longer supported. Remove Jit.traceModel: "
                "models are always captured while their forward runs."
            )
        return self
