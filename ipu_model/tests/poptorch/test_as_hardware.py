"""`IPU_MODEL_AS_HARDWARE=1`: queries describe the modelled system, and a line on stderr says that it is a model."""

from __future__ import annotations

import subprocess
import sys

import pytest
from executor_support import Net, X, inference

import poptorch
from poptorch import poptorch_core


@pytest.fixture
def as_if(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    poptorch_core._print_notice.cache_clear()
    monkeypatch.setenv("IPU_MODEL_AS_HARDWARE", "1")
    return monkeypatch


@pytest.mark.parametrize("value", ["", "0"])
def test_by_default_there_is_no_hardware(value: str, as_if: pytest.MonkeyPatch) -> None:
    as_if.setenv("IPU_MODEL_AS_HARDWARE", value)
    assert poptorch.ipuHardwareIsAvailable() is False
    assert poptorch.ipuHardwareIsAvailable(num_ipus=4) is False
    with pytest.raises(AssertionError, match="No IPU hardware available"):
        poptorch.ipuHardwareVersion()


@pytest.mark.parametrize(
    ("machine", "ipus", "version"),
    [("POD16", 16, 2), ("Bow-POD64", 64, 2), ("C600", 8, 21)],
)
def test_there_are_as_many_ipus_as_in_the_modelled_system(
    machine: str, ipus: int, version: int, as_if: pytest.MonkeyPatch
) -> None:
    """Versions: options reference, section 3.5; a Bow IPU is a Mk2 IPU to PopTorch."""
    as_if.setenv("IPU_MODEL_MACHINE", machine)
    assert poptorch.ipuHardwareIsAvailable()
    assert poptorch.ipuHardwareIsAvailable(ipus)
    assert not poptorch.ipuHardwareIsAvailable(ipus + 1)
    assert poptorch.ipuHardwareVersion() == version


def test_without_a_machine_there_is_one_of_every_size(as_if: pytest.MonkeyPatch) -> None:
    """Programs are then modelled on the smallest system of GC200 chips that has room; the largest has 256."""
    assert poptorch.ipuHardwareIsAvailable(256)
    assert not poptorch.ipuHardwareIsAvailable(257)
    assert poptorch.ipuHardwareVersion() == 2


def test_a_machine_that_does_not_exist_is_an_error(as_if: pytest.MonkeyPatch) -> None:
    as_if.setenv("IPU_MODEL_MACHINE", "POD3")
    with pytest.raises(poptorch.Error, match="POD3"):
        poptorch.ipuHardwareIsAvailable()


@pytest.mark.parametrize("name", ["POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"])
def test_a_simulator_hides_the_hardware(name: str, as_if: pytest.MonkeyPatch) -> None:
    """Execution reference: always False when a simulator's variable is active."""
    as_if.setenv(name, "1")
    assert not poptorch.ipuHardwareIsAvailable()
    with pytest.raises(AssertionError, match="No IPU hardware available"):
        poptorch.ipuHardwareVersion()


def test_one_line_on_stderr_says_that_this_is_the_ipu_model(as_if: pytest.MonkeyPatch) -> None:
    program = "import poptorch; print(*[poptorch.ipuHardwareIsAvailable() for _ in range(3)])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "True True True\n"
    assert done.stderr.count("\n") == 1
    assert "this is the IPU Model" in done.stderr


def test_the_executable_exists_once_the_model_is_compiled() -> None:
    """With the variable or without: PyTorch Lightning asks whether it is None."""
    executor = inference(Net())
    assert executor._executable is None
    executor(X)
    assert executor._executable is not None
    executor.destroy()
    assert executor._executable is None
