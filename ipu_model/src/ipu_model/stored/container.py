"""The file itself: a line with the format's number, a digest of all that follows, JSON, then tensors as raw bytes.

A file that was cut short or changed on its way is recognised by its digest. The digest is no signature: what a file
says is checked again where it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ipu_model.stored.values import Invalid, NotStorable, OtherVersion, damage_found, decode, encode

_NAME, _FORMAT = b"IPU Model program ", b"1\n"
_DIGEST = hashlib.sha256
_DIGEST_BYTES, _LENGTH_BYTES = 32, 8


@dataclass(frozen=True)
class Contents:
    """What a file holds: JSON values by name, and tensors by name."""

    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def write(path: Path, contents: Contents) -> None:
    """Write `contents` so that `path` has either all of them or what was there before.

    Raises:
        NotStorable: a tensor that is not dense, or not on the CPU.
        OSError: the file cannot be written.
    """
    chunks = [_bytes_of(name, tensor) for name, tensor in contents.tensors.items()]
    table = [
        [name, encode(t.dtype), list(t.shape), list(t.stride()), len(chunk)]
        for (name, t), chunk in zip(contents.tensors.items(), chunks)
    ]
    head = json.dumps({"values": dict(contents.values), "tensors": table}).encode()
    body = [len(head).to_bytes(_LENGTH_BYTES, "little"), head, *chunks]
    digest = _DIGEST()
    for part in body:
        digest.update(part)
    with _replacing(path) as file:
        file.write(_NAME + _FORMAT + digest.digest())
        for part in body:
            file.write(part)


def read(path: Path) -> Contents:
    """Read what `write` wrote.

    Raises:
        Invalid: no such file format, another number of the format, truncated, corrupt, or larger than the memory.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        if file.read(len(_NAME)) != _NAME:
            raise Invalid("it is no program of the IPU Model")
        if file.read(len(_FORMAT)) != _FORMAT:
            raise OtherVersion("PopTorch version mismatch: its format is that of another version")
        digest = file.read(_DIGEST_BYTES)
        body = _rest_of(file)
    if _DIGEST(body).digest() != digest:
        raise Invalid("it is truncated or corrupt")
    with damage_found("its contents do not follow its format"):
        return _contents(body)


def _rest_of(file: BinaryIO) -> memoryview:
    size = os.fstat(file.fileno()).st_size - file.tell()
    if size > _memory_bytes():
        raise Invalid("it is larger than the memory of this machine")
    data = bytearray(max(0, size))
    # A file that is changed while it is read fails its digest.
    return memoryview(data)[: file.readinto(data)]  # type: ignore[attr-defined]  # buffered readers have it


def _memory_bytes() -> float:
    """Return the machine's memory; where the system does not tell, anything fits."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _contents(body: memoryview) -> Contents:
    length = int.from_bytes(body[:_LENGTH_BYTES], "little")
    head = json.loads(bytes(body[_LENGTH_BYTES : _LENGTH_BYTES + length]))
    if not isinstance(head["values"], dict):
        raise Invalid("its values have no names")
    tensors, at = {}, _LENGTH_BYTES + length
    for name, dtype, shape, stride, size in head["tensors"]:
        if not isinstance(name, str) or not 0 <= size <= len(body) - at:
            raise Invalid("a tensor lies outside the file")
        tensors[name] = _tensor(body[at : at + size], decode(dtype), shape, stride)
        at += size
    return Contents(head["values"], tensors)


def _tensor(data: memoryview, dtype: torch.dtype, shape: list[int], stride: list[int]) -> Tensor:
    """Return a tensor of its own memory; `stride` must be that of a dense tensor of this size."""
    tensor = torch.empty(len(data) // dtype.itemsize, dtype=dtype)
    if not _is_dense(shape, stride) or tensor.nbytes != len(data):
        raise Invalid("a tensor whose size does not fit its description")
    if len(data):
        tensor.view(torch.uint8).copy_(torch.frombuffer(data, dtype=torch.uint8))
    return tensor.as_strided(shape, stride)


def _bytes_of(name: str, tensor: Tensor) -> bytes:
    if (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or not _is_dense(tensor.shape, tensor.stride())
    ):
        raise NotStorable(f"the tensor {name}, which is not dense or not on the CPU")
    flat = tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.view(torch.uint8).numpy().tobytes()


def _is_dense(shape: Any, stride: Any) -> bool:
    """Whether the elements of a tensor fill a stretch of memory once, in whatever order of dimensions."""
    if 0 in shape:
        return True
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True


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
