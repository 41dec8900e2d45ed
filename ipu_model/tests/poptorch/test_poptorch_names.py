"""The names of PopTorch 3.4 against this package, the support table and its tests, and names of PopART.

`poptorch_names.md` lists the names and signatures of PopTorch's Python modules; the support table says of each public
name what it does here, and which test shows it. Where PopART is not installed, `import popart` finds values of options,
and refuses everything else by name; values and members: the same page, and the options reference, section 9.
"""

from __future__ import annotations

import abc
import ast
import enum
import functools
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

import ipu_model
import popart
import popdist
import poptorch
from popdist.run.options import FLAGS, OPTIONS
from poptorch import _options_impl
from poptorch._backend import support
from poptorch.options.backend import key_tables, validate_options

PAGE = Path(__file__).with_name("poptorch_names.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Name:
    """One line of the page; `owner` is the class that it belongs to, `text` what stands between the backticks."""

    module: str
    owner: str
    text: str
    decorators: tuple[str, ...]
    is_class: bool

    @property
    def name(self) -> str:
        return re.split(r"[( =]", self.text)[0]

    @property
    def key(self) -> str:
        return f"{self.module}: {self.owner}.{self.name}" if self.owner else f"{self.module}: {self.name}"


LINE = re.compile(r"^( *)- (class )?`([^`]*)`(.*)$")


def names_of_the_page() -> Iterator[Name]:
    module, owner = "", ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            heading = re.match(r"## poptorch/(\w+)\.py", line)
            file = heading[1] if heading else ""
            module = "poptorch" if file == "__init__" else f"poptorch.{file}" if file else ""
        found = LINE.match(line)
        if not found or not module:
            continue
        indent, is_class, text, rest = found.groups()
        decorators = tuple(re.findall(r"\[([^\]]+)\]", rest))
        name = Name(module, owner if indent else "", text, decorators, bool(is_class))
        if is_class:
            owner = name.name
        yield name


NAMES = list(names_of_the_page())


# What this package leaves out on purpose, as a pattern for `module: name` or `module: class.name`, and why.
LEFT_OUT = [line.partition("  ")[0] for line in r"""
poptorch: _batch_sampler_len  A step of the loader's, which is another one.
poptorch: _(real)?_?tensor_str  Tensors of a trace are PyTorch's fake tensors, which print by themselves.
poptorch: setLogLevel  It is that of _logging, which takes update_cpp, too.
poptorch\._dataloader: .*  The loader's process exchanges messages over a pipe, where PopTorch's polls shared flags.
poptorch\._impl: (destroyDispatcherOnExit|_pickleUnwrapObject)  No dispatcher; wrapped objects pickle themselves.
poptorch\._optimizer_attributes: _(?!OptimizerType|toCamelCase).*  An optimiser is read into typed fields at once.
poptorch\._poplar_executor: PoplarExecutor\._(?!_|debugGetPopartIR).*  Its own steps; programs make none.
poptorch\._poptorch_data: .*  Files are other ones: they hold no program and nothing that is executed.
poptorch\._options_impl: (_begin_ipu_block|IStageManager.*)  A strategy decides itself where a block goes;
poptorch\.options: _DefaultStageManager.*  no manager passes between traces.
poptorch\.options: _IExecutionStrategy\.(__init__|on.*)  The same.
poptorch\.ops: (_end_ipu_block|Block\._stages_manager)  The same.
poptorch\.ops: (_assertIdIsValid|CPU\.(execute|registerPersistentData))  Steps of annotations that are other ones here.
poptorch\.options: Attribute\._current_attrs  Attributes are written onto the ops of their body.
poptorch\.optim: (_parseArgs|_check_constructor_match_parent)  Constructors spell their arguments out;
poptorch\.optim: \w+\._(child_vars|child_only|group_vars)  PyTorch's take more of them than PopTorch's classes.
""".strip().splitlines()]  # fmt: skip


def scope_of(name: Name) -> dict[str, Any]:
    """Return what names stand for in the module of a name, as PopTorch's source writes them."""
    known = {"enum": enum, "abc": abc, "_options_impl": _options_impl, "torch": torch}
    return {**known, **vars(poptorch.enums), **vars(poptorch), **vars(import_module(name.module))}


def found(name: Name) -> Any:
    """Return what is here under a name of the page, without calling properties."""
    holder = import_module(name.module)
    if not name.owner:
        return getattr(holder, name.name)
    return inspect.getattr_static(getattr(holder, name.owner), name.name)


def check_signature(name: Name, function: Any) -> None:
    """Positional order, names and defaults are PopTorch's; what is here besides can be left out and is keyword-only."""
    scope = scope_of(name)
    exec(f"def {name.text}: ...", scope)
    wanted = inspect.signature(scope[name.name]).parameters
    here = list(inspect.signature(function).parameters.values())
    more = [p for p in here if p.name not in wanted]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more), f"not PopTorch's: {more}"
    common = [p for p in here if p not in more]
    assert [(p.name, p.kind) for p in common] == [(w.name, w.kind) for w in wanted.values()]
    for parameter, want in zip(common, wanted.values(), strict=True):
        both = parameter.default, want.default
        assert both[0] == both[1] or (all(map(callable, both)) and want.empty not in both), parameter


