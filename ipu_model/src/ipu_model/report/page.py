"""The report as one HTML file: it loads nothing, reads on paper and in the dark, and escapes every text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ipu_model.predict.profile import Profile, close_band
from ipu_model.report import findings, quantities, tables
from ipu_model.report.breakdown import MEMORY_GROUPS, fallback_share, fullest_ipu, memory_group
from ipu_model.report.findings import DESCRIBED, describe_timeline
from ipu_model.report.first_steps import first_steps, holders
from ipu_model.report.looks import LOOKS, LOOKS_JSON, PATTERNS, SPENT_LOOKS, PageLook
from ipu_model.report.page_data import data_script, page_data
from ipu_model.report.quantities import counted, percent

if TYPE_CHECKING:
    from ipu_model.explore.advise import Advice
    from ipu_model.explore.fit_result import FitResult


def html_report(profile: Profile, advice: Sequence[Advice] = (), fit: FitResult | None = None) -> str:
    """Return the report of a profile as one page, with the results of `advise` and `make_it_fit` if you give them."""
    return rendered(
        "report.html",
        profile=profile,
        advice=advice,
        fit=fit,
        fit_described=_described(fit) if fit else "",
        first_steps=first_steps(profile, advice, fit),
        holders=holders(profile),
        data=data_script(page_data(profile, fit)),
        looks_json=LOOKS_JSON,
        described=DESCRIBED,
        describe_timeline=describe_timeline,
        tables=tables,
        setting=findings.setting(profile),
        end_to_end=findings.end_to_end_range(profile),
        device=findings.device_range(profile),
        explained_limit=findings.explained_limit(profile.limited_by),
        fallback_share=fallback_share(profile),
        fullest=profile.memory[fullest_ipu(profile)],
        fullest_parts=fullest_parts(profile),
        roofline=findings.roofline(profile),
        spent=findings.cycles_spent(profile),
        spent_looks=SPENT_LOOKS,
    )


def _described(result: FitResult) -> str:
    low, high = close_band()
    fitting = sum(candidate.fits for candidate in result.modelled)
    return (
        f"Memory of the fullest tile against throughput: {counted(len(result.modelled), 'setting')}, of which "
        f"{fitting} {'fits' if fitting == 1 else 'fit'} for certain. Between {percent(low)} and {percent(high)} of a "
        "tile the model cannot tell. No setting beats those on the line in both memory and throughput. Settings that "
        "need more memory than the picture shows are drawn at its right edge."
    )


def fullest_parts(profile: Profile) -> list[tuple[str, float, PageLook]]:
    """Return what the fullest tile of all holds by group of categories: name, bytes and look."""
    held = dict.fromkeys(MEMORY_GROUPS, 0.0)
    for category in profile.memory[fullest_ipu(profile)].categories:
        held[memory_group(category.name)] += category.bytes_on_fullest_tile
    return [(name, count, LOOKS.memory[name]) for name, count in held.items() if count]


def rendered(template: str, **values: Any) -> str:
    """Return the page that one of `templates/` makes of these values."""
    return _templates().get_template(template).render(values, patterns=PATTERNS, looks=LOOKS)


@lru_cache(maxsize=1)
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("ipu_model.report"),
        autoescape=True,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    names = ("counted", "duration", "percent", "rate", "short", "size", "whole")
    environment.filters.update({name: getattr(quantities, name) for name in names})
    # Texts for terminals have arrows of two characters.
    environment.filters["arrows"] = lambda text: text.replace("->", "→")
    return environment


def _visible(value: Any) -> Any:
    # Characters that no page may hold are replaced by their codes.
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(c if _is_allowed(c) else f"\\x{ord(c):02x}" for c in value)


def _is_allowed(character: str) -> bool:
    code = ord(character)
    return character in "\n\t" or not (
        code < 32 or 127 <= code < 160 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE
    )
