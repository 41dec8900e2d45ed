"""`popdist.poptorch.Options` (data reference, section 5.3)."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest
from test_popdist_environment import EXAMPLE

import popdist.poptorch
import poptorch


@pytest.fixture(params=[True, False], ids=["poprun", "alone"])
def under_poprun(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    for name, value in EXAMPLE.items():
        if request.param:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)
    return bool(request.param)


def test_replicas_and_processes_come_from_the_run(under_poprun: bool) -> None:
    options = popdist.poptorch.Options()
    assert isinstance(options, poptorch.Options)
    found = (options.replication_factor, options.Distributed.processId, options.Distributed.numProcesses)
    assert found == ((2, 3, 4) if under_poprun else (1, 0, 1))


BLOCKED: dict[str, Callable[[poptorch.Options], object]] = {
    "useIpuId": lambda o: o.useIpuId(1),
    "replicationFactor": lambda o: o.replicationFactor(2),
    "Distributed.disable": lambda o: o.Distributed.disable(),
    "Distributed.setEnvVarNames": lambda o: o.Distributed.setEnvVarNames("A", "B"),
    # It is refused before its arguments are counted.
    "Distributed.configureProcessId": lambda o: o.Distributed.configureProcessId(1),
}


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.usefixtures("under_poprun")
def test_what_poprun_decides_on_cannot_be_changed(name: str) -> None:
    message = re.escape(f"Cannot call `{name}` with popdist.poptorch.Options")
    for options in (popdist.poptorch.Options(), popdist.poptorch.Options().clone()):
        with pytest.raises(RuntimeError, match=message):
            BLOCKED[name](options)


def test_everything_else_is_as_with_plain_options(under_poprun: bool) -> None:
    options = popdist.poptorch.Options().deviceIterations(3).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(4)
    options.Precision.enableStochasticRounding(True)
    plain = poptorch.Options().deviceIterations(3).outputMode(poptorch.OutputMode.All)
    plain.Training.gradientAccumulation(4)
    plain.Precision.enableStochasticRounding(True)
    plain.replicationFactor(2 if under_poprun else 1)
    found = options.showCompilationProgressBar(False).toDict()
    assert found.pop("ipu_id") == (12 if under_poprun else 0)
    assert found == plain.showCompilationProgressBar(False).toDict()


@pytest.mark.usefixtures("under_poprun")
def test_the_device_is_chosen_for_frozen_options_too_and_leaves_them_frozen() -> None:
    options = popdist.poptorch.Options().outputMode(poptorch.OutputMode.All)
    poptorch.DataLoader(options, list(range(64)))
    assert "ipu_id" in options.toDict()
    with pytest.raises(AttributeError, match="frozen"):
        options.deviceIterations(2)
    assert options.clone().deviceIterations(2).device_iterations == 2
    assert copy.copy(options).replication_factor == options.replication_factor


def test_the_number_of_ipus_must_be_the_one_that_poprun_was_told(under_poprun: bool) -> None:
    for options in (popdist.poptorch.Options(2), popdist.poptorch.Options(ipus_per_replica=2)):
        assert options.replication_factor == (2 if under_poprun else 1)
    if under_poprun:
        with pytest.raises(poptorch.Error, match=r"ipus_per_replica=4.*--ipus-per-replica 2"):
            popdist.poptorch.Options(4)
