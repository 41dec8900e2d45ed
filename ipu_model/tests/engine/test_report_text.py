"""The report for a terminal: what it says, and that it stays small and plain whatever the profile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from report_strategies import PROFILES
from report_support import SPLIT, UPDATE, WORK, inference_profile, pipeline_profile, wide_profile

from ipu_model.predict.profile import LiveTensor, Profile, close_band
from ipu_model.report.text import MOST_LINES, WIDTH, text_report


def row(report: str, name: str) -> list[str]:
    """Return the columns of the one line that is called `name`."""
    (line,) = [line for line in report.splitlines() if line.strip().startswith(name + "  ")]
    return line.strip().removeprefix(name).split()


def fact(report: str, name: str) -> str:
    return " ".join(row(report, name))


class TestFacts:
    def test_a_program_that_fits(self) -> None:
        report = text_report(pipeline_profile())
        assert "training, modelled with 2 IPUs a replica on POD4 (4 x GC200 at 1.33 GHz)" in report
        # The categories of IPU 1 in report_support add up to 548,900 bytes, all on tile 47; 548,900 / 638,976 = 85.9 %.
        assert fact(report, "memory") == "fits: fullest tile 548,900 of 638,976 bytes (85.9 %), tile 47 of IPU 1"
        # 512 samples in 42.41 ms; a time of 0.9 to 1.1 x the modelled one is a rate of 1 / 1.1 to 1 / 0.9.
        device = "12,072 samples/s (10,974 to 13,413); hardware time 0.9 to 1.1 x modelled"
        assert fact(report, "device") == device
        assert fact(report, "limited by") == "host loader"
        assert fact(report, "device time") == "main 71.1 %, fill and flush 17.8 %, stream 10.0 %, update 1.2 %"
        assert not {"measured", "published"} & set(report.split())

    def test_a_program_that_does_not_fit_is_said_to_be_hypothetical(self) -> None:
        base = pipeline_profile(fits=False)
        report = text_report(replace(base, memory=replace(base.memory, tile_bytes=500_000)))
        assert fact(report, "memory").startswith("does not fit: fullest tile 713,570 of 500,000 bytes (142.7 %)")
        assert fact(report, "end to end").endswith("if it fitted")

    def test_a_program_near_the_limit_is_too_close_to_call(self) -> None:
        base = pipeline_profile()
        near = replace(base.memory, tile_bytes=int(base.memory.max_tile_bytes / (sum(close_band()) / 2)))
        report = text_report(replace(base, memory=near))
        assert fact(report, "memory").startswith("too close to call: fullest tile")
        assert "if it fitted" not in report

    def test_many_small_shares_become_one(self) -> None:
        shares = {"main": 0.6, "a": 0.1, "b": 0.1, "c": 0.1, "d": 0.06, "e": 0.04}
        report = text_report(replace(pipeline_profile(), shares=shares))
        assert fact(report, "device time") == "main 60.0 %, a 10.0 %, b 10.0 %, c 10.0 %, other 10.0 %"


class TestTables:
    def test_every_phase_has_the_cycles_of_every_ipu(self) -> None:
        report = text_report(pipeline_profile(accumulation=8))
        # IPU 0 runs 8 micro-batches forward, forward again and backward, then updates; 70 % of it is OnTileExecute.
        cycles = SPLIT.on_tile_execute * (8 * sum(work[0] for work in WORK.values()) + UPDATE[0])
        assert row(report, "OnTileExecute")[0] == f"{cycles:,.0f}"
        assert row(report, "StreamCopyMid") == [f"{8 * 427_941:,}", "12,000"]
        assert row(report, "total")[0] == row(report, "total")[1]
        names = ("OnTileExecute", "DoExchange", "GlobalExchange", "StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd",
                 "InternalSync", "ExternalSync", "total", "share of OnTileExecute")  # fmt: skip
        places = [report.index(f"  {name} ") for name in names]
        assert places == sorted(places)
        lines = report.splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("modelled cycles"))
        assert len({len(line) for line in lines[first : first + 10]}) == 1

    def test_memory_is_split_by_category(self) -> None:
        report = text_report(pipeline_profile())
        assert row(report, "activations *") == ["149,000", "73,000"]
        assert row(report, "optimiser state") == ["44,000", "137,400"]
        # Behind the six largest: stashes, control code, vertex state and code, host exchange code, stack.
        assert row(report, "6 more") == ["68,000", "66,000"]
        assert row(report, "fullest tile") == ["495,400", "548,900"]

    def test_of_many_ipus_the_busiest_are_shown_and_the_rest_is_mentioned(self) -> None:
        report = text_report(wide_profile(16))
        assert len(row(report, "OnTileExecute")) == 5
        assert "(of 16 IPUs the 5 that compute most; report.html shows all)" in report

    def test_the_largest_tensors_at_the_peak_have_the_names_of_users(self) -> None:
        tensors = tuple(
            LiveTensor(f"layers.{n}.norm: layer norm", "stashes", (8, 64), "float16", 900.0 - n, 9e5, False, 0, 9, 3)
            for n in range(4)
        )
        weight = LiveTensor("fc.weight", "variables", (10, 64), "float32", 1000.0, 9e5, True, 0, 9)
        memory = replace(inference_profile().memory[0], live_at_peak=(weight, *tensors))
        report = text_report(replace(inference_profile(), memory=replace(inference_profile().memory, ipus=(memory,))))
        # Four layers' stashes of three micro-batches each: 900 + 899 + 898 + 897 bytes, which is more than the weight.
        lines = report[report.index("largest tensors") :].splitlines()
        assert lines[1].split("  ")[1:2] == ["layers.*.norm: layer norm x 12"]
        assert lines[1].endswith("3,594")
        assert lines[2].split() == ["fc.weight", "float32[10,", "64]", "variables", "1,000"]

    def test_ops_are_grouped_by_part_of_the_model_and_by_kind(self) -> None:
        report = text_report(pipeline_profile())
        assert row(report, "model.layer3.8-22 x 15")[:4] == ["40.1", "%", "contraction", "80.3"]
        assert "ops without a formula of their own (0.1 % of these cycles): aten.topk" in report

    def test_a_program_with_one_op_has_tables_of_one_row(self) -> None:
        report = text_report(inference_profile())
        assert "the model  100.0 %" in report
        assert "without a formula" not in report


class TestSize:
    @settings(max_examples=40)
    @given(PROFILES)
    def test_any_profile_gives_a_page_of_plain_text(self, profile: Profile) -> None:
        report = text_report(profile)
        lines = report.removesuffix("\n").split("\n")
        assert len(lines) <= MOST_LINES
        assert all(len(line) <= WIDTH for line in lines)
        assert report.isascii()
        assert report.replace("\n", "").isprintable()

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
    def test_notes_that_have_no_room_are_counted(self, count: int) -> None:
        notes = tuple(f"Note {n} is rather long: {'words ' * 12}" for n in range(count))
        report = text_report(replace(pipeline_profile(), notes=notes))
        shown = report.count("note: ")
        assert shown == count or f"({count - shown} more note" in report
        assert len(report.splitlines()) <= MOST_LINES

    def test_a_name_cannot_write_to_the_terminal(self) -> None:
        report = text_report(replace(pipeline_profile(), name="\x1b[2Jnét\nwork"))
        assert report.startswith("\\x1b[2Jn\\xe9t work: training")
