"""The decision procedure as a drawing: questions on a spine, causes with their remedies beside and below."""

from __future__ import annotations

from matplotlib.axes import Axes

from ipu_course.figures.board import SMALL, TEXT, Drawing, Place, arrow, box, sheet, write
from ipu_course.figures.looks import ACTIVATIONS, CHIP, CODE, COMPARED, OPTIMISER_STATE, TEMPORARY, Look
from ipu_course.figures.style import in_style
from ipu_course.lessons.out_of_memory import decision
from ipu_course.lessons.out_of_memory.decision import FIRST, LIVENESS, OP_OR_ACTIVATIONS, OTHER_IPUS, PARAMETERS_OR_CODE

REMEDIES = {
    decision.TILE: "join small tensors",
    decision.IPU: "move blocks",
    decision.ONE_OP: "proportion,\nserialise it",
    decision.ACTIVATIONS: "recompute,\nmicro-batch",
    decision.STATE: "off the chip,\nsmaller types",
    decision.CODE: "equal blocks",
}
LOOKS = {
    decision.TILE: COMPARED[0],
    decision.IPU: COMPARED[0],
    decision.ONE_OP: TEMPORARY,
    decision.ACTIVATIONS: ACTIVATIONS,
    decision.STATE: OPTIMISER_STATE,
    decision.CODE: CODE,
}
WHITE_BELOW = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
HATCHED = (decision.ACTIVATIONS, decision.STATE)
WIDE, HIGH = 4.4, 0.68
LEAF_WIDE, LEAF_HIGH = 1.66, 1.06


def decision_figure() -> Drawing:
    """Draw all questions, with the headings of the guide that they follow, and what to do about each cause."""
    with in_style():
        _, axes = drawn = sheet(6.1)
        left = 0.2
        for question, bottom, cause in ((FIRST, 5.2, decision.TILE), (OTHER_IPUS, 4.05, decision.IPU)):
            _question(axes, Place(left, bottom, WIDE, HIGH), question.words, question.section)
            leaf = Place(5.6, bottom + HIGH / 2 - 0.4, 1.8, 0.8)
            _leaf(axes, leaf, cause)
            _branch(axes, (left + WIDE, bottom + HIGH / 2), (leaf.x, bottom + HIGH / 2), "yes")
            _branch(axes, (left + WIDE / 2, bottom), (left + WIDE / 2, bottom - 0.47), "no")
        _question(axes, Place(left, 2.9, WIDE, HIGH), LIVENESS.words, LIVENESS.section)
        for place, question, answer in ((0.1, OP_OR_ACTIVATIONS, "no"), (3.95, PARAMETERS_OR_CODE, "yes")):
            _question(axes, Place(place, 1.62, 3.55, HIGH), question.words, question.section)
            middle = place + 1.775
            start = (min(middle, left + WIDE - 0.4), 2.9)
            _branch(axes, start, (middle, 1.62 + HIGH), answer)
            for shift, following, said in ((0.0, question.yes, "yes"), (1.89, question.no, "no")):
                leaf = Place(place + shift, 0.1, LEAF_WIDE, LEAF_HIGH)
                _leaf(axes, leaf, str(following))
                _branch(axes, (leaf.middle[0], 1.62), (leaf.middle[0], leaf.y + LEAF_HIGH), said)
    return Drawing(drawn[0], _words())


def _question(axes: Axes, place: Place, words: str, section: str) -> None:
    box(axes, place, CHIP, words, round_by=0.12, fontsize=SMALL)
    write(axes, (place.x + 0.02, place.y + place.height + 0.12), f"guide {section}", ha="left", fontsize=8.5)


def _leaf(axes: Axes, place: Place, cause: str) -> None:
    look: Look = LOOKS[cause]
    below = {"bbox": WHITE_BELOW} if cause in HATCHED else {}
    box(axes, place, look, round_by=0.0)
    color = look.text
    x, y = place.middle
    write(axes, (x, place.y + place.height - 0.2), cause, fontweight="bold", color=color, fontsize=TEXT, **below)
    write(axes, (x, y - 0.17), REMEDIES[cause], color=color, fontsize=SMALL, **below)


def _branch(axes: Axes, begin: tuple[float, float], end: tuple[float, float], answer: str) -> None:
    arrow(axes, begin, end)
    across = abs(end[0] - begin[0]) > abs(end[1] - begin[1])
    at = ((begin[0] + end[0]) / 2 + (0.0 if across else 0.2), (begin[1] + end[1]) / 2 + (0.14 if across else 0.0))
    write(axes, at, answer, fontsize=SMALL, fontstyle="italic")


def _words() -> str:
    def told(words: str) -> str:
        return words.replace("\n", " ")

    def remedy(cause: str) -> str:
        return f"{cause} ({told(REMEDIES[cause])})"

    return (
        f"A decision procedure. First: {told(FIRST.words)} If yes, the cause is {remedy(decision.TILE)}. If no: "
        f"{told(OTHER_IPUS.words)} If yes, it is {remedy(decision.IPU)}. If no: {told(LIVENESS.words)} If not: "
        f"{told(OP_OR_ACTIVATIONS.words)} Yes leads to {remedy(decision.ONE_OP)}, no to "
        f"{remedy(decision.ACTIVATIONS)}. If it is: "
        f"{told(PARAMETERS_OR_CODE.words)} Yes leads to {remedy(decision.STATE)}, no to {remedy(decision.CODE)}."
    )
