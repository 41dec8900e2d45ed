"""The exercises on reading profiles: get one, read its trace, name what limits, mend it, profile one's own."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping

import torch
from torch import nn

import poptorch
from ipu_course import engine
from ipu_course.exercises import Exercise, Points, as_number
from ipu_course.lessons.reading_a_profile.bottleneck_words import (
    STAGE,
    START,
    WORDS,
    as_limit,
    call_seconds,
    limit_of,
    most_gained,
)
from ipu_course.lessons.reading_a_profile.busy import BUSY_BY_HAND, BY_HAND, busy_of_cycles, mistaken
from ipu_course.lessons.reading_a_profile.slow_programs import records, sentences, with_workers
from ipu_course.lessons.reading_a_profile.written_report import PAGE, TRACE, compile_something

if TYPE_CHECKING:
    from ipu_course.engine import Profile
    from ipu_course.lessons.reading_a_profile.slow_programs import SlowPrograms
    from ipu_course.lessons.reading_a_profile.written_report import WrittenReport

NEAR = 0.002
ROUGHLY = 0.03  # learners read numbers off a table
LEAST_GAIN_B = 1.25
LEAST_GAIN_OWN = 1.1
MILLISECONDS = 1000.0


# ------------------------------------------------------------------------------- exercise 1


def engine_options_hint(engine_options: Any, using: object = None) -> str | None:
    """Return the hint for a function that writes engine options, of which a small program is compiled with two."""
    if not callable(engine_options):
        return f"engine_options is a function; you wrote {engine_options!r}."
    with tempfile.TemporaryDirectory() as folder:
        full, short = Path(folder) / "all", Path(folder) / "memory"
        texts = engine_options(str(full)), engine_options(str(short), memory_only=True)
        for text in texts:
            if not isinstance(text, str):
                return (
                    f"An environment variable is text; yours is a {type(text).__name__}. json.dumps turns a dictionary "
                    "into text."
                )
            try:
                json.loads(text)
            except ValueError:
                return f"{text[:40]}... is not JSON, where all text stands in double quotes. json.dumps writes JSON."
        for text in texts:
            try:
                compile_something(text)
            except poptorch.Error as problem:
                return f"PopTorch refuses your options: {problem}"
        return _reports_hint(full, short)


def _reports_hint(full: Path, short: Path) -> str | None:
    if not (full / PAGE).exists():
        return (
            "Your options write no report into the folder. 'autoReport.directory' only says where a report goes, and "
            "another option switches it on. Your text needs both."
        )
    if not (short / PAGE).exists():
        return (
            "With memory_only, your options write no report at all. 'autoReport.all' stands for the report on memory, "
            "too, and that one has to stay on. Only the execution has to go."
        )
    if not _has_passes(full / TRACE):
        return (
            "Without memory_only, your report has no execution profile. Only memory_only=True asks for memory alone; "
            "the default asks for everything."
        )
    if _has_passes(short / TRACE):
        return (
            "With memory_only, your report still has the execution profile: 'autoReport.all' switches it on together "
            "with everything else, unless another option says that the execution stays off."
        )
    return None


def _has_passes(trace: Path) -> bool:
    return any(event["ph"] == "X" for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"])


WRITE = Exercise(
    names=("engine_options",),
    find_hint=engine_options_hint,
    praise="Any PopTorch program writes its report with this text in its environment, here and with the SDK.",
)

# ------------------------------------------------------------------------------- exercise 2


def busy_hint(busy: Any, using: WrittenReport) -> str | None:
    """Return the hint for a function that reads the busy shares off a trace: one by hand, and one of a program."""
    if not callable(busy):
        return f"busy is a function; you wrote {busy!r}."
    hint = _shares_hint(busy(BY_HAND), BUSY_BY_HAND, BY_HAND, "a trace of two IPUs that was written by hand")
    if hint is not None:
        return hint
    found, what = busy(using.trace), "the program's own trace"
    by_cycles = _shares_hint(found, busy_of_cycles(using.profile), using.trace, what)
    return by_cycles or _shares_hint(found, engine.busy_shares(using.profile), using.trace, what)


def _shares_hint(found: Any, wanted: Mapping[str, float], trace: Mapping[str, Any], what: str) -> str | None:
    if not isinstance(found, Mapping) or any(as_number(share) is None for share in found.values()):
        return 'busy returns a dictionary, such as {"IPU 0": 0.5, "IPU 1": 0.25}.'
    if set(found) != set(wanted):
        extra = sorted(set(found) - set(wanted), key=str)
        if extra:
            return f"{extra[0]!r} is a row of {what}, but no row of an IPU's passes: leave it out."
        return f"In {what}, {sorted(set(wanted) - set(found))[0]} is missing."
    if _near(found, wanted):
        return None
    for hint, shares in mistaken(trace).items():
        if _near(found, shares):
            return hint
    name = max(wanted, key=lambda each: abs(found[each] - wanted[each]))
    return f"In {what}, {name} is busy for another share than {found[name]:.3g}. Add up 'dur' of one row's events."


def _near(found: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(math.isclose(found[name], share, rel_tol=NEAR, abs_tol=NEAR) for name, share in wanted.items())


READ = Exercise(
    names=("busy",),
    find_hint=busy_hint,
    praise="Your shares are those that the report states, and those that follow from the cycles of every IPU.",
)

# ------------------------------------------------------------------------------- exercise 3


def limits_hint(limits: Any, at_most: Any, using: SlowPrograms) -> str | None:
    """Return the hint for what limits the three programs, and for the most that a mend of two can bring."""
    if not isinstance(limits, dict) or not isinstance(at_most, dict):
        return 'limits and at_most are dictionaries, such as {"A": ..., "B": ...}.'
    for each in using:
        if each.name not in limits:
            return f"Program {each.name} has no limit yet."
        hint = _limit_hint(each.name, each.profile, limits[each.name])
        if hint is not None:
            return hint
    return next(filter(None, (_at_most_hint(name, at_most, using.named(name).profile) for name in ("A", "C"))), None)


def _unknown_word(answer: object) -> str:
    words = ", ".join(WORDS).replace(f"{STAGE} 0", f"{STAGE} 0, {STAGE} 1, ...")
    return f"{answer!r} is not one of the words: {words}."


def _limit_hint(name: str, profile: Profile, answer: object) -> str | None:
    named, limit = as_limit(answer), limit_of(profile)
    if named is None:
        return _unknown_word(answer)
    if named == limit:
        return None
    seconds = call_seconds(profile)
    if named.startswith(STAGE) and limit.startswith(STAGE):
        return f"Program {name} waits for a stage, but not for {named}: which IPU waits least?"
    if named.startswith(STAGE) and len(profile.cycles) == 1:
        return (
            f"Program {name}: the passes of its only stage take {seconds.passes * MILLISECONDS:.1f} ms of a call that "
            f"takes {seconds.total * MILLISECONDS:.1f} ms. Something else takes longer."
        )
    return (
        f"Program {name} is not limited by its {named}: that takes {seconds.of(named) * MILLISECONDS:.1f} ms of a call "
        f"that takes {seconds.total * MILLISECONDS:.1f} ms."
    )


def _at_most_hint(name: str, at_most: Mapping[str, object], profile: Profile) -> str | None:
    number = as_number(at_most.get(name))
    if number is None:
        return f"at_most[{name!r}] is a number: how many times as fast the program can become."
    gained, seconds = most_gained(profile, limit_of(profile)), call_seconds(profile)
    part = seconds.of(limit_of(profile))
    copies = sum(span.seconds for span in profile.timeline if span.kind == "offload")
    without_copies = seconds.total / (seconds.total - copies)
    if any(math.isclose(number, right, rel_tol=ROUGHLY) for right in (gained, without_copies) if right > 1):
        return None
    if math.isclose(number, part / seconds.total, rel_tol=ROUGHLY):
        return f"Program {name}: this is the share of the call that the part takes. What is left without it?"
    if math.isclose(number, 1 / gained, rel_tol=ROUGHLY):
        return f"Program {name}: this is the time that is left. How many times as fast is the program then?"
    if math.isclose(number, seconds.total / part, rel_tol=ROUGHLY) and name != "A":
        return f"Program {name}: you divided by the part that goes. Divide by the time that stays."
    return f"Program {name}: divide the time of a call by the time that is left of it when the limiting part is gone."


NAME = Exercise(
    names=("limits", "at_most"),
    find_hint=limits_hint,
    praise="Three programs, three parts. What takes the time says where to mend, and what is left says how much it "
    "can bring.",
)

# ------------------------------------------------------------------------------- exercise 4


def mends_hint(workers_a: Any, place_b: Any, options_c: Any, using: SlowPrograms) -> str | None:
    """Return the hint for the mends of the three programs."""
    return _workers_hint(workers_a, using) or _place_hint(place_b, using) or _options_hint(options_c, using)


def _workers_hint(answer: Any, using: SlowPrograms) -> str | None:
    number = as_number(answer)
    if number is None or number != int(number) or number < 1:
        return f"workers_a is a whole number of worker processes; you wrote {answer!r}."
    workers = int(number)
    profile = with_workers(workers)
    seconds = call_seconds(profile)
    if limit_of(profile) == "loader":
        return (
            f"Program A: with {workers} workers, loading still takes {seconds.loader * MILLISECONDS:.1f} ms a call, "
            f"and the rest {(profile.device_seconds_per_call + seconds.host) * MILLISECONDS:.1f} ms."
        )
    if workers > 1 and limit_of(with_workers(workers - 1)) != "loader":
        return f"Program A: {workers} workers are enough, but fewer are, too. Each costs a core."
    return None


def _place_hint(place: Any, using: SlowPrograms) -> str | None:
    if not callable(place):
        return "place_b is a function of the model."
    profile = _placed(place)
    if len(profile.cycles) != 4:
        count = len(profile.cycles)
        return f"Program B now runs on {count} IPU{'s' if count > 1 else ''}: let IPUs 1, 2 and 3 begin somewhere."
    gained = profile.samples_per_second / using.b.profile.samples_per_second
    if gained >= LEAST_GAIN_B:
        return None
    if gained <= 1.01:
        return f"Program B is {gained:.2f} times as fast as before: the stage that all wait for is as long as it was."
    limit, last = limit_of(profile), f"{STAGE} {len(profile.cycles) - 1}"
    remedy = "Make the last stage shorter still" if limit == last else "Share the layers more evenly"
    return f"Program B is {gained:.2f} times as fast, and now waits for {limit}. {remedy}, for {LEAST_GAIN_B} times."


def _placed(place: Any) -> Profile:
    return sentences(place).profile()


def _options_hint(make: Any, using: SlowPrograms) -> str | None:
    options = make() if callable(make) and not isinstance(make, poptorch.Options) else make
    if not isinstance(options, poptorch.Options):
        return f"options_c returns poptorch.Options; yours returned {options!r}."
    if options.device_iterations != 1:
        return "Program C: leave the device iterations at 1, as they were. They do not shorten its weight update."
    before, profile = using.c.profile, records(options).profile()
    if profile.verdict.value != "fits":
        return f"Program C: the verdict on its memory is '{profile.verdict.value}'."
    if profile.samples_per_call < before.samples_per_call:
        return (
            f"Program C: a call takes {profile.samples_per_call} records instead of {before.samples_per_call}. Your "
            "options have lost something that C had before: see the exercise's text."
        )
    if profile.samples_per_call > before.samples_per_call:
        return (
            f"Program C: a call takes {profile.samples_per_call} records instead of {before.samples_per_call}. More "
            "accumulation hides the copies and changes the training. Keep it at 8, and let the copies go."
        )
    if limit_of(profile) == "update":
        share = call_seconds(profile).update / profile.device_seconds_per_call
        return f"Program C: the update still takes {share:.0%} of the device's time. Where does the state lie?"
    return None


def mends_points(workers_a: Any, place_b: Any, options_c: Any, using: SlowPrograms) -> Points:
    """Return the throughput of program B with the learner's places."""
    return Points(_placed(place_b).samples_per_second, "sentences a second for program B", "higher")


