"""The notebook build, tried on small lessons written for the test. Rules: tools/notebook_build/README.md."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from notebooks_support import LESSON, places, write_lesson

from notebook_build.__main__ import main
from notebook_build.assemble import assemble, exercises_of
from notebook_build.check import check, findings
from notebook_build.errors import SourceError
from notebook_build.execute import execute
from notebook_build.exercise import solved
from notebook_build.lesson import LessonSource


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> LessonSource:
    """LESSON, built and executed once."""
    lesson = write_lesson(tmp_path_factory.mktemp("built"))
    assert main(["build", *places(lesson.notebook.parent)]) == 0
    return lesson


def changed(built: LessonSource, folder: Path, change: tuple[str, str]) -> list[str]:
    """Return what the check finds after a change to the text of the built notebook."""
    lesson = write_lesson(folder)
    text = built.notebook.read_text(encoding="utf-8")
    assert change[0] in text
    lesson.notebook.write_text(text.replace(*change, 1), encoding="utf-8")
    return check(lesson)


# --- what learners get


def test_a_built_lesson_is_executed_and_passes_its_check(built: LessonSource) -> None:
    notebook = nbformat.read(built.notebook, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [1, 2, 3]
    assert code[0].outputs[0].text == "2\n"
    assert check(built) == []


def test_an_exercise_is_given_with_its_starter_and_without_its_solution(built: LessonSource) -> None:
    cell = assemble(built).cells[3]
    assert cell.source.startswith("def doubled(value):\n    result = ...\n    return result\n")
    assert "2 * value" not in cell.source


def test_hint_and_solution_are_folded(built: LessonSource) -> None:
    hint, solution = assemble(built).cells[4:6]
    assert hint.source == "<details>\n<summary>Hint</summary>\n\nMultiply.\n\n</details>"
    assert "```python\nresult = 2 * value\n```\n\nTwice is *two times*." in solution.source
    assert solution.source.startswith("<details>\n<summary>Solution</summary>\n")


def test_an_unanswered_exercise_runs(built: LessonSource) -> None:
    exercise = nbformat.read(built.notebook, as_version=4).cells[3]
    assert exercise.outputs[0].text == "not attempted yet\n"


def test_the_solved_form_runs_the_solution(built: LessonSource) -> None:
    notebook = execute(assemble(built, solved), built.notebook.parent)
    assert notebook.cells[3].outputs[0].text == "True\n"


def test_any_answer_can_be_tried(built: LessonSource) -> None:
    notebook = execute(assemble(built, lambda exercise: "    result = value ** 3"), built.notebook.parent)
    assert notebook.cells[3].outputs[0].text == "False\n"
    assert [exercise.number for exercise in exercises_of(built)] == [1]


def test_the_notebook_says_no_more_than_it_must(built: LessonSource) -> None:
    notebook = nbformat.read(built.notebook, as_version=4)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert "version" not in notebook.metadata.language_info
    assert [cell.metadata for cell in notebook.cells[:3]] == [{}, {}, {}]


def test_cell_ids_stay_when_a_cell_is_put_in(tmp_path: Path) -> None:
    before = [cell.id for cell in assemble(write_lesson(tmp_path / "before")).cells]
    longer = LESSON.replace("# %%\n", "# %%\nx = 1\n\n# %%\n", 1)
    after = [cell.id for cell in assemble(write_lesson(tmp_path / "after", longer)).cells]
    assert [each for each in after if each in before] == before
    assert len(after) == len(before) + 1


def test_equal_cells_get_ids_of_their_own(tmp_path: Path) -> None:
    lesson = write_lesson(tmp_path, "# %%\nprint(1)\n\n# %%\nprint(1)\n")
    ids = [cell.id for cell in assemble(lesson).cells]
    assert len(set(ids)) == 2
    assert all(each.startswith("03-small-lesson-") for each in ids)


def test_cells_run_in_the_notebook_folder(tmp_path: Path) -> None:
    lesson = write_lesson(tmp_path, "# %%\nfrom pathlib import Path\nprint(sorted(p.name for p in Path().iterdir()))\n")
    notebook = execute(assemble(lesson), tmp_path)
    assert ast.literal_eval(notebook.cells[0].outputs[0].text) == ["lessons"]


def test_a_shells_matplotlib_backend_does_not_reach_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    lesson = write_lesson(tmp_path, "# %%\nimport os\nprint(os.environ['MPLBACKEND'])\n")
    assert "inline" in execute(assemble(lesson), tmp_path).cells[0].outputs[0].text


def test_prints_after_a_figure_stay_after_it(tmp_path: Path) -> None:
    shown = "display({'text/plain': 'a figure'}, raw=True)"
    lesson = write_lesson(tmp_path, f"# %%\nprint('one')\nprint('two', flush=True)\n{shown}\nprint('three')\n")
    outputs = execute(assemble(lesson), tmp_path).cells[0].outputs
    assert [output.get("text") or output.data["text/plain"] for output in outputs] == [
        "one\ntwo\n",
        "a figure",
        "three\n",
    ]


def test_widget_views_are_left_out(tmp_path: Path) -> None:
    lesson = write_lesson(tmp_path, "# %%\nimport ipywidgets\nipywidgets.IntSlider(value=3)\n")
    assert main(["build", *places(tmp_path)]) == 0
    assert list(nbformat.read(lesson.notebook, as_version=4).cells[0].outputs[0].data) == ["text/plain"]


def test_a_failing_cell_is_reported_and_nothing_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lesson = write_lesson(tmp_path, "# %%\n1 / 0\n")
    assert main(["build", *places(tmp_path)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert not lesson.notebook.exists()


# --- what the check finds


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        pytest.param(("total = 1 + 1", "total = 2"), "+total = 2", id="code"),
        pytest.param(("# A lesson", "# Another"), "+# Another", id="text"),
        pytest.param(('"id": "03-small', '"id": "99-small'), "99-small", id="cell id"),
        pytest.param(('"name": "python3"', '"name": "python4"'), "python4", id="kernelspec"),
        pytest.param(('"nbval-ignore-output"', '"skip"'), "skip", id="tag"),
        pytest.param(('"nbformat_minor": 5', '"nbformat_minor": 4'), "nbformat_minor", id="format"),
        pytest.param(('"execution_count": 2', '"execution_count": null'), "[1, None, 3]", id="not executed"),
        pytest.param(('"execution_count": 3', '"execution_count": 4'), "[1, 2, 4]", id="executed out of order"),
        pytest.param(('"2\\n"', '"/home/someone/data\\n"'), "an absolute path", id="path"),
        pytest.param(('"2\\n"', '"<object at 0x7f4e2c46f510>\\n"'), "a memory address", id="address"),
        pytest.param(('"2\\n"', '"measured 3.1 s\\n"'), "wall-clock time", id="measured figure"),
        pytest.param(('"2\\n"', '"10/10 [00:01, 8.1it/s]\\n"'), "wall-clock time", id="progress bar"),
        pytest.param(('"name": "stdout"', '"name": "stderr"'), "stderr", id="warning"),
    ],
)
def test_a_change_is_found(built: LessonSource, tmp_path: Path, change: tuple[str, str], finding: str) -> None:
    assert finding in "\n".join(changed(built, tmp_path, change))


def test_a_changed_source_is_found(built: LessonSource, tmp_path: Path) -> None:
    lesson = write_lesson(tmp_path, LESSON.replace("result = 2 * value", "result = value + value"))
    lesson.notebook.write_bytes(built.notebook.read_bytes())
    head, *lines = check(lesson)
    assert head == "the notebook differs from its source (make notebooks LESSON=03 builds it anew):"
    assert "-result = value + value" in lines


def test_a_missing_notebook_is_found(tmp_path: Path) -> None:
    assert check(write_lesson(tmp_path)) == ["03_small_lesson.ipynb is missing: make notebooks LESSON=03 builds it"]


@pytest.mark.parametrize("text", ["0x3c00 = 1.0", "0x3f800000", "images/s at 1/2/3", "8.03 s modelled", "a/b/c"])
def test_harmless_outputs_pass(built: LessonSource, tmp_path: Path, text: str) -> None:
    assert changed(built, tmp_path, ('"2\\n"', f'"{text}\\n"')) == []


def test_an_error_output_is_found() -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("1 / 0", execution_count=1, outputs=[failure()])]
    )
    assert findings(notebook) == ["code cell 1: raises ZeroDivisionError: division by zero"]


def failure() -> nbformat.NotebookNode:
    output: nbformat.NotebookNode = nbformat.v4.new_output(
        "error", ename="ZeroDivisionError", evalue="division by zero", traceback=[]
    )
    return output


@pytest.mark.parametrize(("cells", "allowed"), [(4, 2), (5, 3), (25, 7)])
def test_two_and_a_fifth_of_the_cells_may_ignore_their_output(cells: int, allowed: int) -> None:
    def ignoring(count: int) -> nbformat.NotebookNode:
        code = [nbformat.v4.new_code_cell("1", execution_count=each + 1) for each in range(cells)]
        for cell in code[:count]:
            cell.metadata["tags"] = ["nbval-ignore-output"]
        notebook: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=code)
        return notebook

    assert findings(ignoring(allowed)) == []
    assert findings(ignoring(allowed + 1)) == [f"{allowed + 1} cells ignore their output, and {allowed} of {cells} may"]


def test_a_notebook_without_code_is_found() -> None:
    assert findings(nbformat.v4.new_notebook()) == ["there is no code cell"]


# --- what a source may not say

REGION = "### BEGIN SOLUTION\n### STARTER: x = ...\nx = 1\n### END SOLUTION\n"
EXERCISE = f'# %% tags=["exercise"]\n{REGION}\n'
HINT = '# %% [markdown] tags=["hint"]\n# Think.\n\n'
SOLUTION = '# %% [markdown] tags=["solution"]\n# One.\n'


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (f"# %%\n{REGION}", "cell 1: a cell with a solution region needs the tag exercise"),
        ('# %% tags=["exercise"]\nx = 1\n', "cell 1: an exercise has one BEGIN SOLUTION"),
        (EXERCISE.replace("### STARTER: x = ...\n", ""), "cell 1: the solution region has no '### STARTER"),
        (EXERCISE.replace("\nx = 1", ""), "cell 1: the solution is empty"),
        (EXERCISE + SOLUTION, "cell 2: found solution, but hint comes next"),
        (EXERCISE, "the last exercise has no hint cell"),
        (EXERCISE + HINT, "the last exercise has no solution cell"),
        (EXERCISE + HINT + "# %% [markdown]\n# Text.\n\n" + SOLUTION, "cell 3: the hint must be followed by"),
        (EXERCISE + HINT.replace(" [markdown]", ""), "cell 2: hint is a tag for markdown cells"),
        (HINT, "cell 1: found hint, but exercise comes next"),
        ('# %% tags=["nbval-skip"]\nx = 1\n', "cell 1: tag nbval-skip is not one of exercise, hint"),
        (
            '# %% slideshow={"slide_type": "slide"}\nx = 1\n',
            "cell 1: only tags are allowed beside %%, not slideshow",
        ),
        ("# %% [raw]\n# x\n", "cell 1: raw cells are not used"),
    ],
)
def test_a_broken_source_is_refused(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(SourceError) as caught:
        assemble(write_lesson(tmp_path, source))
    assert message in str(caught.value)


def test_a_badly_named_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="NN_topic"):
        write_lesson(tmp_path, name="03_lesson-one")


def test_an_unknown_lesson_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lesson(tmp_path)
    assert main(["check", "77", *places(tmp_path)]) == 1
    assert "no lesson starts with 77" in capsys.readouterr().err


DEFINITION = '''\
# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def accumulate(model, batches):
### STARTER:     """Add up the gradients."""
### STARTER:     ...
def accumulate(model, batches):
    for batch in batches:
        model(batch).backward()
### END SOLUTION
lesson.check(1, accumulate)

# %% [markdown] tags=["hint"]
# Loop.

# %% [markdown] tags=["solution"]
# Gradients add up.
'''


def test_the_starter_of_a_function_keeps_its_indentation(tmp_path: Path) -> None:
    lesson = write_lesson(tmp_path, DEFINITION)
    assert assemble(lesson).cells[0].source == (
        'def accumulate(model, batches):\n    """Add up the gradients."""\n    ...\nlesson.check(1, accumulate)'
    )
    assert "model(batch).backward()\nlesson.check" in assemble(lesson, solved).cells[0].source
