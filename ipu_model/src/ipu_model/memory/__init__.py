"""What every tile of a replica holds: data over time, code, and whether it fits."""

from ipu_model.memory.model import memory_of
from ipu_model.memory.stash import stash_slots
from ipu_model.memory.verdict import Verdict, note_on_memory, out_of_memory, verdict_on

__all__ = ["Verdict", "memory_of", "note_on_memory", "out_of_memory", "stash_slots", "verdict_on"]
