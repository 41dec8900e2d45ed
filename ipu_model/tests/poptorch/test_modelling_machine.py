"""Which machine a program is modelled on, and what queries for hardware say of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from executor_support import Net, X, inference, quiet
from modelling_support import Chain, inferred

import poptorch
from ipu_model.front_ends import program_behind
from ipu_model.predict.hardware import system_named
from ipu_model.predict.program import Program
from poptorch import poptorch_core
from poptorch._backend.modelling import machine_for

MACHINE, VERSION, AS_HARDWARE = "IPU_MODEL_MACHINE", "POPTORCH_IPU_MODEL_VERSION", "IPU_MODEL_AS_HARDWARE"


@pytest.fixture(autouse=True)
def _no_choice_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (MACHINE, VERSION, AS_HARDWARE):
        monkeypatch.delenv(name, raising=False)


def program(replicas: int = 1, version: int | None = None, machine: Any = None) -> Program:
    """Return a program of `replicas` IPUs, for an offline target of this version if there is one."""
    options = quiet() if version is None else quiet().useOfflineIpuTarget(version)
    return inferred(options.replicationFactor(replicas), ipus=1, machine=machine)


@pytest.mark.parametrize(
    ("ipus", "name"), [(1, "M2000"), (4, "M2000"), (5, "POD16"), (17, "POD64"), (65, "POD128"), (256, "POD256")]
)
def test_the_default_is_the_smallest_gc200_system_with_enough_ipus(ipus: int, name: str) -> None:
    assert machine_for(poptorch.Options(), ipus).name == name


class TestVersions:
    @pytest.mark.parametrize(("version", "chip"), [(1, "GC2"), (2, "GC200"), (21, "C600")])
    def test_an_offline_target_names_the_chip(self, version: int, chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """So does the variable of PopTorch's simulator, unless a target is named."""
        assert program(version=version).system.chip.name == chip
        monkeypatch.setenv(VERSION, f"ipu{version}")
        assert program().system.chip.name == chip
        assert program(version=2).system.chip.name == "GC200"


@pytest.mark.parametrize(
    ("named", "replicas", "version", "system"),
    [
        ("POD16", 1, None, "POD16"),
        ("pod-16", 1, None, "POD16"),
        ("Bow-POD16", 1, None, "Bow-POD16"),
        # a chip stands for its smallest system with enough IPUs
        ("Bow", 1, None, "Bow-2000"),
        ("Bow", 9, None, "Bow-POD16"),
        ("GC-200", 9, None, "POD16"),
        # an offline target of another chip wins; Bow IPUs are version 2
        ("POD64", 1, 21, "C600-server"),
        ("POD64", 1, 2, "POD64"),
        ("Bow-POD16", 1, 2, "Bow-POD16"),
    ],
)
def test_the_environment_names_the_machine(
    named: str, replicas: int, version: int | None, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MACHINE, named)
    modelled = program(replicas, version)
    assert modelled.system.name == system
    assert modelled.settings.device.chip == modelled.system.chip


def test_an_argument_wins_over_everything_and_may_be_a_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MACHINE, "POD16")
    monkeypatch.setenv(VERSION, "ipu1")
    assert program(version=21, machine="POD64").system.name == "POD64"
    assert program(machine=system_named("POD128")).system is system_named("POD128")


def test_an_executor_does_not_compile_for_one_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Chain(1), torch.ones(8, 8)
    executor = poptorch.trainingModel(model, quiet().replicationFactor(8))
    monkeypatch.setenv(MACHINE, "M2000")
    with pytest.raises(poptorch.Error, match="needs 8 IPUs, but M2000"):
        executor.compile(x, x)
    assert type(model) is Chain
    monkeypatch.setenv(MACHINE, "POD16")
    executor.compile(x, x)
    assert program_behind(executor).system.name == "POD16"


NO_TEXT = "named by a text such as 'POD16' or 'Bow', or it is"


