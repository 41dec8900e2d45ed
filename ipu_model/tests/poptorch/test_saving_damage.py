"""What files hold, and files damaged by accident or on purpose: an error that names them, or a new compilation."""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saving_support import Mixed, X, options
from torch import nn

import poptorch
from poptorch import _poptorch_data

Folders = pytest.TempPathFactory
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
def test_a_value_comes_back_equal_and_of_the_same_type(value: Any, tmp_path_factory: Folders) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    _poptorch_data.write_values(path, {"value": value})
    read = _poptorch_data.read_values(path)["value"]
    assert read == value
    assert type(read) is type(value)


def test_tensors_keep_type_shape_strides_and_bits(tmp_path: Path) -> None:
    without_data = torch.empty(1 << 40, 3, dtype=torch.int16, device="meta")
    _poptorch_data.write_values(tmp_path / "file", {**TENSORS, "look": without_data})
    read = _poptorch_data.read_values(tmp_path / "file")
    look = read.pop("look")
    assert (look.shape, look.dtype, look.device.type) == ((1 << 40, 3), torch.int16, "meta")
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].stride() == tensor.stride()
        assert read[name].dtype is tensor.dtype
        assert torch.equal(read[name], tensor)


@pytest.mark.parametrize("value", [Fraction(1, 2), print, nn.Linear(1, 1), Path("a"), lambda: 1])
def test_other_values_are_refused_and_leave_no_file(value: Any, tmp_path: Path) -> None:
    with pytest.raises(poptorch.Error, match="which a file cannot hold"):
        _poptorch_data.write_values(tmp_path / "file", {"value": [value]})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def good(tmp_path_factory: Folders) -> Any:
    """The bytes of a saved model, and of the same program in a cache folder with its name there."""
    folder = tmp_path_factory.mktemp("good")
    torch.manual_seed(0)
    executor = poptorch.inferenceModel(Mixed().eval(), options(folder / "cache"))
    executor.compileAndExport(folder / "model", X)
    (cached,) = (folder / "cache").glob("*.poptorch")
    return SimpleNamespace(saved=(folder / "model").read_bytes(), cached=cached.read_bytes(), name=cached.name)


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


def fresh(cache: Path | None = None) -> poptorch.PoplarExecutor:
    return poptorch.inferenceModel(Mixed().eval(), options(cache))


def is_refused(path: Path, words: str = "") -> None:
    for read in (poptorch.load, fresh().loadExecutable):
        with pytest.raises((poptorch.Error, AssertionError), match=f"Invalid file {path}.*{words}"):
            read(path)


def no_other_error(path: Path) -> None:
    """Read a file, which may only raise the error that names it."""
    for read in (poptorch.load, fresh().loadExecutable):
        named = f"Invalid file {path}"
        try:
            read(path)
        except (poptorch.Error, AssertionError) as error:
            named = str(error)
        assert f"Invalid file {path}" in named


GROUPS = {"replicas": 1, "size": 1, "orthogonal": False}
SHARES = st.floats(0, 1, exclude_max=True)
DAMAGE = st.tuples(st.lists(st.tuples(SHARES, st.integers(1, 255)), max_size=3), st.just(1.0) | SHARES).filter(
    lambda each: bool(each[0]) or each[1] < 1
)


