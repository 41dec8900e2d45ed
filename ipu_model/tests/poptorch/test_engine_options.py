"""Engine options: reports, running out of memory, and which setting wins (options reference 3.2 and 11)."""

from __future__ import annotations

import pytest

import poptorch
from poptorch.options.backend import EngineOptions, read_engine_options

VARIABLE = "POPLAR_ENGINE_OPTIONS"


@pytest.fixture(autouse=True)
def _no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_nothing_is_reported_by_default() -> None:
    assert read_engine_options({}) == EngineOptions(report=False, allow_out_of_memory=True)


def test_what_enable_profiling_sets_asks_for_everything() -> None:
    options = poptorch.Options().enableProfiling("folder")
    found = read_engine_options(options._Popart.options["engineOptions"])
    assert found == EngineOptions(report=True, execution=True, directory="folder", allow_out_of_memory=True)


def test_the_environment_asks_in_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"autoReport.all": "true", "autoReport.directory": "there"}')
    found = read_engine_options({})
    assert found == EngineOptions(
        report=True, execution=True, directory="there", from_environment=True, allow_out_of_memory=True
    )


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"autoReport.all": "false", "debug.allowOutOfMemory": "false"}')
    options = poptorch.Options().enableProfiling("folder")
    found = read_engine_options(options._Popart.options["engineOptions"])
    assert (found.report, found.allow_out_of_memory, found.directory) == (False, False, "folder")


@pytest.mark.parametrize(
    ("options", "report", "execution"),
    [
        ({"autoReport.all": "true"}, True, True),
        ({"autoReport.all": "true", "autoReport.outputExecutionProfile": "false"}, True, False),
        ({"autoReport.outputGraphProfile": "true"}, True, False),
        ({"autoReport.outputExecutionProfile": "true"}, True, True),
        ({"autoReport.all": "true", "autoReport.outputGraphProfile": "false"}, True, True),
        (
            {"autoReport.all": "true", "autoReport.outputGraphProfile": "false",
             "autoReport.outputExecutionProfile": "false"},
            False, False,
        ),
    ],
)  # fmt: skip
def test_single_reports(options: dict[str, str], report: bool, execution: bool) -> None:
    found = read_engine_options(options)
    assert (found.report, found.execution) == (report, execution)


def test_a_program_that_does_not_fit_leaves_its_report_unless_told_otherwise() -> None:
    """Poplar's debug.allowOutOfMemory, on by default since SDK 2.1: off, "nothing can be analysed" (guide 6.1)."""
    assert read_engine_options({"autoReport.outputGraphProfile": "true"}).allow_out_of_memory
    refused = {"autoReport.all": "true", "debug.allowOutOfMemory": "false"}
    assert not read_engine_options(refused).allow_out_of_memory


@pytest.mark.parametrize("value", ["yes", 1, None, ["true"]])
def test_a_switch_is_true_or_false(value: object) -> None:
    with pytest.raises(poptorch.Error, match=r'autoReport\.all must be "true" or "false"'):
        read_engine_options({"autoReport.all": value})


@pytest.mark.parametrize("value", [None, 5, "", "a\0b", ["folder"]])
def test_a_directory_is_a_text(value: object) -> None:
    with pytest.raises(poptorch.Error, match=r"autoReport\.directory must name a folder"):
        read_engine_options({"autoReport.directory": value})


@pytest.mark.parametrize("value", [True, False])
def test_jsons_own_truth_values_will_do(value: bool) -> None:
    assert read_engine_options({"autoReport.all": value}).report is value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{autoReport.all: true}", "not valid JSON"), (" ", "not valid JSON"), ("[" * 100_000, "not valid JSON"),
        ('["autoReport.all"]', "must be a JSON object"), ("null", "must be a JSON object"),
    ],
)  # fmt: skip
def test_a_variable_that_cannot_be_read(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(poptorch.Error, match=f"{VARIABLE}.*{words}"):
        read_engine_options({})


def test_options_of_the_engine_that_have_no_meaning_here_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"target.hostSyncTimeout": "300", "autoReport.executionProfileProgramRunCount": "2"}')
    assert read_engine_options({"debug.retainDebugInformation": "true"}) == EngineOptions()
