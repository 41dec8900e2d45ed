"""The course's one door to the IPU Model's engine: modelled profiles, where there is an IPU Model.

On a machine with Graphcore's SDK there is none, and every function here gives ``None``: programs then show
what they measure, and nothing modelled.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    import torch

    import poptorch
    from ipu_model.host_work import HostWork
    from ipu_model.profiling.data import Profile

__all__ = ["HostWork", "Profile", "host_work", "is_available", "profile", "profile_module", "text_report"]


def is_available() -> bool:
    """Whether the IPU Model is installed."""
    return find_spec("ipu_model") is not None


def host_work(
    seconds_per_sample: float,
    seconds_per_call: float,
    asynchronous: bool,
    workers: int,
    source: str,
) -> HostWork | None:
    """What the program itself does on the host; ``source`` says where the two times, in seconds, are from.

    ``asynchronous`` loading runs while the IPUs work; ``workers`` of 0 means the program itself loads.
    """
    if not is_available():
        return None
    from ipu_model.host_work import HostWork, Loading

    return HostWork(
        seconds_per_sample=seconds_per_sample,
        seconds_per_call=seconds_per_call,
        loading=Loading.ASYNC if asynchronous else Loading.SYNC,
        workers=workers,
        source=source,
    )


def profile(model: poptorch.PoplarExecutor, host: HostWork | None = None) -> Profile | None:
    """The modelled profile of one call of a compiled ``model``.

    Raises ``poptorch.Error`` when the engine cannot model it.
    """
    if not is_available():
        return None
    import ipu_model

    return ipu_model.profile(model, host=host)


def profile_module(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    options: poptorch.Options,
    optimizer: torch.optim.Optimizer | None = None,
    host: HostWork | None = None,
) -> Profile | None:
    """The modelled profile of one call of a module that is not wrapped yet; ``inputs`` are one micro-batch.

    With an ``optimizer`` it is a training call. Raises ``poptorch.Error`` when the engine cannot model it.
    """
    if not is_available():
        return None
    import ipu_model

    return ipu_model.profile_module(module, inputs, options, optimizer=optimizer, host=host, micro_batch=True)


def text_report(of: Profile) -> str:
    """The profile as a text to print."""
    from ipu_model.report.text import text_report as engine_report

    return engine_report(of)
