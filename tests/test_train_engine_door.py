"""``ipu_course.engine``: the only way from the course to the IPU Model, and what it does where there is none."""

from __future__ import annotations

import ast
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
import torch

import ipu_course
import poptorch
from ipu_course import engine

COURSE = Path(str(ipu_course.__file__)).parent


def imported(file: Path) -> set[str]:
    """The first parts of all absolute imports in a file, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_only_the_door_and_the_figures_behind_it_know_the_engine() -> None:
    code = (file for file in COURSE.rglob("*.py") if not file.name.startswith("test_"))
    texts = {file.relative_to(COURSE).as_posix(): file.read_text(encoding="utf-8") for file in code}
    users = {name for name in texts if "ipu_model" in imported(COURSE / name)}
    assert users == {"engine.py", "figures/profiles.py"}
    assert {name for name, text in texts.items() if "figures.profiles import" in text} == {"engine.py"}


def test_the_door_imports_nothing_of_it_before_it_is_asked() -> None:
    tree = ast.parse((COURSE / "engine.py").read_text(encoding="utf-8"))
    at_once = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not any("ipu_model" in ast.unparse(node) for node in at_once)


def test_the_folder_of_the_distribution_in_a_clone_is_no_ipu_model(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an SDK machine, a program that is started in the root of a clone finds the folder ipu_model/ there."""
    found = PathFinder.find_spec("ipu_model", [str(project)])
    assert found is not None
    monkeypatch.setattr(engine, "find_spec", lambda name: found)
    assert not engine.is_available()


def test_without_an_ipu_model_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    module = torch.nn.Linear(2, 2)
    model = poptorch.inferenceModel(module)
    assert not engine.is_available()
    assert engine.host_work(0.1, 0.1, False, 0, "nowhere") is engine.NOT_MODELLED
    assert engine.profile(model) is engine.NOT_MODELLED
    assert engine.profile_module(module, (torch.zeros(1, 2),), poptorch.Options()) is engine.NOT_MODELLED


@pytest.mark.parametrize(("asynchronous", "loading"), [(False, "sync"), (True, "async")])
def test_host_work_is_handed_over(asynchronous: bool, loading: str) -> None:
    host = engine.host_work(0.001, 0.02, asynchronous, 3, "a test")
    assert host is not None
    assert (host.seconds_per_sample, host.seconds_per_call, host.workers) == (0.001, 0.02, 3)
    assert (host.loading.value, host.source) == (loading, "a test")


def test_a_module_and_its_executor_have_the_same_profile() -> None:
    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 4)

        def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(torch.nn.functional.cross_entropy(self.layer(images), labels), "none")

    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    options.Training.gradientAccumulation(3)
    images, labels = torch.rand(8, 16), torch.zeros(8, dtype=torch.int64)
    host = engine.host_work(0.001, 0.0, False, 0, "a test")
    module = Loss()
    optimiser = poptorch.optim.SGD(module.parameters(), lr=0.1)
    before = engine.profile_module(module, (images, labels), options, optimizer=optimiser, host=host)
    model = poptorch.trainingModel(module, options, optimizer=optimiser)
    model(images.repeat(3, 1), labels.repeat(3))
    after = engine.profile(model, host)
    assert before is not None
    assert after is not None
    assert before.samples_per_call == after.samples_per_call == 24
    assert before.call_seconds == after.call_seconds
    # 24 samples of 1 ms, loaded before the device starts.
    assert after.call_seconds > 0.024
    assert "24" in engine.text_report(after)
