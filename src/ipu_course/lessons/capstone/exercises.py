"""The exercises of the capstone: a plan, the prices of decisions, an all-reduce, a loader, and a report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Mapping

import poptorch
from ipu_course.exercises import Exercise, Points, as_number
from ipu_course.lessons.capstone import slow_program
from ipu_course.lessons.capstone.budget import KIB, PlanError, used_ipus
from ipu_course.lessons.capstone.photographs import BUSY, NoLoader, profile_run, run_program, same_results
from ipu_course.lessons.capstone.plan_results import MARGIN
from ipu_course.lessons.capstone.plans import IPUS
from ipu_course.lessons.capstone.pods import reduced_bytes
from ipu_course.lessons.capstone.prices import head_loss_percent, single_changes, still_fitting
from ipu_course.lessons.capstone.reasons import DECIDED, weak_reason

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule
    from ipu_course.lessons.capstone.budget import Budget, Compilation
    from ipu_course.lessons.capstone.photographs import LoadedRun
    from ipu_course.lessons.capstone.plan_results import EveryPlan

ENOUGH = 0.85  # of the best plan's throughput
PERCENT_NEAR = 1.5

# ------------------------------------------------------------------------------- exercise 1


def plan_hint(plan: Any, using: Budget) -> str | None:
    """Return the hint for a learner's plan, which takes one compilation of the budget ``using``."""
    if not callable(plan):
        return f"plan is a function of the model and the global batch; you wrote {plan!r}."
    try:
        compiled = using.compile(plan)
    except PlanError as problem:
        return str(problem)
    except (poptorch.Error, AssertionError) as problem:
        return f"PopTorch refuses this plan, and it took no compilation: {str(problem).split(': ', 1)[-1]}"
    head = f"Compilation {compiled.number} of {using.compilations}{_renewed(using)}:"
    return _ipus_hint(compiled, head) or _memory_hint(compiled, head) or _speed_hint(compiled, using, head)


def _renewed(using: Budget) -> str:
    """Say which budget this is, unless it is the first one."""
    return f" in budget number {using.record.renewals + 1}" if using.record.renewals else ""


def _ipus_hint(compiled: Compilation, head: str) -> str | None:
    if used_ipus(compiled) == IPUS:
        return None
    return f"{head} your plan uses {used_ipus(compiled)} of the {IPUS} IPUs. Begin blocks on all of them."


def _memory_hint(compiled: Compilation, head: str) -> str | None:
    if compiled.fits:
        return None
    ipu = max(range(len(compiled.tile_kib)), key=lambda number: compiled.tile_kib[number])
    memory = compiled.profile.memory[ipu].bytes_by_category
    largest = sorted(memory, key=lambda name: -memory[name])[:3]
    told = ", ".join(f"{name} {memory[name] / KIB:,.0f}" for name in largest)
    verdict = compiled.profile.verdict.value
    close = "" if verdict == "does not fit" else f" A plan counts if it keeps {MARGIN:.0%} of every tile free."
    return (
        f"{head} {verdict}. IPU {ipu} is fullest, with {compiled.tile_kib[ipu]:,.0f} KiB (most of it: {told}).{close}"
    )


def _speed_hint(compiled: Compilation, using: Budget, head: str) -> str | None:
    share = compiled.sequences_per_second / using.every.best.sequences_per_second
    if share >= ENOUGH:
        return None
    once = compiled.profile.shares.get("offload", 0.0)
    copies = f" Copies of the optimiser state take {once:.0%} of its time." if once else ""
    return (
        f"{head} it fits. It reaches {compiled.sequences_per_second:,.0f} sequences/s, {share:.0%} of the best plan; "
        f"the exercise asks for {ENOUGH:.0%}. It is limited by {compiled.profile.limited_by}.{copies}"
    )


def plan_points(plan: Any, using: Budget) -> Points:
    """Return the throughput of the plan that was just compiled, as a percentage of the best plan's."""
    share = using.used[-1].sequences_per_second / using.every.best.sequences_per_second
    return Points(round(100 * share, 1), f"% of the best plan, BERT-{using.size.name}", "higher")


