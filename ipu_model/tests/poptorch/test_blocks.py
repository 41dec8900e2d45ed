"""`BeginBlock`, `Block`, `BlockFunction` and their automatic ids (execution reference, section 2)."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executor_support import inference, quiet
from torch import Tensor, nn

import poptorch
from ipu_model.capture.graph import info_of

X = torch.ones(2, 2)


def double(x: Tensor) -> Tensor:
    return x * 2


def in_order(model: Any, x: Tensor) -> Tensor:
    return model.c(model.b(model.a(x)))


class Three(nn.Module):
    """Three layers, called one after another unless told otherwise."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor] = in_order) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(2, 2) for _ in range(3))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def placements(model: nn.Module, strategy: Any = None) -> dict[str, tuple[str, int, int]]:
    """Compile `model` and return block, stage and IPU of the matrix product of each submodule."""
    options = quiet().deviceIterations(1).setExecutionStrategy(strategy or poptorch.ShardedExecution())
    executor = inference(model, options)
    executor.compile(X)
    assert executor._compiled is not None
    found = {}
    for node in executor._compiled.graph.ops.nodes:
        if "addmm" in str(node.target):
            place = info_of(node).placement
            found[info_of(node).scope] = (place.block, place.stage, place.ipu)
    return found


def entries(model: nn.Module, strategy: Any = None) -> list[str]:
    """Compile `model` and return the ids of the blocks in the order in which they were entered."""
    executor = inference(model, quiet().setExecutionStrategy(strategy or poptorch.ShardedExecution()))
    executor.compile(X)
    assert executor._compiled is not None
    return [entry.block for entry in executor._compiled.graph.block_entries]


class Runs(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class TestBeginBlock:
    def test_it_returns_the_same_module_with_the_same_class_and_names(self) -> None:
        model = Three()
        names = list(model.state_dict())
        assert poptorch.BeginBlock(model.b, "later", 1) is model.b
        assert type(model.b) is nn.Linear
        assert list(model.state_dict()) == names

    def test_everything_from_there_on_belongs_to_the_block(self) -> None:
        model = Three()
        poptorch.BeginBlock(model.b, "later", ipu_id=1)
        assert placements(model) == {"a": ("", 0, 0), "b": ("later", 1, 1), "c": ("later", 1, 1)}
        poptorch.BeginBlock(model.a, "later", ipu_id=1)  # modules may share an id
        assert {place[0] for place in placements(model).values()} == {"later"}

    @pytest.mark.parametrize("wrap", [lambda layer: layer, lambda layer: layer.forward], ids=["module", "function"])
    def test_an_automatic_id_is_kept_so_that_another_compilation_has_the_same_stages(self, wrap: Any) -> None:
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        layers = [poptorch.BeginBlock(wrap(layer)) for layer in (first, second)]
        model = Runs(lambda x: layers[1](layers[0](x)))
        model.layers = nn.ModuleList([first, second])
        options = quiet().setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))
        executor = inference(model, options)
        for _ in range(2):
            executor.compile(X)
            assert executor._compiled is not None
            found = [(entry.block, entry.stage) for entry in executor._compiled.graph.block_entries]
            assert found == [("0", 1), ("1", 2)]
            executor.destroy()

    def test_it_fires_when_the_module_is_called_not_its_forward(self) -> None:
        model = Three(lambda m, x: m.c(m.b.forward(m.a(x))))
        poptorch.BeginBlock(model.b, "later", ipu_id=1)
        assert {place[0] for place in placements(model).values()} == {""}

    def test_hooks_registered_earlier_still_run_in_the_block_before(self) -> None:
        model = Three()
        model.b.register_forward_pre_hook(lambda module, args: (model.a(args[0]),))
        poptorch.BeginBlock(model.b, "later", ipu_id=1)
        assert placements(model)["a"] == ("", 0, 0)

    def test_an_automatic_id_is_drawn_once_and_printed(self) -> None:
        model = Three()
        expected = model(X)
        poptorch.BeginBlock(model.b, ipu_id=1)
        assert torch.equal(model(X), expected)  # without a device it does nothing
        assert "BeginBlock(user_id=None, ipu_id=1)" in poptorch.module_repr(model)
        options = quiet().setExecutionStrategy(poptorch.ShardedExecution())
        for _ in range(2):
            executor = inference(model, options)
            executor.compile(X)
            assert "BeginBlock(user_id=0, ipu_id=1)" in repr(executor)

    def test_annotations_survive_copies_and_files(self) -> None:
        model = Three()
        poptorch.BeginBlock(model.b, "later", ipu_id=1)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for twin in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model)),
                     torch.load(file, weights_only=False)):  # fmt: skip
            assert placements(twin)["c"] == ("later", 1, 1)

    def test_the_old_form_wraps_a_function(self) -> None:
        block = poptorch.BeginBlock(double, "doubled", 1)
        assert isinstance(block, nn.Module)
        assert (block._user_id, block._ipu_id, block._layer_to_call) == ("doubled", 1, double)
        assert torch.equal(block(X), X * 2)
        assert torch.equal(pickle.loads(pickle.dumps(block))(X), X * 2)
        assert placements(Three(lambda m, x: m.b(block(m.a(x))))) == {"a": ("", 0, 0), "b": ("doubled", 1, 1)}


