"""The tree of modules: shares add up from the leaves to the root, and equal neighbours are folded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from report_strategies import PROFILES
from report_support import inference_profile, op, pipeline_profile

from ipu_model.predict.profile import OpProfile, Profile
from ipu_model.report.module_tree import Module, main_parts, module_tree


def layers(count: int, *, different: int | None = None) -> Profile:
    """Return a profile of `count` layers of two modules each; layer `different` works on another shape."""
    ops = []
    for number in range(count):
        for what in ("norm", "linear"):
            shape = ("float16[8]",) if number == different else ("float16[4]",)
            ops.append(named(f"blocks.{number}.{what}", what, 100.0 + number, operands=shape))
    return replace(inference_profile(), ops=(named("", "loss", 50.0), *ops))


def named(scope: str, what: str, cycles: float, *, executions: int = 1, **about: object) -> OpProfile:
    made = op(f"{scope}_{what}", "aten.mm", scope, "forward", 0, "contraction", cycles, executions)
    return replace(made, name=f"{scope}: {what}" if scope else what, **about)


def walk(tree: Module) -> Iterator[Module]:
    yield tree
    for child in tree.children:
        yield from walk(child)


def found(tree: Module, path: str) -> Module:
    return next(module for module in walk(tree) if module.path == path)


class TestSums:
    @settings(max_examples=60)
    @given(PROFILES)
    def test_every_op_and_every_cycle_counts_once_from_the_leaves_to_the_root(self, profile: Profile) -> None:
        tree = module_tree(profile)
        assert sum(op.count for module in walk(tree) for op in module.ops) == len(profile.work)
        assert tree.cycles == pytest.approx(sum(op.cycles * op.executions for op in profile.work))
        assert sum(part.cycles for part in main_parts(tree)) == pytest.approx(tree.cycles)
        for module in walk(tree):
            assert module.cycles == pytest.approx(sum(module.own) + sum(child.cycles for child in module.children))
            shares = sum(child.share for child in module.children)
            assert module.share == pytest.approx(module.own_share + shares, abs=1e-9)

    def test_repetitions_of_the_forward_pass_count_as_recomputation(self) -> None:
        again = named("a", "linear", 100.0, executions=8, recomputations=4)
        passes = module_tree(replace(inference_profile(), ops=(again,))).passes
        assert (passes.forward, passes.recompute) == pytest.approx((400.0, 400.0))


class TestFolding:
    def test_equal_neighbours_are_one_module_that_counts_for_all(self) -> None:
        blocks = found(module_tree(layers(24)), "blocks")
        (folded,) = blocks.children
        assert (folded.name, folded.path, folded.count) == ("0-23", "blocks.0-23", 24)
        assert [child.path for child in folded.children] == ["blocks.0-23.norm", "blocks.0-23.linear"]
        assert folded.cycles == pytest.approx(sum(2 * (100 + number) for number in range(24)))

    def test_a_layer_that_does_something_else_stands_alone(self) -> None:
        blocks = found(module_tree(layers(6, different=2)), "blocks")
        assert [(child.name, child.count) for child in blocks.children] == [("0-1", 2), ("2", 1), ("3-5", 3)]

    def test_layers_that_run_a_different_number_of_times_are_not_folded(self) -> None:
        ops = tuple(named(f"blocks.{n}", "linear", 10.0, executions=8 if n < 3 else 16) for n in range(5))
        blocks = found(module_tree(replace(inference_profile(), ops=ops)), "blocks")
        assert [child.name for child in blocks.children] == ["0-2", "3-4"]

    def test_modules_with_names_are_not_folded(self) -> None:
        ops = tuple(named(f"{name}.linear", "linear", 10.0) for name in ("query", "key", "value"))
        assert len(module_tree(replace(inference_profile(), ops=ops)).children) == 3


class TestMainParts:
    def test_a_part_of_more_than_half_is_taken_apart(self) -> None:
        names = [part.name for part in main_parts(module_tree(layers(24)))]
        assert names == ["blocks.0-23.norm x 24", "blocks.0-23.linear x 24", "the model, its own ops"]

    def test_a_resnet_falls_into_parts_none_of_which_is_half_of_it(self) -> None:
        parts = main_parts(module_tree(pipeline_profile()))
        assert len(parts) >= 5
        assert parts[0].share <= 0.5
        assert "model.layer2" in [part.name for part in parts]

    def test_a_model_without_modules_is_one_part(self) -> None:
        (part,) = main_parts(module_tree(inference_profile()))
        assert (part.name, part.share) == ("the model", 1.0)
