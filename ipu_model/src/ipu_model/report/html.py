"""The report as one HTML file: it loads nothing, reads on paper and in the dark, and escapes every text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipu_model.advice import Advice
from ipu_model.profiling.data import Profile
from ipu_model.report import markup, memory_tables, op_tables, time_tables
from ipu_model.report.findings import device_range, end_to_end_range, explained_limit, setting, verdict
from ipu_model.report.markup import code, text
from ipu_model.report.pictures import DESCRIBED, ITERATION, pictures
from ipu_model.report.quantities import counted, duration, percent, rate, short, size, whole

_SECTIONS = {
    "summary": "Summary", "limits": "What limits it", "advice": "What to try next", "execution": "Execution",
    "memory": "Memory", "ops": "Ops", "options": "Options and provenance",
}  # fmt: skip


def html_report(profile: Profile, advice: Sequence[Advice] = ()) -> str:
    """Return the report of a profile as one page; without matplotlib it has tables only, and says so."""
    drawn = pictures(profile)
    sections = {
        "summary": _summary(profile, drawn is not None),
        "limits": _limits(profile, drawn),
        "advice": _advice(advice) if advice else "",
        "execution": _execution(profile, drawn),
        "memory": _memory(profile, drawn),
        "ops": markup.section("ops", _SECTIONS["ops"], *op_tables.tables(profile)),
        "options": _options(profile),
    }
    present = [name for name, body in sections.items() if body]
    links = "".join(f'<li><a href="#{name}">{_SECTIONS[name]}</a></li>' for name in present)
    words = setting(profile)
    body = [
        f"<header>\n<h1>{markup.text(profile.name)}</h1>",
        markup.paragraph(f"{words[0].upper()}{words[1:]}.", "lead"),
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>',
        *(sections[name] for name in present),
        "</main>\n<footer>",
        markup.paragraph(
            "Modelled by the IPU Model: times, cycles and bytes are computed, none was measured on an IPU."
        ),
        "</footer>",
    ]
    return markup.page(f"{profile.name}: IPU Model report", "\n".join(body))


def _summary(profile: Profile, has_pictures: bool) -> str:
    end, device, band = end_to_end_range(profile), device_range(profile), profile.error_band
    memory = profile.memory
    cards = [
        markup.card("Memory", "fits" if profile.fits else "does not fit",
                    f"fullest tile {whole(memory.max_tile_bytes)} of {whole(memory.tile_bytes)} bytes "
                    f"({percent(memory.max_tile_bytes / memory.tile_bytes)})",
                    "good" if profile.fits else "bad"),
        markup.card("End to end, modelled", f"{short(end.value)} samples/s",
                    f"{short(end.low)} to {short(end.high)} with the device's error band"),
        markup.card("Device alone, modelled", f"{short(device.value)} samples/s",
                    f"{short(device.low)} to {short(device.high)}: hardware time {band.low:g} to {band.high:g} x "
                    "modelled"),
        markup.card("Limited by", profile.limited_by, ""),
        markup.card("One call", duration(profile.call_seconds),
                    f"{counted(profile.samples_per_call, 'sample')}: device "
                    f"{duration(profile.device_seconds_per_call)}, host {duration(profile.host_seconds_per_call)}"),
        markup.card("Contractions", rate(profile.flops_per_call / profile.device_seconds_per_call, "FLOP/s"),
                    "multiplications and additions over the device's time"),
        markup.card("Compilation, modelled", duration(profile.compilation_seconds), "with the Poplar SDK"),
    ]  # fmt: skip
    if memory.off_chip_bytes:
        cards.append(markup.card("Streaming memory", size(memory.off_chip_bytes), "beside the IPUs"))
    misfit = "" if profile.fits else f"The program {verdict(profile)}. All times are what it would take if it fitted."
    missing = "Pictures need matplotlib (pip install matplotlib); the tables below hold the same numbers."
    return markup.section(
        "summary", _SECTIONS["summary"], f'<div class="cards">{"".join(cards)}</div>', markup.paragraph(misfit, "note"),
        *(markup.paragraph(note, "note") for note in profile.notes), markup.paragraph("" if has_pictures else missing),
    )  # fmt: skip


def _limits(profile: Profile, drawn: Mapping[str, str] | None) -> str:
    return markup.section(
        "limits", _SECTIONS["limits"],
        markup.paragraph(f"Limited by: {profile.limited_by}. {explained_limit(profile.limited_by)}"),
        _picture(profile, drawn, "host-device"),
        markup.beside(time_tables.host(profile), time_tables.shares(profile)),
    )  # fmt: skip


def _advice(advice: Sequence[Advice]) -> str:
    return markup.section(
        "advice", _SECTIONS["advice"],
        markup.paragraph("Each change was modelled on its own, against the program as it is."),
        f'<div class="cards wide">{"".join(map(_item, advice))}</div>',
    )  # fmt: skip


def _item(item: Advice) -> str:
    cost = f"{item.max_tile_bytes_change:+,.0f} bytes on the fullest tile"
    gains = "good" if item.samples_per_second_factor > 1 else ""
    return markup.card(
        item.change, f"x {item.samples_per_second_factor:.2f} samples/s",
        f"{cost}: {'fits' if item.fits else 'does not fit'}", gains if item.fits else "bad",
        markup.paragraph(item.explanation) + f"<p>{markup.code(item.how)}</p>",
    )  # fmt: skip


def _execution(profile: Profile, drawn: Mapping[str, str] | None) -> str:
    return markup.section(
        "execution", _SECTIONS["execution"], _picture(profile, drawn, "timeline"),
        _picture(profile, drawn, ITERATION) if drawn and ITERATION in drawn else "", time_tables.kinds(profile),
        _picture(profile, drawn, "cycles"), time_tables.cycles(profile),
    )  # fmt: skip


def _memory(profile: Profile, drawn: Mapping[str, str] | None) -> str:
    return markup.section(
        "memory", _SECTIONS["memory"], _picture(profile, drawn, "memory-per-tile"), memory_tables.per_tile(profile),
        _picture(profile, drawn, "memory-categories"), memory_tables.by_category(profile),
        _picture(profile, drawn, "liveness"), memory_tables.peaks(profile),
    )  # fmt: skip


def _options(profile: Profile) -> str:
    machine = profile.machine
    numbers = [
        ("name", f"{machine.name}: {machine.title}"), ("IPUs", f"{machine.ipus} x {machine.chip}"),
        ("tiles of an IPU", whole(machine.tiles)), ("bytes of a tile", whole(machine.tile_bytes)),
        ("clock", f"{machine.clock_hz / 1e9:g} GHz"),
    ]  # fmt: skip
    options = [(name, str(value)) for name, value in profile.options.items()]
    return markup.section(
        "options", _SECTIONS["options"],
        markup.beside(
            markup.table(("option", "value"), options, "What was modelled") if options else "",
            markup.table(("number", "value"), numbers, "On which machine"),
        ),
        markup.items((
            f"{code('python -m ipu_model machines')} prints every number of the machine with its source.",
            f"{code('python -m ipu_model validate')} compares the model with published measurements.",
            text(f"The error band of the device time, {profile.error_band.low:g} to {profile.error_band.high:g}, is "
                 "what such comparisons leave open."),
            f"{code('trace.json')} beside this page opens in ui.perfetto.dev and chrome://tracing; "
            f"{code('profile.json')} has all numbers.",
        )),
    )  # fmt: skip


def _picture(profile: Profile, drawn: Mapping[str, str] | None, name: str) -> str:
    return markup.picture(drawn[name] if drawn else None, DESCRIBED[name](profile))
