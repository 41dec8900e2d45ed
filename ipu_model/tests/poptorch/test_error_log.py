"""Very long errors of a compilation (options reference, section 12.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from function_models import on_device

import poptorch


def compiled(lines: int) -> poptorch.Error:
    """Return the error of a compilation whose message has that many lines."""

    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        raise poptorch.createPoptorchError("\n".join(["What broke", *(f"detail {n}" for n in range(1, lines))]))

    with pytest.raises(poptorch.Error) as caught:
        on_device(forward)(torch.zeros(1, 4))
    return caught.value


def test_a_message_of_more_than_80_line_ends_goes_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = compiled(82)
    assert error.message == "What broke (the whole message is in poptorch_error.log)"
    assert str(error) == f"'poptorch_py_error': {error.message}"
    written = (tmp_path / "poptorch_error.log").read_text(encoding="utf-8")
    assert written.startswith("'poptorch_py_error': What broke\ndetail 1\n")
    assert written.endswith("detail 81\n")


def test_a_shorter_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert compiled(81).message.endswith("\ndetail 80")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_leaves_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poptorch_error.log").mkdir()
    monkeypatch.chdir(tmp_path)
    assert compiled(82).message.endswith("\ndetail 81")
