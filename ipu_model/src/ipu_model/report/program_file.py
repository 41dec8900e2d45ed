"""The file that holds a program itself, so that a report can be explored later: what-ifs, advice, what would fit.

The file holds data only: values of the classes that a `Program` is made of, each with the names of its fields. Reading
it runs no code of the file. What the classes look like is part of the file, so that a file of a version with other
classes is refused by name.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from ipu_model.errors import Error
from ipu_model.predict.calibration import Calibration, calibrated
from ipu_model.predict.program import Program
from ipu_model.report.text_files import write_bytes
from ipu_model.step import Ref

FILE_NAME = "program.ipu"
_NAME = b"program of the IPU Model, format 1\n"
_DIGEST = hashlib.sha256
_MOST_BYTES = 1 << 31

_TUPLE, _MAP, _SET, _REF, _COMPLEX, _MEMBER, _RECORD, _CALIBRATED, _TEXT = range(9)
"""What the first number of a list stands for; everything else is a plain value."""


def write(program: Program, path: str | Path) -> None:
    """Write a program to a file, which appears whole or not at all.

    Raises:
        Error: the file cannot be written, or the program holds a value that is no data.
    """
    write_bytes(Path(path), to_bytes(program))


def read(path: str | Path) -> Program:
    """Read the program in a file, or the one beside the profile in a report's folder.

    Raises:
        Error: there is none, it is damaged, or another version wrote it; the message names the file and what to do.
    """
    file = Path(path)
    file = file / FILE_NAME if file.is_dir() else file
    try:
        data = file.read_bytes()
    except OSError as problem:
        raise Error(
            f"{file} cannot be read: {problem.strerror}. A report holds its program in this file; run or model the "
            "program again to write it."
        ) from problem
    try:
        return from_bytes(data)
    except Error as problem:
        raise Error(f"{file}: {problem.message}") from problem


def to_bytes(program: Program) -> bytes:
    """Return a program as the contents of a file; `from_bytes` gives an equal one back.

    Raises:
        Error: the program holds a value that is no data.
    """
    writer = _Writer()
    try:
        root = writer.written(program)
        body = zlib.compress(msgspec.msgpack.encode([_layout(), writer.records, root]), 6)
    except (TypeError, OverflowError, RecursionError) as problem:
        raise Error(f"The program cannot be written to a file: {problem}.") from problem
    return _NAME + _DIGEST(body).digest() + body


def from_bytes(data: bytes) -> Program:
    """Return the program that `to_bytes` wrote.

    Raises:
        Error: the data are no program, are damaged, or come from another version.
    """
    if not data.startswith(_NAME):
        raise Error("This is not a program that this version of the IPU Model can read: run or model it again.")
    size = _DIGEST().digest_size
    digest, body = data[len(_NAME) : len(_NAME) + size], data[len(_NAME) + size :]
    if _DIGEST(body).digest() != digest:
        raise Error("The file is damaged or incomplete: run or model the program again to write it.")
    try:
        layout, records, root = msgspec.msgpack.decode(_unpacked(body))
        if layout != _layout():
            raise Error("Another version of the IPU Model wrote the file: run or model the program again to write it.")
        program = _Reader(records).read(root)
    except (zlib.error, msgspec.DecodeError, ValueError, TypeError, LookupError, RecursionError) as problem:
        raise Error(f"The file is damaged: its contents do not follow its format ({problem}).") from problem
    if not isinstance(program, Program):
        raise Error("The file is damaged: it holds no program.")
    return program


def _unpacked(body: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(body, _MOST_BYTES)
    if not unpacker.eof:
        raise ValueError("it is incomplete or too large")
    return data


# ------------------------------------------------------------------------------- values


class _Writer:
    """Turns values into lists of plain ones; each record is written once, however often it is used."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self._places: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no two records ever share an identity

    def written(self, value: Any) -> Any:
        """Return a value as plain data."""
        if isinstance(value, Ref):
            return [_REF, self.written(str(value))]
        if isinstance(value, Enum):
            return [_MEMBER, type(value).__name__, value.name]
        if isinstance(value, str) and not value.isascii():
            return [_TEXT, value.encode("utf-8", "surrogatepass")]  # names may hold what UTF-8 has no place for
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, complex):
            return [_COMPLEX, value.real, value.imag]
        if isinstance(value, Calibration) and value == calibrated():
            return [_CALIBRATED]
        if is_dataclass(value) or hasattr(value, "_fields"):
            return [_RECORD, self._place(value)]
        if isinstance(value, (tuple, list)):
            return [_TUPLE, *map(self.written, value)]
        if isinstance(value, Mapping):
            return [_MAP, *([self.written(key), self.written(each)] for key, each in value.items())]
        if isinstance(value, frozenset):
            return [_SET, *map(self.written, value)]
        raise TypeError(f"it holds {value!r:.60} of type {type(value).__name__}")

    def _place(self, record: Any) -> int:
        if id(record) not in self._places:
            name = type(record).__name__
            if _classes().get(name) is not type(record):
                raise TypeError(f"it holds a record of type {name}, which is no part of a program")
            data = [name, *(self.written(getattr(record, each)) for each in _fields(type(record)))]
            self.records.append(data)
            self._kept.append(record)
            self._places[id(record)] = len(self.records) - 1
        return self._places[id(record)]


