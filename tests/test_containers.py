"""What can be checked of the images without an engine: their files agree with the project, each other and git."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from address_blocks import written
from bootstrap import INPUTS

from ipu_course.programs import command_line

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
DEVCONTAINER = ROOT / ".devcontainer"
HOME = "/home/learner"
SUPPORTED_PYTHON = re.compile(r"^Programming Language :: Python :: (3\.\d+)$")


@dataclass(frozen=True)
class Stage:
    """A stage of the Dockerfile: its name, what it is based on, and its instructions as (word, the rest)."""

    name: str
    source: str
    instructions: tuple[tuple[str, str], ...]

    def all(self, word: str) -> list[str]:
        """Return what follows each instruction with a word, in order."""
        return [rest for each, rest in self.instructions if each == word]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield a Dockerfile's instructions without comments, their continued lines joined."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n", " ", code).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, " ".join(rest.split())


def stages(text: str) -> dict[str, Stage]:
    """Return a Dockerfile's stages by name, in order; what stands before the first one is left out."""
    found: dict[str, Stage] = {}
    for word, rest in instructions(text):
        if word == "FROM":
            source, _, name = rest.partition(" AS ")
            found[name] = Stage(name, source, ())
        elif found:
            last = list(found.values())[-1]
            found[last.name] = Stage(last.name, last.source, (*last.instructions, (word, rest)))
    return found


STAGES = stages(DOCKERFILE)


def lineage(name: str) -> list[Stage]:
    """Return a stage and those that it is based on, the first one first."""
    stage = STAGES[name]
    return [*(lineage(stage.source) if stage.source in STAGES else []), stage]


def values(name: str, word: str) -> list[str]:
    """Return what follows a word in a stage and in those that it is based on, in the order of the build."""
    return [rest for stage in lineage(name) for rest in stage.all(word)]


def copied_from_the_context(stage: Stage) -> list[str]:
    """Return the files and folders of the repository that a stage copies."""
    copies = [rest.split() for rest in stage.all("COPY") if "--from=" not in rest]
    return [path for words in copies for path in words[:-1] if not path.startswith("--")]


def ignored(path: str) -> bool:
    """Tell whether .dockerignore leaves a file of the repository out, by the rules of Docker's reference."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line.strip().strip("/") for line in lines if line.strip() and not line.startswith("#")]
    return any(expression(pattern).fullmatch(path) for pattern in patterns)


def expression(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a pattern of .dockerignore, which matches a path and what lies below it."""
    assert not pattern.startswith("!"), "exceptions are not read here"
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces) + "(?:/.*)?")


