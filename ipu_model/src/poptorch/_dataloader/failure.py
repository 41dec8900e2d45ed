"""Report an exception of the loader's process to the program that waits for its items."""

from __future__ import annotations

import os
import re
import traceback
from dataclasses import dataclass
from itertools import dropwhile

import torch

from ipu_model.source_lines import SourceLine, line_that_raised

# A worker process of torch's loader puts the traceback of an exception into its message.
_WITHIN_TORCH_WORKER = "Original Traceback (most recent call last):\n"
_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


class LoadersTraceback(Exception):
    """The traceback of an exception in the loader's process, shown as the cause of one in the program."""


@dataclass(frozen=True)
class Failure:
    """Type and message of an exception, the user's line that raised it ("" if there is none), and its traceback.

    All of them are text, because not every exception can be sent to another process and rebuilt there.
    """

    what: str
    line: str
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Describe an exception that is being handled."""
        told = traceback.TracebackException.from_exception(error)
        trace, what, line = "".join(told.format()), "".join(told.format_exception_only()), line_that_raised(error)
        _, _, within = what.partition(_WITHIN_TORCH_WORKER)
        frames = list(_FRAME.finditer(within))
        if frames:
            line = _users_line(frames)
            # The last frame's source text is indented. The message follows; any line of it but the first may be, too.
            what = "\n".join(dropwhile(_is_indented, within[frames[-1].end() + 1 :].split("\n")))
        return cls(_without_module(what.strip()), "" if line is None else str(line), trace)

    def before(self, consequence: str) -> str:
        """Return a message that first says what happened, then what follows from it."""
        return f"{self.what}{f' ({self.line})' if self.line else ''}\n{consequence}"

    @property
    def cause(self) -> LoadersTraceback:
        """An exception that shows the traceback when Python prints one that was raised from it."""
        return LoadersTraceback(f'\n"""\n{self.trace}"""')


def _users_line(frames: list[re.Match[str]]) -> SourceLine:
    """Return the innermost line outside torch; if there is none, the innermost one."""
    users = [frame for frame in frames if not frame[1].startswith(_TORCH)] or frames
    file, number, function = users[-1].groups()
    return SourceLine(file, int(number), function)


def _is_indented(line: str) -> bool:
    return line.startswith("  ")


def _without_module(what: str) -> str:
    """Shorten `package.module.Type: message` to `Type: message`."""
    name, colon, message = what.partition(":")
    return name.rpartition(".")[2] + colon + message
