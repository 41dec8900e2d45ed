"""Notes on a search, with advice that names arguments for readers in Python and options for readers at a shell."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Note:
    """A sentence on a search, and how to ask for something else: `in_python` or, `for_shell`, `in_shell`.

    `str(note)` is all of it.
    """

    text: str
    in_python: str = ""
    in_shell: str = ""
    for_shell: bool = False

    def __str__(self) -> str:
        advice = self.in_shell if self.for_shell else self.in_python
        return f"{self.text} {advice}".rstrip()

    def to_shell(self) -> Note:
        """Return the note for a reader at a shell."""
        return replace(self, for_shell=True)


def other_micro_batches() -> Note:
    """Return the note on a search without a module."""
    return Note(
        "The search tried no other micro-batches, because a saved program has no module to capture again.",
        "make_it_fit(module, inputs, options, ...) tries them.",
        "To try them, name the function that returns the module: python -m ipu_model fit program.py:function",
    )


def other_limits(most: int) -> Note:
    """Return the note on a search for which nobody set a number of IPUs; `most` is what it took."""
    return Note(
        f"The search used at most {'1 IPU' if most == 1 else f'{most} IPUs'}.",
        "ipus=N sets another limit.",
        "--ipus N sets another limit.",
    )


def fewer_ipus(asked: int, used: int) -> Note:
    """Return the note on a limit that a program cannot use up, for PopTorch reserves powers of two."""
    return Note(
        f"PopTorch reserves 1, 2, 4, 8, ... IPUs, so the search could use only {used} of the {asked} that you allowed.",
        f"ipus={2 * used} is the next limit that makes a difference.",
        f"--ipus {2 * used} is the next limit that makes a difference.",
    )


def other_types() -> Note:
    """Return the note on a search that could change the types of a program."""
    return Note(
        "The search was allowed to change the types of weights and partial sums.",
        'keep="precision" leaves them as they are.',
        "--keep precision leaves them as they are.",
    )


def other_machine(name: str, samples_per_second: float) -> Note:
    """Return the note on the speed of the fastest on a machine of a faster chip."""
    return Note(
        f"On {name} IPUs the fastest program reaches {samples_per_second:,.1f} samples/s.",
        f'machine="{name}" searches there.',
        f"--machine {name} searches there.",
    )
