"""Split points: modules in the order of the forward pass, shared out so that the slowest stage is fastest."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from cost_support import Trained
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from tracing_support import traced

from ipu_model.batching import Batching
from ipu_model.capture.describe import step_of
from ipu_model.errors import Error
from ipu_model.explore.split import Balance, even_split, even_starts, split_before, stage_modules, units_of
from ipu_model.predict import memory_of_program, profile_program
from ipu_model.predict.costs import costs_of
from ipu_model.predict.program import Program, Recomputation
from published.convolutional import day03

PROGRAM = Program(step_of(day03()), True, recomputation=Recomputation.PIPELINE)


class TestUnits:
    def test_they_follow_the_forward_pass(self) -> None:
        names = [unit.name for unit in units_of(PROGRAM)]
        assert names[:5] == ["model.conv1", "model.bn1", "model.relu", "model.maxpool", "model.layer1.0"]
        assert names.index("model.layer3.8") == names.index("model.layer3.7") + 1

    def test_together_they_cost_the_whole_model(self) -> None:
        whole = PROGRAM.settings.device.total(costs_of(PROGRAM.step, PROGRAM.settings).cycles())
        assert abs(sum(unit.forward + unit.backward for unit in units_of(PROGRAM)) - whole) < 1e-6 * whole

    def test_each_scope_is_in_one_of_them(self) -> None:
        scopes = [scope for unit in units_of(PROGRAM) for scope in unit.scopes]
        assert len(scopes) == len(set(scopes))
        assert set(scopes) >= {op.scope for op in PROGRAM.step.ops}


class TestEvenSplit:
    @given(st.lists(st.integers(1, 50), min_size=3, max_size=8), st.integers(2, 3), st.integers(1, 3))
    def test_no_other_cuts_are_better(self, units: list[int], stages: int, factor: int) -> None:
        """Against every way to cut, one by one; stages but the last cost `factor` times as much."""
        costs = [[unit * (factor if stage < stages - 1 else 1) for unit in units] for stage in range(stages)]

        def slowest(cuts: tuple[int, ...]) -> float:
            bounds = (0, *cuts, len(units))
            return max(sum(costs[s][bounds[s] : bounds[s + 1]]) for s in range(stages))

        best = min(slowest(cuts) for cuts in itertools.combinations(range(1, len(units)), stages - 1))
        assert slowest(even_split(costs)) == best


class TestEvenStarts:
    def test_stages_are_more_even_than_the_published_split(self) -> None:
        """Before layer3[8], IPU 0 is the slower one (published trace): the even split begins earlier."""
        names = even_starts(PROGRAM, 2)
        assert names in {("model.layer3.6",), ("model.layer3.7",)}

    def test_the_program_can_be_split_there(self) -> None:
        names = even_starts(PROGRAM, 4)
        assert names is not None
        found = split_before(PROGRAM, names)
        assert [stage.ipu for stage in found.step.stages] == [0, 1, 2, 3]
        assert list(stage_modules(found)) == list(names)

    def test_more_stages_than_modules_are_impossible(self) -> None:
        assert even_starts(PROGRAM, 1000) is None


class TestBalance:
    def test_an_even_split_by_memory_holds_less_where_weights_are_uneven(self) -> None:
        """A wide layer of 4 x 1,024^2 weights before four narrow ones that take as much time and hold few weights."""
        narrow = [nn.Sequential(nn.Linear(1024, 1024), *(nn.GELU() for _ in range(12))) for _ in range(4)]
        wide = [nn.Linear(1024, 4096), nn.Linear(4096, 1024)]
        graph = traced(Trained(nn.Sequential(*wide, *narrow)), torch.zeros(256, 1024))
        program = Program(step_of(graph), True, Batching(accumulation=4))
        fullest = {}
        for balance in Balance:
            names = even_starts(program, 2, balance)
            assert names is not None
            fullest[balance] = memory_of_program(split_before(program, names)).max_tile_bytes
        assert fullest[Balance.MEMORY] <= fullest[Balance.TIME]

    def test_a_module_that_runs_twice_begins_no_block(self) -> None:
        shared = nn.Linear(64, 64)
        graph = traced(Trained(nn.Sequential(nn.Linear(64, 64), shared, nn.Linear(64, 64), shared)), torch.zeros(8, 64))
        names = [unit.name for unit in units_of(Program(step_of(graph), True))]
        assert not any(name.endswith(".1") for name in names)


class TestSplitBefore:
    def test_ops_of_the_model_itself_stay_on_either_side_of_a_cut(self) -> None:
        """What the model runs before its second layer is on the first IPU, what it runs after on the second."""

        class Around(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.second(self.first(x.exp()).sin()).cos()

        program = Program(step_of(traced(Trained(Around()), torch.zeros(4, 8))), True)
        found = {op.kind: op.stage for op in split_before(program, ["module.second"]).step.ops if not op.is_backward}
        assert (found["exp"], found["sin"], found["cos"]) == (0, 0, 1)

    def test_it_is_what_a_block_at_that_module_gives(self) -> None:
        """Against the capture of the published program, whose second block begins at layer3[8]."""
        elsewhere = split_before(PROGRAM, ["model.layer2.0"])
        there = split_before(elsewhere, ["model.layer3.8"])
        assert list(stage_modules(elsewhere)) == ["model.layer2.0"]
        assert profile_program(there, None) == profile_program(PROGRAM, None)

    def test_every_name_begins_a_stage(self) -> None:
        names = ["model.layer1", "model.layer3.2", "model.layer4.1"]
        found = split_before(PROGRAM, names)
        assert [stage.ipu for stage in found.step.stages] == [0, 1, 2, 3]
        assert list(stage_modules(found)) == ["model.layer1.0", "model.layer3.2", "model.layer4.1"]

    def test_no_name_is_one_stage(self) -> None:
        assert len(split_before(PROGRAM, []).step.stages) == 1

    def test_a_program_of_one_ipu_recomputes_once_it_has_two(self) -> None:
        one = replace(split_before(PROGRAM, []), recomputation=Recomputation.NONE)
        assert split_before(one, ["model.layer3.8"]).recomputation is Recomputation.PIPELINE
        assert split_before(replace(PROGRAM, recomputation=Recomputation.NONE), ["model.layer4"]).recomputation is (
            Recomputation.NONE
        )

    def test_names_come_in_the_order_of_the_forward_pass(self) -> None:
        with pytest.raises(Error, match="after the ones before it"):
            split_before(PROGRAM, ["model.layer4", "model.layer1"])
