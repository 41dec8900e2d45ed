"""Files that somebody has damaged or made on purpose: an error that names them, or a fresh compilation."""

from __future__ import annotations

import collections
import functools
import hashlib
import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from saving_support import Mixed, X, all_equal, options
from torch import nn

import poptorch
from poptorch import _poptorch_data
from poptorch._backend import files

FOLDER = pytest.TempPathFactory
HEADER = len(b"IPU Model program 2\n")
DIGEST = 32


class Good(NamedTuple):
    """A saved model, and the same program in a cache folder."""

    saved: bytes
    cached: bytes
    name: str

    def __repr__(self) -> str:
        return "good"


@pytest.fixture(scope="module")
def good(tmp_path_factory: FOLDER) -> Good:
    folder = tmp_path_factory.mktemp("good")
    torch.manual_seed(0)
    executor = poptorch.inferenceModel(Mixed().eval(), options(folder / "cache"))
    executor.compileAndExport(folder / "model", X)
    (cached,) = (folder / "cache").glob("*.poptorch")
    return Good((folder / "model").read_bytes(), cached.read_bytes(), cached.name)


def damaged(data: bytes, changes: list[tuple[float, int]], cut: float) -> bytes:
    """Change bytes at shares of the length by XOR, and cut at a share of it."""
    found = bytearray(data)
    for share, change in changes:
        found[int(share * len(found))] ^= change
    return bytes(found[: round(cut * len(found))])


def signed(data: bytes) -> bytes:
    """Give the digest that belongs to what follows it, as somebody would who wants the file to be read."""
    body = data[HEADER + DIGEST :]
    return data[:HEADER] + hashlib.sha256(body).digest() + body


def words_of(read: Callable[[], object], path: Path) -> str:
    """Return the text of the error that a reader raises; if it reads the file, the text that refuses it."""
    try:
        read()
    except (poptorch.Error, AssertionError) as error:
        return str(error)
    return f"Invalid file {path}"


SHARES = st.floats(0, 1, exclude_max=True)
DAMAGE = st.tuples(st.lists(st.tuples(SHARES, st.integers(1, 255)), max_size=3), st.just(1.0) | SHARES).filter(
    lambda each: bool(each[0]) or each[1] < 1
)


