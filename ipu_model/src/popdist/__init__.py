"""PopDist for any CPU: what a program started by `poprun` asks about its run, and how its instances work together."""

from popdist.environment import *  # noqa: F403
from popdist.environment import __all__ as __all__
