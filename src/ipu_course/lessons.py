"""The list of lessons, for what needs it without the notebooks; a test compares the two."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lesson:
    """One lesson: ``number`` as in ``Lesson("02")``, ``slug`` as in its file's name, title and count of exercises."""

    number: str
    slug: str
    title: str
    exercises: int

    @property
    def notebook(self) -> str:
        """The notebook's file name."""
        return f"{self.number}_{self.slug}.ipynb"


LESSONS = (
    Lesson("00", "start_here", "Start here: an IPU in ten minutes", 2),
    Lesson("01", "half_precision", "Half precision", 2),
    Lesson("02", "gradient_accumulation", "Gradient accumulation: many micro-batches, one weight update", 3),
    Lesson("03", "device_iterations", "Device iterations: let the loop run on the device", 3),
    Lesson("04", "eight_bit_io", "8-bit I/O: send bytes, normalise on the device", 3),
    Lesson("05", "async_data_loading", "Asynchronous data loading: load while the IPUs work", 3),
    Lesson("06", "pipelining_mnist", "Pipelining: one network on several IPUs", 2),
    Lesson("07", "sharded_debugging", "Sharded debugging", 2),
    Lesson("08", "optimiser_offload", "Optimiser state: on the chip or off it", 3),
    Lesson("09", "cnn_benchmarks", "CNN benchmarks: read a table of throughputs", 3),
    Lesson("10", "data_parallelism", "Data parallelism: many replicas, many processes", 3),
)
"""In reading order."""
