"""Links between documents of the repository, as links between pages of the site."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

LINK = re.compile(r"(?P<picture>!?)\[(?P<words>(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^\s*(```|~~~)")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True)
class Links:
    """The documents that are pages (paths in the repository), and the repository's public address, if it has one."""

    pages: frozenset[str]
    address: str = ""

    def rewritten(self, text: str, file: Path) -> str:
        """Return a Markdown text of ``file``, a path in the repository, with links that lead to pages of the site.

        A link to a file that is no page leads to the repository, or becomes plain words while nobody knows its address.
        """
        lines, fenced = [], False
        for line in text.split("\n"):
            fenced = fenced != bool(FENCE.match(line))
            lines.append(line if fenced else LINK.sub(lambda found: self._link(found, file), line))
        return "\n".join(lines)

    def _link(self, found: re.Match[str], file: Path) -> str:
        target, words = found["target"], found["words"]
        if found["picture"] or ELSEWHERE.match(target) or target.startswith("#"):
            return found[0]
        path, _, anchor = target.partition("#")
        place = PurePosixPath(os.path.normpath((file.parent / unquote(path)).as_posix())).as_posix()
        for page in (place, "README.md" if place == "." else f"{place}/README.md"):
            if page in self.pages:
                shown = "index.md" if page == "README.md" else page
                there = os.path.relpath(shown, file.parent.as_posix() or ".")
                return f"[{words}]({there}{'#' + slug(anchor) if anchor and shown == page else ''})"
        return f"[{words}]({self.address}/blob/main/{place})" if self.address else words


def slug(anchor: str) -> str:
    """Return the site's anchor for one of Jupyter's, whose words keep capitals and punctuation."""
    return re.sub(r"[^\w-]", "", unquote(anchor).lower())
