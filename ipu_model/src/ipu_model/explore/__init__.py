"""Profiles, what-ifs, sweeps, advice and searches, based on one table of options."""

from __future__ import annotations

from collections.abc import Mapping

KEEP: Mapping[str, str] = {
    "precision": "the types of weights, activations, partial sums and optimiser state",
    "optimiser": "the types of gradient accumulators and optimiser state",
    "micro-batch": "the rows of a micro-batch",
    "replicas": "the number of replicas",
    "split": "the blocks and the number of IPUs of a replica",
    "calls": "the samples of a call",
    "machine": "the machine",
}
"""What a user can ask a search to leave as it is, by its name. The global batch always stays as it is."""
