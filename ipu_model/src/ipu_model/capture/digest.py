"""A digest of a captured program, by which files know it again."""

from __future__ import annotations

import hashlib
from dataclasses import fields

import torch

from ipu_model.capture.describe import step_of
from ipu_model.graph import Graph


def digest_of(graph: Graph) -> str:
    """Return hexadecimal digits that are the same, in every process, for programs that compute and cost the same.

    Ops, placements and constants count; the values of weights do not, and neither does what a Python function computes
    that the host or a custom op calls.
    """
    step = step_of(graph)
    digest = hashlib.blake2b(digest_size=20)
    for field in fields(step):
        digest.update(f"{field.name}={getattr(step, field.name)!r};".encode())
    for name in ("mutated", "assigned"):
        digest.update(f"{name}={sorted(getattr(graph, name))};".encode())
    for name, constant in graph.constants.items():
        digest.update(f"{name}: {constant.dtype} {tuple(constant.shape)};".encode())
        digest.update(constant.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