def tracked() -> list[str]:
    """Return the files that git knows; skip the test where there is no repository, as in the image itself."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("git's list of files is needed")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return listed.stdout.splitlines()


def devcontainer() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DEVCONTAINER / "devcontainer.json").read_text(encoding="utf-8"))
    return content


class TestReading:
    """The helpers above read a Dockerfile and a .dockerignore as Docker does."""

    def test_continued_lines_and_comments(self) -> None:
        text = "# a comment\nFROM a AS b\nRUN one \\\n    # between\n    && two\n\nFROM b AS c\nCOPY x \\\n  y ./\n"
        assert stages(text)["b"].all("RUN") == ["one && two"]
        assert copied_from_the_context(stages(text)["c"]) == ["x", "y"]

    @pytest.mark.parametrize(
        ("pattern", "path", "matches"),
        [
            ("build", "build/site/index.html", True),
            ("build", "tools/build/x", False),
            ("**/build", "tools/build/x", True),
            ("**/build", "build", True),
            ("*.md", "docs/a.md", False),
            ("**/*.egg-info", "src/ipu_course.egg-info/PKG-INFO", True),
        ],
    )
    def test_patterns(self, pattern: str, path: str, matches: bool) -> None:
        assert (expression(pattern).fullmatch(path) is not None) == matches


class TestDockerfile:
    def test_a_build_without_a_target_makes_the_learners_image(self) -> None:
        assert list(STAGES)[-1] == "course"

    def test_its_python_is_one_that_the_project_supports(self, project_settings: dict[str, Any]) -> None:
        version = re.fullmatch(r"python:(3\.\d+)-slim-[a-z]+", STAGES["base"].source)
        assert version is not None, "a tag with the release of Debian, so that neither changes by itself"
        found = [SUPPORTED_PYTHON.match(line) for line in project_settings["project"]["classifiers"]]
        assert version[1] in {match[1] for match in found if match}

    @pytest.mark.parametrize("name", ["course", "test"])
    def test_it_does_not_run_as_root(self, name: str) -> None:
        (number,) = re.findall(r"^ARG LEARNER_UID=(\d+)$", DOCKERFILE, re.MULTILINE)
        assert int(number) >= 1000
        assert values(name, "USER")[-1] == "$LEARNER_UID"
        assert "LEARNER_UID" in STAGES[name].all("ARG")
        assert re.search(r'useradd --uid "\$LEARNER_UID" .*--create-home .*learner', values(name, "RUN")[0])

    def test_everything_that_is_copied_exists_and_is_in_the_context(self) -> None:
        paths = [path for stage in STAGES.values() for path in copied_from_the_context(stage)]
        assert "." in paths
        named = [path for path in paths if path != "."]
        assert named
        assert [path for path in named if not (ROOT / path).is_file() or ignored(path)] == []

    def test_stages_copy_only_from_stages_before_them(self) -> None:
        names = list(STAGES)
        for number, stage in enumerate(STAGES.values()):
            sources = re.findall(r"--from=(\S+)", " ".join(stage.all("COPY")))
            assert set(sources) <= set(names[:number]), stage.name

    def test_everything_that_git_knows_reaches_the_image_and_nothing_large_does(self) -> None:
        assert [path for path in tracked() if ignored(path)] == []
        large = (".git/index", ".venv/bin/python", ".venv-companions/x", "wheelhouse/torch.whl", "build/site/a.html")
        left = ("src/ipu_course/__pycache__/a.pyc", "my_course/00_start_here.ipynb", "src/ipu_course.egg-info/PKG-INFO")
        assert [path for path in (*large, *left) if not ignored(path)] == []

    def test_a_lesson_does_not_install_torch_again(self) -> None:
        """What is copied before the packages are installed is what the set-up reads, and no more."""
        copied = set(copied_from_the_context(STAGES["stand_ins"]))
        assert copied == {*INPUTS, "setup.py", "tools/setup.sh"}
        for name, install in (("test", "tools/setup.sh"), ("environment", "--constraint pins.txt")):
            before = []
            for word, rest in STAGES[name].instructions:
                if word == "RUN" and install in rest:
                    break
                before.append((word, rest))
            assert len(before) < len(STAGES[name].instructions), f"{name} has no {install}"
            copies = [rest for word, rest in before if word == "COPY"]
            assert copies
            assert all("--from=stand_ins" in rest for rest in copies)

    def test_pip_is_told_of_another_index_by_an_argument_and_no_file_names_one(self) -> None:
        for name in ("test", "environment"):
            words = [word if word != "ARG" else f"ARG {rest}" for word, rest in STAGES[name].instructions]
            assert "RUN" in words[words.index("ARG PIP_EXTRA_INDEX_URL") :]
        texts = [DOCKERFILE, json.dumps(devcontainer()), *(file.read_text() for file in (ROOT / "binder").iterdir())]
        assert not any("https://" in text for text in texts)

    def test_learners_get_the_pinned_versions_and_no_test_tools(self, project_settings: dict[str, Any]) -> None:
        extras = project_settings["project"]["optional-dependencies"]
        commands = [rest for rest in values("course", "RUN") if "pip install" in rest]
        asked = {
            name for rest in commands for extra in re.findall(r"\.\[([\w,]+)\]", rest) for name in extra.split(",")
        }
        assert asked == {"lab", "programs"} <= set(extras)

    def test_what_the_learners_image_starts_is_a_command_of_the_course(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It copies the notebooks to the working folder; JupyterLab listens on all addresses and keeps its token."""
        python, module, package, *arguments = json.loads(values("course", "CMD")[-1])
        assert (python, module, package) == ("python", "-m", "ipu_course")
        started: list[list[str]] = []
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(os, "execve", lambda program, command, environment: started.append(command))
        command_line.main(arguments)
        (command,) = started
        assert (tmp_path / "my_course" / "00_start_here.ipynb").exists()
        assert f"--ServerApp.root_dir={tmp_path / 'my_course'}" in command
        assert "--ip=0.0.0.0" in command
        assert "--no-browser" in command
        assert not any("token" in option.lower() or "password" in option.lower() for option in command)
        (port,) = values("course", "EXPOSE")
        assert f"--ServerApp.port={port}" in command
        assert f":{port}/" in values("course", "HEALTHCHECK")[-1]

    @pytest.mark.parametrize("name", ["course", "test"])
    def test_the_user_owns_the_working_folder(self, name: str) -> None:
        """WORKDIR alone gives it to root with some builders, and then the user cannot write there."""
        folder = values(name, "WORKDIR")[-1]
        assert folder.startswith(f"{HOME}/")
        root = [rest for rest in STAGES[name].instructions if rest[0] in ("RUN", "USER")]
        before = [rest for word, rest in root[: [word for word, _ in root].index("USER")]]
        assert any(f"install --directory --owner=learner --group=learner {folder}" in rest for rest in before)

    def test_the_copy_and_the_answers_are_in_the_volume(self) -> None:
        (volume,) = json.loads(values("course", "VOLUME")[-1])
        assert values("course", "WORKDIR")[-1] == volume
        assert f"IPU_COURSE_PROGRESS={volume}/" in " ".join(values("course", "ENV"))

    def test_the_health_check_succeeds_only_while_something_answers(self) -> None:
        words = values("course", "HEALTHCHECK")[-1].partition("CMD ")[2]
        _, option, code = json.loads(words)
        silent = code.replace(":8888/", ":9/")
        assert subprocess.run([sys.executable, option, silent], stderr=subprocess.DEVNULL).returncode != 0

    def test_labels_name_an_address_only_when_there_is_one(self, project: Path) -> None:
        assert "org.opencontainers.image.licenses" in DOCKERFILE
        assert "image.source" not in written("")["Dockerfile"]
        address = "https://host.example/owner/course"
        with_one = stages(written(address)["Dockerfile"])["base"].all("LABEL")
        assert any(f'org.opencontainers.image.source="{address}"' in label for label in with_one)


