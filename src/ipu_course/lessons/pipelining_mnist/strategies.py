"""What PopTorch says to execution strategies: which ones compile, and why it refuses the others."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from torch import Tensor

import poptorch

MICRO_BATCH = 40


def show_strategies(
    strategies: Mapping[str, Any],
    build: Callable[[poptorch.Options], poptorch.PoplarExecutor],
    images: Tensor,
    labels: Tensor,
    accumulation: int,
) -> None:
    """Print for each strategy that it compiles, or PopTorch's reason to refuse it.

    ``build(options)`` returns a training model; ``images`` and ``labels`` are enough for ``accumulation``
    micro-batches of 40.
    """
    size = MICRO_BATCH * accumulation
    for name, strategy in strategies.items():
        options = poptorch.Options().setExecutionStrategy(strategy).showCompilationProgressBar(False)
        options.Training.gradientAccumulation(accumulation)
        try:
            build(options).compile(images[:size], labels[:size])
            print(f"{name}: compiles")
        except (poptorch.Error, AssertionError) as problem:
            print(f"{name}:", str(problem).replace("'poptorch_py_error': ", "").split(". ")[0])