PLAN = Exercise(
    names=("plan",),
    find_hint=plan_hint,
    praise="It fits with room to spare, and few plans of the space are faster.",
    score=plan_points,
)

# ------------------------------------------------------------------------------- exercise 2


def prices_hint(fitting: object, head_loss: object, using: EveryPlan) -> str | None:
    """Return the hint for how many single changes still fit, and what the head on the last IPU costs in percent."""
    count, loss = as_number(fitting), as_number(head_loss)
    if count is None or loss is None:
        return "fitting and head_loss are two numbers."
    right = still_fitting(using)
    if count == single_changes(using):
        return "fitting: count only values whose first bar has a rate, and leave out those of the best plan itself."
    if count == single_changes(using) - right:
        return "fitting: you counted the values that do not fit any more."
    if count != right:
        return "fitting: go through all six decisions, and count the first bars that have a rate."
    wanted = head_loss_percent(using)
    if math.isclose(loss, 100 - wanted, abs_tol=PERCENT_NEAR):
        return "head_loss: this is what remains. The question asks for the loss."
    if math.isclose(loss, wanted / 100, abs_tol=PERCENT_NEAR / 100):
        return "head_loss: write a percentage, such as 5 for 5 %."
    if not math.isclose(loss, wanted, abs_tol=PERCENT_NEAR):
        return "head_loss: choose the place of the head, and compare the two second bars."
    return None


COSTS = Exercise(
    names=("fitting", "head_loss"),
    find_hint=prices_hint,
    praise="A good plan is good as a whole: change one decision, and others have to follow.",
)

# ------------------------------------------------------------------------------- exercise 3

_POD_CASES = ((51e6, 16, 1), (51e6, 16, 4), (220e6, 4, 2), (8.0, 2, 8), (100.0, 1, 4))


def sent_hint(sent: Any) -> str | None:
    """Return the hint for a function that counts the bytes of a hierarchical all-reduce."""
    if not callable(sent):
        return f"sent is a function of gradient, replicas and pods; you wrote {sent!r}."
    for gradient, replicas, pods in _POD_CASES:
        answer = sent(gradient, replicas, pods)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            return f"sent returns two numbers of bytes, inside and between; yours returned {answer!r}."
        found = [as_number(each) for each in answer]
        if None in found:
            return f"sent returns two numbers of bytes; yours returned {answer!r}."
        hint = _sent_hint(gradient, replicas, pods, *map(float, answer))
        if hint is not None:
            return f"For sent({gradient:g}, replicas={replicas}, pods={pods}): {hint}"
    return None


def _sent_hint(gradient: float, replicas: int, pods: int, inside: float, between: float) -> str | None:
    wanted = reduced_bytes(gradient, replicas, pods)
    if wanted[0] != wanted[1] and math.isclose(inside, wanted[1]) and math.isclose(between, wanted[0]):
        return "these are the right numbers in the wrong order. Return the bytes inside first, then those between."
    if not math.isclose(inside, wanted[0], rel_tol=1e-6, abs_tol=1e-6):
        everyone = replicas * pods
        if math.isclose(inside, 2 * (everyone - 1) / everyone * gradient, rel_tol=1e-6):
            return "inside counts one ring over all Pods. The first ring has only the replicas of one Pod."
        if math.isclose(2 * inside, wanted[0], rel_tol=1e-6):
            return "inside has one of the two halves. Both reduce-scatter and all-gather run inside the Pod."
        return f"inside should be {wanted[0]:,.1f} bytes, and yours is {inside:,.1f}. Use lesson 10's ring."
    if math.isclose(between, wanted[1], rel_tol=1e-6, abs_tol=1e-6):
        return None
    if math.isclose(between, wanted[1] * replicas, rel_tol=1e-6):
        return "between sends the whole gradient. After the reduce-scatter, each replica holds only its own part."
    return f"between should be {wanted[1]:,.1f} bytes, and yours is {between:,.1f}: a ring of Pods, for one part."