class TestBlock:
    def test_it_is_a_context_manager_without_a_value_and_a_module(self) -> None:
        block = poptorch.Block("a", 0)
        assert isinstance(block, nn.Module)
        with block as value:
            assert value is None

    def test_it_places_its_body(self) -> None:
        def forward(m: Any, x: Tensor) -> Tensor:
            with poptorch.Block("front", ipu_id=0):
                x = m.a(x)
            with poptorch.Block("back", ipu_id=1):
                x = m.b(x)
            with poptorch.Block("back"):  # a known id resumes its stage
                return m.c(x)

        expected = {"a": ("front", 0, 0), "b": ("back", 1, 1), "c": ("back", 1, 1)}
        assert placements(Three(forward), poptorch.ShardedExecution("front", "back")) == expected

    @pytest.mark.parametrize("leave", ["normally", "by an exception"])
    def test_after_it_no_block_is_active(self, leave: str) -> None:
        def forward(x: Tensor) -> Tensor:
            try:
                with poptorch.Block("front", ipu_id=0):
                    x = x + 1
                    if leave == "by an exception":
                        raise KeyError
            except KeyError:
                pass
            return x * 2

        with pytest.raises(poptorch.Error, match=r"No active Block.*mul") as refusal:
            inference(Runs(forward))(X)
        assert "entering the last block again" in refusal.value.message

    def test_ops_before_the_first_block_are_fine(self) -> None:
        def forward(x: Tensor) -> Tensor:
            x = x + 1
            with poptorch.Block("front", ipu_id=0):
                return x * 2

        assert torch.equal(inference(Runs(forward))(X), X * 4)

    def test_an_inner_block_replaces_the_outer_one_which_does_not_come_back(self) -> None:
        def nested(m: Any, x: Tensor) -> Tensor:
            with poptorch.Block("outer", ipu_id=0):
                x = m.a(x)
                with poptorch.Block("inner", ipu_id=1):
                    x = m.b(x)
                return m.c(x)

        with pytest.raises(poptorch.Error, match=r"No active Block.*module 'c'"):
            placements(Three(nested))

    def test_a_begin_block_inside_takes_over_and_start_begins_one_without_an_end(self) -> None:
        def mixed(m: Any, x: Tensor) -> Tensor:
            with poptorch.Block("front", ipu_id=0):
                return m.c(m.b(m.a(x)))

        def starts(m: Any, x: Tensor) -> Tensor:
            x = m.a(x)
            poptorch.Block.start("later", ipu_id=1)
            return m.c(m.b(x))

        model = Three(mixed)
        poptorch.BeginBlock(model.b, "later", ipu_id=1)
        assert placements(model) == {"a": ("front", 0, 0), "b": ("later", 1, 1), "c": ("later", 1, 1)}
        assert placements(Three(starts)) == {"a": ("", 0, 0), "b": ("later", 1, 1), "c": ("later", 1, 1)}

    def test_without_a_device_it_does_nothing(self) -> None:
        with poptorch.Block("a", 0):
            poptorch.Block.start("b", 3)
            poptorch.Block.useAutoId()
        assert torch.equal(X * 2, double(X))


