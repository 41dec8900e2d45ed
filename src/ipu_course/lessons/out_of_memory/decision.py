"""From a profile to the cause: the questions of lesson 13, in their order.

The order of the questions follows the headings of the guide's section 6.4. Their text could not be read, so questions
and thresholds are the course's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Union

if TYPE_CHECKING:
    from ipu_course.engine import Profile

TILE, IPU, ONE_OP, ACTIVATIONS, STATE, CODE = "tile balance", "IPU balance", "one op", "activations", "state", "code"
CAUSES = (TILE, IPU, ONE_OP, ACTIVATIONS, STATE, CODE)
# What else people call these causes.
ALSO_CALLED = {
    "tile imbalance": TILE, "ipu imbalance": IPU, "one operation": ONE_OP, "activation": ACTIVATIONS,
    "optimiser state": STATE, "optimizer state": STATE, "exchange code": CODE,
}  # fmt: skip
KIB = 1024
# A published report of ResNet-50 has a fullest tile of 1.18 times the average; more than this is unusual.
UNEVEN = 1.25
ROOM = 0.15  # of a tile: so much emptier has another IPU to be
PARAMETERS = ("variables", "optimiser state", "gradient accumulators")
CODES = (
    "control code", "vertex code", "vertex state", "internal exchange code", "host exchange code",
    "global exchange code",
)  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What the questions ask about, in bytes: the fullest tile of the fullest IPU and what it holds, and averages.

    ``other_ipu`` is the fullest tile of the emptiest other IPU, or ``None`` with one IPU.
    """

    fullest: float
    average: float
    over: int
    limit: int
    other_ipu: float | None
    always_live: float
    one_op: float
    parameters: float
    code: float

    @property
    def not_always_live(self) -> float:
        """The rest of the fullest tile: activations, gradients and temporary data."""
        return self.fullest - self.always_live


def facts_of(profile: Profile) -> Facts:
    """Take the facts from a profile."""
    ipus = sorted(profile.memory, key=lambda ipu: ipu.max_tile_bytes)
    worst, held = ipus[-1], ipus[-1].bytes_by_category
    return Facts(
        fullest=worst.max_tile_bytes,
        average=worst.total_bytes / len(worst.tiles),
        over=sum(tile > profile.memory.tile_bytes for tile in worst.tiles),
        limit=profile.memory.tile_bytes,
        other_ipu=ipus[0].max_tile_bytes if len(ipus) > 1 else None,
        always_live=worst.always_live_bytes,
        one_op=held.get("temporaries", 0.0),
        parameters=sum(held.get(name, 0.0) for name in PARAMETERS),
        code=sum(held.get(name, 0.0) for name in CODES),
    )


@dataclass(frozen=True)
class Question:
    """One question about the facts, with the heading of the guide that it belongs to.

    ``evidence`` says in words what the facts answer; ``yes`` and ``no`` are what comes next: a question or a cause.
    """

    words: str
    section: str
    holds: Callable[[Facts], bool]
    evidence: Callable[[Facts], str]
    yes: Next
    no: Next


Next = Union[Question, str]


def _kib(size: float) -> str:
    return f"{size / KIB:,.0f} KiB"


def _has_room(facts: Facts) -> bool:
    return facts.other_ipu is not None and facts.other_ipu <= facts.fullest - ROOM * facts.limit


def _about_other_ipus(facts: Facts) -> str:
    if facts.other_ipu is None:
        return "it runs on one IPU, so no other has room"
    return f"the fullest tile of the emptiest other IPU holds {_kib(facts.other_ipu)}"


PARAMETERS_OR_CODE = Question(
    "Are weights, state and accumulators\nmore than code?",
    "6.4.2.2",
    lambda facts: facts.parameters > facts.code,
    lambda facts: (
        f"weights, state and accumulators take {_kib(facts.parameters)} of the fullest tile, and all kinds of "
        f"code {_kib(facts.code)}"
    ),
    STATE,
    CODE,
)
OP_OR_ACTIVATIONS = Question(
    "Is half of the rest the temporary\ndata of one op?",
    "6.4.2.1",
    lambda facts: 2 * facts.one_op > facts.not_always_live,
    lambda facts: (
        f"of the {_kib(facts.not_always_live)} that are not always live, the temporary data of one op are "
        f"{_kib(facts.one_op)}"
    ),
    ONE_OP,
    ACTIVATIONS,
)
LIVENESS = Question(
    "Is more than half of the fullest tile always live?",
    "6.4.2",
    lambda facts: 2 * facts.always_live > facts.fullest,
    lambda facts: f"{_kib(facts.always_live)} of the fullest tile's {_kib(facts.fullest)} are always live",
    PARAMETERS_OR_CODE,
    OP_OR_ACTIVATIONS,
)
OTHER_IPUS = Question(
    "Does another IPU have room?", "6.4.1", _has_room, _about_other_ipus, IPU, LIVENESS,
)  # fmt: skip
FIRST = Question(
    "Is the fullest tile more than 1.25 times\nas full as the average tile?",
    "6.4.1",
    lambda facts: facts.fullest > UNEVEN * facts.average,
    lambda facts: (
        f"the fullest tile holds {_kib(facts.fullest)}, the average tile {_kib(facts.average)}, so it is "
        f"{facts.fullest / facts.average:.2f} times as full"
    ),
    TILE,
    OTHER_IPUS,
)


def cause_of(facts: Facts) -> str:
    """Walk the questions and return the cause at their end."""
    at: Next = FIRST
    while isinstance(at, Question):
        at = at.yes if at.holds(facts) else at.no
    return at


def cause_named(answer: object) -> str | None:
    """Return the cause that a learner's words name, or ``None`` for words that name none."""
    words = " ".join(str(answer).replace("_", " ").replace("-", " ").strip(" .").lower().split())
    return {**ALSO_CALLED, **{cause.lower(): cause for cause in CAUSES}}.get(words)


def parting(facts: Facts, wrong: str) -> str:
    """Return the evidence of the first question whose answer leads away from a ``wrong`` cause."""
    at: Next = FIRST
    while isinstance(at, Question):
        taken = at.yes if at.holds(facts) else at.no
        if wrong not in _causes(taken):
            return at.evidence(facts)
        at = taken
    raise ValueError(f"{wrong!r} is the cause")


def _causes(at: Next) -> tuple[str, ...]:
    return (at,) if isinstance(at, str) else (*_causes(at.yes), *_causes(at.no))
