"""`make_it_fit`: a search over combinations of settings for the fastest and the cheapest program that fits."""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipu_model.errors import Error, checked_count, did_you_mean
from ipu_model.explore import KEEP
from ipu_model.explore.advise import other_loaders
from ipu_model.explore.blocks import scopes_of_variables
from ipu_model.explore.fit_result import CALL, MARGIN, Candidate, Fit, FitResult, Limits, OtherLoader
from ipu_model.explore.options import code_of, on_machine
from ipu_model.explore.search import NEGLIGIBLE_GAIN, Search, group_of
from ipu_model.explore.search_points import Programs
from ipu_model.explore.what_if import host_work_of, source_of
from ipu_model.predict import profile_program, samples_per_second
from ipu_model.predict.hardware import System, is_chip, system_with_room
from ipu_model.predict.host import HostWork
from ipu_model.predict.profile import Profile, Verdict
from ipu_model.predict.program import Program
from ipu_model.predict.work import variables_of
from ipu_model.report.quantities import KIB, MIB, counted

if TYPE_CHECKING:
    from tqdm import tqdm

_MOST_CONFIRMED = 4
_BOW = "Bow"
_NAMED = 3
_NEAR = 0.9
"""Of other kinds, what reaches this share of the fastest is worth mentioning."""


def make_it_fit(
    thing: Any,
    inputs: Any = None,
    options: Any = None,
    *,
    optimizer: Any = None,
    training: bool | None = None,
    micro_batch: bool = False,
    host: HostWork | None = None,
    machine: str | System | None = None,
    ipus: int | None = None,
    keep: str | Iterable[str] = (),
    margin: float = MARGIN,
    progress: bool | None = None,
) -> FitResult:
    """Search combinations of settings for the fastest and for the cheapest program that fits.

    `thing` is a compiled executor (also one whose program did not fit), a `Profile`, a `Program`, or a plain module
    with the arguments of `ipu_model.profile_module`. The search never changes the global batch. `ipus` is the most
    IPUs to use, in all processes together (default: those of the machine, or as many as the first program that fits
    needs). `keep` names what must stay as it is (see `ipu_model.explore.KEEP`), and `margin` is the share of the
    fullest tile that must stay free. `host` defaults to the work that a `Profile` was modelled with. `progress` shows a
    bar (default: in a terminal and in a notebook). For example::

        print(ipu_model.make_it_fit(training_model, ipus=4, keep="precision").code)

    Raises `Error` for an unknown machine or name in `keep`, fewer than 1 IPU, or a thing that is no program.
    """
    host = host_work_of(thing, host)
    stays = [keep] if isinstance(keep, str) else list(keep)
    for name in stays:
        if name not in KEEP:
            raise Error(f"keep cannot name {name!r}.{did_you_mean(str(name), KEEP)} It takes {', '.join(KEEP)}.")
    most = None if ipus is None else checked_count("ipus", ipus)
    source = source_of(thing, inputs, options, optimizer=optimizer, training=training, micro_batch=micro_batch)
    if machine is not None:
        system = system_with_room(machine, 1, "the argument machine")
        source = replace(source, program=on_machine(source.program, system))
    names_chip = isinstance(machine, str) and is_chip(machine)
    named = "" if machine is None or names_chip else source.program.system.name
    limits = Limits(most, frozenset(stays), machine is not None, named, margin)
    with _bar(progress) as bar:
        search = Search(Programs(source), host, limits, bar)
        search.run()
        return Findings(search).result()


def _bar(wanted: bool | None) -> tqdm[Any]:
    """Return a bar that says what the search does: in a terminal or a notebook, unless told otherwise."""
    from tqdm.auto import tqdm

    # A kernel with a front end has imported IPython already.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    is_shown = sys.stderr.isatty() or hasattr(shell, "kernel") if wanted is None else wanted
    form = "{desc}: {n} in {elapsed}{postfix}"
    return tqdm(desc="programs modelled", unit="", bar_format=form, disable=not is_shown, leave=False)


