"""`BeginBlock`, `Block`, `BlockFunction` and their automatic ids (execution reference, section 2)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executor_support import Module, graph_of, inference, pickled, quiet, saved
from torch import Tensor, nn

import poptorch
from ipu_model.capture.graph import info_of

X = torch.ones(2, 2)
SHARDED = {"setExecutionStrategy": poptorch.ShardedExecution()}


def double(x: Tensor) -> Tensor:
    return x * 2


def in_order(model: Any, x: Tensor) -> Tensor:
    return model.c(model.b(model.a(x)))


def three(function: Callable[[Any, Tensor], Tensor] = in_order) -> Module:
    return Module(function, **{name: nn.Linear(2, 2) for name in "abc"})


def graph(model: nn.Module, strategy: Any = None) -> Any:
    return graph_of(inference(model, quiet(setExecutionStrategy=strategy or poptorch.ShardedExecution())), X)


def placements(model: nn.Module, strategy: Any = None) -> dict[str, tuple[str, int, int]]:
    """Return block, stage and IPU of the matrix product of each submodule."""
    infos = [info_of(node) for node in graph(model, strategy).ops.nodes if "addmm" in str(node.target)]
    return {i.scope: (i.placement.block, i.placement.stage, i.placement.ipu) for i in infos}


LATER = {"a": ("", 0, 0), "b": ("later", 1, 1), "c": ("later", 1, 1)}
FRONT_LATER = LATER | {"a": ("front", 0, 0)}


class TestBeginBlock:
    def test_everything_from_there_on_belongs_to_the_block(self) -> None:
        model = three()
        names = list(model.state_dict())
        assert poptorch.BeginBlock(model.b, "later", ipu_id=1) is model.b
        assert type(model.b) is nn.Linear
        assert list(model.state_dict()) == names
        assert placements(model) == LATER
        for twin in (copy.copy(model), copy.deepcopy(model), pickled(model), saved(model)):
            assert placements(twin) == LATER
        poptorch.BeginBlock(model.a, "later", ipu_id=1)  # modules may share an id
        assert {place[0] for place in placements(model).values()} == {"later"}

    @pytest.mark.parametrize("wrap", [lambda layer: layer, lambda layer: layer.forward], ids=["module", "function"])
    def test_an_automatic_id_is_kept_so_that_another_compilation_has_the_same_stages(self, wrap: Any) -> None:
        layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        blocks = [poptorch.BeginBlock(wrap(layer)) for layer in layers]
        model = Module(lambda m, x: blocks[1](blocks[0](x)), layers=layers)
        for _ in range(2):
            found = graph(model, poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement)).block_entries
            assert [(entry.block, entry.stage) for entry in found] == [("0", 1), ("1", 2)]
        assert "user_id=None" not in poptorch.module_repr(model), "it is printed once it is drawn"

    def test_it_fires_when_the_module_is_called_not_its_forward_after_hooks_registered_earlier(self) -> None:
        model = three(lambda m, x: m.c(m.b.forward(m.a(x))))
        poptorch.BeginBlock(model.b, "later", ipu_id=1)
        assert {place[0] for place in placements(model).values()} == {""}
        model = three()
        model.b.register_forward_pre_hook(lambda module, args: (model.a(args[0]),))
        poptorch.BeginBlock(model.b, "later", ipu_id=1)
        assert placements(model)["a"] == ("", 0, 0)

    def test_the_old_form_wraps_a_function(self) -> None:
        block = poptorch.BeginBlock(double, "doubled", 1)
        assert isinstance(block, nn.Module)
        assert torch.equal(block(X), X * 2)
        assert torch.equal(pickled(block)(X), X * 2)
        assert placements(three(lambda m, x: m.b(block(m.a(x))))) == {"a": ("", 0, 0), "b": ("doubled", 1, 1)}


class TestBlock:
    def test_it_places_its_body(self) -> None:
        def forward(m: Any, x: Tensor) -> Tensor:
            block = poptorch.Block("front", ipu_id=0)
            assert isinstance(block, nn.Module)
            with block as value:
                assert value is None
                x = m.a(x)
            with poptorch.Block("later", ipu_id=1):
                x = m.b(x)
            with poptorch.Block("later"):  # a known id resumes its stage
                return m.c(x)

        assert placements(three(forward), poptorch.ShardedExecution("front", "later")) == FRONT_LATER

    @pytest.mark.parametrize("raises", [False, True])
    def test_after_it_no_block_is_active(self, raises: bool) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            try:
                with poptorch.Block("front", ipu_id=0):
                    x = x + 1
                    if raises:
                        raise KeyError
            except KeyError:
                pass
            return x * 2

        with pytest.raises(poptorch.Error, match=r"(?s)No active Block.*mul.*entering the last block again"):
            inference(Module(forward))(X)

    def test_an_inner_block_replaces_the_outer_one_which_does_not_come_back(self) -> None:
        def nested(m: Any, x: Tensor) -> Tensor:
            with poptorch.Block("outer", ipu_id=0):
                x = m.a(x)
                with poptorch.Block("inner", ipu_id=1):
                    x = m.b(x)
                return m.c(x)

        with pytest.raises(poptorch.Error, match=r"No active Block.*module 'c'"):
            placements(three(nested))

    def test_a_begin_block_inside_takes_over_and_start_begins_one_without_an_end(self) -> None:
        def mixed(m: Any, x: Tensor) -> Tensor:
            with poptorch.Block("front", ipu_id=0):
                return m.c(m.b(m.a(x)))

        def starts(m: Any, x: Tensor) -> Tensor:
            x = m.a(x)
            poptorch.Block.start("later", ipu_id=1)
            return m.c(m.b(x))

        model = three(starts)
        assert torch.equal(model(X), in_order(model, X)), "without a device it does nothing"
        assert placements(model) == LATER
        model = three(mixed)
        poptorch.BeginBlock(model.b, "later", ipu_id=1)
        assert placements(model) == FRONT_LATER


class TestAutomaticIds:
    def test_they_count_blocks_without_an_id_only(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            x = x + 1  # in no block yet
            for user_id in (None, "named", "", 0):
                with poptorch.Block(user_id, ipu_id=0):
                    x = x + 1
            return x

        assert [entry.block for entry in graph(Module(forward)).block_entries] == ["0", "named", "1", "2"]

    @pytest.mark.parametrize("restart", [False, True])
    def test_the_counter_goes_on_unless_it_is_restarted(self, restart: bool) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            if restart:
                poptorch.Block.useAutoId()
            with poptorch.Block(ipu_id=0):
                return x + 1

        executor = inference(Module(forward))
        for number in (0, 0 if restart else 1):
            assert graph_of(executor, X).block_entries[0].block == str(number)
            executor.destroy()


class Decorated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(2, 2) for _ in range(3))

    @poptorch.BlockFunction("front", ipu_id=0)
    def front(self, x: Tensor, *, twice: bool = False) -> Tensor:
        """Run the first layer."""
        return self.a(x) * (2 if twice else 1)

    @poptorch.BlockFunction("later", ipu_id=1)
    def rest(self, x: Tensor) -> Tensor:
        return self.c(self.b(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.front(x, twice=True))


def test_functions_and_methods_run_inside_a_block_also_of_models_from_files() -> None:
    assert Decorated.front.__doc__ == "Run the first layer."
    model = Decorated()
    for twin in (model, saved(model)):
        assert placements(twin) == FRONT_LATER
        assert torch.equal(inference(twin, quiet(**SHARDED))(X), model(X))


def test_remove_blocks_takes_annotations_away_and_leaves_other_hooks() -> None:
    model, calls = three(), []
    model.b.register_forward_pre_hook(lambda module, args: calls.append(1))
    poptorch.BeginBlock(model.b, "b", 1)
    poptorch.BeginBlock(model, "whole", 0)
    assert poptorch.removeBlocks(model) is None
    assert not graph(model).block_entries
    assert calls
    poptorch.BeginBlock(model.b, "again", 1)
    assert [entry.block for entry in graph(model).block_entries] == ["again"]


class TestText:
    def test_modules_show_their_annotations_in_front_of_their_types(self) -> None:
        model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
        poptorch.BeginBlock(model[0][0], ipu_id=1)
        assert poptorch.module_repr(model).splitlines() == [
            "Sequential(",
            "  (0): Sequential(",
            "    (0): BeginBlock(user_id=None, ipu_id=1) Linear(in_features=2, out_features=2, bias=True)",
            "  )",
            "  (1): ReLU()",
            ")",
        ]
        assert "BeginBlock" not in str(model)
        with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.ReLU, set]):
            assert poptorch.module_repr(saved(model, weights_only=True)) == poptorch.module_repr(model)

    def test_print_shows_modules_twice_and_other_things_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        layer = nn.ReLU()
        poptorch.BeginBlock(layer, "r", 0)
        poptorch.print(layer)
        assert capsys.readouterr().out == "BeginBlock(user_id=r, ipu_id=0) ReLU()\nReLU()\n"
        poptorch.print(m="once")
        assert capsys.readouterr().out == "once\n"
