"""The device's random streams: one for each replica, apart from the host's generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ipu_model.process import ForkSafeLock

# Spreads replica streams over seeds; any odd 64-bit constant works (this is 2^64 divided by the golden ratio).
_STRIDE = 0x9E3779B97F4A7C15

# torch's generator belongs to the process: programs that run in several threads take turns.
_one_at_a_time = ForkSafeLock()


class RandomStreams:
    """Generator states of `replicas` replicas from one seed; in the whole run, the first has the index `first`."""

    def __init__(self, seed: int, replicas: int, first: int = 0) -> None:
        self._first = first
        self._common: torch.Generator | None = None
        self._reseeds_common = False
        self._begin(seed, replicas)

    def _begin(self, seed: int, replicas: int) -> None:
        self.seed = seed
        self._states = [self._initial(seed + (self._first + replica) * _STRIDE) for replica in range(replicas)]

    @staticmethod
    def _initial(seed: int) -> Tensor:
        # manual_seed takes 63-bit values; a wrapped value is an equally good seed.
        return torch.Generator().manual_seed(seed & 0x7FFFFFFFFFFFFFFF).get_state()

    def keep(self, common: torch.Generator, *, reseeded: bool) -> None:
        """Make `common`, the same for all replicas, part of the state; a new seed also applies if `reseeded`."""
        self._common, self._reseeds_common = common, reseeded

    @contextmanager
    def drawing(self, replica: int) -> Iterator[None]:
        """Let torch draw from the stream of `replica` in the body; the host's stream does not change."""
        with _one_at_a_time.lock:
            host = torch.get_rng_state()
            torch.set_rng_state(self._states[replica])
            try:
                yield
            finally:
                self._states[replica] = torch.get_rng_state()
                torch.set_rng_state(host)

    def state(self) -> list[int]:
        """Return the seed followed by the bytes of every stream's state, that of the common one last."""
        states = [*self._states, *([] if self._common is None else [self._common.get_state()])]
        return [self.seed, *(byte for state in states for byte in state.tolist())]

    def check(self, state: Sequence[object]) -> None:
        expected = 1 + self._states[0].numel() * (len(self._states) + (self._common is not None))
        if len(state) not in (1, expected):
            raise ValueError(f"rng_state has {len(state)} entries, expected 1 or {expected}.")
        numbers = [word for word in state if isinstance(word, int)]
        if len(numbers) < len(state) or not all(0 <= word < 256 for word in numbers[1:]):
            raise ValueError("rng_state holds other values than a seed and bytes. Give it what rng_state returned.")

    def restore(self, state: list[int]) -> None:
        """Continue from a list that `state` returned, or from a new seed: a list of one number. Raises as `check`."""
        self.check(state)
        replicas = len(self._states)
        if len(state) == 1:
            self._begin(state[0], replicas)
            if self._common is not None and self._reseeds_common:
                self._common.set_state(self._initial(state[0]))
            return
        size = self._states[0].numel()
        words = torch.tensor(state[1:], dtype=torch.uint8)
        # set_state reads the memory of a view from its start: each state needs its own.
        states = [part.clone() for part in words.split(size)]
        try:
            for stream in states:
                torch.Generator().set_state(stream)
        except RuntimeError as error:
            raise ValueError("rng_state is not a state of a random generator.") from error
        self.seed, self._states = state[0], states[:replicas]
        if self._common is not None:
            self._common.set_state(states[-1])
