"""Rules on the device that a program asks for. Here every program runs on the IPU Model, a simulator."""

from __future__ import annotations

import logging
import os

from poptorch._errors import createPoptorchError
from poptorch._logging import native_logger
from poptorch.enums import ConnectionType
from poptorch.options import Options

_logger = logging.getLogger("poptorch::python")

_VERSIONS = ("ipu1", "ipu2", "ipu21")


def check_target(options: Options) -> None:
    """Refuse what a simulator or an offline target cannot do, and warn of what has no effect on them.

    Raises:
        Error: names the option and what works instead.
    """
    offline = options.connection_type == ConnectionType.Never
    if _simulator_asked_for(options):
        _check_version()
        if offline:
            raise createPoptorchError(
                "The IPU model cannot be an offline target: useIpuModel(True), or POPTORCH_IPU_MODEL, "
                "excludes connectionType(Never) and useOfflineIpuTarget(). Use one of the two."
            )
    if offline and options.exists("ipu_id"):
        raise createPoptorchError(
            f"useIpuId({options.ipu_id}) chooses a device, an offline target (connectionType(Never), "
            "useOfflineIpuTarget()) has none. Use one of the two."
        )
    if offline and options._Popart.options.get("instrumentWithHardwareCycleCounter"):
        raise createPoptorchError(
            "logCycleCount: the cycle counter is only supported on actual IPU hardware and on the IPU Model, and an "
            "offline target does not run. Leave it off: ipu_model.profile(executor) has the modelled cycles."
        )
    _warn_of_no_effect(options)


def _simulator_asked_for(options: Options) -> bool:
    """Return whether options or environment name the simulator, saying so in the log."""
    if options.exists("use_model"):
        native_logger.info("From the user configuration: Ipu model: %s", _enabled(options.use_model))
        return bool(options.use_model)
    for name in ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"):
        if os.environ.get(name):
            chosen = _as_int(name) != 0
            native_logger.info("From %s environment variable: Ipu model: %s", name, _enabled(chosen))
            if chosen:
                return True
    return False


def _enabled(chosen: bool) -> str:
    return "Enabled" if chosen else "Disabled"


def _as_int(name: str) -> int:
    text = os.environ[name]
    try:
        return int(text)
    except ValueError:
        raise createPoptorchError(f"{name} must be an integer, not {text!r}. Use 1 or 0.") from None


def _check_version() -> None:
    version = os.environ.get("POPTORCH_IPU_MODEL_VERSION", "ipu2")
    if version not in _VERSIONS:
        raise createPoptorchError(f"POPTORCH_IPU_MODEL_VERSION must be one of {', '.join(_VERSIONS)}, not {version!r}.")


def _warn_of_no_effect(options: Options) -> None:
    popart = options._Popart.options
    cached = bool(popart.get("enableEngineCaching") and popart.get("cachePath"))
    processes = options.Distributed.numProcesses
    if processes > 1 and not cached:
        _logger.warning(
            "%d processes and no executable cache: every process compiles the model. "
            "poptorch.Options().enableExecutableCaching(path) lets one compile for all.", processes,
        )  # fmt: skip
    if processes > 1 and cached:
        folder = popart["cachePath"]
        os.makedirs(folder, exist_ok=True)
        assert os.access(folder, os.W_OK), f"The folder of the executable cache, {folder}, is not writable."
