"""What files hold, and files damaged by accident or on purpose: an error that names them, or a new compilation."""

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
from executor_support import Module
from hypothesis import given, settings
from hypothesis import strategies as st
from saving_support import Mixed, X, all_equal, options
from torch import Tensor, nn

import poptorch
from ipu_model.capture.describe import digest_of
from poptorch import _poptorch_data

FOLDER = pytest.TempPathFactory
HEADER = len(b"IPU Model program 2\n")
DIGEST = 32


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    PLAIN | st.sampled_from([torch.float16, torch.bool]),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
)
TENSORS = {
    "scalar": torch.tensor(3.5), "half": torch.randn(3, 2).half(), "bool": torch.tensor([True, False]),
    "long": torch.arange(6).reshape(2, 3).t(), "bfloat16": torch.ones(2, dtype=torch.bfloat16),
    "empty": torch.empty(0, 3), "channels_last": torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last),
}  # fmt: skip


@given(value=VALUES)
def test_a_value_comes_back_equal_and_of_the_same_type(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    _poptorch_data.write_values(path, {"value": value})
    read = _poptorch_data.read_values(path)["value"]
    assert read == value
    assert type(read) is type(value)


def test_tensors_keep_type_shape_strides_and_bits(tmp_path: Path) -> None:
    _poptorch_data.write_values(tmp_path / "file", TENSORS)
    read = _poptorch_data.read_values(tmp_path / "file")
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].stride() == tensor.stride()
        assert read[name].dtype is tensor.dtype
        assert torch.equal(read[name], tensor)


def test_tensors_without_data_keep_shape_and_type(tmp_path: Path) -> None:
    _poptorch_data.write_values(tmp_path / "file", {"look": torch.empty(1 << 40, 3, dtype=torch.int16, device="meta")})
    read = _poptorch_data.read_values(tmp_path / "file")["look"]
    assert (read.shape, read.dtype, read.device.type) == ((1 << 40, 3), torch.int16, "meta")


@pytest.mark.parametrize("value", [object(), print, nn.Linear(1, 1), Path("a"), lambda: 1])
def test_other_values_are_refused_and_leave_no_file(value: Any, tmp_path: Path) -> None:
    with pytest.raises(_poptorch_data.NotStorable):
        _poptorch_data.write_values(tmp_path / "file", {"value": [value]})
    assert list(tmp_path.iterdir()) == []


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
            ("warnings", 3), ("rng_state", []), ("rng_state", ["x"]), ("rng_state", [1, 2]),
            ("rng_state", [1] + [300] * 5056),
            ("rng_state", "1"), ("groupings", []), ("groupings", {"first.weight": [1, 1, False]}),
            ("groupings", {"x": [1, 0, False]}), ("poptorch", None), ("torch", 2), ("exported_model", [1]),
        ],
    )  # fmt: skip
    def test_values_of_another_type_are_refused(self, good: Good, tmp_path: Path, name: str, value: Any) -> None:
        path = tmp_path / "model"
        path.write_bytes(good.saved)
        _poptorch_data.write_values(path, {**_poptorch_data.read_values(path), name: value})
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


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-1], "truncated or corrupt"),
        (lambda data: data[:300] + bytes([data[300] ^ 8]) + data[301:], "truncated or corrupt"),
        (lambda data: b"", "no program of the IPU Model"),
        (lambda data: pickle.dumps({"a": 1}), "no program of the IPU Model"),
        (lambda data: b"IPU Model program 1\n" + data[HEADER:], "version mismatch.*Export it again"),
    ],
    ids=["one byte short", "one bit", "empty", "a pickle", "an older format"],
)
def test_each_damage_has_its_words_and_another_one_in_the_cache_is_replaced(
    good: Good, damage: Callable[[bytes], bytes], words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model").write_bytes(damage(good.saved))
    for read in (poptorch.load, poptorch.inferenceModel(Mixed(), options()).loadExecutable):
        with pytest.raises((poptorch.Error, AssertionError), match=f"Invalid file .*{words}"):
            read(tmp_path / "model")
    (tmp_path / good.name).write_bytes(damage(good.cached))
    with caplog.at_level(logging.INFO, logger="poptorch::python"):
        for said in ("cannot be used", f"loaded from {tmp_path / good.name}"):
            poptorch.inferenceModel(Mixed().eval(), options(tmp_path)).compile(X)
            assert said in caplog.text
            assert (tmp_path / good.name).read_bytes() == good.cached


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
    _poptorch_data.write_values(path, {**_poptorch_data.read_values(path), "exported_model": data})


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
        assert _poptorch_data._safe_global(name) is None

    @pytest.mark.parametrize(
        "kind", [Mixed, nn.Linear, torch.optim.SGD, poptorch.optim.AdamW, poptorch.Options, nn.functional.relu]
    )
    def test_those_of_models_are(self, kind: Any) -> None:
        assert _poptorch_data._safe_global(f"{kind.__module__}.{kind.__qualname__}") is kind

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
    assert _poptorch_data.read_values(tmp_path / good.name)["kind"] == "cache"


def conv(factor: float = 0.1, probability: float = 0.5) -> nn.Module:
    def forward(model: Any, x: Tensor) -> Tensor:
        return torch.dropout(model.conv(x), probability, True) * torch.tensor([factor, 2.5]).reshape(2, 1, 1)

    return Module(forward, conv=nn.Conv2d(1, 2, 3))


class TestDigest:
    """Programs have the same digest if, and only if, they compute the same of their weights and inputs."""

    def digest(self, model: nn.Module, rows: int = 2) -> str:
        executor = poptorch.inferenceModel(model)
        executor.compile(torch.zeros(rows, 1, 5, 5))
        assert executor._executable is not None
        return digest_of(executor._executable.graph)

    def test_values_of_weights_do_not_count(self) -> None:
        assert self.digest(conv()) == self.digest(conv())

    def test_constants_arguments_and_sizes_do(self) -> None:
        found = [
            self.digest(conv()), self.digest(conv(factor=0.2)), self.digest(conv(probability=0.4)),
            self.digest(conv().half()), self.digest(conv(), rows=3),
        ]  # fmt: skip
        assert len(set(found)) == len(found)
