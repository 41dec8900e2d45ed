"""The report as one HTML file: it loads nothing, reads on paper and in the dark, and escapes every text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ipu_model.predict.band import known_errors
from ipu_model.predict.profile import IpuMemory, LiveTensor, OpProfile, Profile, Verdict, close_band
from ipu_model.report import breakdown, findings, quantities
from ipu_model.report.looks import HATCHED, MEMORY_LOOKS, OTHER_LOOK, SPAN_LOOKS, SPENT_LOOKS, Look, looks_json
from ipu_model.report.module_tree import Module, module_tree
from ipu_model.report.quantities import counted, short

if TYPE_CHECKING:
    from ipu_model.explore.advise import Advice
    from ipu_model.explore.fit_result import Fit, FitResult
    from ipu_model.explore.options import Change

VERDICT_CLASSES = {Verdict.FITS: "good", Verdict.CLOSE: "close", Verdict.DOES_NOT_FIT: "bad"}
_DIGITS = 7
_NANOSECONDS = 9
_TEXTS_OF_OPS = ("part", "target", "scope", "phase", "family", "plan", "line")
Columns = dict[str, list[float | int | None]]
# Characters that no page may hold: of control, halves of pairs, and the last two of each plane.
_PLANE_ENDS = "".join(chr(plane + end) for plane in range(0, 0x110000, 0x10000) for end in (0xFFFE, 0xFFFF))
_FORBIDDEN = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{_PLANE_ENDS}]")


def html_report(profile: Profile, advice: Sequence[Advice] = (), fit: FitResult | None = None) -> str:
    """Return the report of a profile as one page, with the results of `advise` and `make_it_fit` if you give them."""
    return rendered(
        "report.html",
        profile=profile,
        advice=advice,
        fit=fit,
        close_band=close_band(),
        first_steps=first_steps(profile, advice, fit),
        holders=holders(profile),
        data=data_script(page_data(profile, fit)),
        breakdown=breakdown,
        findings=findings,
        families=known_errors().families,
        fullest_parts=fullest_parts(profile),
        spent_looks=SPENT_LOOKS,
    )


def fullest_parts(profile: Profile) -> list[tuple[str, float, Look]]:
    held = dict.fromkeys(breakdown.MEMORY_GROUPS, 0.0)
    for category in profile.memory.fullest.categories:
        held[breakdown.memory_group(category.name)] += category.bytes_on_fullest_tile
    return [(name, count, MEMORY_LOOKS[name]) for name, count in held.items() if count]


def rendered(template: str, **values: Any) -> str:
    return _templates().get_template(template).render(values)


@lru_cache(maxsize=1)
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("ipu_model.report"),
        extensions=["jinja2.ext.do"],
        autoescape=True,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    names = ("change", "counted", "duration", "percent", "rate", "short", "size", "whole")
    environment.filters.update({name: getattr(quantities, name) for name in names})
    environment.globals.update(hatched=HATCHED, looks_json=looks_json(), span_looks=SPAN_LOOKS, tone=VERDICT_CLASSES)
    # Texts for terminals have arrows of two characters.
    environment.filters["arrows"] = lambda text: text.replace("->", "→")
    return environment


def _visible(value: Any) -> Any:
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _FORBIDDEN.sub(lambda found: f"\\x{ord(found[0]):02x}", value)


# --- the numbers that scripts read: columns, and every text once; a column of texts holds places in "texts"


class _Texts(dict[str, int]):
    """Numbers texts in the order in which they are met."""

    def __missing__(self, text: str) -> int:
        return self.setdefault(text, len(self))


def page_data(profile: Profile, fit: FitResult | None = None) -> Mapping[str, Any]:
    texts = _Texts()
    ops = profile.work
    places = {(op.node, op.part, op.phase): place for place, op in enumerate(ops)}
    machine = profile.machine
    return {
        "call_seconds": round(profile.call_seconds, _NANOSECONDS),
        "clock_hz": machine.clock_hz,
        "tiles": machine.tiles,
        "tile_bytes": profile.memory.tile_bytes,
        "exchange_bytes_per_cycle": machine.exchange_bytes_per_cycle,
        "memory_bytes_per_cycle": machine.memory_bytes_per_cycle,
        "ops": _ops(ops, texts),
        "modules": _module(module_tree(profile), {id(op): place for place, op in enumerate(ops)}),
        "rows": [(row.name, _spans(row, texts)) for row in breakdown.all_rows(profile.timeline)],
        "memory": [_memory(ipu, places, texts) for ipu in profile.memory],
        "fit": [] if fit is None else _candidates(fit),
        "texts": list(texts),
    }


def data_script(data: Mapping[str, Any]) -> Markup:
    """Return the data as a `<script>` element that no browser runs: no text in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(f'<script type="application/json" id="data">{text.replace("<", chr(92) + "u003c")}</script>')


