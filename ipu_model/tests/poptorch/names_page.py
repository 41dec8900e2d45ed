"""The names of PopTorch 3.4's Python modules, as `poptorch_names.md` lists them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
