"""The options of the programs: a setting declares its default, its meaning and its values in one place.

A program's settings are a frozen dataclass whose fields are made by ``option``, ``count``, ``number`` and ``flag``.
``add_options`` turns them into options of the command line, and ``settings_from`` turns parsed arguments into settings.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, TypeVar

from ipu_course.errors import SettingsError

if TYPE_CHECKING:
    # argparse's class of sub-parsers has no public name, and is generic only for type checkers.
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

PRECISIONS = ("16.16", "16.32", "32.32")
NO_SPLIT = "none"
SettingsClass = TypeVar("SettingsClass")


@dataclass(frozen=True)
class Option:
    """How a setting is written on the command line: its ``names``, the ``group`` of its help, argparse's arguments."""

    names: tuple[str, ...]
    help: str
    group: str
    arguments: Mapping[str, Any]


def option(default: Any, help: str, *names: str, group: str = "", **arguments: Any) -> Any:
    """Declare a setting; without ``names`` the option is called as the field. ``arguments`` are argparse's."""
    return field(default=default, metadata={"option": Option(names, help, group, arguments)})


def count(default: int | None, help: str, *names: str, group: str = "") -> Any:
    """Declare a setting that is a whole number of at least 1."""
    return option(default, help, *names, group=group, type=positive_integer, metavar="N")


def flag(help: str, group: str = "") -> Any:
    """Declare a setting that is off unless its option is given."""
    return option(False, help, group=group, action="store_true")


def seed_option(group: str = "") -> Any:
    """Declare the seed of a program's random numbers."""
    text = "repeat a run: the same seed gives the same results on the same machine (default: a new seed every time)"
    return option(None, text, group=group, type=seed, metavar="N")


def learning_rate_option(group: str = "") -> Any:
    """Declare the learning rate."""
    return option(0.001, "learning rate of AdamW", group=group, type=positive_number, metavar="RATE")


def names_of(setting: Field[Any]) -> tuple[str, ...]:
    """Return a setting's options as they are written on the command line."""
    return declared(setting).names or ("--" + setting.name.replace("_", "-"),)


def declared(setting: Field[Any]) -> Option:
    """Return the option that a setting was declared with."""
    found: Option = setting.metadata["option"]
    return found


def add_options(parser: argparse._ActionsContainer, settings: type, defaults: bool = True) -> None:
    """Add an option for each declared setting, in the fields' order and in the groups that they name.

    Without ``defaults`` an option that is not given stays ``None``, and the help does not name its default.
    """
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for each in fields(settings):
        if "option" not in each.metadata:
            continue
        of = declared(each)
        if of.group not in groups:
            groups[of.group] = parser.add_argument_group(of.group)
        arguments = dict(of.arguments, dest=each.name, help=of.help)
        if not defaults:
            arguments["default"] = None
        elif arguments.get("action") != "store_true":
            arguments["default"] = each.default
            if each.default is not None and "(default" not in of.help:
                arguments["help"] += " (default: %(default)s)"
        groups[of.group].add_argument(*names_of(each), **arguments)


def settings_from(settings: Callable[..., SettingsClass], parsed: argparse.Namespace) -> SettingsClass:
    """Return the settings that parsed arguments stand for."""
    values = {each.name: getattr(parsed, each.name) for each in fields(settings)}  # type: ignore[arg-type]
    return settings(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def check_values(settings: Any) -> None:
    """Raise ``SettingsError`` for counts and choices that the command line would have refused."""
    for each in fields(settings):
        if "option" not in each.metadata:
            continue
        value, arguments = getattr(settings, each.name), declared(each).arguments
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if arguments.get("type") is positive_integer and value is not None and not is_count:
            raise SettingsError(f"{names_of(each)[0]} {value}: it must be a whole number from 1 on")
        choices = arguments.get("choices")
        if choices and value not in choices:
            raise SettingsError(f"{names_of(each)[0]} {value}: it must be one of {', '.join(choices)}")


def check_folder(name: str, folder: str, usual: str, instead: str) -> None:
    """Raise ``SettingsError`` for a folder that was asked for and is not there; the usual one may be missing."""
    if folder != usual and not os.path.isdir(folder):
        raise SettingsError(f"{name} {folder}: there is no such folder; {instead}")


def add_program(
    subparsers: Subparsers, name: str, run: Callable[[argparse.Namespace], None], **texts: Any
) -> argparse.ArgumentParser:
    """Add a sub-command; ``texts`` are argparse's help, description and epilog, printed as they are laid out."""
    parser = subparsers.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
    parser.set_defaults(run=run)
    return parser


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known names most like ``name``, as a part of an error message."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return "nearest: " + ", ".join(close or known[:3])


def positive_integer(text: str) -> int:
    """Return a whole number of at least 1, for argparse."""
    return _integer_from(1, text)


def integer_from_zero(text: str) -> int:
    """Return a whole number of at least 0, for argparse."""
    return _integer_from(0, text)


def seed(text: str) -> int:
    """Return a whole number below 2**63, for argparse: the seed of a random number generator."""
    value = _integer(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 2**63 - 1")
    return value


def positive_number(text: str) -> float:
    """Return a finite number above 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def on_off(text: str) -> bool:
    """Return the value of a switch, for argparse."""
    if text.lower() not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return text.lower() == "on"


def _integer_from(least: int, text: str) -> int:
    value = _integer(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is below {least}, the smallest value that works")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
