"""Other ways to load a program's data, which belong to the host and are not options of the program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ipu_model.predict.host import HostWork, Loading


@dataclass(frozen=True)
class OtherLoader:
    """Another loader for the same data: the host's work with it, what it changes, its line of code and its effect."""

    host: HostWork
    change: str
    line: str
    explanation: str


def other_loaders(host: HostWork) -> Iterator[OtherLoader]:
    """Yield loaders that may be faster, that without further processes first; none for data that cost nothing."""
    if host.seconds_per_sample <= 0:
        return
    if host.loading is Loading.SYNC:
        yield OtherLoader(
            replace(host, loading=Loading.ASYNC),
            "asynchronous data loading",
            "poptorch.DataLoader(..., mode=poptorch.DataLoaderMode.Async)",
            "The host loads the next batch while the device works, so only the slower of the two limits throughput.",
        )
    more = 4 if host.workers < 2 else host.workers * 2
    yield OtherLoader(
        replace(host, workers=more, loading=Loading.ASYNC),
        f"loader workers: {host.workers} -> {more}",
        f"poptorch.DataLoader(..., mode=poptorch.DataLoaderMode.Async, num_workers={more})",
        _on_cores(more, host.cores_per_host),
    )


def _on_cores(processes: int, cores: int) -> str:
    """Say what limits processes that load on so many cores, 0 for as many as there are processes."""
    shared = f"{processes} processes share the loading."
    if cores and cores < processes:
        counted = "1 core" if cores == 1 else f"{cores} cores"
        return f"{shared} The effect counts with {counted}; a host with a free core for each process loads faster."
    return f"{shared} The host needs that many free cores."
