"""`python -m ipu_model fit`: from a program that does not fit to one that does, by one command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from command_programs import wide
from modelling_support import quiet
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model.commands.programs import NOTHING_FITS
from ipu_model.explore import KEEP
from ipu_model.explore.split import even_starts, split_before, stage_modules
from ipu_model.front_ends import program_of_module
from ipu_model.predict.verdict import Verdict
from ipu_model.report.page import html_report

PROGRAM = Path(__file__).with_name("command_programs.py")


def test_the_printed_lines_make_the_program_fit(run) -> None:
    """The lines change a fresh module and its options into a program with the profile that was printed."""
    code, out, err = run("fit", f"{PROGRAM}:wide")
    assert (code, err) == (0, "")
    assert out.startswith("training as it is: does not fit")
    promised = re.search(r"The fastest.*that fits: ([0-9,.]+) samples/s on (\d+) IPU", out)
    assert promised is not None
    block = out[promised.end() :].split("\n\nThe cheapest")[0]
    lines = [line[4:] for line in block.splitlines() if line.startswith("    ") or not line.strip()]
    given = wide()
    names = {"model": given["model"], "opts": given["options"], "poptorch": poptorch, "torch": torch}
    exec("\n".join(line for line in lines if not line.startswith("loader = ")), names)
    rows = re.search(r"batch_size=(\d+)", block)
    dtype = next(given["model"].parameters()).dtype
    shape = (int(rows[1]) if rows else len(given["inputs"][0]), given["inputs"][0].shape[1])
    inputs = tuple(torch.empty(shape, dtype=dtype, device="meta") for _ in given["inputs"])
    profile = ipu_model.profile_module(
        given["model"], inputs, given["options"], optimizer=names.get("optimizer", given["optimizer"]), micro_batch=True
    )
    assert profile.verdict is Verdict.FITS
    assert f"{profile.samples_per_second:,.1f}" == promised[1]


def test_the_page_is_the_one_that_python_makes(run, tmp_path: Path) -> None:
    page = tmp_path / "fit.html"
    code, out, _ = run("fit", f"{PROGRAM}:wide", "--html", page)
    assert code == 0
    assert out.splitlines()[-1] == f"page: {page}"
    given = wide()
    model = given.pop("model")
    found = ipu_model.make_it_fit(model, **given).for_shell()
    text = page.read_text(encoding="utf-8")
    assert text == html_report(ipu_model.profile_module(model, **given), fit=found)
    for words in (
        "The fastest",
        "fullest tile against throughput: ",
        "model.half()",
        "that were modelled",
    ):
        assert words in text


def test_the_folder_of_a_failed_compilation_is_enough(run, tmp_path: Path) -> None:
    """From the error's own words to the search: `python -m ipu_model fit FOLDER`."""
    given = wide()
    model = poptorch.trainingModel(given["model"], given["options"].enableProfiling(str(tmp_path)), given["optimizer"])
    rows = given["options"].Training.gradient_accumulation * len(given["inputs"][0])
    with pytest.raises(poptorch.Error, match="python -m ipu_model fit") as refusal:
        model.compile(*(torch.zeros(rows, given["inputs"][0].shape[1]) for _ in given["inputs"]))
    command = re.search(r"python -m ipu_model (fit \S+)", refusal.value.message)
    assert command is not None
    code, out, _ = run(*command[1].split())
    assert code == 0
    assert "does not fit" in out.splitlines()[0]
    assert "programs modelled" in out
    (line,) = [line for line in out.splitlines() if line.startswith("The search tried no other micro-batches")]
    assert line.endswith("name the function that returns the module: python -m ipu_model fit program.py:function")


def test_advice_is_in_the_words_of_who_asked(run) -> None:
    """Options in a shell, arguments in Python."""
    given = wide()
    in_python = str(ipu_model.make_it_fit(given.pop("model"), **given))
    in_shell = run("fit", f"{PROGRAM}:wide")[1]
    for option, argument in (("--ipus N sets", "ipus=N sets"), ("--keep precision leaves", 'keep="precision" leaves')):
        assert option in in_shell
        assert argument not in in_shell
        assert argument in in_python


def test_an_impossible_request_names_the_nearest(run) -> None:
    """One IPU in float32 has no room for twice its memory in weights alone."""
    code, out, _ = run("fit", f"{PROGRAM}:wide", "--ipus", "1", "--keep", "precision", "--keep", "optimiser")
    assert code == NOTHING_FITS == 1
    assert (
        "Nothing fits for certain within the limits that you set (at most 1 IPU, optimiser stays, precision stays)"
        in out
    )
    assert "The nearest: " in out


def test_what_fits_already_is_said_so(run) -> None:
    code, out, _ = run("fit", f"{PROGRAM}:inference")
    assert code == 0
    assert out.startswith("inference as it is: fits")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--machine", "M3000"), "M3000"),
    ],
)
def test_bad_limits_are_one_line(run, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run("fit", f"{PROGRAM}:inference", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


CHANGES_OF = {
    "precision": ("model.half()", "half partials", "types of accumulators and first moments"),
    "optimiser": ("types of accumulators and first moments",),
    "micro-batch": ("micro-batch: ",),
    "replicas": ("replicas: ",),
    "split": ("split over",),
    "machine": ("machine: ",),
}


@pytest.mark.parametrize("name", KEEP)
def test_what_is_kept_does_not_change(run, name: str) -> None:
    _, out, _ = run("fit", f"{PROGRAM}:wide", "--keep", name)
    within = re.split("This fits within wider limits|This fits without limits", out)[0]
    assert "  - " in within
    assert not [change for change in CHANGES_OF[name] if change in within]


def test_without_anything_kept_types_and_split_change(run) -> None:
    """So that the test of what is kept can fail."""
    _, out, _ = run("fit", f"{PROGRAM}:wide")
    assert "model.half()" in out or "split over" in out


def test_a_model_that_cannot_be_traced(run) -> None:
    code, _, err = run("fit", f"{PROGRAM}:branching")
    assert code == 2
    assert "The model branches on data" in err


@pytest.mark.parametrize("command", ["fit", "advise", "report"])
def test_a_function_whose_compilation_runs_out_of_memory_gives_its_program(run, command: str) -> None:
    code, out, _ = run(command, f"{PROGRAM}:compiled_wide")
    assert code == 0
    assert "does not fit" in out


def test_an_executor_that_ran_out_of_memory_can_be_made_to_fit() -> None:
    given = wide()
    model = poptorch.trainingModel(given["model"], quiet(), given["optimizer"])
    with pytest.raises(poptorch.Error, match="out of memory"):
        model.compile(*given["inputs"])
    assert ipu_model.make_it_fit(model, progress=False).found


class Listed(nn.Module):
    """A linear layer and three more in a list, which is no module that is ever called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 256)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_no_block_begins_at_a_list_of_modules() -> None:
    """Nobody calls an `nn.ModuleList`, so that BeginBlock would have no effect there."""
    program = program_of_module(quiet(), Listed(), torch.empty(4, 256, device="meta"))
    starts = even_starts(program, 4)
    assert starts == ("blocks.0.0", "blocks.1.0", "blocks.2.0")
    assert tuple(stage_modules(split_before(program, starts))) == starts
    assert tuple(stage_modules(split_before(program, ["blocks"]))) == ("blocks.0.0",)
