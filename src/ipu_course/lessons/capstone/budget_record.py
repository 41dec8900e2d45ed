"""How many budgets a learner has begun: in this kernel, and in the records of all sessions."""

from __future__ import annotations

from ipu_course.progress import BudgetUse, note_budget, read_progress

LESSON = "17"

_used_here: dict[str, BudgetRecord] = {}  # the first budget of each program that was used in this kernel


class BudgetRecord:
    """The record of one budget for a ``program``, such as BERT-base.

    The notebook itself compiles one plan in each session, before the learner has written any. So a kernel's first
    budget counts from its second compilation, with both of them, and every other budget from its first.
    """

    def __init__(self, program: str) -> None:
        self.program = program
        self.counts = False
        """Whether any of its compilations is in the records."""

    def note(self, number: int) -> None:
        """Note the compilation with this ``number`` in the budget."""
        first = _used_here.setdefault(self.program, self) is self
        if first and number == 1:
            return
        self.counts = True
        begins = number == (2 if first else 1)
        note_budget(LESSON, self.program, int(begins), 2 if first and begins else 1)

    @property
    def known(self) -> BudgetUse:
        """All budgets for this program that the learner's records have."""
        found = (each for each in read_progress().budgets if each.key == (LESSON, self.program))
        return next(found, BudgetUse(LESSON, self.program, 0, 0))

    @property
    def renewals(self) -> int:
        """How often the budget was renewed, as far as this one counts."""
        return self.known.renewals if self.counts else 0

    @property
    def in_words(self) -> str:
        """How many budgets there were, in a sentence."""
        use = self.known
        if not self.renewals:
            return "One budget was used, and it was not renewed."
        times = "once" if use.renewals == 1 else f"{use.renewals} times"
        return (
            f"The budget for {self.program} was renewed {times}: {use.begun} budgets, {use.used} compilations in all "
            "(running the notebook again begins a new one)."
        )
