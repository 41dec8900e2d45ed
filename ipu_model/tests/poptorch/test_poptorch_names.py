"""The modules of `poptorch` against those of PopTorch 3.4, whose names and signatures `poptorch_names.md` lists."""

from __future__ import annotations

import abc
import ast
import enum
import functools
import inspect
import re
from importlib import import_module
from typing import Any

import pytest
import torch
from names_page import NAMES, PAGE, Name

import poptorch
from poptorch import _options_impl

# What this package leaves out on purpose, as a pattern for `module: name` or `module: class.name`, and why.
LEFT_OUT = {
    r"poptorch: _batch_sampler_len":
        "A step of the loader's, which is another one.",
    r"poptorch: _(real)?_?tensor_str":
        "Tensors of a trace are PyTorch's fake tensors, which print by themselves.",
    r"poptorch: setLogLevel":
        "It is that of _logging, which takes update_cpp, too.",
    r"poptorch\._dataloader: .*":
        "The loader's process exchanges messages over a pipe and waits, where PopTorch's polls shared flags.",
    r"poptorch\._impl: (destroyDispatcherOnExit|_pickleUnwrapObject)":
        "There is no dispatcher to destroy, and wrapped objects pickle themselves.",
    r"poptorch\._optimizer_attributes: _(?!OptimizerType|toCamelCase).*":
        "An optimiser is read into typed fields; there are no readers of single entries.",
    r"poptorch\._poplar_executor: PoplarExecutor\.(__init__|_(?!_|debugGetPopartIR).*)":
        "The executor's own steps, which are other ones; only PopTorch makes executors.",
    r"poptorch\._poptorch_data: .*":
        "Files are other ones: they hold no program and nothing that is executed.",
    r"poptorch\.(_options_impl: (_begin_ipu_block|IStageManager.*)|options: _DefaultStageManager.*)"
    r"|poptorch\.options: _IExecutionStrategy\.(__init__|on.*)|poptorch\.ops: (_end_ipu_block|Block\._stages_manager)":
        "A strategy decides itself where a block goes; no manager passes between traces.",
    r"poptorch\.ops: (_assertIdIsValid|CPU\.(execute|registerPersistentData))":
        "Steps of annotations that are other ones here.",
    r"poptorch\.options: Attribute\._current_attrs":
        "Attributes are written onto the ops of their body, not collected for the C++ part.",
    r"poptorch\.optim: (_parseArgs|_check_constructor_match_parent|\w+\._(child_vars|child_only|group_vars))":
        "Constructors spell their arguments out; PyTorch's take more of them today than PopTorch's classes.",
}  # fmt: skip


def test_the_page_is_read_completely() -> None:
    lines = [line for line in PAGE.splitlines() if line.lstrip().startswith("- ")]
    assert len(NAMES) == len(lines) > 400


def evaluated(text: str, module: Any) -> Any:
    """Return the value of a default or constant as PopTorch's source writes it, with the names that are here."""
    known = {"enum": enum, "abc": abc, "_options_impl": _options_impl, "torch": torch}
    return eval(text, {**known, **vars(poptorch.enums), **vars(poptorch), **vars(module)})


def found(name: Name) -> Any:
    """Return what is here under a name of the page, without calling properties."""
    holder = import_module(name.module)
    if not name.owner:
        return getattr(holder, name.name)
    return inspect.getattr_static(getattr(holder, name.owner), name.name)


def parameters_of(text: str) -> list[inspect.Parameter]:
    """Return the parameters of a signature of the page; defaults stay text."""
    arguments = ast.parse(f"def {text}: ...").body[0].args  # type: ignore[attr-defined]  # it is a definition
    kind = inspect.Parameter
    positional = arguments.args
    defaults = [kind.empty] * (len(positional) - len(arguments.defaults)) + list(map(ast.unparse, arguments.defaults))
    made = [kind(a.arg, kind.POSITIONAL_OR_KEYWORD, default=d) for a, d in zip(positional, defaults, strict=True)]
    if arguments.vararg:
        made.append(kind(arguments.vararg.arg, kind.VAR_POSITIONAL))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        made.append(kind(argument.arg, kind.KEYWORD_ONLY, default=ast.unparse(default) if default else kind.empty))
    if arguments.kwarg:
        made.append(kind(arguments.kwarg.arg, kind.VAR_KEYWORD))
    return made


def function_behind(value: Any) -> Any:
    return value.__func__ if isinstance(value, (classmethod, staticmethod)) else value


def check_signature(name: Name, function: Any) -> None:
    """Positional order, names and defaults are PopTorch's; what is here besides can be left out and is keyword-only."""
    wanted = parameters_of(name.text)
    here = list(inspect.signature(function).parameters.values())
    more = [p for p in here if p.name not in {w.name for w in wanted}]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more), f"not PopTorch's: {more}"
    common = [p for p in here if p not in more]
    assert [(p.name, p.kind) for p in common] == [(w.name, w.kind) for w in wanted]
    module = import_module(name.module)
    for parameter, want in zip(common, wanted, strict=True):
        if want.default is want.empty:
            assert parameter.default is parameter.empty, parameter
            continue
        value = evaluated(want.default, module)
        assert (callable(value) and callable(parameter.default)) or parameter.default == value, parameter


def check_class(name: Name, kind: type) -> None:
    bases = re.search(r"\((.*)\)", name.text)
    assert inspect.isclass(kind)
    for base in filter(None, (bases[1] if bases else "").split(", ")):
        assert issubclass(kind, evaluated(base, import_module(name.module)))


def check_decorated(name: Name, value: Any) -> None:
    """What a decorator makes of a function."""
    for decorator in name.decorators:
        if decorator == "property":
            assert isinstance(value, (property, functools.cached_property))
        elif decorator.endswith(".setter"):
            assert value.fset is not None
        elif decorator in ("staticmethod", "classmethod"):
            assert isinstance(value, eval(decorator))
        elif decorator == "abc.abstractmethod":
            assert value.__isabstractmethod__


def check_constant(name: Name, value: Any) -> None:
    """Literals are equal, except those that the page breaks off and containers that programs fill."""
    text = name.text.partition(" = ")[2]
    try:
        expected = ast.literal_eval(text)
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
        check_decorated(name, value)
        if not isinstance(value, property):
            check_signature(name, function_behind(value))


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
