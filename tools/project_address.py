"""The project's public address: one setting in pyproject.toml, empty until it is known.

```toml
[tool.project]
address = ""
```

Whatever needs an address (badges, links to hosted notebooks, the citation, contacts, package metadata) asks here and is
left out while there is none.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def project_address(pyproject: Path = PYPROJECT) -> str:
    """Return the address of the repository's page without a slash at its end, or an empty text while it is unknown.

    Raises ValueError if the setting is something else than an https address with a host and a path.
    """
    settings = _toml.loads(pyproject.read_text(encoding="utf-8"))
    address = settings.get("tool", {}).get("project", {}).get("address", "")
    if address == "":
        return ""
    if not isinstance(address, str) or not is_repository(address):
        raise ValueError(f"{pyproject.name}: [tool.project] address is {address!r}, not like https://HOST/OWNER/NAME")
    return address.rstrip("/")


def is_repository(address: str) -> bool:
    """Tell whether a text is the https address of a repository: a host and at least an owner and a name."""
    parts = urlsplit(address)
    folders = [folder for folder in parts.path.split("/") if folder]
    return (
        parts.scheme == "https" and bool(parts.hostname) and len(folders) >= 2 and not (parts.query or parts.fragment)
    )