class TestSavedModels:
    @given(damage=DAMAGE)
    def test_any_damage_is_noticed_and_the_file_named(self, good: Good, tmp_path_factory: FOLDER, damage: Any) -> None:
        changed = damaged(good.saved, *damage)
        if changed == good.saved:
            return
        path = tmp_path_factory.mktemp("damaged") / "model"
        path.write_bytes(changed)
        executor = poptorch.inferenceModel(Mixed().eval(), options())
        with pytest.raises((poptorch.Error, AssertionError), match=f"Invalid file {path}"):
            poptorch.load(path)
        with pytest.raises(poptorch.Error, match=f"Invalid file {path}"):
            executor.loadExecutable(path)
        assert not executor.isCompiled()

    @given(damage=DAMAGE)
    def test_damage_with_a_digest_that_fits_leads_to_no_other_error(
        self, good: Good, tmp_path_factory: FOLDER, damage: Any
    ) -> None:
        path = tmp_path_factory.mktemp("signed") / "model"
        path.write_bytes(signed(damaged(good.saved, *damage)))
        assert f"Invalid file {path}" in words_of(lambda: poptorch.load(path), path)
        executor = poptorch.inferenceModel(Mixed().eval(), options())
        assert f"Invalid file {path}" in words_of(lambda: executor.loadExecutable(path), path)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("training", [1]), ("options", []), ("options", {"random_seed": {}}), ("arguments", None),
            ("arguments", ([], (), {})), ("weights", 4), ("weights", [1]), ("digest", None), ("digest", "x"),
            ("warnings", 3), ("rng_state", ["x"]), ("rng_state", [1, 2]), ("rng_state", [1] + [300] * 5056),
            ("rng_state", "1"), ("groupings", []), ("groupings", {"first.weight": [1, 1, False]}),
            ("groupings", {"x": [1, 0, False]}), ("poptorch", None), ("torch", 2), ("exported_model", [1]),
        ],
    )  # fmt: skip
    def test_values_of_another_type_are_refused(self, good: Good, tmp_path: Path, name: str, value: Any) -> None:
        path = tmp_path / "model"
        path.write_bytes(good.saved)
        files.write(path, {**files.read(path), name: value})
        with pytest.raises((poptorch.Error, AssertionError), match=f"Invalid file {path}"):
            poptorch.load(path)

    @pytest.mark.parametrize("body", [b"", b"x", pickle.dumps({"a": 1}), pickle.dumps([4]), b"PK\x05\x06" + bytes(18)])
    def test_a_body_of_another_form_is_refused(self, good: Good, tmp_path: Path, body: bytes) -> None:
        path = tmp_path / "model"
        path.write_bytes(signed(good.saved[: HEADER + DIGEST] + body))
        with pytest.raises(poptorch.Error, match=f"Invalid file {path}"):
            poptorch.load(path)

    def test_nothing_in_the_body_is_executed(self, good: Good, tmp_path: Path) -> None:
        path = tmp_path / "model"
        for number, value in enumerate(hostile(tmp_path).values()):
            torch.save(value if isinstance(value, dict) else {"kind": value}, tmp_path / f"body{number}")
            path.write_bytes(signed(good.saved[: HEADER + DIGEST] + (tmp_path / f"body{number}").read_bytes()))
            with pytest.raises(poptorch.Error, match=f"Invalid file {path}"):
                poptorch.load(path)
        assert not (tmp_path / "harm").exists()

    @pytest.mark.skipif(not hasattr(os, "sysconf"), reason="the system does not tell how much memory there is")
    def test_one_larger_than_the_memory_is_not_read(self, good: Good, tmp_path: Path) -> None:
        path = tmp_path / "model"
        path.write_bytes(good.saved)
        with open(path, "r+b") as file:
            try:
                file.truncate(1 << 42)
            except OSError:
                pytest.skip("the file system has no files with holes of this size")
        with pytest.raises(poptorch.Error, match="larger than the memory"):
            poptorch.load(path)


class TestCachedPrograms:
    @settings(max_examples=20)
    @given(damage=DAMAGE, fits=st.booleans())
    def test_any_damage_leads_to_a_fresh_compilation_or_to_the_same_program(
        self, good: Good, tmp_path_factory: FOLDER, damage: Any, fits: bool
    ) -> None:
        folder = tmp_path_factory.mktemp("cache")
        changed = damaged(good.cached, *damage)
        (folder / good.name).write_bytes(signed(changed) if fits else changed)
        torch.manual_seed(0)
        executor = poptorch.inferenceModel(Mixed().eval(), options(folder))
        with _Lines() as lines:
            executor.compile(X)
        same = changed == good.cached
        if not fits:
            assert any("cannot be used" in line for line in lines) is not same
            assert (folder / good.name).read_bytes() == good.cached
            plain = poptorch.inferenceModel(executor.model, options())
            assert all_equal([executor(X)[0]], [plain(X)[0]])


class _Lines(list[str]):
    """The lines that are logged in the body."""

    def __enter__(self) -> _Lines:
        self._handler = logging.Handler()
        self._handler.emit = lambda record: self.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("poptorch::python").addHandler(self._handler)
        return self

    def __exit__(self, *exception: object) -> None:
        logging.getLogger("poptorch::python").removeHandler(self._handler)


