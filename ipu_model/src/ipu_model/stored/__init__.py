"""Files that hold programs: read without executing anything that they contain."""

from ipu_model.stored.container import Contents, read, write
from ipu_model.stored.graphs import graph_form, graph_of
from ipu_model.stored.values import Invalid, NotStorable, OtherVersion, damage_found, decode, encode

__all__ = [
    "Contents",
    "Invalid",
    "NotStorable",
    "OtherVersion",
    "damage_found",
    "decode",
    "encode",
    "graph_form",
    "graph_of",
    "read",
    "write",
]
