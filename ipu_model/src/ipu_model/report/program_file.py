"""The file of a program for exploring it later: data only, with the layout of the classes that it holds."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from ipu_model.errors import Error
from ipu_model.predict.calibration import Calibration, calibrated
from ipu_model.predict.program import Program
from ipu_model.step import Ref
from ipu_model.whole_files import read_whole

FILE_NAME = "program.ipu"
_NAME = b"program of the IPU Model, format 2\n"
_DIGEST = hashlib.sha256
_MOST_BYTES = 1 << 31
# Programs of many equal layers unpack to about twenty times their size, files made to fill a memory to a thousand.
_MOST_TIMES = 32


def read(file: Path) -> Program:
    try:
        return from_bytes(read_whole(file, _MOST_BYTES))
    except OSError as problem:
        raise Error(
            f"{file} cannot be read: {problem.strerror}. A report holds its program in this file; run or model the "
            "program again to write it."
        ) from problem
    except Error as problem:
        raise Error(f"{file}: {problem.message}") from problem


def to_bytes(program: Program) -> bytes:
    """Return a program as the contents of a file; `from_bytes` gives an equal one back."""
    try:
        data = msgspec.msgpack.encode([_layout(), _written(program, {})])
        body = zlib.compress(data, 6)
        if len(data) > _MOST_TIMES * len(body):  # which no reader would unpack
            body = zlib.compress(data, 0)
    except (TypeError, OverflowError, RecursionError) as problem:
        raise Error(f"The program cannot be written to a file: {problem}.") from problem
    return _NAME + _DIGEST(body).digest() + body


def from_bytes(data: bytes) -> Program:
    """Return the program that `to_bytes` wrote; refuse other data, damaged ones, and those of another version."""
    if not data.startswith(_NAME):
        raise Error("This is not a program that this version of the IPU Model can read: run or model it again.")
    size = _DIGEST().digest_size
    digest, body = data[len(_NAME) : len(_NAME) + size], data[len(_NAME) + size :]
    if _DIGEST(body).digest() != digest:
        raise Error("The file is damaged or incomplete: run or model the program again to write it.")
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(body, _MOST_TIMES * len(body))
        if unpacker.unconsumed_tail:
            raise ValueError(f"it unpacks to more than {_MOST_TIMES} times its size")
        layout, root = msgspec.msgpack.decode(content)
        if layout != _layout():
            raise Error("Another version of the IPU Model wrote the file: run or model the program again to write it.")
        program = _read(root, [])
    except (zlib.error, msgspec.DecodeError, ValueError, TypeError, LookupError, RecursionError) as problem:
        raise Error(f"The file is damaged: its contents do not follow its format ({problem}).") from problem
    if not isinstance(program, Program):
        raise Error("The file is damaged: it holds no program.")
    return program


# A value that is no plain one is a list: the name of what makes it, and the parts that it is made of. One that comes
# again is the number of its first place instead, since most tensors and places of a program have many users.
_AGAIN = "again"
_MADE_BY: Mapping[str, Callable[..., Any]] = {
    "tuple": lambda *parts: parts,
    "mapping": lambda *pairs: dict(pairs),
    "set": lambda *parts: frozenset(parts),
    "tensor": Ref,
    "complex": complex,
    "text": lambda data: data.decode("utf-8", "surrogatepass"),
    "calibrated": calibrated,
}


def _taken_apart(value: Any) -> tuple[str, Iterable[Any]]:
    """Return the name of what makes a value, and its parts; names may hold what UTF-8 has no place for."""
    kind = type(value)
    if _own_types().get(kind.__name__) is kind:
        if isinstance(value, Enum):
            return kind.__name__, (value.value,)
        if isinstance(value, Calibration) and value == calibrated():
            return "calibrated", ()
        return kind.__name__, (getattr(value, name) for name in _fields(kind))
    if isinstance(value, Ref):
        return "tensor", (str(value),)
    if isinstance(value, str):
        return "text", (value.encode("utf-8", "surrogatepass"),)
    if isinstance(value, (tuple, list)):
        return "tuple", value
    if isinstance(value, Mapping):
        return "mapping", value.items()
    if isinstance(value, frozenset):
        return "set", value
    if isinstance(value, complex):
        return "complex", (value.real, value.imag)
    raise TypeError(f"it holds {value!r:.60} of type {kind.__name__}, which is no part of a program")


def _written(value: Any, written: dict[int, tuple[int, Any]]) -> Any:
    """Return a value as plain data; `written` keeps values by identity, so that no two ever share one."""
    if value is None or type(value) in (bool, int, float, bytes) or (type(value) is str and value.isascii()):
        return value
    if id(value) in written:
        return [_AGAIN, written[id(value)][0]]
    name, parts = _taken_apart(value)
    data = [name, *(_written(part, written) for part in parts)]
    written[id(value)] = len(written), value
    return data


def _read(data: Any, made: list[Any]) -> Any:
    if not isinstance(data, list):
        return data
    name, *parts = data
    if name == _AGAIN:
        return made[parts[0]]
    value = (_MADE_BY.get(name) or _own_types()[name])(*(_read(part, made) for part in parts))
    made.append(value)
    return value


@lru_cache(maxsize=1)
def _own_types() -> Mapping[str, Any]:
    """Return the records and enumerations that a program can hold, in the order in which its fields name them."""
    types: dict[str, Any] = {}
    pending: list[Any] = [Program]
    while pending:
        kind = pending.pop()
        is_class = isinstance(kind, type) and get_origin(kind) is None
        if not is_class or not (is_dataclass(kind) or hasattr(kind, "_fields") or issubclass(kind, Enum)):
            pending += get_args(kind)  # a union or a generic type
        elif kind.__name__ not in types:
            types[kind.__name__] = kind
            pending += [] if issubclass(kind, Enum) else [get_type_hints(kind)[name] for name in _fields(kind)]
    return types


def _layout() -> dict[str, list[str]]:
    return {
        name: [member.value for member in kind] if issubclass(kind, Enum) else list(_fields(kind))
        for name, kind in _own_types().items()
    }


def _fields(record: Any) -> tuple[str, ...]:
    return tuple(getattr(record, "_fields", None) or (field.name for field in fields(record) if field.init))
