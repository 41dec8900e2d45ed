"""Files of plain values and tensors, which are read without executing anything that they contain.

A line with the format's number, a digest of all that follows, then what `torch.save` writes. The digest tells files
that were cut short or changed on their way. It is no signature: whoever uses what a file says checks it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

_NAME, _FORMAT = b"IPU Model program ", b"2\n"
_DIGEST = hashlib.sha256


class NotStorable(Exception):
    """A value that a file cannot hold; the text names its type."""


class Invalid(Exception):
    """A file whose contents are not what its format says; the text says what is wrong."""


class OtherVersion(Invalid):
    """A file that another version has written."""


@contextlib.contextmanager
def damage_found(what: str) -> Iterator[None]:
    """Make `Invalid` of any error of the body, which takes apart what somebody else may have written."""
    try:
        yield
    except Invalid:
        raise
    except Exception as error:
        raise Invalid(f"{what} ({type(error).__name__}: {str(error).partition(chr(10))[0]:.200})") from error


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Write `values` so that `path` has either all of them or what was there before.

    Values are tensors, numbers, text, `None`, and tuples, lists and dicts of these.

    Raises:
        NotStorable: a value of another type.
        OSError: the file cannot be written.
    """
    body = _bytes_of(dict(values))
    with _replacing(path) as file:
        file.write(_NAME + _FORMAT + _DIGEST(body).digest())
        file.write(body)


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote.

    Raises:
        Invalid: no such file, another number of the format, truncated, corrupt, or larger than the memory.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        if file.read(len(_NAME)) != _NAME:
            raise Invalid("it is no program of the IPU Model")
        if file.read(len(_FORMAT)) != _FORMAT:
            raise OtherVersion("PopTorch version mismatch: its format is that of another version")
        if os.fstat(file.fileno()).st_size > _memory_bytes():
            raise Invalid("it is larger than the memory of this machine")
        digest, body = file.read(_DIGEST().digest_size), file.read()
    if _DIGEST(body).digest() != digest:
        raise Invalid("it is truncated or corrupt")
    with damage_found("its contents do not follow its format"):
        values = torch.load(io.BytesIO(body), weights_only=True)
        return {str(name): value for name, value in values.items()}


def _bytes_of(values: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    try:
        torch.save(values, buffer)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise NotStorable(f"a value that cannot be pickled ({error})") from error
    other = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(buffer.getvalue()))
    if other:
        raise NotStorable(f"a value of type {', '.join(sorted(other))}")
    return buffer.getvalue()


def _memory_bytes() -> float:
    """Return the machine's memory; where the system does not tell, anything fits."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a new file that takes the place of `path` when the body has ended without an error."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(beside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