def check_class(name: Name, kind: type) -> None:
    bases = re.search(r"\((.*)\)", name.text)
    assert inspect.isclass(kind)
    for base in filter(None, (bases[1] if bases else "").split(", ")):
        assert issubclass(kind, eval(base, scope_of(name)))


DECORATED: dict[str, Callable[[Any], bool]] = {
    "property": lambda value: isinstance(value, (property, functools.cached_property)),
    "setter": lambda value: value.fset is not None,
    "staticmethod": lambda value: isinstance(value, staticmethod),
    "classmethod": lambda value: isinstance(value, classmethod),
    "abstractmethod": lambda value: value.__isabstractmethod__,
}


def check_constant(name: Name, value: Any) -> None:
    """Literals are equal, except those that the page breaks off and containers that programs fill."""
    try:
        expected = ast.literal_eval(name.text.partition(" = ")[2])
    except (SyntaxError, ValueError):
        return
    assert value == expected or (not expected and isinstance(value, type(expected)))


def is_left_out(name: Name) -> bool:
    return any(re.fullmatch(pattern, name.key) for pattern in LEFT_OUT)


@pytest.mark.parametrize("name", [n for n in NAMES if not is_left_out(n)], ids=lambda n: n.key)
def test_each_name_is_as_in_poptorch(name: Name) -> None:
    value = found(name)
    if " = " in name.text.split("(")[0]:
        check_constant(name, getattr(value, "value", value) if isinstance(value, enum.Enum) else value)
    elif name.is_class:
        check_class(name, value)
    else:
        checks = [DECORATED.get(decorator.split(".")[-1]) for decorator in name.decorators]
        assert all(check(value) for check in checks if check)
        if not isinstance(value, property):
            check_signature(name, value.__func__ if isinstance(value, (classmethod, staticmethod)) else value)


@pytest.mark.parametrize("pattern", LEFT_OUT)
def test_each_pattern_leaves_something_out_that_is_not_there(pattern: str) -> None:
    left_out = [name for name in NAMES if re.fullmatch(pattern, name.key)]
    assert left_out
    for name in left_out:
        with pytest.raises((AttributeError, AssertionError, ImportError)):
            test_each_name_is_as_in_poptorch(name)


def test_the_native_module_has_every_name_that_poptorchs_python_uses() -> None:
    section = PAGE.partition("## poptorch_core")[2].partition("\n## ")[0]
    names = re.findall(r"`(\w+)`", section)
    assert len(names) > 40
    assert [name for name in names if not hasattr(poptorch.poptorch_core, name)] == []


ENTRIES = [(area, entry) for area in support.table() for entry in area.entries]
# Where no Python object bears the names.
NAMES_ONLY = ("environment", "poprun", "companion packages")

DEFAULTS = poptorch.Options()
OWNERS: dict[str, Any] = {
    **{name: import_module(name) for name in ("poptorch", "popdist", "popdist.poptorch", "popart", "horovod.torch")},
    "poptorch.optim": poptorch.optim, "poptorch.PoplarExecutor": poptorch.PoplarExecutor,
    "poptorch.DataLoader": poptorch.DataLoader(poptorch.Options(), [torch.zeros(1)]),
    "poptorch.AsynchronousDataAccessor": poptorch.AsynchronousDataAccessor,
    "poptorch.TensorLocationSettings": poptorch.TensorLocationSettings(), "poptorch.Options": DEFAULTS,
    **{f"poptorch.options._{name}Options": getattr(DEFAULTS, name) for name in ("Training", "Precision", "Jit")},
    "poptorch.options._DistributedOptions": DEFAULTS.Distributed,
    "poptorch.options._TensorLocationOptions": DEFAULTS.TensorLocations,
    "poptorch.options._PopartOptions": DEFAULTS._Popart,
}  # fmt: skip
# Those whose every public member is PopTorch's: loaders have what torch's loader has besides.
CLASSES = [name for name in OWNERS if "ptions" in name or "Executor" in name or "Settings" in name]