SENT = Exercise(
    names=("sent",),
    find_hint=sent_hint,
    praise="The slow links carry only a part of the gradient for each replica, whatever the number of Pods.",
)

# ------------------------------------------------------------------------------- exercise 4


def loader_hint(make_options: Any, make_loader: Any, using: ModelledModule) -> str | None:
    """Return the hint for the mended options and loader; ``using`` is the full-size network."""
    if not callable(make_options) or not callable(make_loader):
        return "make_options and make_loader are two functions."
    try:
        run = run_program(make_options, make_loader)
    except NoLoader:
        return "make_loader has to return a poptorch.DataLoader."
    return _results_hint(run) or _batch_hint(run) or _rate_hint(run, using)


def _batch_hint(run: LoadedRun) -> str | None:
    accumulation = int(run.options.Training.gradient_accumulation)
    if (run.choice.batch_size, accumulation) == (slow_program.BATCH_SIZE, slow_program.ACCUMULATION):
        return None
    return (
        f"The tiny network learns the same with {run.choice.batch_size} images in a micro-batch, but ResNet-50 would "
        "not: its batch normalisation sees one micro-batch at a time. Keep batch_size and accumulation."
    )


def _results_hint(run: LoadedRun) -> str | None:
    if same_results(run):
        return None
    return (
        "The program ends with other weights than before. Every update has to see the same 200 images in the same "
        "order: keep batch_size, accumulation and order, and leave no image out."
    )


def _rate_hint(run: LoadedRun, using: ModelledModule) -> str | None:
    profile = profile_run(using, run)
    share = profile.samples_per_second / profile.device_samples_per_second
    if share >= BUSY:
        return None
    now = f"The results are the same. {profile.samples_per_second:,.0f} images/s are {share:.0%} of the IPU's own rate."
    if not run.choice.asynchronous and not run.choice.workers:
        return f"{now} The program still loads by itself, while the IPU waits."
    if profile.limited_by == "host loader" and run.choice.workers <= 1:
        return f"{now} The loader is the bottleneck: one process decodes all photographs, 2 ms each."
    if profile.limited_by == "host loader":
        return f"{now} The loader is the bottleneck: {run.choice.workers} workers share 2 ms a photograph."
    overhead = 1e3 * (profile.call_seconds - profile.device_seconds_per_call)
    return (
        f"{now} The loader keeps up, but the host's overhead of a call is {overhead:.0f} ms, which the IPU waits for."
    )


def loader_points(make_options: Any, make_loader: Any, using: ModelledModule) -> Points:
    """Return the modelled rate of the mended program."""
    rate = profile_run(using, run_program(make_options, make_loader)).samples_per_second
    return Points(round(rate), "images/s (modelled)", "higher")


LOADER = Exercise(
    names=("make_options", "make_loader"),
    find_hint=loader_hint,
    praise="The same weights at the end, and the IPU no longer waits for the host.",
    score=loader_points,
)

# ------------------------------------------------------------------------------- exercise 5


def reasons_hint(reasons: Any) -> str | None:
    """Return the hint for the reasons of all decisions, by their names."""
    if not isinstance(reasons, Mapping):
        return 'reasons is a dictionary, such as {"split": "..."}.'
    missing = [name for name in DECIDED if name not in reasons]
    if missing:
        return f"There is no reason for {missing[0]!r} yet."
    unknown = [name for name in reasons if name not in DECIDED]
    if unknown:
        return f"{unknown[0]!r} is none of the decisions: {', '.join(DECIDED)}."
    given = [str(reasons[name]).strip() for name in DECIDED]
    if len(set(given)) < len(given):
        return "Two decisions have the same reason. Say for each what it did."
    return next(filter(None, (weak_reason(name, reasons[name]) for name in DECIDED)), None)


REPORT = Exercise(
    names=("reasons",),
    find_hint=reasons_hint,
    praise="Every decision has a reason with a figure. Whether it is a good one, only a reader can tell: swap reports.",
)
