"""A ring of replicas that counts what is sent, and the check of a learner's all-reduce on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Sequence

import torch
from torch import Tensor

Held = List[List[Tensor]]
"""What every replica holds: ``held[replica][part]``."""
PassOn = Callable[[Sequence[Tensor]], List[Tensor]]
AllReduce = Callable[[Held, PassOn], Any]

ELEMENTS = 3  # of each part
# Replica r's gradient consists of the number BASE ** r, so a sum tells how often each replica is in it.
BASE = 100


class Ring:
    """Replicas in a ring, which counts the elements that each of them sends."""

    def __init__(self, replicas: int) -> None:
        self.sent = [0] * replicas

    def pass_on(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Hand the tensor of each replica to the next one, and return what each of them receives.

        Element r of the result is a copy of what replica r - 1 sent. Raises ``ValueError`` unless there is one tensor
        for each replica.
        """
        if len(parts) != len(self.sent):
            raise ValueError(f"pass_on takes one tensor from each of the {len(self.sent)} replicas, not {len(parts)}")
        for replica, part in enumerate(parts):
            self.sent[replica] += part.numel()
        copies = [part.clone() for part in parts]
        return copies[-1:] + copies[:-1]


def least_share(replicas: int) -> float:
    """Return how many times its gradient's size a replica has to send in an all-reduce; a ring reaches this bound."""
    return 2 * (replicas - 1) / replicas


def ring_hint(all_reduce: object) -> str | None:
    """Return the hint for a function that is to add up the gradients of all replicas in a ring."""
    if not callable(all_reduce):
        return f"all_reduce is a function; you wrote {all_reduce!r}."
    for replicas in (4, 3):
        hint = _hint_for(all_reduce, replicas)
        if hint is not None:
            return hint if replicas == 4 else f"It works with 4 replicas, but not with 3. {hint}"
    return None


@dataclass(frozen=True)
class _End:
    """What all replicas hold afterwards, and how many times its gradient's size the busiest one sent."""

    held: Any
    share_sent: float


def _hint_for(all_reduce: AllReduce, replicas: int) -> str | None:
    counting = [
        [torch.full((ELEMENTS,), float(BASE**replica), dtype=torch.float64) for _ in range(replicas)]
        for replica in range(replicas)
    ]
    end = _run(all_reduce, counting)
    wrong = _form_hint(end.held, replicas) or _sums_hint(end.held, counting)
    if wrong is not None:
        return wrong
    draw = torch.Generator().manual_seed(replicas)
    drawn = [
        [torch.randint(-9, 10, (ELEMENTS,), generator=draw).double() for _ in range(replicas)] for _ in range(replicas)
    ]
    if not _is_summed(_run(all_reduce, drawn).held, drawn):
        return "The sums are complete, but some are in the wrong place: a part keeps its index on every replica."
    return _bytes_hint(end.share_sent, replicas)


def _run(all_reduce: AllReduce, gradients: Held) -> _End:
    replicas = len(gradients)
    held = [[part.clone() for part in parts] for parts in gradients]
    ring = Ring(replicas)
    result = all_reduce(held, ring.pass_on)
    return _End(held if result is None else result, max(ring.sent) / (replicas * ELEMENTS))


def _form_hint(held: Any, replicas: int) -> str | None:
    try:
        fits = len(held) == replicas and all(
            len(parts) == replicas and all(part.shape == (ELEMENTS,) for part in parts) for parts in held
        )
    except (TypeError, AttributeError):
        fits = False
    if fits:
        return None
    return f"Afterwards, held needs {replicas} parts for each of the {replicas} replicas, each as large as before."


def _is_summed(held: Held, gradients: Held) -> bool:
    sums = [torch.stack(parts).sum(0) for parts in zip(*gradients)]
    return all(torch.allclose(part.double(), total) for parts in held for part, total in zip(parts, sums))


def _sums_hint(held: Held, gradients: Held) -> str | None:
    """Return the hint for sums that are not complete, or not right; each part is a number in base ``BASE``."""
    if _is_summed(held, gradients):
        return None
    replicas = len(gradients)
    if _is_summed([[part * replicas for part in parts] for parts in held], gradients):
        return "You return the mean. An all-reduce adds up; the weight update divides."
    counts = [[_times_in_sum(part, replicas) for part in parts] for parts in held]
    once = [1] * replicas
    if all(sorted(counts[replica]) == sorted(_own(replica, replicas)) for replica in range(replicas)):
        return "The gradients have not changed. Replace a part of held by itself plus what arrived."
    every = [(replica, part) for replica in range(replicas) for part in range(replicas)]
    for replica, part in every:
        most = max(counts[replica][part])
        if most > 1:
            return (
                f"Part {part} of replica {replica} contains the gradient of replica "
                f"{counts[replica][part].index(most)} {most} times. In the all-gather, what arrives is complete: it "
                "replaces the part and is not added."
            )
    if all(parts.count(once) == 1 for parts in counts):
        return (
            "Each replica now has exactly one complete sum. That is the reduce-scatter. Next, the complete sums go "
            "round: the all-gather."
        )
    replica, part = next((replica, part) for replica, part in every if counts[replica][part] != once)
    found = counts[replica][part]
    members = [str(other) for other, count in enumerate(found) if count]
    plural = "s" * (len(members) > 1)
    whose = f"gradient{plural} of replica{plural} {', '.join(members)}" if members else "gradient of no replica"
    return (
        f"Part {part} of replica {replica} contains the {whose}, and all "
        f"{replicas} should be in it. In each step a replica sends on the part that it received in the step before."
    )


def _own(replica: int, replicas: int) -> list[list[int]]:
    return [[int(other == replica) for other in range(replicas)]] * replicas


def _times_in_sum(part: Tensor, replicas: int) -> list[int]:
    """Return how often the gradient of each replica is in a sum."""
    number = round(float(part[0]))
    return [number // BASE**replica % BASE for replica in range(replicas)]


def _bytes_hint(share_sent: float, replicas: int) -> str | None:
    least = least_share(replicas)
    if share_sent > least + 1e-9:
        return (
            f"The sums are right, but a replica sends {share_sent:.3g} times the size of its gradient, and "
            f"2 x ({replicas} - 1) / {replicas} = {least:.3g} is enough: send one part in each step."
        )
    if share_sent < least - 1e-9:
        return (
            f"The sums are right, but a replica sends only {share_sent:.3g} times the size of its gradient. Replicas "
            "share no memory: whatever comes from another one has to go through pass_on."
        )
    return None
