"""``python -m ipu_course bench`` run: what it prints, writes and measures."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from ipu_course import engine
from ipu_course.programs.bench import all_configurations, configuration, settings_of_model
from ipu_course.programs.bench import results as modelled
from ipu_course.programs.bench.report import heading
from ipu_course.programs.command_line import main

SMALL = "bench --model resnet18 --image-size 32"


def printed(capsys: pytest.CaptureFixture[str], options: str) -> str:
    """Run the program and return what it prints."""
    assert main(options.split()) == 0
    return capsys.readouterr().out


def test_the_list_names_every_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "bench --list").splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert set(names) > {each.name for each in all_configurations()}
    assert "efficientnet-b4" in names


def test_a_configuration_repeats_its_command_line_and_what_was_changed(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "bench --config efficientnet-b0-infer-generated --image-size 32 --batch-size 2")
    assert "--batch-size 8 --generated-data --repeat 10" in " ".join(text.split())
    assert "Changed: batch size 2, image size 32" in text
    assert "A step: 800 images of 32 x 32 (batch 2 x 4 replicas x 100 device iterations), on 4 IPUs" in text
    assert "latency" in text
    assert "the first step left out" in text


def test_a_deviation_from_the_page_is_told() -> None:
    of = configuration("efficientnet-b4-g1-train-m2000")
    assert "but its command line has --group-dim=16 --expand-ratio=4" in " ".join(heading(of.settings, of).split())


def test_what_does_not_fit_is_told_with_what_helps(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "bench --model resnet18 --image-size 64 --batch-size 512")
    assert "does not fit into memory: the rates are those it would have" in text
    assert "What usually helps: " in text


def test_a_sweep_is_a_table_and_a_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "sweep.png"
    text = printed(capsys, f"{SMALL} --inference --sweep --batch-sizes 1 2 --figure {picture}")
    rows = [line.split()[:2] for line in text.splitlines() if line.startswith("resnet18  ")]
    assert rows == [["resnet18", "1"], ["resnet18", "2"]]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"Figure {picture}: Modelled rate" in text


def test_json_and_csv_hold_the_same_and_a_dash_prints_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "results.csv"
    (read,) = json.loads(printed(capsys, f"{SMALL} --batch-size 2 --json - --csv {table}"))
    (line,) = csv.DictReader(table.open(encoding="utf-8"))
    assert float(line["modelled.images_per_second"]) == read["modelled"]["images_per_second"]


def test_a_file_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*SMALL.split(), "--batch-size", "2", "--json", str(tmp_path / "nowhere" / "a.json")]) == 2
    assert "choose another file" in capsys.readouterr().err.splitlines()[-1]


def test_all_models_the_page_s_points_as_one_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [(name, settings_of_model("resnet18", image_size=32, batch_size=2)) for name in ("one", "two")]
    monkeypatch.setattr(modelled, "page_points", lambda: points)
    assert main(["bench", "--all"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("one ", "two "))] == ["one", "two"]
    assert "All figures are modelled by the IPU Model, none is measured." in out
    assert err == ""  # no bar where there is no terminal


class TestRun:
    SPLIT = f"{SMALL} --batch-size 8 --gradient-accumulation 64 --shards 2 --pipeline --pipeline-splits layer3"

    def test_it_executes_small_steps_and_says_which(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = printed(capsys, f"{self.SPLIT} --run --run-steps 2 --precision 16.32 --eight-bit-io")
        modelled, measured = text.split("Measured on this machine's CPU")
        assert "A step: 512 images of 32 x 32 (batch 8 x 1 replica x 64 micro-batches an update)" in modelled
        assert "A step: 6 images of 32 x 32 (batch 2 x 1 replica x 3 micro-batches an update), in 2 stages" in " ".join(
            measured.split()
        )
        assert "the first one includes compilation" in measured

    def test_the_measured_rate_leaves_the_first_step_out(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = "--inference --data synthetic --run --run-steps 3 --run-batch-size 4 --json -"
        (read,) = json.loads(printed(capsys, f"{SMALL} {options}"))
        _, second, third = read["measured"]["step_seconds"]
        assert read["measured"]["images_per_second"] == pytest.approx(2 * 4 / (second + third))
        assert read["measured"]["executed"]["batch_size"] == 4
        assert read["measured"]["images_per_second"] != read["modelled"]["images_per_second"]

    def test_more_micro_batches_can_be_asked_for(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = printed(capsys, f"{SMALL} --batch-size 2 --run --run-steps 2 --run-accumulation 2 --run-batch-size 3")
        assert "A step: 6 images of 32 x 32 (batch 3 x 1 replica x 2 micro-batches" in " ".join(text.split())

    def test_a_batch_too_small_for_its_norms_is_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*SMALL.split(), "--batch-size", "2", "--run", "--run-batch-size", "1"]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert "--run: Expected more than 1 value per channel" in line
        assert line.endswith("a larger --run-batch-size or --image-size may help")

    def test_so_is_one_that_cannot_be_modelled(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*SMALL.split(), "--batch-size", "1"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "--model resnet18 does not take --image-size 32 with --batch-size 1" in line


class TestWithoutAnIpuModel:
    @pytest.fixture(autouse=True)
    def absent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine, "find_spec", lambda name: None)

    @pytest.mark.parametrize("options", ["--all", "--config resnet50-train-m2000", "--model resnet18 --sweep"])
    def test_modelled_figures_are_refused(self, options: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["bench", *options.split()]) == 2
        assert "Modelled figures need the course's IPU Model" in capsys.readouterr().err

    def test_it_measures_all_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = printed(capsys, f"{SMALL} --run --run-steps 2")
        assert "Modelled figures need the course's IPU Model" in text
        assert "Measured on this machine's CPU" in text