class _Reader:
    """Turns plain data back into values; a record is made of values and of records before it."""

    def __init__(self, records: list[Any]) -> None:
        self._records: list[Any] = []
        for name, *values in records:
            made = _classes()[name]
            self._records.append(made(**dict(zip(_fields(made), map(self.read, values), strict=True))))

    def read(self, data: Any) -> Any:
        """Return the value that plain data stand for."""
        if not isinstance(data, list):
            return data
        tag, *parts = data
        if tag == _TUPLE:
            return tuple(map(self.read, parts))
        if tag == _MAP:
            return {self.read(key): self.read(value) for key, value in parts}
        if tag == _SET:
            return frozenset(map(self.read, parts))
        if tag == _REF:
            return Ref(self.read(parts[0]))
        if tag == _COMPLEX:
            return complex(*parts)
        if tag == _TEXT:
            return parts[0].decode("utf-8", "surrogatepass")
        if tag == _MEMBER:
            return _enums()[parts[0]][parts[1]]
        if tag == _RECORD:
            return self._records[parts[0]]
        if tag == _CALIBRATED:
            return calibrated()
        raise ValueError(f"{tag!r:.20} is not a known tag")


# ------------------------------------------------------------------------------- classes


def _layout() -> dict[str, list[str]]:
    """Return the fields of every class of records, and the members of every enumeration."""
    records = {name: list(_fields(each)) for name, each in _classes().items()}
    return {**records, **{name: [member.name for member in each] for name, each in _enums().items()}}


@lru_cache(maxsize=1)
def _classes() -> Mapping[str, Any]:
    return {each.__name__: each for each in _types() if not issubclass(each, Enum)}


@lru_cache(maxsize=1)
def _enums() -> Mapping[str, Any]:
    return {each.__name__: each for each in _types() if issubclass(each, Enum)}


@lru_cache(maxsize=1)
def _types() -> tuple[Any, ...]:
    """Return the records and enumerations that a program can hold, in the order in which its fields name them."""
    found: dict[Any, None] = {}
    pending: list[Any] = [Program]
    while pending:
        kind = pending.pop()
        if not _is_own(kind):
            pending += get_args(kind)  # a union or a generic type
        elif kind not in found:
            found[kind] = None
            pending += [] if issubclass(kind, Enum) else [get_type_hints(kind)[name] for name in _fields(kind)]
    return tuple(found)


def _is_own(kind: Any) -> bool:
    if not isinstance(kind, type) or get_origin(kind) is not None:
        return False
    return is_dataclass(kind) or hasattr(kind, "_fields") or issubclass(kind, Enum)


def _fields(record: Any) -> tuple[str, ...]:
    return tuple(getattr(record, "_fields", None) or (each.name for each in fields(record) if each.init))
