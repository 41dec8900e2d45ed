"""Split points: modules in the order of the forward pass, shared out so that the slowest stage is fastest."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_programs import day03

from ipu_model.costed import lowered
from ipu_model.errors import Error
from ipu_model.profiling.build import profile_program
from ipu_model.program import Program, Recomputation
from ipu_model.splits import balanced, even_split, split_before, stage_starts, units_of
from ipu_model.stages import stages_of

PROGRAM = Program(day03(), True, recomputation=Recomputation.PIPELINE)
COSTS = lowered(PROGRAM.graph, PROGRAM.settings)
SYNC = PROGRAM.settings.device.sync_cycles


class TestUnits:
    def test_they_follow_the_forward_pass(self) -> None:
        names = [unit.name for unit in units_of(PROGRAM.graph, COSTS, SYNC)]
        assert names[:5] == ["model.conv1", "model.bn1", "model.relu", "model.maxpool", "model.layer1.0"]
        assert names.index("model.layer3.8") == names.index("model.layer3.7") + 1

    def test_together_they_cost_the_whole_model(self) -> None:
        units = units_of(PROGRAM.graph, COSTS, SYNC)
        whole = PROGRAM.settings.device.total(COSTS.cycles())
        assert abs(sum(unit.forward + unit.backward for unit in units) - whole) < 1e-6 * whole

    def test_each_scope_is_in_one_of_them(self) -> None:
        scopes = [scope for unit in units_of(PROGRAM.graph, COSTS, SYNC) for scope in unit.scopes]
        assert len(scopes) == len(set(scopes)) == len({op.scope for op in COSTS.ops} | set(scopes))


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


class TestBalanced:
    def test_stages_are_more_even_than_the_published_split(self) -> None:
        """Before layer3[8], IPU 0 is the slower one (published trace): the even split begins earlier."""
        found = balanced(PROGRAM, COSTS, 2)
        assert found is not None
        program, names = found
        assert names in {("model.layer3.6",), ("model.layer3.7",)}
        assert list(stage_starts(program.graph)) == [f"{names[0]}.conv1"]

    def test_four_stages_use_four_ipus(self) -> None:
        found = balanced(PROGRAM, COSTS, 4)
        assert found is not None
        assert [stage.ipu for stage in stages_of(found[0].graph)] == [0, 1, 2, 3]

    def test_more_stages_than_modules_are_impossible(self) -> None:
        assert balanced(PROGRAM, COSTS, 1000) is None


class TestSplitBefore:
    def test_it_is_what_a_block_at_that_module_gives(self) -> None:
        """Against the capture of the published program, whose second block begins at layer3[8]."""
        elsewhere = split_before(PROGRAM, ["model.layer2.0"])
        there = split_before(elsewhere, ["model.layer3.8"])
        assert list(stage_starts(elsewhere.graph)) == ["model.layer2.0.conv1"]
        assert profile_program(there, None) == profile_program(PROGRAM, None)

    def test_every_name_begins_a_stage(self) -> None:
        names = ["model.layer1", "model.layer3.2", "model.layer4.1"]
        found = split_before(PROGRAM, names)
        assert [stage.ipu for stage in stages_of(found.graph)] == [0, 1, 2, 3]
        assert list(stage_starts(found.graph)) == [
            "model.layer1.0.conv1",
            "model.layer3.2.conv1",
            "model.layer4.1.conv1",
        ]

    def test_no_name_is_one_stage(self) -> None:
        assert len(stages_of(split_before(PROGRAM, []).graph)) == 1

    def test_a_program_of_one_ipu_recomputes_once_it_has_two(self) -> None:
        one = replace(split_before(PROGRAM, []), recomputation=Recomputation.NONE)
        assert split_before(one, ["model.layer3.8"]).recomputation is Recomputation.PIPELINE
        assert split_before(replace(PROGRAM, recomputation=Recomputation.NONE), ["model.layer4"]).recomputation is (
            Recomputation.NONE
        )

    def test_names_come_in_the_order_of_the_forward_pass(self) -> None:
        with pytest.raises(Error, match="after the ones before it"):
            split_before(PROGRAM, ["model.layer4", "model.layer1"])