# Of strategies, what options and compilation ask them, where PopTorch has others; of optimisers what is PyTorch's or
# in the table once, for their base.
INTERNAL = {"backendOptions", "phase_number", "place", "total_phases", "use_auto_id"}
INHERITED = {"load_state_dict", "state_dict", "copy", "step", "get_state_dict", "set_state_dict", "has_state"}
# Written with a prefix of their own in the table, and looked at above.
ELSEWHERE = {"DataLoader", "AsynchronousDataAccessor", "Options", "PoplarExecutor", "TensorLocationSettings"}


def members_of_other_classes() -> Iterator[str]:
    """Yield what classes of programs have that is neither PyTorch's nor Python's, as programs write it."""
    for module in (poptorch, poptorch.optim, poptorch.profiling):
        for kind in vars(module).values():
            if not inspect.isclass(kind) or not kind.__module__.startswith("poptorch") or issubclass(kind, enum.Enum):
                continue
            home = kind.__module__.split(".")[1]
            prefix = f"poptorch.{home}." if home in ("optim", "profiling") else "poptorch."
            if kind.__name__ not in ELSEWHERE and not kind.__name__.startswith("_"):
                own = {n for base in kind.__mro__ if base.__module__.startswith("poptorch") for n in vars(base)}
                yield from (f"{prefix}{kind.__name__}.{n}" for n in own - INTERNAL - INHERITED if n[0] != "_")


@cache
def tree_of(file: str) -> ast.Module | None:
    path = next(Path(__file__).parent.parent.glob(f"*/{file}"), None)
    return path and ast.parse(path.read_text(encoding="utf-8"))


def is_test(test: str) -> bool:
    """Return whether there is the function that `file::class::function` names."""
    file, *path = test.split("::")
    node: Any = tree_of(file)
    for name in path:
        kinds = (ast.ClassDef, ast.FunctionDef)
        node = next((n for n in getattr(node, "body", ()) if isinstance(n, kinds) and n.name == name), None)
    return isinstance(node, ast.FunctionDef)


def missing(names: Any) -> list[str]:
    return [name for name in names if support.status_of(name) is None]


class TestCompleteness:
    def test_those_of_poptorchs_modules_and_of_this_package(self) -> None:
        public = [n for n in NAMES if not n.owner and not n.name.startswith("_") and "._" not in n.module]
        public = [n for n in public if n.name != "BlockId"]  # a type alias
        sub_modules = (poptorch.optim, poptorch.profiling, poptorch.testing)
        own = [module.__name__ for module in sub_modules]
        listed = [f"{name.module if name.module in own else 'poptorch'}.{name.name}" for name in public]
        assert len(listed) >= 70
        assert missing(listed) == missing(f"poptorch.{name}" for name in poptorch.__all__) == []
        for module in sub_modules:
            here = [
                f"{module.__name__}.{name}" for name, value in vars(module).items()
                if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
                and value.__module__.startswith(module.__name__)
            ]  # fmt: skip
            assert here
            assert missing(here) == []

    def test_those_of_popdist_and_the_options_of_poprun(self) -> None:
        of_poprun = {entry.name: entry.status for area, entry in ENTRIES if area.prefix == "poprun"}
        assert of_poprun.keys() == {option.name for option in OPTIONS} | set(FLAGS) - {"-h"}
        idle = {name for name, status in of_poprun.items() if status == "no effect"}
        assert idle == {option.name for option in OPTIONS if not option.effective}
        assert {entry.name for area, entry in ENTRIES if area.owner == "popdist"} == set(popdist.__all__)

    @pytest.mark.parametrize("owner", CLASSES)
    def test_those_of_the_options_and_the_executor(self, owner: str) -> None:
        kind = OWNERS[owner] if inspect.isclass(OWNERS[owner]) else type(OWNERS[owner])
        generic = {entry.name for area, entry in ENTRIES if area.title == "Options: generic access"} | {"toDict"}
        sub_options = {"Training", "Precision", "TensorLocations", "Distributed", "Jit"}
        public = {name for name in dir(kind) if not name.startswith("_")} - generic - sub_options
        assert public - {entry.name for area, entry in ENTRIES if area.owner == owner} == set()

    def test_those_of_all_other_classes(self) -> None:
        names = set(members_of_other_classes())
        assert len(names) >= 30
        assert missing(names) == []


