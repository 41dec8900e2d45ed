"""A budget of modelled compilations, and the ladder of the plans that a learner compiled with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple

import torch
from torch import nn

import poptorch
from ipu_course import engine, show
from ipu_course.errors import CourseError
from ipu_course.lessons.capstone.budget_record import BudgetRecord
from ipu_course.lessons.capstone.decisions import changed_in_words, decisions_of
from ipu_course.lessons.capstone.plan_results import FITS, EveryPlan, has_room, stored_plans
from ipu_course.lessons.capstone.plans import IPUS, MACHINE
from ipu_course.lessons.capstone.transformer import Transformer, TransformerSize, optimiser_of, sequences
from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from ipu_course.engine import Profile

KIB = 1024
COMPILATIONS = 12

WritePlan = Callable[[nn.Module, int], poptorch.Options]
"""A learner's plan: changes the network, and returns the options for it and a global batch."""


class PlanError(CourseError):
    """A plan that was not compiled: it breaks a rule of the task, or the budget is used up."""


@dataclass(frozen=True)
class Compilation:
    """One plan that was compiled: its number in the budget, its batches, its profile and its decisions in words.

    ``changed`` says which decisions differ from those of the plan before; ``plan`` is the learner's function.
    """

    number: int
    micro_batch: int
    accumulation: int
    profile: Profile
    decisions: Mapping[str, str] = field(default_factory=dict)
    changed: str = ""
    plan: WritePlan | None = None

    @property
    def tile_kib(self) -> tuple[float, ...]:
        """The fullest tile of each IPU, in KiB."""
        return tuple(ipu.max_tile_bytes / KIB for ipu in self.profile.memory)

    @property
    def fits(self) -> bool:
        """Whether it fits with room to spare: 5 % of every tile."""
        return engine.memory_verdict(self.profile) == FITS and has_room(KIB * max(self.tile_kib))

    @property
    def sequences_per_second(self) -> float:
        """The throughput, modelled."""
        return self.profile.samples_per_second


class Budget:
    """A number of compilations of one size's program; each plan that PopTorch accepts takes one."""

    def __init__(self, size: TransformerSize, compilations: int = COMPILATIONS) -> None:
        self.size = size
        self.compilations = compilations
        self.used: list[Compilation] = []
        self.record = BudgetRecord(f"BERT-{size.name}")

    @property
    def every(self) -> EveryPlan:
        """All plans of the space for this size."""
        return stored_plans(self.size)

    @property
    def best(self) -> Compilation | None:
        """The fastest of the compiled plans that fit with room to spare, if any does."""
        fitting = [each for each in self.used if each.fits]
        return max(fitting, key=lambda each: each.sequences_per_second) if fitting else None

    def compile(self, plan: WritePlan) -> Compilation:
        """Compile the program as ``plan`` has it, and note it.

        Raises ``PlanError`` when the plan breaks a rule or nothing is left of the budget, and ``poptorch.Error`` or
        ``AssertionError`` when PopTorch refuses it.
        """
        if len(self.used) >= self.compilations:
            raise PlanError(
                f"The budget of {self.compilations} compilations is used up. Run the cell that made it for a new one: "
                "your records count it, and your report will say so."
            )
        found = captured_plan(self.size, plan)
        before = self.used[-1].decisions if self.used else None
        compilation = Compilation(
            len(self.used) + 1,
            found.micro_batch,
            found.accumulation,
            found.module.profile(machine=MACHINE),
            found.decisions,
            changed_in_words(before, found.decisions),
            plan,
        )
        self.used.append(compilation)
        self.record.note(compilation.number)
        return compilation


class CapturedPlan(NamedTuple):
    """A plan whose network was captured, with its micro-batch, its accumulation and its decisions in words."""

    module: engine.ModelledModule
    micro_batch: int
    accumulation: int
    decisions: Mapping[str, str]