class TestSavedModels:
    @given(damage=DAMAGE)
    def test_any_damage_is_noticed_and_the_file_named(self, good: Any, tmp_path_factory: Folders, damage: Any) -> None:
        """With a digest that fits, it leads to no other error."""
        changed = damaged(good.saved, *damage)
        if changed == good.saved:
            return
        path = tmp_path_factory.mktemp("damaged") / "model"
        path.write_bytes(changed)
        is_refused(path)
        path.write_bytes(signed(changed))
        no_other_error(path)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("training", [1]), ("options", []), ("options", {"random_seed": {}}), ("arguments", None),
            ("arguments", ([], (), {})), ("weights", 4), ("weights", [1]), ("digest", None), ("digest", "x"),
            ("warnings", 3), ("rng_state", []), ("rng_state", ["x"]), ("rng_state", [1, 2]),
            ("rng_state", [1] + [300] * 5056),
            ("rng_state", "1"), ("groupings", []), ("groupings", {"first.weight": GROUPS}),
            ("groupings", {"first.weight": {**GROUPS, "size": 0}}),
            ("poptorch", None), ("torch", 2), ("exported_model", [1]),
        ],
    )  # fmt: skip
    def test_values_of_another_type_are_refused(self, good: Any, tmp_path: Path, name: str, value: Any) -> None:
        path = tmp_path / "model"
        path.write_bytes(good.saved)
        _poptorch_data.write_values(path, {**_poptorch_data.read_values(path), name: value})
        with pytest.raises((poptorch.Error, AssertionError), match=f"(Invalid|from the) file {path}"):
            poptorch.load(path)

    @pytest.mark.skipif(not hasattr(os, "sysconf"), reason="the system does not tell how much memory there is")
    def test_one_larger_than_the_memory_is_not_read(self, good: Any, tmp_path: Path) -> None:
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
    good: Any, damage: Callable[[bytes], bytes], words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model").write_bytes(damage(good.saved))
    is_refused(tmp_path / "model", words)
    (tmp_path / good.name).write_bytes(damage(good.cached))
    with caplog.at_level(logging.INFO, logger="poptorch::python"):
        for said in ("cannot be used", f"loaded from {tmp_path / good.name}"):
            fresh(tmp_path).compile(X)
            assert said in caplog.text
            assert (tmp_path / good.name).read_bytes() == good.cached


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(damage=DAMAGE, fits=st.booleans())
def test_any_damage_of_a_cached_program(good: Any, tmp_path_factory: Folders, caplog, damage: Any, fits: bool) -> None:
    caplog.clear()
    folder = tmp_path_factory.mktemp("cache")
    changed = damaged(good.cached, *damage)
    (folder / good.name).write_bytes(signed(changed) if fits else changed)
    torch.manual_seed(0)
    executor = fresh(folder)
    executor.compile(X)
    if not fits:
        assert any("cannot be used" in line for line in caplog.messages) is (changed != good.cached)
        assert (folder / good.name).read_bytes() == good.cached
        assert torch.equal(executor(X)[0], poptorch.inferenceModel(executor.model, options())(X)[0])