def _ops(ops: Sequence[OpProfile], texts: _Texts) -> Columns:
    return {
        "name": [texts[op.name or op.node] for op in ops],
        **{name: [texts[getattr(op, name)] for op in ops] for name in _TEXTS_OF_OPS},
        "operands": [texts[", ".join(op.operands)] for op in ops],
        "results": [texts[", ".join(op.results)] for op in ops],
        "stage": [op.stage for op in ops],
        "ipu": [op.ipu for op in ops],
        "runs": [op.executions for op in ops],
        "again": [op.recomputations for op in ops],
        "fallback": [int(op.is_fallback) for op in ops],
        "compute": [_short(op.on_tile_execute) for op in ops],
        "exchange": [_short(op.do_exchange) for op in ops],
        "sync": [_short(op.internal_sync) for op in ops],
        "temporary": [_short(op.temporary_bytes) for op in ops],
        "flops": [_short(op.flops) for op in ops],
        "bytes": [_short(op.accessed_bytes) for op in ops],
        "peak": [_short(op.peak_flops_per_cycle) for op in ops],
    }


def _module(module: Module, places: Mapping[int, int]) -> dict[str, Any]:
    """Return a module; `places` are those of ops by identity, since equal ops may belong to different modules."""
    return {
        "name": module.name,
        "layer": module.layer,
        "count": module.count,
        "ipus": module.ipus,
        # The place of the first op, how many, cycles by pass, and FLOPs.
        "ops": [(places[id(op.op)], op.count, *map(_short, op.passes), _short(op.flops)) for op in module.ops],
        "children": [_module(child, places) for child in module.children],
    }


def _spans(row: breakdown.Row, texts: _Texts) -> Columns:
    return {
        "kind": [texts[span.kind] for span in row.spans],
        "label": [texts[span.label] for span in row.spans],
        "start": [round(span.start, _NANOSECONDS) for span in row.spans],
        "seconds": [round(span.seconds, _NANOSECONDS) for span in row.spans],
        "stage": [span.stage for span in row.spans],
        "microBatch": [span.micro_batch for span in row.spans],
        "repeats": [span.repeats for span in row.spans],
    }


def _memory(memory: IpuMemory, places: dict[tuple[str, str, str], int], texts: _Texts) -> dict[str, Any]:
    tensors = memory.live_at_peak
    return {
        "ipu": memory.ipu,
        "tiles": _runs(memory.tiles),
        "groups": {name: _runs(held) for name, held in breakdown.tiles_by_group(memory).items()},
        "always_live": _short(memory.always_live_bytes),
        "peak": memory.peak,
        "steps": {
            # Recomputation runs ops of the forward pass once more.
            "op": [
                places.get((step.node, step.part, "forward" if step.phase == "recompute" else step.phase), -1)
                for step in memory.liveness
            ],
            "name": [texts[step.name or step.node] for step in memory.liveness],
            "phase": [texts[step.phase] for step in memory.liveness],
            "stage": [step.stage for step in memory.liveness],
            "bytes": [_short(step.bytes_on_tile) for step in memory.liveness],
            "temporary": [_short(step.temporary_bytes) for step in memory.liveness],
        },
        "tensors": {
            "name": [texts[tensor.name] for tensor in tensors],
            "alike": [texts[breakdown.layers_starred(tensor.name)] for tensor in tensors],
            "category": [texts[tensor.category] for tensor in tensors],
            "type": [texts[breakdown.type_of(tensor)] for tensor in tensors],
            "bytes": [_short(tensor.bytes_on_fullest_tile) for tensor in tensors],
            "total": [_short(tensor.total_bytes) for tensor in tensors],
            "always": [int(tensor.always_live) for tensor in tensors],
            "first": [tensor.first for tensor in tensors],
            "last": [tensor.last for tensor in tensors],
            "copies": [tensor.copies for tensor in tensors],
        },
    }


def _runs(values: Iterable[float]) -> list[float]:
    """Return runs of equal values as one list: how many, which, how many, which, ..."""
    return [number for value, run in groupby(map(_short, values)) for number in (sum(1 for _ in run), value)]


def _short(value: float) -> float:
    # As many digits as anyone can see on a page; whole numbers stay whole.
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded == int(rounded) else rounded


def _candidates(result: FitResult) -> list[dict[str, Any]]:
    front = set(result.frontier)
    best = (("fastest", result.fastest), ("cheapest", result.cheapest), ("nearest", result.nearest))
    rows = []
    for candidate in result.modelled:
        marks = [name for name, fit in best if fit is not None and fit.candidate == candidate]
        marks += ["as it is"] if candidate == result.start else []
        setting = candidate.setting
        blocks, shares = setting.split.blocks, dict.fromkeys(setting.proportions.values())
        precision = "float16" if setting.half_precision else "as it is"
        rows.append({
            "marks": ", ".join(marks),
            "verdict": str(candidate.verdict),
            "tone": VERDICT_CLASSES[candidate.verdict],
            "share": candidate.share,
            "speed": candidate.samples_per_second,
            "frontier": candidate in front,
            "ipus": candidate.ipus,
            "replicas": setting.replicas,
            "micro_batch": setting.micro_batch,
            "split": ", ".join(f"{name} on IPU {ipu}" for name, ipu in blocks.items()) or "as it is",
            "precision": precision + ", half partials" * setting.half_partials,
            "recomputation": setting.recomputation.value + ", checkpoints" * setting.checkpoints,
            "state": ", ".join(setting.state) or "as it is",
            "proportion": ", ".join(f"{share:g}" for share in shares) or "as it is",
        })  # fmt: skip
    return rows


