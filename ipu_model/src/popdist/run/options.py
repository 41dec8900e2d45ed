"""The options of `poprun`: those of `data/poprun_options.json`, read from the command line or from a file."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, NoReturn

import msgspec

from ipu_model import __version__
from ipu_model.errors import Error, did_you_mean
from ipu_model.whole_files import read_whole

_DESCRIPTION = """Start a program as several instances that train one model together, here and on other hosts.
The first word that is not an option is the program; the words after it are the program's arguments."""
_EPILOG = """Options for IPU partitions have no effect on the IPU Model; with -v, poprun lists those that you gave.
Example: poprun --num-replicas 4 --num-instances 2 python train.py --epochs 3"""
_MOST_BYTES = 1_000_000  # of a file of options
_YES, _NO = ("yes", "1", "true", "on"), ("no", "0", "false", "off")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _yes_or_no(text: str) -> bool:
    if text.lower() not in _YES + _NO:
        raise argparse.ArgumentTypeError(f"{text!r} is neither yes nor no (1 and 0 work too)")
    return text.lower() in _YES


def _a_path(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text


_KINDS: dict[str, Callable[[str], Any]] = {"whole number": _whole, "switch": _yes_or_no, "path": _a_path, "text": str}


class Option(msgspec.Struct, frozen=True):
    """One option that takes a value: how it is read, what it does, its default, whether it does anything here."""

    name: str
    kind: str
    text: str
    default: Any = None
    short: str = ""
    effective: bool = True

    @property
    def key(self) -> str:
        return self.name.removeprefix("--")


OPTIONS = msgspec.json.decode(
    (resources.files("popdist") / "data" / "poprun_options.json").read_bytes(), type=tuple[Option, ...]
)
FLAGS = ("-v", "--verbose", "-vv", "--vv", "--version", "-h", "--help")
_BY_NAME = {name: option for option in OPTIONS for name in (option.name, option.short) if name}
_REPEATED = ("--mpi-global-args", "--mpi-local-args")  # their values are put together


@dataclass(frozen=True)
class MpiArguments:
    """What poprun understands of mpirun's arguments; a variable without a value has the one that it has here."""

    variables: dict[str, str | None]
    remote_shell: tuple[str, ...]
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """What a command line asks for; `given` are the values that were given, by their names in a file of options."""

    num_instances: int
    num_replicas: int
    ipus_per_replica: int
    host: str | None
    executable_cache_path: str
    only_output_from_instance: int | None
    mpi: MpiArguments
    print_topology: bool
    export_config: str
    given: Mapping[str, Any]
    verbosity: int
    program: tuple[str, ...]

    @property
    def without_effect(self) -> list[str]:
        return [option.name for option in OPTIONS if option.key in self.given and not option.effective]


def read(arguments: Sequence[str]) -> Request:
    words, program = split(arguments)
    given = _values(words)
    verbosity = given.pop("verbosity")
    if "import-config" in given:
        given = {**_imported(given["import-config"]), **given}
    value = {option.key.replace("-", "_"): given.get(option.key, option.default) for option in OPTIONS}
    mpi = read_mpi(value["mpi_global_args"], value["mpi_local_args"])
    own = {field.name: value[field.name] for field in fields(Request) if field.name in value}
    return Request(**own, mpi=mpi, given=given, verbosity=verbosity, program=tuple(program))


def _values(words: Sequence[str]) -> dict[str, Any]:
    values = vars(_parser().parse_args(words))
    return {key.replace("_", "-"): " ".join(v) if isinstance(v, list) else v for key, v in values.items()}


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into options, each with its value as `--option=value`, and the program with its own."""
    options: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        name, equals, value = rest.pop(0).partition("=")
        if name in FLAGS and not equals:
            options.append(name)
            continue
        option = _BY_NAME.get(name)
        if option is None:
            hint = did_you_mean(name, [*_BY_NAME, *FLAGS])
            raise Error(f"poprun has no option {name}.{hint} `poprun --help` lists them.")
        if not equals:
            if not rest:
                raise Error(f"{name} needs a value: {option.text}.")
            value = rest.pop(0)
        options.append(f"{option.name}={value}")
    return options, rest[1:] if rest[:1] == ["--"] else rest


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="poprun", usage="poprun [options] program [arguments]", description=_DESCRIPTION, epilog=_EPILOG,
        allow_abbrev=False, argument_default=argparse.SUPPRESS, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for option in OPTIONS:
        names = [option.short] if option.short else []
        action = "append" if option.name in _REPEATED else "store"
        parser.add_argument(
            *names, option.name, type=_KINDS[option.kind], metavar="VALUE", help=option.text, action=action
        )
    parser.add_argument("-v", "--verbose", action="count", dest="verbosity", default=0, help="print what poprun does")
    parser.add_argument(
        "--vv", action="store_const", const=2, dest="verbosity", help="print more details (-vv works too)"
    )
    parser.add_argument("--version", action="version", version=f"poprun of ipu-model {__version__}")
    return parser


def _imported(path: str) -> dict[str, Any]:
    try:
        entries = json.loads(read_whole(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise Error(f"--import-config {path} cannot be read: {error}. --export-config writes such a file.") from None
    if not isinstance(entries, dict):
        raise Error(f"--import-config {path}: it must hold one JSON object. --export-config writes such a file.")
    words = {key: ("no", "yes")[value] if isinstance(value, bool) else value for key, value in entries.items()}
    values = _values(split([f"--{key}={word}" for key, word in words.items()])[0])
    del values["verbosity"]
    return values


def exported(request: Request) -> str:
    entries = {key: value for key, value in request.given.items() if key not in ("import-config", "export-config")}
    return json.dumps(entries, indent=2) + "\n"


def read_mpi(words_global: str, words_local: str) -> MpiArguments:
    variables: dict[str, str | None] = {}
    remote_shell: tuple[str, ...] = ()
    ignored = []
    words = [*_words("--mpi-global-args", words_global), *_words("--mpi-local-args", words_local)]
    while words:
        word = words.pop(0)
        if word == "-x":
            if not words:
                raise Error("-x needs a variable: -x VAR, or -x VAR=value.")
            name, equals, value = words.pop(0).partition("=")
            variables[name] = value if equals else None
        elif word in ("--mca", "-mca"):
            if len(words) < 2:
                raise Error(f"{word} needs a name and a value, such as {word} plm_rsh_agent ssh.")
            name, value = words.pop(0), words.pop(0)
            if name == "plm_rsh_agent":
                remote_shell = tuple(shlex.split(value))
            else:
                ignored.append(f"{word} {name} {value}")
        elif word != "--tag-output":
            ignored.append(word)
    return MpiArguments(variables, remote_shell, tuple(ignored))


def _words(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Error(f"{option} {text!r} cannot be read: {error}.") from None
