"""Canaries for names of torch.distributed below its public API: if one fails, look at instances/gloo.py again."""

from __future__ import annotations

import inspect
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from ipu_model.instances import gloo


def test_a_backend_of_ones_own_leaves_the_default_group_alone() -> None:
    backend = gloo.connect(gloo.HashStore(), 0, 1, timedelta(seconds=20), "127.0.0.1")
    tensor = torch.tensor([2.0])
    gloo.reduce_(backend, tensor, "SUM")
    gloo.broadcast_(backend, tensor, 0)
    gloo.wait_for_all(backend)
    assert [part.tolist() for part in gloo.gather(backend, tensor)] == [[2.0]]
    assert not dist.is_initialized()


def test_without_an_address_gloo_asks_the_machine() -> None:
    assert gloo.connect(gloo.HashStore(), 0, 1, timedelta(seconds=20), None).size() == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_gloo_sums_the_types_that_programs_reduce(dtype: torch.dtype) -> None:
    backend = gloo.connect(gloo.HashStore(), 0, 1, timedelta(seconds=20), "127.0.0.1")
    tensor = torch.ones(3, dtype=dtype)
    gloo.reduce_(backend, tensor, "SUM")
    assert tensor.tolist() == [1.0] * 3


def test_a_server_is_shared_inside_a_process_and_a_taken_port_says_so() -> None:
    """poprun's agents keep the store open that torch's launcher opens again; the error's text is looked for."""
    first = gloo.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    again = gloo.TCPStore("127.0.0.1", first.port, is_master=True, wait_for_workers=False, multi_tenant=True)
    assert again.port == first.port
    with pytest.raises(dist.DistNetworkError, match="EADDRINUSE"):
        gloo.TCPStore("127.0.0.1", first.port, is_master=True, wait_for_workers=False)


def test_the_store_is_found_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    server = gloo.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    gloo.store_from_environment(1, 2, timedelta(seconds=20)).set("a", "b")
    assert server.get("a") == b"b"


def test_a_store_with_prefixes_leads_to_the_one_below() -> None:
    """The launcher writes below; it does not know in which room an instance waits."""
    below = gloo.HashStore()
    gloo.root_of(gloo.PrefixStore("a", gloo.PrefixStore("b", below))).set("key", "value")
    assert below.get("key") == b"value"
    assert gloo.PrefixStore("b", below).check(["key"]) is False


def test_torchs_launcher_asks_for_logs_as_poprun_expects() -> None:
    """`reify` gets the environments before the processes start, and may change them."""
    from torch.distributed.elastic.multiprocessing import LogsSpecs
    from torch.distributed.elastic.multiprocessing.api import PContext

    assert list(inspect.signature(LogsSpecs.reify).parameters) == ["self", "envs"]
    source = inspect.getsource(PContext.__init__)
    assert "logs_specs.reify(envs)" in source
    assert "self.envs = envs" in source
