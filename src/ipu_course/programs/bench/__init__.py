"""The benchmark page's configurations: modelled throughput, latency and memory of CNNs on IPUs.

Importing this package needs neither torch nor PopTorch; modelling does.
"""

from __future__ import annotations

from ipu_course.programs.bench.page import (
    all_configurations,
    benchmark_page,
    changed,
    configuration,
    settings_of_model,
)
from ipu_course.programs.bench.report import rows
from ipu_course.programs.bench.results import Result, modelled_result, page_results, sweep

__all__ = [
    "Result",
    "all_configurations",
    "benchmark_page",
    "changed",
    "configuration",
    "modelled_result",
    "page_results",
    "rows",
    "settings_of_model",
    "sweep",
]
