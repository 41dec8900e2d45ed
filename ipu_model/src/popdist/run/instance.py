"""Becomes one instance: sees to it that the program does not outlive its agent, then runs it in this process.

Started by its path with `-I -S`, which takes a few milliseconds: it imports nothing but the standard library.
Arguments: the agent's process id, the program, its arguments.
"""

import ctypes
import os
import signal
import sys

# Names what the agent watches: it closes when this process, and every child that it left it to, has ended.
ALIVE = "POPRUN_ALIVE"
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def main(agent: int, command: "list[str]") -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != agent:
        sys.exit("the agent that started this instance has ended")
    os.set_inheritable(os.open(os.environ.pop(ALIVE), os.O_WRONLY), True)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"poprun: {command[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
