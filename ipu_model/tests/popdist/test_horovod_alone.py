"""`horovod.torch` without poprun: one rank, and every call is there. Several ranks: test_training_over_instances.py."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import popdist
import poptorch
from poptorch._backend import support

hvd: Any = importlib.import_module("horovod.torch")


@pytest.fixture(autouse=True)
def initialised() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()
    popdist.finalizeBackend()


def test_one_rank_gets_back_what_it_gives_and_waits_for_nobody() -> None:
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert hvd.is_initialized()
    x = torch.tensor([[1.0, -2.0]])
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max):
        reduced = hvd.allreduce(x, op=op)
        assert torch.equal(reduced, x)
        assert reduced is not x
        assert [t.tolist() for t in hvd.grouped_allreduce([x, x.long()], op=op)] == [[[1.0, -2.0]], [[1, -2]]]
    assert torch.equal(hvd.allgather(x), x)
    assert torch.equal(hvd.broadcast(x, root_rank=0), x)
    assert hvd.broadcast_object({"a": 1}, root_rank=0) == {"a": 1}
    hvd.barrier()
    assert hvd.join() == 0


def test_parameters_are_taken_as_state_dict_or_by_name_and_stay_as_the_optimiser_does() -> None:
    model = nn.BatchNorm1d(2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    hvd.broadcast_optimizer_state(optimiser, root_rank=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (optimiser.param_groups[0]["lr"], optimiser.param_groups[0]["momentum"]) == (0.25, 0.5)


def test_calls_before_init_are_refused() -> None:
    hvd.shutdown()
    assert not hvd.is_initialized()
    for call in (hvd.rank, hvd.size, lambda: hvd.allreduce(torch.ones(1)), lambda: hvd.broadcast(torch.ones(1), 0)):
        with pytest.raises(ValueError, match="Horovod has not been initialized"):
            call()


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: hvd.broadcast(torch.ones(1), root_rank=1), poptorch.Error, r"root_rank 1: the ranks here are 0\."),
    (lambda: hvd.allgather(torch.tensor(1.0)), poptorch.Error, "dimension 0"),
    (lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum), ValueError, "supersedes average"),
    (lambda: hvd.allreduced, AttributeError, "no attribute 'allreduced'"),
])  # fmt: skip
def test_mistakes_are_refused(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


REFUSED = [
    e for area in support.table() for e in area.entries if area.owner == "horovod.torch" and e.status == "refused"
]


@pytest.mark.parametrize("entry", REFUSED, ids=lambda entry: entry.name)
def test_other_names_of_horovod_refuse_by_name(entry: support.Entry) -> None:
    with pytest.raises(poptorch.Error, match=rf"horovod\.torch\.{entry.name} is not supported") as refusal:
        getattr(hvd, entry.name)(torch.ones(1))
    assert entry.text in refusal.value.message


@pytest.mark.parametrize("statement", ["import horovod.torch as hvd", "from horovod import torch as hvd"])
def test_it_is_imported_first_thing_and_an_installed_one_comes_first(tmp_path: Path, statement: str) -> None:
    ours = Path(popdist.__file__).parents[1]
    (tmp_path / "horovod").mkdir()
    for file in ("__init__.py", "torch.py"):
        (tmp_path / "horovod" / file).write_text("size = lambda: 'installed'")
    program = f"{statement}\nif hasattr(hvd, 'init'): hvd.init()\nprint(hvd.size(), end='')"
    for folders, expected in (((ours,), "1"), ((ours, tmp_path), "installed"), ((tmp_path, ours), "installed")):
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
        assert subprocess.check_output([sys.executable, "-c", program], text=True, env=path) == expected
