"""save, compileAndExport, load and loadExecutable: the same results as without a file, and which files are refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from saving_support import Mixed, X, Y, all_equal, options, steps, training
from torch import Tensor, nn

import poptorch
from poptorch import _poptorch_data


class TestLoad:
    def test_training_goes_on_as_if_it_had_not_been_interrupted(self, tmp_path: Path) -> None:
        executor = training()
        steps(executor, 2)
        executor.save(tmp_path / "model.poptorch")
        loaded = poptorch.load(tmp_path / "model.poptorch")
        assert loaded.isCompiled()
        assert loaded.isAttachedToDevice()
        assert all_equal(steps(loaded, 2), steps(executor, 2))

    def test_an_inference_model_comes_back_with_its_weights(self, tmp_path: Path) -> None:
        executor = poptorch.inferenceModel(Mixed().eval(), options())
        executor.compileAndExport(tmp_path / "model.poptorch", X)
        loaded = poptorch.load(tmp_path / "model.poptorch")
        assert torch.equal(loaded(X)[0], executor(X)[0])

    def test_the_random_state_is_kept_if_asked_for(self, tmp_path: Path) -> None:
        executor = training()
        steps(executor, 1)
        executor.save(tmp_path / "kept", save_rng_state=True)
        executor.save(tmp_path / "not", save_rng_state=False)
        state = executor.rng_state
        assert poptorch.load(tmp_path / "kept").rng_state == state
        assert poptorch.load(tmp_path / "not").rng_state == [11]

    def test_an_offline_target_is_attached_when_loaded(self, tmp_path: Path) -> None:
        offline = options().connectionType(poptorch.ConnectionType.Never)
        executor = poptorch.inferenceModel(Mixed().eval(), offline)
        executor.compileAndExport(tmp_path / "model", X)
        loaded = poptorch.load(tmp_path / "model")
        assert loaded.options.connection_type == poptorch.ConnectionType.Always
        assert torch.equal(loaded(X)[0], poptorch.inferenceModel(executor.model, options())(X)[0])

    def test_options_can_be_edited_unless_the_program_depends_on_them(self, tmp_path: Path) -> None:
        poptorch.inferenceModel(Mixed(), options()).compileAndExport(tmp_path / "model", X)
        loaded = poptorch.load(tmp_path / "model", lambda own: own.logDir("elsewhere"))
        assert loaded.options.log_dir == "elsewhere"
        with pytest.raises(poptorch.Error, match=r"Invalid file .*device_iterations is 2, in the file 1"):
            poptorch.load(tmp_path / "model", lambda own: own.deviceIterations(2))

    def test_a_module_that_was_trained_before_is_loaded_unwrapped(self, tmp_path: Path) -> None:
        executor = training()
        executor.compileAndExport(tmp_path / "model", X, Y)
        loaded = poptorch.load(tmp_path / "model")
        assert type(loaded.model).__name__ == "PoptorchMixed"
        loaded.destroy()
        assert type(loaded.model) is Mixed


class TestLoadExecutable:
    def test_it_uses_the_weights_of_the_host(self, tmp_path: Path) -> None:
        training().compileAndExport(tmp_path / "model", X, Y)
        own, same = Mixed(), Mixed()
        same.load_state_dict(own.state_dict())
        fresh = training(model=own)
        fresh.loadExecutable(tmp_path / "model")
        assert all_equal(steps(fresh, 2), steps(training(model=same), 2))

    def test_results_are_those_of_a_model_that_was_traced(self, tmp_path: Path) -> None:
        training().compileAndExport(tmp_path / "model", X, Y, export_model=False)
        fresh = training()
        fresh.loadExecutable(tmp_path / "model")
        assert all_equal(steps(fresh, 2), steps(training(), 2))

    def test_a_compiled_model_is_not_overwritten(self, tmp_path: Path) -> None:
        executor = training()
        executor.compileAndExport(tmp_path / "model", X, Y)
        with pytest.raises(poptorch.Error, match="compiled already"):
            executor.loadExecutable(tmp_path / "model")

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            (lambda: training(model=Mixed(5)), r"weights are others: first.weight \[5, 4\] .* first.weight \[4, 4\]"),
            (lambda: poptorch.inferenceModel(Mixed(), options()), "compiled by poptorch.trainingModel"),
            (lambda: training(own=options().deviceIterations(2)), "device_iterations is 2, in the file 1"),
            (lambda: training(own=_accumulating(2)), "gradient_accumulation is 2, in the file 1"),
            (lambda: training(model=_scaled(0.25)), "compiled from another model"),
        ],
        ids=["weights", "kind", "options", "accumulation", "attributes"],
    )
    def test_another_model_is_refused_by_what_differs(
        self, other: Callable[[], poptorch.PoplarExecutor], words: str, tmp_path: Path
    ) -> None:
        training().compileAndExport(tmp_path / "model", X, Y, export_model=False)
        executor = other()
        with pytest.raises(poptorch.Error, match=f"Invalid file .*{words}"):
            executor.loadExecutable(tmp_path / "model")
        assert not executor.isCompiled()


def _accumulating(count: int) -> poptorch.Options:
    made = options()
    made.Training.gradientAccumulation(count)
    return made


def _scaled(scale: float) -> Mixed:
    model = Mixed()
    model.scale = scale
    return model


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Paired(nn.Module):
    """Returns, and takes, containers that the format does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        x = x[0] if isinstance(x, Pair) else x
        return Pair(self.linear(x), x)


