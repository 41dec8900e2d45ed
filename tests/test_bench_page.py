"""The benchmark page as data: its command lines, what they stand for, and the page in docs/ made of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from benchmark_page import BENCHMARKS_PAGE, HEAD, explanations, results_table

from ipu_course.data_folder import FOLDER_VARIABLE
from ipu_course.errors import DataError
from ipu_course.programs.bench import Result, all_configurations, modelled_result
from ipu_course.programs.bench.page import Configuration, benchmark_page
from ipu_course.programs.bench.results import check, page_points

ROOT = Path(__file__).resolve().parent.parent
# Options of the page and the settings they are, for those whose value is the setting.
COUNTS = {
    "batch-size": "batch_size",
    "gradient-accumulation-count": "gradient_accumulation",
    "replicas": "replicas",
    "num-replicas": "replicas",
    "num-instances": "instances",
    "shards": "shards",
    "ipus-per-replica": "shards",
    "groups": "norm_groups",
    "repeat": "repeat",
    "group-dim": "group_dim",
    "expand-ratio": "expand_ratio",
}
SHARES = {
    "momentum": "momentum",
    "available-memory-proportion": "available_memory_proportion",
    "label-smoothing": "label_smoothing",
}
FLAGS = {
    "pipeline": "pipeline",
    "enable-recomputation": "recomputation",
    "enable-half-partials": "half_partials",
    "stable-norm": "stable_norm",
    "eight-bit-io": "eight_bit_io",
}
MODELS = {
    ("resnet", "50"): "resnet50",
    ("resnext", "101"): "resnext101",
    ("efficientnet", "0"): "efficientnet-b0",
    ("efficientnet", "4"): "efficientnet-b4",
}


def options_of(command_line: str) -> dict[str, list[str]]:
    """The options of a command line with their values, without their hyphens."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in shlex.split(command_line):
        if word.startswith("--") or re.fullmatch("-[a-z]+", word):
            name, _, value = word.lstrip("-").partition("=")
            found[name] = [value] if value else []
        elif name:
            found[name].append(word)
    return found


def printed_settings(of: Configuration) -> dict[str, Any]:
    """The settings that the page prints."""
    options = options_of(of.command_line)
    expected: dict[str, Any] = {COUNTS[name]: int(options[name][0]) for name in COUNTS if name in options}
    expected.update({SHARES[name]: float(options[name][0]) for name in SHARES if name in options})
    expected.update({setting: name in options for name, setting in FLAGS.items()})
    expected["model"] = MODELS[options["model"][0], options["model-size"][0]]
    expected["precision"] = options.get("precision", ["16.16"])[0]
    expected["normalisation"] = "batch" if "batch-norm" in options else "group"
    splits = options.get("pipeline-splits", options.get("pipeline-split", []))
    expected["pipeline_splits"] = tuple(splits)
    expected["training"] = "train.py" in of.command_line
    expected["data"] = next((kind for kind in ("synthetic", "generated") if f"{kind}-data" in options), "imagenet")
    if expected["training"]:
        expected["optimiser"] = options["optimiser"][0].lower()
        expected["variable_offloading"] = "disable-variable-offloading" not in options
        expected["schedule"] = options["pipeline-schedule"][0].lower()
    return expected


def with_options(name: str) -> bool:
    """Whether the page prints the options, and not the name of a file with them."""
    return not name.endswith("pod64")


@pytest.mark.parametrize(
    "of", [each for each in all_configurations() if with_options(each.name)], ids=lambda each: each.name
)
def test_settings_are_what_the_command_line_says(of: Configuration) -> None:
    expected = printed_settings(of)
    if "Group Dim 1)" in of.heading and of.settings.training:
        assert (expected["group_dim"], expected["expand_ratio"]) == (16, 4)  # the page contradicts its heading
        expected.update(group_dim=1, expand_ratio=6)
        assert any("Standard (Group Dim 1)" in note for note in of.deviations)
    assert {name: getattr(of.settings, name) for name in expected} == expected


@pytest.mark.parametrize("model", ["resnet50", "efficientnet-b4-g1", "efficientnet-b4-g16"])
def test_a_pod64_differs_from_the_pod16_in_replicas_and_accumulation_only(model: str) -> None:
    named = {each.name: each for each in all_configurations()}
    small, large = named[f"{model}-train-pod16"].settings, named[f"{model}-train-pod64"]
    names = [name for name in small.__dataclass_fields__ if getattr(small, name) != getattr(large.settings, name)]
    assert set(names) == {"machine", "replicas", "instances", "gradient_accumulation"}
    options = options_of(large.command_line)
    assert (large.settings.replicas, large.settings.instances) == (int(options["num-replicas"][0]), 16)
    assert any(options["config"][0] in note for note in large.deviations)