class Call:
    """Pickles as a call of a function of the attacker's choice, which makes a folder if anything of it is executed."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


HOSTILE: dict[str, Callable[[str], Any]] = {
    "call": lambda harm: Call(os.mkdir, harm),
    "inside a partial": lambda harm: Call(functools.partial, Call(os.mkdir, harm)),
    "evaluated": lambda harm: Call(eval, f"__import__('os').mkdir({harm!r})"),
    "as a hook": lambda harm: {"model": Call(os.mkdir, harm), "options": poptorch.Options(), "optimizer": None},
    "by getattr": lambda harm: Call(getattr, Call(__import__, "os"), "mkdir"),
}


def with_model(good: Any, path: Path, pickled: bytes) -> None:
    """Write the good file with another pickled model, and the digest that belongs to it."""
    path.write_bytes(good.saved)
    data = torch.tensor(list(pickled), dtype=torch.uint8)
    _poptorch_data.write_values(path, {**_poptorch_data.read_values(path), "exported_model": data})


MUCH = 1 << 29


def archive(value: Any, zeros: str = "") -> bytes:
    """Return what `torch.save` writes of a value; in place of the member `zeros`, many compressed zeros."""
    saved, made = io.BytesIO(), io.BytesIO()
    torch.save(value, saved)
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(made, "w") as new:
        for member in old.infolist():
            is_replaced = member.filename.endswith(f"/{zeros}")
            entry = zipfile.ZipInfo(member.filename)
            entry.compress_type = zipfile.ZIP_DEFLATED if is_replaced else zipfile.ZIP_STORED
            with new.open(entry, "w", force_zip64=True) as stream:
                for part in [bytes(1 << 20)] * (MUCH >> 20) if is_replaced else [old.read(member)]:
                    stream.write(part)
    return made.getvalue()


def twice_the_same_bytes() -> bytes:
    """Return an archive whose list of members has one of them many times."""
    content = archive({"kind": torch.zeros(1000)})
    start, (size, offset) = content.rindex(b"PK\5\6"), struct.unpack("<II", content[-10:-2])
    entries, end = content[offset : offset + size], bytearray(content[start:])
    count = 20 * int.from_bytes(end[8:10], "little")
    end[8:20] = struct.pack("<HHII", count, count, 20 * size, offset)
    return content[:offset] + 20 * entries + bytes(end)


BOMBS: dict[str, Callable[[], tuple[bytes, str]]] = {
    "a compressed tensor": lambda: (archive({"kind": torch.zeros(4)}, "data/0"), "its own size"),
    "a compressed pickle": lambda: (archive({"kind": torch.zeros(4)}, "data.pkl"), "its own size"),
    "a compressed note": lambda: (archive({"kind": torch.zeros(4)}, "version"), "its own size"),
    "members that share their bytes": lambda: (twice_the_same_bytes(), "its own size"),
    "a call that makes bytes": lambda: (archive({"kind": Call(bytearray, MUCH)}), "a bytearray"),
}


def peak_memory() -> int:
    """Return the most bytes that this process has had in memory."""
    resource = pytest.importorskip("resource")
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) << 10


class TestHostilePickles:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_none_is_executed_as_a_model_or_as_the_body_of_a_file(self, good: Any, tmp_path: Path, name: str) -> None:
        path, value = tmp_path / "model", HOSTILE[name](str(tmp_path / "harm"))
        torch.save({"model": value, "options": poptorch.Options(), "optimizer": None}, tmp_path / "pickle")
        with_model(good, path, (tmp_path / "pickle").read_bytes())
        with pytest.raises(poptorch.Error, match="Invalid file"):
            poptorch.load(path)
        torch.save(value if isinstance(value, dict) else {"kind": value}, tmp_path / "body")
        path.write_bytes(signed(good.saved[: HEADER + DIGEST] + (tmp_path / "body").read_bytes()))
        is_refused(path)
        assert not (tmp_path / "harm").exists()

    def test_one_is_executed_for_a_caller_who_trusts_the_file(self, good: Any, tmp_path: Path) -> None:
        path, harm = tmp_path / "model", tmp_path / "harm"
        torch.save({"model": Call(os.mkdir, str(harm))}, tmp_path / "pickle")
        with_model(good, path, (tmp_path / "pickle").read_bytes())
        with pytest.raises(poptorch.Error, match=r"it needs \w+\.mkdir, .*weights_only=False if you trust the file"):
            poptorch.load(path)
        fresh().loadExecutable(path)  # read without its module
        assert not harm.exists()
        with pytest.raises(poptorch.Error, match="no known form"):
            poptorch.load(path, weights_only=False)
        assert harm.exists()

    @pytest.mark.parametrize(
        "content",
        [b"", b"x", pickle.dumps({"a": 1}), pickle.dumps([4]), pickle.dumps(Mixed()), b"PK\x05\x06" + bytes(18)],
    )
    def test_what_torch_did_not_write_is_refused(self, good: Any, tmp_path: Path, content: bytes) -> None:
        with_model(good, tmp_path / "model", content)
        with pytest.raises(poptorch.Error, match="Invalid file"):
            poptorch.load(tmp_path / "model")
        (tmp_path / "model").write_bytes(signed(good.saved[: HEADER + DIGEST] + content))
        is_refused(tmp_path / "model")

    @pytest.mark.parametrize("bomb", BOMBS)
    def test_what_makes_much_of_a_few_bytes_is_refused_before_it_is_unpacked(
        self, good: Any, tmp_path: Path, bomb: str
    ) -> None:
        """As the body of a file, and as the model in one."""
        content, words = BOMBS[bomb]()
        before, path = peak_memory(), tmp_path / "model"
        path.write_bytes(signed(good.saved[: HEADER + DIGEST] + content))
        is_refused(path, words)
        with_model(good, path, content)
        with pytest.raises(poptorch.Error, match=f"Invalid file {path}.*{words}"):
            poptorch.load(path)
        path.write_bytes(good.saved)
        spread = torch.zeros(1, dtype=torch.uint8).expand(MUCH)
        _poptorch_data.write_values(path, {**_poptorch_data.read_values(path), "exported_model": spread})
        with pytest.raises(poptorch.Error, match=f"Invalid file {path}.*more than its own size"):
            poptorch.load(path)
        assert peak_memory() - before < MUCH // 4

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
    def test_a_damaged_one_leads_to_no_other_error(self, good: Any, tmp_path_factory: Folders, damage: Any) -> None:
        path = tmp_path_factory.mktemp("pickle") / "model"
        path.write_bytes(good.saved)
        model = _poptorch_data.read(path).exported_model
        assert model is not None
        with_model(good, path, damaged(model.numpy().tobytes(), *damage))
        no_other_error(path)


def test_saved_and_cached_programs_do_not_stand_in_for_another(good: Any, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(good.cached)
    with pytest.raises(poptorch.Error, match="file of the executable cache"):
        poptorch.load(tmp_path / "model")
    (tmp_path / good.name).write_bytes(good.saved)
    fresh(tmp_path).compile(X)
    assert _poptorch_data.read_values(tmp_path / good.name)["kind"] == "cache"
