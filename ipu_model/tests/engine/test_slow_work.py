"""What takes long says so on a terminal, and only there."""

from __future__ import annotations

import io
import sys
import time

import pytest

from ipu_model.sources import said_if_slow


class Terminal(io.StringIO):
    """An error output that is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, output: io.StringIO, *, patience: float, until: str = "") -> str:
    """Work with that error output until it shows some words, and return all that it has shown."""
    monkeypatch.setattr(sys, "stderr", output)
    with said_if_slow("timing the loader", patience=patience):
        for _ in range(1000):
            if until in output.getvalue():
                break
            time.sleep(0.01)
    return output.getvalue()


def test_slow_work_is_named_and_its_line_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal(), patience=0.01, until="timing the loader: 0 s")
    assert text.startswith("\rtiming the loader: 0 s")
    last = text.split("\r")[-2]
    assert text.endswith(f"\r{last}\r")
    assert last.isspace()


def test_quick_work_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Terminal(), patience=1000.0) == ""


def test_nothing_is_written_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, io.StringIO(), patience=0.0) == ""