class Findings:
    """The result of a search that has run; profiles that it needs are modelled on demand."""

    def __init__(self, search: Search) -> None:
        self.search, self.programs, self.limits, self.host = search, search.programs, search.limits, search.host
        self._fits: dict[Candidate, Fit] = {}

    def result(self) -> FitResult:
        """Choose the fastest and the cheapest program, confirm them, and drop changes that gain nothing."""
        # The fastest first; of those nearly as fast as the fastest, that on the fewest IPUs.
        fitting = sorted(self.search.fitting(), key=lambda candidate: -candidate.samples_per_second)
        least = self._least_speed(fitting[0].samples_per_second) if fitting else 0.0
        fitting.sort(key=lambda one: (0, one.ipus) if one.samples_per_second >= least else (1, 0))
        first = self._confirmed(map(self._simplified, fitting))
        cheapest = None if first is None else self._cheapest_fit() or first
        fits = [fit for fit in (cheapest, first) if fit is not None]
        fastest = max(fits, key=lambda fit: fit.samples_per_second, default=None)
        nearest = None if fastest is not None else self._nearest()
        instead, wider = (None, None) if fastest is not None else self._instead()
        best = fastest or nearest
        is_resized = self.programs.source.again is not None or "micro-batch" in self.limits.keep
        return FitResult(
            name=self.programs.base.name,
            start=self.search.start,
            fastest=fastest,
            cheapest=cheapest,
            nearest=nearest,
            tried=tuple(self.search.tried.values()),
            notes=tuple(self._notes(fastest)),
            binds="" if fastest is not None else self._binds(nearest),
            instead=instead,
            instead_limits=wider,
            loaders=() if best is None else tuple(self._faster_loaders(best)),
            limits=self.limits,
            refusals=tuple(dict.fromkeys(fit.refused for fit in self._fits.values() if fit.refused)),
            runners_up=() if fastest is None else tuple(self._runners_up(fastest.candidate)),
            without="" if is_resized else f", without other micro-batches ({CALL} tries them)",
        )

    def _least_speed(self, speed: float) -> float:
        fastest = self.search.best_speed()
        close = speed >= fastest * (1 - NEGLIGIBLE_GAIN)
        return (fastest if close else speed) * (1 - NEGLIGIBLE_GAIN)

    def _simplified(self, fastest: Candidate) -> Candidate:
        """Return the fastest without the changes that bring it next to nothing, and with longer calls if they help."""
        least = self._least_speed(fastest.samples_per_second)
        return self.search.longer(self.search.undone(fastest, least))

    def _cheapest_fit(self) -> Fit | None:

        def price(candidate: Candidate) -> tuple[float, ...]:
            changes = self.programs.changes(candidate.setting)
            return sum(change.risk for change in changes), len(changes), -candidate.samples_per_second

        fitting = self.search.fitting()
        least = min((candidate.ipus for candidate in fitting), default=0)
        return self._confirmed(sorted((one for one in fitting if one.ipus == least), key=price))

    def _nearest(self) -> Fit | None:
        possible = [one for one in self.search.tried.values() if not one.refused and self.search.is_allowed(one)]
        return None if not possible else self._fit(min(possible, key=lambda candidate: candidate.share))

    def _confirmed(self, candidates: Iterable[Candidate]) -> Fit | None:
        """Return the first that fits after capturing its module again, or, if all are refused, the first derived."""
        derived: Fit | None = None
        for candidate, _ in zip(candidates, range(_MOST_CONFIRMED)):
            fit = self._fit(candidate)
            has_room = self.limits.allow(fit.share)
            if has_room and not fit.refused:
                return fit
            if has_room and derived is None:
                derived = fit
        return derived

    def _fit(self, candidate: Candidate) -> Fit:
        if candidate in self._fits:
            return self._fits[candidate]
        programs, setting = self.programs, candidate.setting
        program = programs.of(setting)
        micro_batch = setting.micro_batch if setting.micro_batch != programs.start.micro_batch else None
        confirmed, refused = None, ""
        self.search.bar.set_postfix_str(f"capturing the module for {setting}", refresh=True)
        try:
            confirmed = programs.confirmed(setting)
        except Error as problem:
            refused = problem.message
        code = code_of(programs.base, program, programs.changed_options(setting), micro_batch)
        profile = profile_program(confirmed or program, self.host)
        changes, is_confirmed = programs.changes(setting), confirmed is not None
        self._fits[candidate] = Fit(candidate, changes, code, profile, is_confirmed, refused)
        return self._fits[candidate]

    def _instead(self) -> tuple[Fit | None, Limits | None]:
        for limits in self.limits.wider(self.programs.base.system.name):
            wider = self.search.within(limits)
            wider.run(wants_fastest=False)
            fit = Findings(wider)._cheapest_fit()
            if fit is not None:
                return fit, limits
        return None, None

    def _elsewhere(self, fastest: Fit) -> Iterator[str]:
        limits = self.limits
        if limits.is_chip_given or "machine" in limits.keep or self.programs.base.system.chip.name == _BOW:
            return
        candidate = self.search.candidate(replace(fastest.candidate.setting, machine=_BOW))
        del self.search.tried[candidate.setting]
        if self.search.has_room(candidate):
            text = f"On {_BOW} IPUs the fastest program reaches {candidate.samples_per_second:,.1f} samples/s."
            yield f'{text} machine="{_BOW}" searches there.'

    def _runners_up(self, fastest: Candidate) -> Iterator[tuple[str, Candidate]]:
        """Yield what would be faster with less room or more luck, and the next fastest of another kind."""
        search, best = self.search, fastest.samples_per_second

        def first(what: str, those: Iterable[Candidate], least: float) -> Iterator[tuple[str, Candidate]]:
            found = max(those, key=lambda one: one.samples_per_second, default=fastest)
            found = search.candidate(replace(found.setting, calls=fastest.setting.calls))
            if found.samples_per_second > least:
                yield what, found

        tried = [one for one in search.tried.values() if search.is_allowed(one)]
        faster = best * (1 + NEGLIGIBLE_GAIN)
        yield from first("With no room to spare", (one for one in tried if one.fits), faster)
        yield from first("If it fits", (one for one in tried if one.verdict is Verdict.CLOSE), faster)
        kind = group_of(fastest.setting)
        others = (one for one in search.fitting() if group_of(one.setting) != kind)
        yield from first("The next fastest of another kind", others, best * _NEAR)

    def _faster_loaders(self, fit: Fit) -> Iterator[OtherLoader]:
        program = self.programs.of(fit.candidate.setting)
        for other in other_loaders(self.host):
            speed = samples_per_second(program, other.host)
            if speed > fit.samples_per_second / (1 - NEGLIGIBLE_GAIN):
                yield replace(other, samples_per_second=speed)

    def _binds(self, nearest: Fit | None) -> str:
        if nearest is not None:
            return binding_text(nearest.profile, self.programs.of(nearest.candidate.setting))
        start, keep, processes = self.programs.start, self.limits.keep, self.programs.base.processes
        most = self.search.most
        of_process = "" if processes == 1 else f" in each of its {processes} processes"
        own, replicas = start.split.ipus, start.replicas
        if "split" in keep and own > most:
            return f"Its blocks have to stay as they are, and they need {counted(own, 'IPU')}{of_process}."
        if "replicas" in keep and replicas > most:
            return f"It has to keep its {replicas} replicas, and each needs an IPU{of_process}."
        if self.limits.ipus is not None and self.limits.ipus < processes:
            return f"It has {processes} processes, and each needs an IPU of its own."
        refused = Counter(candidate.refused for candidate in self.search.tried.values() if candidate.refused)
        return f"Every setting is refused: {refused.most_common(1)[0][0]}" if refused else ""

    def _notes(self, fastest: Fit | None) -> Iterator[str]:
        start, keep, processes = self.programs.start, self.limits.keep, self.programs.base.processes
        if fastest is not None:
            yield from self._elsewhere(fastest)
        asked = self.limits.ipus
        if asked is None:
            most = self.search.most * processes
            yield f"The search used at most {counted(most, 'IPU')}. ipus=N sets another limit."
        elif (used := 1 << (max(1, asked // processes).bit_length() - 1)) != asked // processes != start.ipus:
            used *= processes
            yield (
                f"PopTorch reserves 1, 2, 4, 8, ... IPUs, so the search could use only {used} of the {asked} that you "
                f"allowed. ipus={2 * used} is the next limit that makes a difference."
            )
        if "precision" not in keep and not start.half_precision:
            types = "The search was allowed to change the types of weights and partial sums."
            yield f'{types} keep="precision" leaves them as they are.'


def binding_text(profile: Profile, program: Program) -> str:
    """Say in two or three sentences what keeps a profile from fitting."""
    worst, tile_bytes = profile.memory.fullest, profile.memory.tile_bytes
    largest = sorted(worst.categories, key=lambda category: -category.bytes_on_fullest_tile)[:_NAMED]
    named = ", ".join(f"{category.name} {category.bytes_on_fullest_tile / KIB:,.0f} KiB" for category in largest)
    sentences = [
        f"The fullest tile of IPU {worst.ipu} needs {worst.max_tile_bytes / KIB:,.0f} KiB and has "
        f"{tile_bytes / KIB:,.0f} KiB; most of it is filled by {named}."
    ]
    if (always := worst.always_live_bytes / tile_bytes) > 1:
        sentences.append(f"Data that is always live takes {always:.0%} of the tile by itself.")
    chip = program.settings.device.chip
    one_ipu = chip.tiles * chip.tile_bytes
    # Lower bounds that follow from the weights: of the IPUs, and of a module that no split divides.
    scopes, sizes = scopes_of_variables(program.step), defaultdict[str, float](float)
    for variable in variables_of(program):
        sizes[scopes.get(variable.name, "")] += variable.weight
    least = math.ceil(sum(sizes.values()) / one_ipu)
    if least > program.ipus_per_replica:
        sentences.append(f"The weights alone fill {least} IPUs.")
    name, size = max(sizes.items(), key=lambda item: item[1], default=("", 0.0))
    if size > one_ipu:
        sentences.append(
            f"The weights of {name or 'the model'} alone take {size / MIB:,.0f} MiB, and one IPU has "
            f"{one_ipu / MIB:,.0f} MiB: split that module."
        )
    return " ".join(sentences)
