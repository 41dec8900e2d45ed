"""Two profiles side by side, and the tree of modules: shares add up from leaf to root, equal neighbours are folded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from net_support import Trained, stepped
from report_support import PROFILES, inference_profile, op, pipeline_profile, resized
from torch import nn, zeros

from ipu_model.batching import Batching
from ipu_model.explore.options import in_half_precision
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import profile_program
from ipu_model.predict.profile import LiveTensor, Memory, OpProfile, Profile, close_band
from ipu_model.predict.program import Program
from ipu_model.report.compare import (
    by_category,
    by_module,
    by_op,
    by_part,
    by_tensor,
    compare,
    compare_html,
    conclusion,
    moved_numbers,
    parts,
)
from ipu_model.report.module_tree import Module, main_parts, module_tree
from ipu_model.step import FLOAT16

OPTIONS = "options that differ"


def options(before: Profile, after: Profile) -> tuple[tuple[str, str, str, str], ...]:
    return next((part.rows for part in parts(before, after) if part.title == OPTIONS), ())


class TestTable:
    @pytest.mark.parametrize(
        ("after", "rows"),
        [
            # 168.4 ms one after another; the loader's 92.2 ms where they overlap.
            (pipeline_profile(overlaps=True), {
                "time of a call": ("168.4 ms", "92.20 ms", "-45.2 %"),
                "samples/s end to end": ("3,041", "5,553", "+82.6 %"),
            }),
            # Shares differ by points.
            (replace(pipeline_profile(), shares={"main": 0.9, "update": 0.1}), {
                "share of main": ("50.0 %", "90.0 %", "+40.0 points"),
                "share of stream": ("50.0 %", "0.0 %", "-50.0 points"),
                "share of update": ("0.0 %", "10.0 %", "+10.0 points"),
            }),
            # Of the IPU with the fullest tile, which is IPU 1: IPU 0 has more activations, but fewer bytes in all.
            (pipeline_profile(fits=False), {
                "activations": ("73,000", "94,900", "+30.0 %"),
                "verdict": ("fits", "does not fit", ""),
            }),
            (inference_profile(), {"activations": ("73,000", "0", "gone")}),
        ],
    )  # fmt: skip
    def test_rows_have_both_figures_and_a_signed_change(self, after: Profile, rows: dict) -> None:
        before = replace(pipeline_profile(), shares={"main": 0.5, "stream": 0.5})
        found = [row for part in parts(before, after) for row in part.rows]
        assert {row[0]: row[1:] for row in found if row[0] in rows} == rows

    def test_only_options_that_differ_are_listed_and_types_and_state_named_once(self) -> None:
        before = replace(inference_profile(), options={"accumulation": 4, "replicas": 1, "half": True})
        after = replace(before, options={"accumulation": 8, "replicas": 1, "scale": 2.0})
        expected = ("accumulation", "4", "8", ""), ("half", "True", "-", ""), ("scale", "-", "2.0", "")
        assert options(before, after) == expected
        assert options(before, before) == ()
        # As the model describes them: from plain SGD in single precision to AdamW with a first moment in half.
        spec = OptimiserSpec("ADAMW", Hyper(lr=0.1), accum_dtype=FLOAT16, first_dtype=FLOAT16)
        module = Trained(nn.Linear(16, 16))
        before = Program(stepped(module, zeros(8, 16)), True, Batching(1, 4), optimiser=OptimiserSpec("SGD2", Hyper()))
        after = replace(before, step=in_half_precision(before.step), optimiser=spec)
        rows = options(profile_program(before), profile_program(after))
        assert {name: (first, second) for name, first, second, _ in rows} == {
            "inputs": ("[8, 16] float32", "[8, 16] float16"),
            "weights": ("float32", "float16"),
            "optimiser": ("SGD2", "ADAMW"),
            "optimiser state": ("none", "float16 and float32"),
            "gradient accumulators": ("float32", "float16"),
        }

    def test_what_neither_has_is_left_out_and_equal_figures_are_the_same(self) -> None:
        before = replace(inference_profile(), shares={"main": 1.0, "offload": 0.0})
        rows = {row[0]: row[3] for part in parts(before, before) for row in part.rows}
        assert rows["share of main"] == rows["device time"] == "same"
        assert "share of offload" not in rows
        for part in parts(pipeline_profile(), inference_profile()):
            assert not [row for row in part.rows if {row[1], row[2]} <= {"0", "0.0 %", "0 s"}]


class TestConclusion:
    @pytest.mark.parametrize(
        ("factor", "words"),
        [
            (1.5, "Modelled end to end, after is 1.50 x as fast as before; both fit; still limited by: stage 0."),
            (0.5, "Modelled end to end, after takes 2.00 x the time of before for a sample; both fit"),
            *((factor, "after is as fast as before") for factor in (1.0, 1.004, 0.996)),
        ],
    )
    def test_it_says_how_much_faster(self, factor: float, words: str) -> None:
        profile = inference_profile()
        assert words in conclusion(profile, replace(profile, call_seconds=profile.call_seconds / factor))

    CLOSE = round(1000 / (sum(close_band()) / 2))

    @pytest.mark.parametrize(
        ("room", "words"),
        [((2000, 2000), "both fit"), ((2000, CLOSE), "before fits, after is too close to call"),
         ((CLOSE, 500), "before is too close to call, after does not fit"), ((500, 500), "neither fits")],
    )  # fmt: skip
    def test_it_says_what_fits(self, room: tuple[int, int], words: str) -> None:
        """The fullest tile holds 1,000 bytes; with room for `CLOSE` it is in the middle of the close band."""
        assert words in conclusion(*(resized(inference_profile(), tile_bytes) for tile_bytes in room))

    def test_it_says_what_limits_now_and_what_the_speed_of_a_program_without_room_means(self) -> None:
        after = replace(inference_profile(), limited_by="weight update")
        assert "limited by: stage 0, then weight update" in conclusion(inference_profile(), after)
        words = " The speed of a program that does not fit is the speed that it would have on larger tiles."
        assert conclusion(inference_profile(), pipeline_profile(fits=False)).endswith(words)
        assert words not in conclusion(inference_profile(), after)


class TestForms:
    @settings(max_examples=30)
    @given(PROFILES, PROFILES)
    def test_any_two_profiles_can_be_compared(self, before: Profile, after: Profile) -> None:
        text = compare(before, after)
        assert text.isascii()
        assert text.splitlines()[-1].startswith("Modelled end to end")
        assert compare_html(before, after).rstrip().endswith("</html>")

    def test_the_text_lines_up_and_names_both_and_the_page_escapes_and_needs_nothing_else(self) -> None:
        lines = compare(pipeline_profile(), pipeline_profile(overlaps=True), ("sync", "async")).splitlines()
        assert lines[0] == "sync: resnet101 on POD4 (4 x GC200 at 1.33 GHz)"
        (head, rate) = (next(x for x in lines if x.startswith(f"  {name}")) for name in ("modelled", "samples/s"))
        assert len(head) == len(rate)
        assert head.split() == ["modelled", "sync", "async", "change"]
        page = compare_html(replace(inference_profile(), name="<script>x</script>"), inference_profile())
        assert "<script>x" not in page
        assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
        assert conclusion(inference_profile(), inference_profile()) in page


class TestWhatMoved:
    """One op of 1,000 cycles at 1.33 GHz is 751.9 ns of one IPU for a sample."""

    OP = 1000 / 1.33e9

    def test_layers_of_a_list_count_together_and_recomputation_apart_from_the_forward_pass(self) -> None:
        profile = inference_profile()
        ops = tuple(named(f"layers.{n}.norm2", "layer norm", 1000.0) for n in range(3))
        (moved,) = moved_numbers(by_op, replace(profile, ops=ops), replace(profile, ops=ops[:1]))
        assert (moved.name, moved.what, moved.group) == ("layers.*.norm2", "layer norm", "forward")
        assert (moved.before, moved.after) == pytest.approx((3 * self.OP, self.OP))
        twice, again = (
            replace(inference_profile(), ops=(named("a", "linear", 1000.0, executions=2 + n, recomputations=n),))
            for n in (0, 1)
        )
        changes = {moved.group: moved.change for moved in moved_numbers(by_op, twice, again)}
        assert changes == pytest.approx({"forward": 0.0, "recompute": self.OP})

    def test_time_is_that_of_one_ipu_for_one_sample_and_the_largest_change_comes_first(self) -> None:
        """Twice the replicas do twice the samples in the same cycles: every sample costs what it did."""
        before = inference_profile()
        after = replace(before, replicas=2, samples_per_call=2 * before.samples_per_call)
        assert [moved.change for moved in moved_numbers(by_module, before, after)] == pytest.approx([0.0])
        assert sum(moved.change for moved in moved_numbers(by_part, before, after)) == pytest.approx(0.0)
        before, after = pipeline_profile(), pipeline_profile(fits=False)
        changes = [abs(moved.change) for moved in moved_numbers(by_category, before, after)]
        assert changes == sorted(changes, reverse=True)
        assert changes[0] > 0

    def test_tensors_are_those_of_the_fullest_tile(self) -> None:
        profile = inference_profile()

        def holding(count: int, size: float) -> Profile:
            alive = tuple(
                LiveTensor(f"layers.{n}.weight", "variables", (4,), "float16", size, 8.0, True, 0, 0)
                for n in range(count)
            )
            memory = replace(profile.memory[0], live_at_peak=alive)
            return replace(profile, memory=Memory((memory,), profile.memory.tile_bytes))

        (moved,) = moved_numbers(by_tensor, holding(3, 100.0), holding(2, 200.0))
        assert (moved.name, moved.group, moved.before, moved.after) == ("layers.*.weight", "variables", 300.0, 400.0)


# --- the tree of modules


def named(scope: str, what: str, cycles: float, *, executions: int = 1, **about: object) -> OpProfile:
    made = op(f"{scope}_{what}", "aten.mm", scope, "forward", 0, "contraction", cycles, executions)
    return replace(made, name=f"{scope}: {what}" if scope else what, **about)


def tree_of(*ops: OpProfile) -> Module:
    return module_tree(replace(inference_profile(), ops=ops))


def layers(count: int, *, different: int | None = None) -> Module:
    """Return the tree of `count` layers of two modules each; layer `different` works on another shape."""
    return tree_of(named("", "loss", 50.0), *(
        named(f"blocks.{n}.{what}", what, 100.0 + n, operands=("float16[8]" if n == different else "float16[4]",))
        for n in range(count)
        for what in ("norm", "linear")
    ))  # fmt: skip


def walk(tree: Module) -> Iterator[Module]:
    yield tree
    for child in tree.children:
        yield from walk(child)


def blocks_of(tree: Module) -> tuple[Module, ...]:
    return next(module for module in walk(tree) if module.path == "blocks").children


class TestModules:
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

    def test_equal_neighbours_are_one_module_and_those_that_differ_stand_alone(self) -> None:
        (folded,) = blocks_of(layers(24))
        assert (folded.name, folded.path, folded.count) == ("0-23", "blocks.0-23", 24)
        assert [child.path for child in folded.children] == ["blocks.0-23.norm", "blocks.0-23.linear"]
        assert folded.cycles == pytest.approx(sum(2 * (100 + number) for number in range(24)))
        # They may differ in what they do, how often, or by name.
        found = blocks_of(layers(6, different=2))
        assert [(child.name, child.count) for child in found] == [("0-1", 2), ("2", 1), ("3-5", 3)]
        often = tree_of(*(named(f"blocks.{n}", "linear", 10.0, executions=8 if n < 3 else 16) for n in range(5)))
        assert [child.name for child in blocks_of(often)] == ["0-2", "3-4"]
        by_name = tree_of(*(named(f"{name}.linear", "linear", 10.0) for name in ("query", "key", "value")))
        assert len(by_name.children) == 3

    def test_a_part_of_more_than_half_is_taken_apart(self) -> None:
        names = [part.name for part in main_parts(layers(24))]
        assert names == ["blocks.0-23.norm x 24", "blocks.0-23.linear x 24", "the model, its own ops"]
        found = main_parts(module_tree(pipeline_profile()))
        assert len(found) >= 5
        assert found[0].share <= 0.5
        assert "model.layer2" in [part.name for part in found]
        (part,) = main_parts(module_tree(inference_profile()))
        assert (part.name, part.share) == ("the model", 1.0)
