"""The report as one HTML file: it loads nothing, reads on paper and in the dark, and escapes every text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ipu_model.predict.profile import Profile
from ipu_model.report import findings, quantities, tables
from ipu_model.report.breakdown import MEMORY_GROUPS, fallback_share, fullest_ipu, memory_group
from ipu_model.report.efficiency import cycles_spent, roofline
from ipu_model.report.first_steps import first_steps, holders
from ipu_model.report.fit_parts import described_picture, found_programs
from ipu_model.report.page_data import data_script, page_data
from ipu_model.report.page_looks import LOOKS, LOOKS_JSON, PATTERNS, SPENT_LOOKS, PageLook
from ipu_model.report.pictures import DESCRIBED, describe_timeline

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
        found=found_programs(fit) if fit else (),
        fit_described=described_picture(fit) if fit else "",
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
        roofline=roofline(profile),
        spent=cycles_spent(profile),
        spent_looks=SPENT_LOOKS,
    )


def fullest_parts(profile: Profile) -> list[tuple[str, float, PageLook]]:
    """Return what the fullest tile of all holds by group of categories: name, bytes and look."""
    held = dict.fromkeys(MEMORY_GROUPS, 0.0)
    for each in profile.memory[fullest_ipu(profile)].categories:
        held[memory_group(each.name)] += each.bytes_on_fullest_tile
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
    names = ("counted", "duration", "percent", "rate", "short", "signed", "size", "whole")
    environment.filters.update({name: getattr(quantities, name) for name in names})
    environment.filters["arrows"] = _with_arrows
    return environment


def _with_arrows(text: str) -> str:
    """Return a text for terminals with the arrows that a page can show."""
    return text.replace("->", "→")


def _visible(value: Any) -> Any:
    """Return a text with the characters that no page may hold replaced by their codes."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(c if _is_allowed(c) else f"\\x{ord(c):02x}" for c in value)


def _is_allowed(character: str) -> bool:
    code = ord(character)
    return character in "\n\t" or not (
        code < 32 or 127 <= code < 160 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE
    )