# --- what fills the fullest tile, and what to do about it first


_MOST_HOLDERS = 6
_LEAST_SHARE = 0.01
"""Parts that take less of a tile share one row."""
_FIT_COMMAND = "python -m ipu_model fit FOLDER"
_FOLDER = "FOLDER stands for the folder of this report, or for the program as program.py:function."


@dataclass(frozen=True)
class Holder:
    """What holds a share of the fullest tile: a category, or its tensors in a module (layers of a list are one)."""

    name: str
    what: str
    bytes_on_tile: float
    share: float
    look: Look


@dataclass(frozen=True)
class FirstSteps:
    """What to do first: a headline, the changes, and the lines to write; `verdict` is that of the changed program."""

    title: str
    headline: str
    verdict: Verdict | None = None
    explanation: str = ""
    steps: tuple[Change, ...] = ()
    code: str = ""


def holders(profile: Profile) -> tuple[Holder, ...]:
    """Return what takes most of the fullest tile at its fullest moment, the largest first, and all else as one."""
    memory, limit = profile.memory.fullest, profile.memory.tile_bytes

    def holder(name: str, what: str, category: str, count: float) -> Holder:
        return Holder(name, what, count, count / limit, MEMORY_LOOKS[breakdown.memory_group(category)])

    groups: dict[tuple[str, str], list[LiveTensor]] = {}
    for tensor in memory.live_at_peak:
        groups.setdefault((_module_of(tensor.name), tensor.category), []).append(tensor)
    parts = []
    for (name, kind), alike in groups.items():
        what, name = (kind, alike[0].name) if len(alike) == 1 else (f"{kind}, {len(alike)} tensors", name)
        parts.append(holder(name, what, kind, sum(tensor.bytes_on_fullest_tile for tensor in alike)))
    with_tensors = {kind for _, kind in groups}
    for category in memory.categories:
        if category.name not in with_tensors:
            when = "always" if category.always_live else "at the peak"
            parts.append(holder(category.name, when, category.name, category.bytes_on_fullest_tile))
    parts = sorted((part for part in parts if part.bytes_on_tile > 0), key=lambda part: -part.bytes_on_tile)
    shown = [part for part in parts[:_MOST_HOLDERS] if part.share >= _LEAST_SHARE]
    rest = memory.max_tile_bytes - sum(part.bytes_on_tile for part in shown)
    left = len(parts) - len(shown)
    if left and rest > 0:
        shown.append(Holder("all else", counted(left, "smaller part"), rest, rest / limit, OTHER_LOOK))
    return tuple(shown)


def _module_of(tensor: str) -> str:
    """Return the part of a tensor's name that names a module: up to the last list of layers, or else the innermost."""
    name = breakdown.layers_starred(tensor)
    module, star, _ = name.rpartition(breakdown.LAYER_STAR)
    return module + star or name.rpartition(":")[0] or name.rpartition(".")[0] or name


def first_steps(profile: Profile, advice: Sequence[Advice], fit: FitResult | None) -> FirstSteps | None:
    """Return what to do first, from a search if there was one, else from advice; `None` if nothing is known to help."""
    if fit is not None and fit.best is not None:
        return _of_search(fit, fit.best)
    if profile.verdict is Verdict.FITS:
        return _of_advice("The first thing to try", advice[0]) if advice else None
    title = "The first thing to do"
    if not advice:
        return FirstSteps(title, "Search for settings with which it fits", explanation=_FOLDER, code=_FIT_COMMAND)
    first = advice[0]
    if first.fits:
        return _of_advice(title, first)
    explanation = (
        "No single change that was tried makes it fit with room to spare. The most useful one changes the fullest tile "
        f"by {first.max_tile_bytes_change / 1024:+,.0f} KiB: {first.change}. {_FOLDER}"
    )
    return FirstSteps(title, "Search for several changes together", None, explanation, code=_FIT_COMMAND)


def _of_search(fit: FitResult, best: Fit) -> FirstSteps:
    profile, changes = best.profile, best.changes
    where = f"{short(profile.samples_per_second)} samples/s on {best.candidate.ipus_text} of {profile.machine.name}"
    title = "The first thing to try" if fit.start.fits else "The first thing to do"
    if fit.found and not changes:
        headline = f"No change: no setting that was tried and fits is faster than {where}"
        return FirstSteps(title, headline, profile.verdict)
    runs = "runs at" if fit.start.fits else "fits and runs at"
    headline = f"With {counted(len(changes), 'change')} it {runs} {where}"
    if not fit.found:
        headline = f"{fit.nothing_fits}. The nearest: {where}"
    return FirstSteps(title, headline, profile.verdict, "" if fit.found else fit.binds, changes, best.code)


def _of_advice(title: str, item: Advice) -> FirstSteps:
    explanation = f"Modelled: {item.effect}. {item.explanation} Risk: {item.risk}."
    return FirstSteps(title, item.change, item.verdict, explanation, code=item.how)
