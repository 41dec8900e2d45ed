"""Two profiles side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cost_support import Trained, stepped
from hypothesis import given, settings
from report_strategies import PROFILES
from report_support import inference_profile, pipeline_profile
from torch import nn, zeros

from ipu_model.batching import Batching
from ipu_model.explore.options import in_half_precision
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import profile_program
from ipu_model.predict.profile import LiveTensor, Memory, Profile, close_band
from ipu_model.predict.program import Program
from ipu_model.report.compare import (
    compare,
    compare_html,
    conclusion,
    moved_categories,
    moved_modules,
    moved_ops,
    moved_parts,
    moved_tensors,
    parts,
)
from ipu_model.step import FLOAT16

OPTIONS = "options that differ"
FEW_IPUS, MORE_IPUS = (
    replace(profile, options={"IPUs per replica": len(profile.cycles)})
    for profile in (inference_profile(), pipeline_profile())
)


def cells(before: Profile, after: Profile, name: str) -> tuple[str, str, str]:
    (found,) = [row[1:] for part in parts(before, after) for row in part.rows if row[0] == name]
    return found


class TestTable:
    def test_numbers_come_with_a_signed_change(self) -> None:
        before, after = pipeline_profile(), pipeline_profile(overlaps=True)
        # 168.6 ms one after another; the loader's 92.2 ms where they overlap.
        assert cells(before, after, "time of a call") == ("168.6 ms", "92.20 ms", "-45.3 %")
        assert cells(before, after, "samples/s end to end")[2] == "+82.9 %"
        assert cells(before, after, "device time")[2] == "same"

    def test_shares_differ_by_points(self) -> None:
        before = replace(inference_profile(), shares={"main": 0.7, "update": 0.3})
        after = replace(before, shares={"main": 0.9, "stream": 0.1})
        assert cells(before, after, "share of main") == ("70.0 %", "90.0 %", "+20.0 points")
        assert cells(before, after, "share of update") == ("30.0 %", "0.0 %", "-30.0 points")
        assert cells(before, after, "share of stream") == ("0.0 %", "10.0 %", "+10.0 points")

    def test_memory_is_compared_by_category(self) -> None:
        """Of the IPU with the fullest tile, which is IPU 1: IPU 0 has more activations, but fewer bytes in all."""
        before, after = pipeline_profile(), pipeline_profile(fits=False)
        assert cells(before, after, "activations") == ("73,000", "94,900", "+30.0 %")
        assert cells(before, after, "verdict") == (str(before.verdict), str(after.verdict), "")
        assert cells(before, inference_profile(), "activations") == ("73,000", "0", "gone")

    def test_the_categories_add_up_to_the_fullest_tile_of_a_program_on_several_ipus(self) -> None:
        (memory,) = [part for part in parts(FEW_IPUS, MORE_IPUS) if any(row[0] == "fullest tile" for row in part.rows)]
        held = {name: float(cell.replace(",", "")) for name, _, cell, _ in memory.rows if name != "verdict"}
        fullest = held.pop("fullest tile")
        assert sum(held.values()) == pytest.approx(fullest, abs=len(held))  # each row is rounded to whole bytes
        rows = [row[0] for part in parts(FEW_IPUS, MORE_IPUS) for row in part.rows]
        assert [name for name in rows if "IPUs" in name] == ["IPUs per replica"]

    def test_only_options_that_differ_are_listed(self) -> None:
        before = replace(inference_profile(), options={"accumulation": 4, "replicas": 1, "half": True})
        after = replace(before, options={"accumulation": 8, "replicas": 1, "scale": 2.0})
        (options,) = [part for part in parts(before, after) if part.title == OPTIONS]
        assert options.rows == (("accumulation", "4", "8", ""), ("half", "True", "-", ""), ("scale", "-", "2.0", ""))

    def test_types_and_state_are_named_and_no_fact_stands_twice(self) -> None:
        """As the model describes them: from plain SGD in single precision to AdamW with a first moment in half."""
        spec = OptimiserSpec("ADAMW", Hyper(lr=0.1), accum_dtype=FLOAT16, first_dtype=FLOAT16)
        module = Trained(nn.Linear(16, 16))
        before = Program(stepped(module, zeros(8, 16)), True, Batching(1, 4), optimiser=OptimiserSpec("SGD2", Hyper()))
        after = replace(before, step=in_half_precision(before.step), optimiser=spec)
        (options,) = [part for part in parts(profile_program(before), profile_program(after)) if part.title == OPTIONS]
        rows = {name: (first, second) for name, first, second, _ in options.rows}
        assert rows == {
            "inputs": ("[8, 16] float32", "[8, 16] float16"),
            "weights": ("float32", "float16"),
            "optimiser": ("SGD2", "ADAMW"),
            "optimiser state": ("none", "float16 and float32"),
            "gradient accumulators": ("float32", "float16"),
        }

    def test_what_neither_has_is_left_out(self) -> None:
        before = replace(inference_profile(), shares={"main": 1.0, "offload": 0.0})
        names = [row[0] for part in parts(before, before) for row in part.rows]
        assert "share of main" in names
        assert "share of offload" not in names
        for part in parts(pipeline_profile(), inference_profile()):
            assert not [row for row in part.rows if {row[1], row[2]} <= {"0", "0.0 %", "0 s"}]
        assert OPTIONS not in [part.title for part in parts(before, before)]


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
        profile = inference_profile()
        before, after = (replace(profile, memory=replace(profile.memory, tile_bytes=each)) for each in room)
        assert words in conclusion(before, after)

    def test_it_says_what_the_speed_of_a_program_without_room_means(self) -> None:
        words = " The speed of a program that does not fit is the speed that it would have on larger tiles."
        assert conclusion(inference_profile(), pipeline_profile(fits=False)).endswith(words)
        assert words not in conclusion(inference_profile(), inference_profile())

    def test_it_says_what_limits_now(self) -> None:
        after = replace(inference_profile(), limited_by="weight update")
        assert "limited by: stage 0, then weight update" in conclusion(inference_profile(), after)


class TestForms:
    @settings(max_examples=30)
    @given(PROFILES, PROFILES)
    def test_any_two_profiles_can_be_compared(self, before: Profile, after: Profile) -> None:
        text = compare(before, after)
        assert text.isascii()
        assert text.splitlines()[-1].startswith("Modelled end to end")
        assert compare_html(before, after).rstrip().endswith("</html>")

    def test_the_text_lines_up_and_names_both(self) -> None:
        lines = compare(pipeline_profile(), pipeline_profile(overlaps=True), ("sync", "async")).splitlines()
        assert lines[0] == "sync: resnet101 on POD4 (4 x GC200 at 1.33 GHz)"
        head, rate = (
            next(line for line in lines if line.startswith(f"  {name}")) for name in ("modelled", "samples/s")
        )
        assert len(head) == len(rate)
        assert head.split() == ["modelled", "sync", "async", "change"]

    def test_the_page_escapes_and_needs_nothing_else(self) -> None:
        page = compare_html(replace(inference_profile(), name="<script>x</script>"), inference_profile())
        assert "<script>x" not in page
        assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
        assert conclusion(inference_profile(), inference_profile()) in page


class TestWhatMoved:
    """One op of 1,000 cycles at 1.33 GHz is 751.9 ns of one IPU for a sample."""

    OP = 1000 / 1.33e9

    def with_op(self, **changes: object) -> Profile:
        profile = inference_profile()
        (op,) = profile.ops
        return replace(profile, ops=(replace(op, **changes),))

    def test_layers_of_a_list_count_together(self) -> None:
        profile = inference_profile()
        (op,) = profile.ops
        ops = tuple(replace(op, scope=f"layers.{n}.norm2", name=f"layers.{n}.norm2: layer norm") for n in range(3))
        (moved,) = moved_ops(replace(profile, ops=ops), replace(profile, ops=ops[:1]))
        assert (moved.name, moved.what, moved.group) == ("layers.*.norm2", "layer norm", "forward")
        assert (moved.before, moved.after) == pytest.approx((3 * self.OP, self.OP))

    def test_recomputation_counts_apart_from_the_forward_pass(self) -> None:
        moved = moved_ops(self.with_op(executions=2), self.with_op(executions=3, recomputations=1))
        assert {each.group: each.change for each in moved} == {
            "forward": pytest.approx(0.0), "recompute": pytest.approx(self.OP),
        }  # fmt: skip

    def test_time_is_that_of_one_ipu_for_one_sample(self) -> None:
        """Twice the replicas do twice the samples in the same cycles: every sample costs what it did."""
        before = inference_profile()
        after = replace(before, replicas=2, samples_per_call=2 * before.samples_per_call)
        assert [each.change for each in moved_modules(before, after)] == pytest.approx([0.0])
        assert sum(each.change for each in moved_parts(before, after)) == pytest.approx(0.0)

    def test_the_largest_change_comes_first_whether_more_or_less(self) -> None:
        before, after = pipeline_profile(), pipeline_profile(fits=False)
        changes = [abs(each.change) for each in moved_categories(before, after)]
        assert changes == sorted(changes, reverse=True)
        assert changes[0] > 0

    def test_tensors_are_those_of_the_fullest_tile(self) -> None:
        profile = inference_profile()
        (memory,) = profile.memory

        def holding(count: int, size: float) -> Profile:
            alive = tuple(
                LiveTensor(f"layers.{n}.weight", "variables", (4,), "float16", size, 8.0, True, 0, 0)
                for n in range(count)
            )
            return replace(profile, memory=Memory((replace(memory, live_at_peak=alive),), profile.memory.tile_bytes))

        (moved,) = moved_tensors(holding(3, 100.0), holding(2, 200.0))
        assert (moved.name, moved.group, moved.before, moved.after) == ("layers.*.weight", "variables", 300.0, 400.0)