def test_line_ends_stay_as_they_are_on_windows() -> None:
    """With git's usual setting there, every file would have ends that a Unix shell takes for part of the line."""
    tracked()
    read_by_a_shell = ["requirements.txt", "tools/setup.sh", ".devcontainer/use_environment.sh", "binder/start"]
    command = ["git", "check-attr", "eol", *read_by_a_shell]
    said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said.splitlines() == [f"{file}: eol: lf" for file in read_by_a_shell]


class TestDevcontainer:
    def test_it_takes_the_test_image_from_this_dockerfile(self) -> None:
        build = devcontainer()["build"]
        assert (DEVCONTAINER / build["dockerfile"]).resolve() == ROOT / "Dockerfile"
        assert (DEVCONTAINER / build["context"]).resolve() == ROOT
        assert build["target"] in STAGES
        declared = {rest.partition("=")[0] for rest in values(build["target"], "ARG")}
        assert set(build["args"]) <= declared

    def test_its_user_and_environment_are_those_of_the_image(self) -> None:
        settings = devcontainer()
        target = settings["build"]["target"]
        user = settings["remoteUser"]
        assert user != "root"
        assert re.search(rf"useradd .* {user}$", values(target, "RUN")[0])
        shell, script, environment = settings["postCreateCommand"].split()
        assert (shell, (ROOT / script).is_file()) == ("sh", True)
        assert environment == f"{values(target, 'WORKDIR')[-1]}/.venv"
        assert environment.startswith(f"{HOME}/"), "a dev container gives the home folder to the user of the machine"

    def test_it_forwards_the_port_of_jupyterlab(self) -> None:
        (port,) = values("test", "EXPOSE")
        assert devcontainer()["forwardPorts"] == [int(port)]
        assert set(devcontainer()["portsAttributes"]) == {port}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with nothing but what the dev container's script needs."""
    folder = tmp_path / "clone"
    shutil.copytree(DEVCONTAINER, folder / ".devcontainer")
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment whose Python notes how it is called."""
    folder = tmp_path / "image" / ".venv"
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$PWD: $*" >>{tmp_path}/calls\n', encoding="utf-8")
    python.chmod(0o755)
    (folder / ".setup-stamp").write_text("{}", encoding="utf-8")
    return folder


def use(clone: Path, environment: Path) -> subprocess.CompletedProcess[str]:
    script = clone / ".devcontainer" / "use_environment.sh"
    return subprocess.run(["sh", str(script), str(environment)], capture_output=True, text=True, cwd="/")


class TestEnvironmentOfTheDevcontainer:
    def test_the_clone_gets_the_images_environment_and_make_takes_it_as_it_is(
        self, clone: Path, environment: Path, tmp_path: Path
    ) -> None:
        for _ in range(2):  # a container may be made again on the same clone
            assert use(clone, environment).returncode == 0
            assert (clone / ".venv").resolve() == environment
        calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
        assert [call.startswith(f"{clone}: -m pip install") for call in calls] == [True, True]
        assert calls[0].endswith("--no-deps --no-build-isolation -e ./ipu_model -e .")
        (clone / "tools").mkdir()
        shutil.copy(ROOT / "tools" / "setup.sh", clone / "tools")
        variables = {**os.environ, **devcontainer()["containerEnv"]}
        done = subprocess.run(["sh", "tools/setup.sh"], cwd=clone, env=variables, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_an_environment_from_outside_stays(self, clone: Path, environment: Path) -> None:
        kept = clone / ".venv" / "kept"
        kept.parent.mkdir()
        kept.touch()
        done = use(clone, environment)
        assert done.returncode == 1
        assert "was made outside the container" in done.stderr
        assert kept.exists()

    def test_git_does_not_see_the_link(self) -> None:
        """A pattern with a slash at its end would match folders only."""
        assert ".venv" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


class TestBinder:
    def test_its_python_is_that_of_the_image(self) -> None:
        runtime = (ROOT / "binder" / "runtime.txt").read_text(encoding="utf-8").strip()
        assert f"{runtime.replace('python-', 'python:')}-slim" in STAGES["base"].source

    def test_it_installs_what_the_learners_image_has(self) -> None:
        text = (ROOT / "binder" / "postBuild").read_text(encoding="utf-8")
        (install,) = [rest for rest in STAGES["environment"].all("RUN") if "--constraint" in rest]
        (pins,) = re.findall(r"grep '[^']+' requirements.txt", text)
        assert pins in install
        assert re.findall(r"'?\.\[[\w,]+\]'?", text) == re.findall(r"'?\.\[[\w,]+\]'?", install)

    @pytest.mark.parametrize("name", ["postBuild", "start"])
    def test_its_programs_are_executable_and_stop_at_a_failure(self, name: str) -> None:
        file = ROOT / "binder" / name
        assert os.access(file, os.X_OK)
        assert "set -euo pipefail" in file.read_text(encoding="utf-8")

    def test_its_start_runs_what_binder_asks_for_with_one_thread(self) -> None:
        command = [str(ROOT / "binder" / "start"), "sh", "-c", 'echo "$OMP_NUM_THREADS $0"', "an argument"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1 an argument\n"


class TestPage:
    def test_its_commands_name_the_images_ports_folders_and_arguments(self) -> None:
        text = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
        (port,) = values("course", "EXPOSE")
        (volume,) = json.loads(values("course", "VOLUME")[-1])
        assert set(re.findall(r"127\.0\.0\.1:\d+:(\d+)", text)) == {port}
        assert set(re.findall(r"[\w/]+:(/home/[\w/]+)", text)) == {volume}
        assert set(re.findall(r"--target (\w+)", text)) <= set(STAGES)
        arguments = {rest.partition("=")[0] for rest in (*values("course", "ARG"), *values("test", "ARG"))}
        assert set(re.findall(r"--build-arg (\w+)=", text)) <= arguments
        (number,) = re.findall(r"^ARG LEARNER_UID=(\d+)$", DOCKERFILE, re.MULTILINE)
        assert f"the number of the user inside, which is {number} unless" in " ".join(text.split())

    def test_programs_and_targets_that_it_names_exist(self) -> None:
        text = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
        programs = set(re.findall(r" ipu-course ipu-course (\w+)", text))
        assert programs == {"doctor", "lab"}
        assert [name for name in programs if not (ROOT / "src/ipu_course/programs" / name).is_dir()] == []
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = set(re.findall(r"(?:`|ipu-course-test )make ([a-z][a-z-]*)", text))
        assert {"lab", "test"} <= targets
        assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_pins_can_be_taken_from_the_requirements() -> None:
    """pip refuses an editable path among constraints, so the images and Binder take the lines with a version alone."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if "==" in line]
    assert len([line for line in pins if line.startswith("setuptools==")]) == 1
    others = [line for line in lines if line and line not in pins and not line.startswith("#")]
    assert others == ["-e ./ipu_model", "-e ."]
    assert not any(line.startswith(("-", "#", ".")) for line in pins)


def test_the_workflow_builds_both_images() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "containers.yml").read_text(encoding="utf-8"))
    commands = "\n".join(step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"])
    assert set(re.findall(r"--target (\w+)", commands)) == {"course", "test"}


@pytest.fixture(scope="module")
def project_settings() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings
