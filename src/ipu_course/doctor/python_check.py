"""Is this a Python that the course runs on?"""

from __future__ import annotations

import platform
import sys

from ipu_course import engine
from ipu_course.doctor.finding import Finding, ok, problem

OLDEST_WITH_IPU_MODEL, NEWEST_WITH_IPU_MODEL = (3, 10), (3, 14)  # as tools/setup.sh; a test compares them
OLDEST_WITH_SDK = (3, 8)


def check_python() -> Finding:
    """This Python's version."""
    return judge_python((sys.version_info[0], sys.version_info[1]), engine.is_available())


def judge_python(version: tuple[int, int], with_ipu_model: bool) -> Finding:
    """The IPU Model needs the Pythons that its torch is built for; a machine with the SDK has what the SDK asks for."""
    what = "Python {}.{} ({})".format(*version, platform.machine())
    if not with_ipu_model:
        if version >= OLDEST_WITH_SDK:
            return ok(f"{what}, without the IPU Model")
        supported = "3.8 or newer"
    elif OLDEST_WITH_IPU_MODEL <= version <= NEWEST_WITH_IPU_MODEL:
        return ok(what)
    else:
        supported = "{}.{} to {}.{}".format(*OLDEST_WITH_IPU_MODEL, *NEWEST_WITH_IPU_MODEL)
    return problem(
        what,
        f"the course is made for Python {supported}",
        "install such a Python and make the environment with it: make setup PYTHON=/path/to/python3",
    )