class TestTable:
    def test_each_name_is_listed_once_with_a_known_status_and_what_differs(self) -> None:
        assert len({f"{area.prefix}.{entry.name}" for area, entry in ENTRIES}) == len(ENTRIES)
        assert {entry.status for _, entry in ENTRIES} <= set(support.STATUSES)
        assert [entry.name for _, entry in ENTRIES if entry.status != "works" and not entry.text.endswith(".")] == []
        refused = [e.name for area, e in ENTRIES if e.status == "refused" and area.owner != "horovod.torch"]
        assert refused == ["importPoptorchMetadataFromFile"]

    def test_each_name_can_be_reached_refused_ones_included(self) -> None:
        reachable = [(area.owner, entry.name) for area, entry in ENTRIES if area.owner not in NAMES_ONLY]
        assert [name for owner, name in reachable if attrgetter(name)(OWNERS[owner]) is None] == []

    def test_each_name_that_works_says_which_test_shows_it(self) -> None:
        shown = {e.name: e.test for _, e in ENTRIES if e.status in ("works", "approximated")}
        tested = (name for name, test in shown.items() if test.split("::")[-1].startswith("test_") and is_test(test))
        wrong = shown.keys() - set(tested)
        assert wrong == set(), "data/support_tests.json needs file::function"
        tests = json.loads((Path(poptorch.__file__).parent / "data" / "support_tests.json").read_text("utf-8"))
        assert missing(tests) == []

    def test_the_page_counts_every_name_once_in_rows_of_four_cells(self) -> None:
        lines = support.as_markdown().splitlines()
        counts = [int(word) for word in lines[2].replace(":", " ").split() if word.isdigit()]
        assert counts[0] == len(ENTRIES) == sum(counts[1:])
        assert {line.count("|") for line in lines if line.startswith("|")} == {5}

    def test_a_status_can_be_asked_for_by_the_name_as_written(self) -> None:
        assert support.status_of("Options.Training.gradientAccumulation").status == "works"
        assert support.status_of("poptorch.autocast") is None


class TestPackage:
    def test_the_version_is_that_of_the_distribution(self) -> None:
        """After the +, which comparisons of versions ignore; before it is the PopTorch whose behaviour this is."""
        assert poptorch.__version__ == f"3.4.0+ipu.model.{ipu_model.__version__}"

    def test_it_has_no_modules_that_poptorch_does_not_have(self) -> None:
        of_poptorch = {*re.findall(r"^## poptorch/(\w+)\.py", PAGE, re.MULTILINE), "poptorch_core", "torch"}
        modules = "print(*(name for name, value in vars(poptorch).items() if isinstance(value, type(sys))))"
        assert set(run(modules).split()) <= of_poptorch

    def test_a_name_that_is_not_poptorchs_is_no_attribute(self) -> None:
        for module in (poptorch, poptorch.ops):
            assert not hasattr(module, "autocast")
            with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'autocast'"):
                _ = module.autocast


TAKEN = PAGE.partition("## What public programs take from `popart`")[2]
ENUMERATIONS = re.findall(r"`(\w+)` \((\w+(?:, \w+)+)\)", TAKEN)


@pytest.mark.parametrize(("name", "members"), ENUMERATIONS, ids=dict(ENUMERATIONS))
def test_members_are_those_of_the_page(name: str, members: str) -> None:
    """They count from 0."""
    assert [getattr(popart, name)[member] for member in members.split(", ")] == [*range(len(getattr(popart, name)))]


@pytest.mark.parametrize("key", sorted(key_tables().members.keys() & key_tables().keys["uint64"]))
def test_members_suit_their_key_to_the_last_one(key: str) -> None:
    count = len(key_tables().members[key])
    validate_options({key: count - 1})
    with pytest.raises(poptorch.Error, match=rf"option {key} is out of range"):
        validate_options({key: count})