def captured_plan(size: TransformerSize, plan: WritePlan) -> CapturedPlan:
    """Capture the network as a learner's plan has it.

    Raises what ``Budget.compile`` raises.
    """
    with torch.device("meta"):
        model = Transformer(size)
        before = _weights(model)
        options = plan(model, size.global_batch)
        if _weights(model) != before:
            raise PlanError(
                f"The network is fixed: it has {before:,} weights, and after your plan {_weights(model):,}. A plan "
                "decides where and when, and in which precision."
            )
        micro_batch = micro_batch_of(options, size)
        inputs = tuple(each.to("meta") for each in sequences(size, micro_batch, seed=0))
    module = engine.modelled_module(model, inputs, options, optimiser_of(model))
    ipus = 1 + max(module.ipus_of_modules.values(), default=0)
    if ipus > IPUS:
        raise PlanError(f"Your plan asks for {ipus} IPUs, and the task has {IPUS}: an ipu_id is from 0 to {IPUS - 1}.")
    decisions = decisions_of(module, [each.dtype for each in model.parameters()], micro_batch)
    return CapturedPlan(module, micro_batch, int(options.Training.gradient_accumulation), decisions)


def _weights(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


def micro_batch_of(options: Any, size: TransformerSize) -> int:
    """Return the micro-batch that follows from a plan's accumulation.

    Raises ``PlanError`` for a plan that changes what the task fixes.
    """
    if not isinstance(options, poptorch.Options):
        given = "nothing" if options is None else f"a {type(options).__name__}"
        raise PlanError(f"plan has to return poptorch.Options; yours returned {given}.")
    if options.replication_factor != 1 or options.device_iterations != 1:
        raise PlanError("The task is one replica and one device iteration: leave both at 1.")
    accumulation = int(options.Training.gradient_accumulation)
    micro_batch, rest = divmod(size.global_batch, accumulation)
    if rest or not micro_batch:
        raise PlanError(
            f"An accumulation of {accumulation} does not divide the global batch of {size.global_batch:,}. The "
            "micro-batch is the global batch divided by the accumulation."
        )
    return micro_batch


@engine.needs_the_model
def new_budget(size: TransformerSize, compilations: int = COMPILATIONS) -> Budget:
    """Return a budget for the program of a size, base or large.

    Raises ``DataError`` for a size that has no enumerated plans.
    """
    stored_plans(size)
    return Budget(size, compilations)


def show_ladder(budget: Budget) -> None:
    """Show every plan that was compiled, in its order."""
    if budget is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    if not budget.used:
        print("No plan is compiled yet.")
        return
    show.table([ladder_row(each, budget) for each in budget.used], index="compilation")
    if budget.record.renewals:
        print(budget.record.in_words)


def ladder_row(compilation: Compilation, budget: Budget) -> dict[str, object]:
    """Return one rung: what was changed, memory, verdict, throughput, and how much of the best plan's that is."""
    profile = compilation.profile
    share = compilation.sequences_per_second / budget.every.best.sequences_per_second
    return {
        "compilation": f"{compilation.number} of {budget.compilations}",
        "changed since the one before": compilation.changed,
        "micro-batch x accumulation": f"{compilation.micro_batch} x {compilation.accumulation}",
        "KiB of the fullest tile, IPU by IPU": ", ".join(f"{kib:,.0f}" for kib in compilation.tile_kib),
        "fits with 5 % of every tile free": "yes" if compilation.fits else _why_not(profile),
        "sequences/s (modelled)": f"{compilation.sequences_per_second:,.0f}",
        "limited by": profile.limited_by,
        "of the best plan": f"{share:.0%}" if compilation.fits else "-",
    }


def _why_not(profile: Profile) -> str:
    """Return why a plan does not count, for a cell of a table."""
    return "less is free" if engine.memory_verdict(profile) == FITS else engine.fits_in_a_word(profile)


def used_ipus(compilation: Compilation) -> int:
    """Return how many IPUs a plan uses."""
    return sum(bool(ipu.max_tile_bytes) for ipu in compilation.profile.memory)