MEND = Exercise(
    names=("workers_a", "place_b", "options_c"),
    find_hint=mends_hint,
    praise="Each mend is small, and it is made where the profile pointed.",
    score=mends_points,
)

# ------------------------------------------------------------------------------- exercise 5


def own_hint(program: Any, limit: Any, using: object = None) -> str | None:
    """Return the hint for a program of the learner's own, a statement of what limits it, and its mend."""
    if not callable(program):
        return "program is a function of `mended`."
    made = [program(mended) for mended in (False, True)]
    before, after = (_own_profile(each) for each in made)
    for profile in (before, after):
        if isinstance(profile, str):
            return profile
        if profile.verdict.value != "fits":
            return f"Your program has to fit; the verdict on its memory is '{profile.verdict.value}'."
    shapes = [[parameter.shape for parameter in module.parameters()] for module, *_ in made]
    if shapes[0] != shapes[1]:
        return "The mended program has other parameters. Mend what is around the network, and leave its layers."
    named, right = as_limit(limit), limit_of(before)
    if named is None:
        return _unknown_word(limit)
    seconds = call_seconds(before)
    if right == START and named != START:
        return (
            f"Your program is so small that to start a call takes {seconds.start * MILLISECONDS:.2f} ms, longer than "
            f"anything else. Name {START!r} as its limit, or let a call do more: larger layers, more samples, or more "
            "device iterations."
        )
    if named != right:
        return (
            f"You say {named!r}, which takes {seconds.of(named) * MILLISECONDS:.2f} ms of a call that takes "
            f"{seconds.total * MILLISECONDS:.2f} ms, says the profile. Another part takes longer, or the others wait "
            "for another stage."
        )
    gained = after.samples_per_second / before.samples_per_second
    if gained < LEAST_GAIN_OWN:
        return (
            f"Your statement is right, but the mended program is {gained:.2f} times as fast. Change what makes "
            f"{right!r} long, until it is {LEAST_GAIN_OWN} times."
        )
    return None


def _own_profile(made: Any) -> Any:
    """Return the profile of what a learner's function returned, or what is wrong with it in words."""
    if not isinstance(made, (tuple, list)) or len(made) != 4:
        return "program returns (module, inputs, options, optimiser)."
    module, inputs, options, optimiser = made
    if not isinstance(module, nn.Module) or not any(True for _ in module.parameters()):
        return "The first thing that program returns is a module with parameters, whose forward returns a loss."
    if not isinstance(options, poptorch.Options):
        return "The third thing that program returns is poptorch.Options."
    if not isinstance(optimiser, torch.optim.Optimizer):
        return "The fourth thing that program returns is an optimiser of poptorch.optim."
    samples = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    return engine.profile_module(module, tuple(samples), options, optimiser)


def own_points(program: Any, limit: Any, using: object = None) -> Points:
    """Return how many times as fast the learner's mended program is."""
    rates = [_own_profile(program(mended)).samples_per_second for mended in (False, True)]
    return Points(round(rates[1] / rates[0], 3), "times as fast after the mend", "higher")


OWN = Exercise(
    names=("program", "limit"),
    find_hint=own_hint,
    praise="Your statement agrees with the profile, and your mend changes the part that it names.",
    score=own_points,
)