def test_members_count_from_0_and_print_their_names_with_pythons_keyword_as_a_second_one() -> None:
    assert popart.RecomputationType["None"] is popart.RecomputationType.NoRecompute
    assert popart.MergeVarUpdateType["None"] is popart.MergeVarUpdateType.Off
    assert f"{popart.RecomputationType.Standard}" == "RecomputationType.Standard"
    assert repr(popart.RecomputationType.Standard) == "<RecomputationType.Standard: 1>"


def test_a_location_reaches_the_settings_of_poptorchs_own() -> None:
    off_chip, sharded, io = popart.TensorStorage.OffChip, popart.ReplicatedTensorSharding.On, popart.TileSet.IO
    own = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
    for location in (
        popart.TensorLocation(off_chip, sharded), popart.TensorLocation(1, 1),
        popart.TensorLocation(storage=off_chip, replicatedTensorSharding=sharded),
    ):  # fmt: skip
        options = poptorch.Options()
        options.TensorLocations.setOptimizerLocation(location)
        assert options.TensorLocations.toDict() == {"location_optimizer": own.toDict()}
    # The long form has the tiles that load and store.
    long = popart.TensorLocation(off_chip, io, popart.TileSet.Compute, sharded)
    assert long.toDict() == own.useIOTilesToLoad().useIOTilesToStore(False).toDict()
    assert (long.loadTileSet, long.storageTileSet) == (io, popart.TileSet.Compute)
    default = popart.TensorLocation()
    assert default.toDict() == {}
    assert (default.storage, default.replicatedTensorSharding) == (0, 0)


@pytest.mark.parametrize("statement", ["from popart import Builder", "import popart.ir", "import popart.ir.ops"])
def test_other_names_are_none_and_importing_one_fails_with_the_reason(statement: str) -> None:
    assert not hasattr(popart, "Builder")
    with pytest.raises(ImportError, match=r"popart\.(Builder|ir) .* PopART is not installed"):
        exec(statement)


OURS = Path(str(popart.__file__))


def run(program: str, *path: Path) -> str:
    whole = f"import sys; sys.path[:0] = {[str(folder) for folder in path]!r}\nimport popart, poptorch; {program}"
    done = subprocess.run([sys.executable, "-c", whole], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


class TestAnInstalledPopart:
    """PopART itself, installed or on `PYTHONPATH`, is what `import popart` finds, wherever this module is."""

    FOLDERS = tuple(dict.fromkeys([OURS.parent, Path(str(poptorch.__file__)).parents[1]]))

    def test_it_comes_first_wherever_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "popart").mkdir()
        (tmp_path / "popart" / "__init__.py").write_text("Builder = 'the real one'\n")
        for path in ((tmp_path, *self.FOLDERS), (*self.FOLDERS, tmp_path)):
            assert run("print(popart.Builder, popart.__name__)", *path) == "the real one popart\n"
        (tmp_path / "popart.py").write_text(OURS.read_text(encoding="utf-8"))  # in the same folder
        assert run("print(popart.Builder)", tmp_path, *self.FOLDERS) == "the real one\n"

    def test_a_second_copy_of_this_module_and_a_mere_folder_are_none(self, tmp_path: Path) -> None:
        program = "print(popart.TileSet.IO, popart.versionString() == poptorch.__version__)"
        (tmp_path / "popart.py").write_text(OURS.read_text(encoding="utf-8"))
        assert run(program, *self.FOLDERS, tmp_path) == "TileSet.IO True\n"
        (tmp_path / "empty" / "popart").mkdir(parents=True)
        assert run(program, tmp_path / "empty", *self.FOLDERS) == "TileSet.IO True\n"


@pytest.mark.parametrize("module", ["poptorch", "ipu_model", "popdist", "popart"])
def test_an_import_says_what_was_found_which_rule_it_breaks_and_what_helps(tmp_path: Path, module: str) -> None:
    """Graphcore's own PopTorch, of which the import path has the metadata, has nothing of all this beside it."""
    wheel = tmp_path / "poptorch-3.4.0+111711.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: poptorch\nVersion: 3.4.0+111711\n", encoding="utf-8")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", f"import {module}"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: Graphcore's PopTorch 3.4.0+111711 is installed in {tmp_path}")
    assert f"so is ipu-model {ipu_model.__version__}" in last
    assert "only one of the two" in last
    assert "pip uninstall ipu-model poptorch" in last
