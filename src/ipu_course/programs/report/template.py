"""Pages from templates: they load nothing, and every text that comes from records or files is escaped."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ipu_course.programs.report.wording import seconds, visible
from ipu_course.programs.text import counted


def rendered(template: str, **values: object) -> str:
    """Return the page that a template of this package makes of ``values``."""
    environment = Environment(
        loader=PackageLoader("ipu_course.programs.report"),
        autoescape=True,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(counted=counted, seconds=seconds)
    return environment.get_template(template).render(**values).lstrip()


def is_page_of(generator: str, start: str) -> bool:
    """Tell whether a file that starts so is a page of ``generator``."""
    return start.startswith("<!DOCTYPE html>") and f'<meta name="generator" content="{generator}">' in start


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