def test_the_headings_are_17_command_lines_of_11_trainings_and_6_inferences() -> None:
    known = all_configurations()
    assert len({each.name for each in known}) == len({each.heading for each in known}) == 17
    assert [each.settings.training for each in known] == [True] * 11 + [False] * 6
    # "Change the --batch-size argument to be one of ..."
    sizes = [each.batch_sizes for each in known if each.batch_sizes]
    assert sizes == [(1, 4, 16, 32, 64, 90), (1, 2, 4, 8, 16), (1, 8, 16, 32),
                     (1, 4, 16, 32, 64, 80), (1, 2, 4, 8, 16), (1, 8, 16, 32)]  # fmt: skip
    assert len(page_points()) == 11 + sum(map(len, sizes))


def test_every_configuration_goes_together_with_its_machine() -> None:
    for of in all_configurations():
        check(of.settings)
        assert of.settings.machine.lower() in of.name or not of.settings.training


def test_every_option_of_the_page_has_its_line_in_the_table() -> None:
    listed = {name for entry in benchmark_page().options for name in re.findall(r"-+([a-z0-9-]+)", entry.option)}
    prefixes = tuple(name for name in listed if name.endswith("-"))  # written as --mpi-...
    used = {name for each in all_configurations() for name in options_of(each.command_line)}
    assert {name for name in used if name not in listed and not name.startswith(prefixes)} == set()


def test_options_of_the_table_are_options_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    from ipu_course.programs.command_line import main

    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    text = capsys.readouterr().out
    names = {name for entry in benchmark_page().options for name in re.findall(r"--[a-z-]+", entry.bench)}
    assert {name for name in names if name not in text} == set()


def test_a_damaged_file_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cnn_benchmarks.json").write_text("{}", encoding="utf-8")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    benchmark_page.cache_clear()
    try:
        with pytest.raises(DataError, match="is damaged"):
            benchmark_page()
    finally:
        benchmark_page.cache_clear()


def documented() -> list[dict[str, str]]:
    """The lines of the tables of results in docs/, by the heads of their columns."""
    lines = BENCHMARKS_PAGE.read_text(encoding="utf-8").split("## The command lines")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    head = cells[0]
    return [dict(zip(head, row)) for row in cells if row != head and not set(row[0]) <= {"-", " "}]


def number(text: str) -> float:
    """A number as the tables write it."""
    return float(text.replace(",", "").strip("()"))


class TestPageInDocs:
    def test_it_explains_what_the_data_say(self) -> None:
        text = BENCHMARKS_PAGE.read_text(encoding="utf-8")
        assert text.endswith(f"{explanations()}\n")
        assert text.startswith(HEAD.format(source=benchmark_page().source, limit=624))

    def test_every_command_line_and_batch_size_has_its_line(self) -> None:
        lines = [(line["configuration"].strip("`"), int(line["batch"])) for line in documented()]
        assert lines == [(name, settings.batch_size) for name, settings in page_points()]

    def test_larger_batches_have_more_throughput_and_more_latency(self) -> None:
        for of in (each for each in all_configurations() if each.batch_sizes):
            found = [line for line in documented() if line["configuration"] == f"`{of.name}`"]
            for column in ("images/s", "latency ms"):
                values = [number(line[column]) for line in found]
                assert values == sorted(values)

    def test_nothing_that_ran_on_hardware_is_said_not_to_fit(self) -> None:
        assert {line["fits"] for line in documented()} <= {"yes", "close"}


@pytest.mark.slow
class TestResults:
    """The page's training, and one batch size of each inference: a capture of every network in every use."""

    def test_the_page_in_docs_is_what_the_model_says(self, modelled: tuple[Result, ...]) -> None:
        text = BENCHMARKS_PAGE.read_text(encoding="utf-8")
        lines = results_table(modelled).splitlines()[2:]
        assert [line for line in lines if line not in text] == []
        assert {result.name for result in modelled} == {each.name for each in all_configurations()}

    def test_no_rate_is_above_what_the_chip_can_do(self, modelled: tuple[Result, ...]) -> None:
        # 64 products and sums a cycle and tile with half partials: 1472 x 1.33 GHz x 128 FLOP = 250.6 TFLOP/s.
        assert all(0 < result.teraflops_per_ipu < 250.6 for result in modelled)

    def test_a_pod_is_faster_than_a_smaller_one_and_not_more_than_its_ipus(self, modelled: tuple[Result, ...]) -> None:
        rates = {result.name: result.images_per_second / result.settings.ipus for result in modelled}
        for model in ("resnet50", "efficientnet-b4-g1", "efficientnet-b4-g16"):
            each = [rates[f"{model}-train-{machine}"] for machine in ("m2000", "pod16", "pod64")]
            assert each == sorted(each, reverse=True)
            assert each[-1] > each[0] / 4


@pytest.fixture(scope="module")
def modelled() -> tuple[Result, ...]:
    found = [modelled_result(each.settings, each.name) for each in all_configurations()]
    return tuple(result for result in found if result is not None)
