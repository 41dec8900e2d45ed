"""When each op runs within a pass: in the order of `IpuMemory.liveness`, which is that of execution.

A pass is a forward pass, a backward pass together with the recomputation that it alternates with, or a weight update.
The cycles of its ops follow one another. What the pass takes beyond them (copies into and out of the stash, control) is
left at the end of a forward pass and at the start of a backward pass, where those copies happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ipu_model.predict.profile import LivenessStep, OpProfile, Profile, Span

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
_PASS_OF = {FORWARD: FORWARD, "recompute": BACKWARD, BACKWARD: BACKWARD, UPDATE: UPDATE}
_CLOSE_SECONDS = 1e-9


class OpTime(NamedTuple):
    """One execution of a part of an op: its step, its place in the liveness of its IPU, and when, in seconds."""

    step: LivenessStep
    place: int
    start: float
    seconds: float


class _Timed(NamedTuple):
    step: LivenessStep
    place: int
    seconds: float


@dataclass(frozen=True)
class _Key:
    """Which pass of which stage on which IPU; an update belongs to no stage."""

    ipu: int
    during: str
    stage: int | None


class OpTimes:
    """The ops of each pass of a profile, in order, with how long each takes."""

    def __init__(self, profile: Profile) -> None:
        self.ops: dict[tuple[str, str], OpProfile] = {(op.node, op.part): op for op in profile.work}
        computing = profile.machine.tiles - profile.io_tiles
        slower = profile.machine.tiles / computing if computing > 0 else 1.0
        self._passes: dict[_Key, list[_Timed]] = {}
        for memory in profile.memory:
            for place, step in enumerate(memory.liveness):
                op, during = self.op_of(step), _PASS_OF.get(step.phase)
                if op is not None and during is not None:
                    key = _Key(memory.ipu, during, None if during == UPDATE else step.stage)
                    seconds = profile.machine.seconds(op.cycles * slower)
                    self._passes.setdefault(key, []).append(_Timed(step, place, seconds))

    def op_of(self, step: LivenessStep) -> OpProfile | None:
        """Return the op that runs during a step."""
        return self.ops.get((step.node, step.part))

    def within(self, span: Span) -> tuple[OpTime, ...]:
        """Return the ops of a pass, one after another within its span; none if the span is no pass."""
        key = _key_of(span)
        timed = self._passes.get(key, []) if key is not None else []
        total = sum(each.seconds for each in timed)
        if not total or span.seconds <= 0:
            return ()
        scale = min(1.0, span.seconds / total)
        at = span.start if span.kind == FORWARD else span.end - total * scale
        found = []
        for step, place, seconds in timed:
            found.append(OpTime(step, place, at, seconds * scale))
            at += seconds * scale
        return tuple(found)


def passes(spans: Sequence[Span]) -> Iterable[Span]:
    """Yield the spans of one row with each recomputation and the backward pass behind it as one span.

    The two alternate: a stage recomputes what its next backward ops need. Such a span has the kind "backward".
    """
    waiting: Span | None = None
    for span in spans:
        if waiting is not None and _follows(span, waiting):
            seconds = span.end - waiting.start
            yield replace(span, start=waiting.start, seconds=seconds, label=_label(span), recomputes=True)
            waiting = None
            continue
        if waiting is not None:
            yield waiting
        waiting = span if span.kind == "recompute" else None
        if waiting is None:
            yield span
    if waiting is not None:
        yield waiting


def _follows(span: Span, before: Span) -> bool:
    same = (span.stage, span.micro_batch, span.repeats) == (before.stage, before.micro_batch, before.repeats)
    return span.kind == BACKWARD and same and abs(span.start - before.end) <= _CLOSE_SECONDS


def _label(span: Span) -> str:
    return f"recomputation and {span.label}" if span.label else "recomputation and backward"


def _key_of(span: Span) -> _Key | None:
    if span.ipu is None or span.kind not in (FORWARD, BACKWARD, UPDATE):
        return None
    return _Key(span.ipu, span.kind, None if span.kind == UPDATE else span.stage)