@pytest.mark.parametrize(
    ("environment", "asked", "message"),
    [
        (None, {"replicas": 257}, r"No system has 257 IPUs.*POD256"),
        ("Bow-2000", {"replicas": 6}, f"needs 6 IPUs, but Bow-2000, which .*{MACHINE}.* has 4.*Bow-POD16"),
        ("POD7", {}, r"no machine 'POD7'.*POD16"),
        (
            None,
            {"replicas": 5, "machine": "M2000"},
            r"needs 5 IPUs, but M2000, which the argument machine names.*POD16",
        ),
        (None, {"version": 3}, r"no IPU version 3 .*1 \(GC2\), 2 \(GC200\), 21 \(C600\)"),
        *((None, {"machine": wanted}, NO_TEXT) for wanted in (16, b"POD16", ["POD16"], system_named("Bow").chip)),
    ],
)
def test_what_cannot_be_is_refused_with_the_nearest_that_fits(
    environment: str | None, asked: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment is not None:
        monkeypatch.setenv(MACHINE, environment)
    with pytest.raises(poptorch.Error, match=message):
        program(**asked)


class TestReservedIpus:
    def test_rounding_up_occupies_idle_ipus(self) -> None:
        """Those of every process."""
        rounded = inferred(quiet().autoRoundNumIPUs(True).deviceIterations(5), ipus=5)
        assert (rounded.reserved_ipus, rounded.ipus_per_replica) == (8, 5)
        options = quiet().autoRoundNumIPUs(True).replicationFactor(3)
        options.Distributed.configureProcessId(0, 5)
        rounded = inferred(options, ipus=1)
        assert (rounded.reserved_ipus, rounded.system.name) == (20, "POD64")
        assert program(replicas=3).reserved_ipus is None  # without it, used ones count


class TestAsHardware:
    """`IPU_MODEL_AS_HARDWARE=1`: queries describe the modelled system, and a line on stderr says that it is a model."""

    @pytest.fixture
    def as_if(self, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
        poptorch_core._print_notice.cache_clear()
        monkeypatch.setenv(AS_HARDWARE, "1")
        return monkeypatch

    @pytest.mark.parametrize(
        ("name", "value"),
        # Execution reference: always False when a simulator's variable is active.
        [(AS_HARDWARE, ""), (AS_HARDWARE, "0"), ("POPTORCH_IPU_MODEL", "1"), ("POPTORCH_SMALL_IPU_MODEL", "1")],
    )
    def test_by_default_there_is_no_hardware(self, name: str, value: str, as_if: pytest.MonkeyPatch) -> None:
        as_if.setenv(name, value)
        assert poptorch.ipuHardwareIsAvailable() is False
        assert poptorch.ipuHardwareIsAvailable(num_ipus=4) is False
        with pytest.raises(AssertionError, match="No IPU hardware available"):
            poptorch.ipuHardwareVersion()

    @pytest.mark.parametrize(
        ("machine", "ipus", "version"),
        # Without a machine, the largest system of GC200 chips. A Bow IPU is a Mk2 IPU (options reference, 3.5).
        [("", 256, 2), ("POD16", 16, 2), ("Bow-POD64", 64, 2), ("C600", 8, 21)],
    )
    def test_there_are_as_many_ipus_as_in_the_modelled_system(
        self, machine: str, ipus: int, version: int, as_if: pytest.MonkeyPatch
    ) -> None:
        as_if.setenv(MACHINE, machine)
        assert poptorch.ipuHardwareIsAvailable()
        assert poptorch.ipuHardwareIsAvailable(ipus)
        assert not poptorch.ipuHardwareIsAvailable(ipus + 1)
        assert poptorch.ipuHardwareVersion() == version
        as_if.setenv(MACHINE, "POD3")
        with pytest.raises(poptorch.Error, match="POD3"):
            poptorch.ipuHardwareIsAvailable()

    def test_one_line_on_stderr_says_that_this_is_the_ipu_model(self, as_if: pytest.MonkeyPatch) -> None:
        code = "import poptorch; print(*[poptorch.ipuHardwareIsAvailable() for _ in range(3)])"
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert done.stdout == "True True True\n"
        assert done.stderr.count("\n") == 1
        assert "this is the IPU Model" in done.stderr


def test_the_executable_exists_once_the_model_is_compiled() -> None:
    """PyTorch Lightning asks whether it is None."""
    executor = inference(Net())
    assert executor._executable is None
    executor(X)
    assert executor._executable is not None
    executor.destroy()
    assert executor._executable is None
