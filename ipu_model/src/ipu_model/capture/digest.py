"""A digest of a captured program, by which files know it again."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace

import torch

from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.step import Placement


def digest_of(graph: Graph) -> str:
    """Return hexadecimal digits that are the same, in every process, for programs that compute and cost the same.

    Ops, placements and constants count; the values of weights do not, and neither does what a Python function computes
    that the host or a custom op calls. Lines of the program and names of classes only serve reports. Stages count by
    their order: the ids of blocks, and with them numbers of stages, are drawn anew by every trace of a model that does
    not name its blocks.
    """
    described = step_of(graph)
    step = replace(
        described,
        ops=tuple(replace(op, placement=_unnamed(op.placement, op.stage), line="") for op in described.ops),
        block_entries=tuple(_unnamed(entry, 0) for entry in described.block_entries),
        layers={},
    )
    digest = hashlib.blake2b(digest_size=20)
    for field in fields(step):
        digest.update(f"{field.name}={getattr(step, field.name)!r};".encode())
    for name in ("mutated", "assigned"):
        digest.update(f"{name}={sorted(getattr(graph, name))};".encode())
    for name, constant in graph.constants.items():
        digest.update(f"{name}: {constant.dtype} {tuple(constant.shape)};".encode())
        digest.update(constant.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _unnamed(placement: Placement, stage: int) -> Placement:
    return replace(placement, block="", stage=stage)
