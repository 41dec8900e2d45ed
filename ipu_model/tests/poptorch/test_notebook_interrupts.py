"""The stop button of a notebook: a cell that trains or compiles ends, and the next cell goes on."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

manager = pytest.importorskip("jupyter_client.manager")

SETUP = """
import poptorch, torch
from executor_support import Net, X, Y, training, inference
from loading_datasets import Numbers

model = Net()
executor = training(model)
executor(X, Y)
loader = poptorch.DataLoader(poptorch.Options(), Numbers(40), batch_size=4, mode=poptorch.DataLoaderMode.Async,
                             async_options={"sharing_strategy": poptorch.SharingStrategy.Fork})
class Endless(Net):
    def forward(self, x):
        print("tracing", flush=True)
        while True:
            x = x + 1
"""
TRAINING = """
print("started", flush=True)
while True:
    for item in loader:
        executor(X, Y)
"""
AFTER = """
first = float(executor(X, Y)[1])
for _ in range(20):
    last = float(executor(X, Y)[1])
try:
    rows = sum(len(item) for item in loader)
except AssertionError as error:
    rows = "create a new loader" in str(error)
print(last < first, rows in (True, 40), torch.isfinite(model.first.weight).all().item())
"""
COMPILING = 'print("started", flush=True)\ninference(Endless())(X)'
TIMEOUT_IN_S = 120


class Notebook:
    """Runs cells in a kernel and presses its stop button."""

    def __init__(self, kernel: Any, client: Any) -> None:
        self.kernel, self.client = kernel, client

    def run(self, code: str, stop_at: str | None = None) -> str:
        """Return what a cell prints, or the name of its error; stop it when it has printed `stop_at`."""
        self.client.execute(code)
        printed = ""
        end = time.monotonic() + TIMEOUT_IN_S
        while time.monotonic() < end:
            message = self.client.get_iopub_msg(timeout=TIMEOUT_IN_S)
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
                if stop_at is not None and stop_at in printed:
                    stop_at = None
                    self.kernel.interrupt_kernel()
            elif message["msg_type"] == "error":
                printed += content["ename"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return printed
        raise TimeoutError(printed)


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    kernel, client = manager.start_new_kernel(kernel_name="python3", env=environment, startup_timeout=TIMEOUT_IN_S)
    try:
        found = Notebook(kernel, client)
        assert "Error" not in found.run(SETUP)
        yield found
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


@pytest.mark.parametrize(("cell", "stop_at"), [(TRAINING, "started"), (COMPILING, "tracing")], ids=["step", "compile"])
def test_the_next_cell_works_after_an_interrupt(notebook: Notebook, cell: str, stop_at: str) -> None:
    assert "KeyboardInterrupt" in notebook.run(cell, stop_at)
    assert notebook.run(AFTER).split()[-3:] == ["True", "True", "True"]