class TestAutomaticIds:
    def test_they_count_blocks_without_an_id_only(self) -> None:
        def forward(x: Tensor) -> Tensor:
            for user_id in (None, "named", "", 0):
                with poptorch.Block(user_id, ipu_id=0):
                    x = x + 1
            return x

        assert entries(Runs(forward)) == ["0", "named", "1", "2"]

    @pytest.mark.parametrize("restart", [False, True])
    def test_the_counter_goes_on_unless_it_is_restarted(self, restart: bool) -> None:
        def forward(x: Tensor) -> Tensor:
            if restart:
                poptorch.Block.useAutoId()
            with poptorch.Block(ipu_id=0):
                return x + 1

        executor = inference(Runs(forward))
        found = []
        for _ in range(2):
            executor.compile(X)
            assert executor._compiled is not None
            found.append(executor._compiled.graph.block_entries[0].block)
            executor.destroy()
        assert found == (["0", "0"] if restart else ["0", "1"])


class TestBlockFunction:
    def test_functions_and_methods_run_inside_a_block(self) -> None:
        class Decorated(Three):
            @poptorch.BlockFunction("front", ipu_id=0)
            def front(self, x: Tensor, *, twice: bool = False) -> Tensor:
                """Run the first layer."""
                return self.a(x) * (2 if twice else 1)

            def forward(self, x: Tensor) -> Tensor:
                x = self.front(x, twice=True)
                return self.rest(x)

            @poptorch.BlockFunction("back", ipu_id=1)
            def rest(self, x: Tensor) -> Tensor:
                return self.c(self.b(x))

        model = Decorated()
        assert placements(model) == {"a": ("front", 0, 0), "b": ("back", 1, 1), "c": ("back", 1, 1)}
        assert Decorated.front.__doc__ == "Run the first layer."
        assert torch.equal(inference(model, _sharded())(X), model(X))


def _sharded() -> poptorch.Options:
    return quiet().setExecutionStrategy(poptorch.ShardedExecution())


class Saveable(nn.Module):
    @poptorch.BlockFunction("all", ipu_id=0)
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def test_models_with_block_functions_can_be_saved() -> None:
    file = io.BytesIO()
    torch.save(Saveable(), file)
    file.seek(0)
    assert torch.equal(inference(torch.load(file, weights_only=False))(X), X * 2)


class TestRemoveBlocks:
    def test_it_takes_annotations_away_and_leaves_other_hooks(self) -> None:
        model = Three()
        calls: list[int] = []
        model.b.register_forward_pre_hook(lambda module, args: calls.append(1))
        poptorch.BeginBlock(model.b, "b", 1)
        poptorch.BeginBlock(model, "whole", 0)
        assert poptorch.removeBlocks(model) is None
        assert entries(model) == []
        assert calls
        poptorch.BeginBlock(model.b, "again", 1)
        assert entries(model) == ["again"]


class TestText:
    def test_modules_show_their_annotations_in_front_of_their_types(self) -> None:
        model = nn.Sequential(Three(), nn.ReLU())
        poptorch.BeginBlock(model[0].b, ipu_id=1)
        assert poptorch.module_repr(model).splitlines() == [
            "Sequential(",
            "  (0): Three(",
            "    (a): Linear(in_features=2, out_features=2, bias=True)",
            "    (b): BeginBlock(user_id=None, ipu_id=1) Linear(in_features=2, out_features=2, bias=True)",
            "    (c): Linear(in_features=2, out_features=2, bias=True)",
            "  )",
            "  (1): ReLU()",
            ")",
        ]
        assert "BeginBlock" not in str(model)

    def test_print_shows_modules_twice_and_other_things_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        layer = nn.ReLU()
        poptorch.BeginBlock(layer, "r", 0)
        poptorch.print(layer)
        assert capsys.readouterr().out == "BeginBlock(user_id=r, ipu_id=0) ReLU()\nReLU()\n"
        poptorch.print(m="once")
        assert capsys.readouterr().out == "once\n"