class TestChangedCode:
    def test_a_model_whose_code_has_changed_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file never stands in for what forward computes now."""
        poptorch.inferenceModel(Mixed(), options()).compileAndExport(tmp_path / "model", X)
        forward = Mixed.forward
        monkeypatch.setattr(Mixed, "forward", lambda self, x, *others: forward(self, x + 1, *others))
        with pytest.raises(poptorch.Error, match=r"Invalid file .*compiled from another model"):
            poptorch.load(tmp_path / "model")
        with pytest.raises(poptorch.Error, match=r"Invalid file .*compiled from another model"):
            poptorch.inferenceModel(Mixed(), options()).loadExecutable(tmp_path / "model")


class TestSave:
    def test_it_needs_a_compiled_model(self, tmp_path: Path) -> None:
        with pytest.raises(poptorch.Error, match="has not been compiled"):
            training().save(tmp_path / "model")

    def test_folders_are_made_and_an_existing_one_holds_the_file(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        executor = poptorch.inferenceModel(Mixed(), options())
        executor.compileAndExport(tmp_path / "new" / "folder" / "file", X)
        executor.save(str(tmp_path / "new"))
        assert "existing directory" in caplog.text
        assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["file", "model.poptorch"]
        assert poptorch.load(tmp_path / "new").isCompiled()

    def test_results_in_containers_of_their_own_come_back(self, tmp_path: Path) -> None:
        executor = poptorch.inferenceModel(Paired(), options())
        executor.compileAndExport(tmp_path / "model", X)
        result = poptorch.load(tmp_path / "model")(X)
        assert isinstance(result, Pair)
        assert torch.equal(result.first, executor(X).first)

    def test_arguments_that_a_file_cannot_hold_are_refused_by_name(self, tmp_path: Path) -> None:
        executor = poptorch.inferenceModel(Paired(), options())
        with pytest.raises(poptorch.Error, match=r"test_saving_files\.Pair, which a file cannot hold"):
            executor.compileAndExport(tmp_path / "model", Pair(X, X))
        assert list(tmp_path.iterdir()) == []

    def test_a_model_that_cannot_be_pickled_can_be_saved_without_it(self, tmp_path: Path) -> None:
        class Local(Mixed):
            pass

        executor = poptorch.inferenceModel(Local(), options())
        with pytest.raises(poptorch.Error, match=r"cannot be exported.*export_model=False"):
            executor.compileAndExport(tmp_path / "model", X)
        executor.save(tmp_path / "model", export_model=False)
        with pytest.raises(AssertionError, match="export_model=False"):
            poptorch.load(tmp_path / "model")

    def test_what_was_there_stays_when_writing_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        executor = poptorch.inferenceModel(Mixed(), options())
        executor.compileAndExport(tmp_path / "model", X)
        before = (tmp_path / "model").read_bytes()

        def full(descriptor: int) -> None:
            raise OSError("No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            executor.save(tmp_path / "model", export_model=False)
        assert (tmp_path / "model").read_bytes() == before
        assert len(list(tmp_path.iterdir())) == 1


class TestBadFiles:
    def test_another_version(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(_poptorch_data, "__version__", "0.0.1")
            poptorch.inferenceModel(Mixed(), options()).compileAndExport(tmp_path / "model", X)
        with pytest.raises(AssertionError, match=r"Invalid file .*PopTorch version mismatch: written with 0\.0\.1"):
            poptorch.load(tmp_path / "model")
        with pytest.raises(poptorch.Error, match=r"Invalid file .*PopTorch version mismatch"):
            poptorch.inferenceModel(Mixed(), options()).loadExecutable(tmp_path / "model")

    def test_none_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            poptorch.load(tmp_path / "model")


class Harmful(nn.Module):
    """A module whose pickle runs a function of its choice."""

    harm: Path

    def forward(self, x: Tensor) -> Tensor:
        return x

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.harm),)


def test_what_a_file_says_is_executed_only_for_a_caller_who_trusts_it(tmp_path: Path) -> None:
    """A harmful pickle in the place of the exported model, as an attacker would put it."""
    file, harm = tmp_path / "model", tmp_path / "harm"
    poptorch.inferenceModel(Mixed(), options()).compileAndExport(file, X)
    harmful = Harmful()
    harmful.harm = harm
    torch.save({"model": harmful}, tmp_path / "pickle")
    data = torch.frombuffer(bytearray((tmp_path / "pickle").read_bytes()), dtype=torch.uint8)
    _poptorch_data.write_values(file, {**_poptorch_data.read_values(file), "exported_model": data})
    with pytest.raises(poptorch.Error, match=r"it needs \w+\.mkdir, .*weights_only=False if you trust the file"):
        poptorch.load(file)
    poptorch.inferenceModel(Mixed(), options()).loadExecutable(file)  # read without its module
    assert not harm.exists()
    with pytest.raises(poptorch.Error, match="no known form"):
        poptorch.load(file, weights_only=False)
    assert harm.exists()