class Call:
    """Pickles as a call of a function of the attacker's choice."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def hostile(folder: Path) -> dict[str, Any]:
    """Return objects whose unpickling makes the folder `harm`, if anything in them is executed."""
    harm = str(folder / "harm")
    return {
        "call": Call(os.mkdir, harm),
        "inside a partial": Call(functools.partial, Call(os.mkdir, harm)),
        "evaluated": Call(eval, f"__import__('os').mkdir({harm!r})"),
        "by a map": Call(map, os.mkdir, [harm]),
        "by a defaultdict": Call(collections.defaultdict, Call(os.mkdir, harm)),
        "as a hook": {"model": Call(os.mkdir, harm), "options": poptorch.Options(), "optimizer": None},
        "by torch.hub": Call(torch.hub.load, harm, "model"),
        "by getattr": Call(getattr, Call(__import__, "os"), "mkdir"),
    }


NAMES = (
    "call", "inside a partial", "evaluated", "by a map", "by a defaultdict", "as a hook", "by torch.hub", "by getattr",
)  # fmt: skip


def with_model(good: Good, path: Path, pickled: bytes) -> None:
    """Write the good file with another pickled model, and the digest that belongs to it."""
    path.write_bytes(good.saved)
    data = torch.tensor(list(pickled), dtype=torch.uint8)
    files.write(path, {**files.read(path), "exported_model": data})


class TestHostilePickles:
    @pytest.mark.parametrize("name", NAMES)
    def test_none_is_executed(self, good: Good, tmp_path: Path, name: str) -> None:
        parts = {"model": nn.Linear(1, 1), "options": poptorch.Options(), "optimizer": None}
        torch.save({**parts, "model": hostile(tmp_path)[name]}, tmp_path / "pickle")
        with_model(good, tmp_path / "model", (tmp_path / "pickle").read_bytes())
        with pytest.raises(poptorch.Error, match="Invalid file"):
            poptorch.load(tmp_path / "model")
        assert not (tmp_path / "harm").exists()

    @pytest.mark.parametrize("content", [b"", b"x", pickle.dumps(Mixed()), b"PK\x05\x06" + bytes(18)])
    def test_what_torch_did_not_write_is_refused(self, good: Good, tmp_path: Path, content: bytes) -> None:
        with_model(good, tmp_path / "model", content)
        with pytest.raises(poptorch.Error, match="Invalid file"):
            poptorch.load(tmp_path / "model")

    @pytest.mark.parametrize(
        "name",
        [
            "os.system", "torch.nn.functional.torch.os.system", "torch.nn.functional.importlib.import_module",
            "torch.fx.graph_module.GraphModule", "torch.jit._script.RecursiveScriptModule", "torch.hub.load",
            "popdist.run.command.Host", "subprocess.Popen", "torch.nn.modules.linear.Linear.__init__",
            "torch.nn.Linear", "saving_support.poptorch.load", "poptorch._options_config.parseAndSetOptions",
            "poptorch.options.options.Options.loadFromFile", "no.such.module",
        ],
    )  # fmt: skip
    def test_names_that_are_no_class_of_a_model_are_not_allowed(self, name: str) -> None:
        assert files._safe_global(name) is None

    @pytest.mark.parametrize(
        "kind", [Mixed, nn.Linear, torch.optim.SGD, poptorch.optim.AdamW, poptorch.Options, nn.functional.relu]
    )
    def test_those_of_models_are(self, kind: Any) -> None:
        assert files._safe_global(f"{kind.__module__}.{kind.__qualname__}") is kind

    @settings(max_examples=20)
    @given(damage=DAMAGE)
    def test_a_damaged_one_leads_to_no_other_error(self, good: Good, tmp_path_factory: FOLDER, damage: Any) -> None:
        path = tmp_path_factory.mktemp("pickle") / "model"
        path.write_bytes(good.saved)
        model = _poptorch_data.read(path).exported_model
        assert model is not None
        with_model(good, path, damaged(model.numpy().tobytes(), *damage))
        assert "Invalid file" in words_of(lambda: poptorch.load(path), path)


def test_a_file_of_the_cache_is_no_saved_model(good: Good, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(good.cached)
    with pytest.raises(poptorch.Error, match="file of the executable cache"):
        poptorch.load(tmp_path / "model")


def test_a_saved_model_is_no_program_of_the_cache(good: Good, tmp_path: Path) -> None:
    (tmp_path / good.name).write_bytes(good.saved)
    poptorch.inferenceModel(Mixed().eval(), options(tmp_path)).compile(X)
    assert files.read(tmp_path / good.name)["kind"] == "cache"
