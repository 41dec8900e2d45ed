"""Process-wide settings that a data set's code reads, carried into the loader's process.

With them, a seeded program shuffles and augments in the background exactly as it would in line, whatever way
the process was started.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, eq=False)
class Ambient:
    """State of the three common random generators, and torch's default dtype."""

    torch_state: bytes
    numpy_state: Any
    python_state: Any
    default_dtype: torch.dtype

    @classmethod
    def capture(cls) -> Ambient:
        """Read this process's settings without drawing from any generator."""
        return cls(
            torch.get_rng_state().numpy().tobytes(),
            np.random.get_state(),
            random.getstate(),
            torch.get_default_dtype(),
        )

    def install(self) -> None:
        """Make them this process's settings."""
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch_state), dtype=torch.uint8))
        np.random.set_state(self.numpy_state)
        random.setstate(self.python_state)
        torch.set_default_dtype(self.default_dtype)
