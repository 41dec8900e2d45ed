"""The executable cache in one folder for several processes and threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from saving_support import Mixed, X, options

import poptorch
from poptorch._backend.saving.cache import recalled


class TestSharing:
    def test_another_process_takes_the_program_of_the_first(self, tmp_path: Path) -> None:
        program = (
            "import sys, poptorch\n"
            "from saving_support import *\n"
            "with counted_traces() as traced:\n"
            "    poptorch.inferenceModel(Mixed(), options(sys.argv[1])).compile(X)\n"
            "print(len(traced))\n"
        )
        poptorch.inferenceModel(Mixed(), options(tmp_path)).compile(X)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
        other = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
        )
        assert other.stdout.strip() == "0", other.stderr

    @pytest.mark.skipif(sys.platform == "win32", reason="no file locks: both may trace, and write the same file")
    def test_who_comes_second_waits_for_the_first(self, tmp_path: Path) -> None:
        executor = poptorch.inferenceModel(Mixed(), options())
        executor.compile(X)
        graph = executor._captured
        assert graph is not None
        order: list[str] = []
        tracing, released = threading.Event(), threading.Event()

        def slow() -> Any:
            order.append("first traces")
            tracing.set()
            released.wait(10)
            return graph

        first = threading.Thread(target=recalled, args=(tmp_path, "key", slow))
        second = threading.Thread(target=recalled, args=(tmp_path, "key", lambda: order.append("second traces")))
        first.start()
        assert tracing.wait(10)
        second.start()
        second.join(0.1)
        assert second.is_alive()
        released.set()
        first.join(10)
        second.join(10)
        assert order == ["first traces"]

    def test_each_of_many_that_fail_gets_its_turn(self, tmp_path: Path) -> None:
        """The file of a lock goes with its holder, and those that wait for it try again: never two at a time."""
        inside, most = [0], [0]
        guard = threading.Lock()

        def failing() -> Any:
            with guard:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            released.wait(0.01)
            with guard:
                inside[0] -= 1
            raise poptorch.Error("no program")

        def attempt() -> None:
            with pytest.raises(poptorch.Error):
                recalled(tmp_path, "key", failing)

        released = threading.Event()
        threads = [threading.Thread(target=attempt) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert most == [1]
        assert list(tmp_path.iterdir()) == []
