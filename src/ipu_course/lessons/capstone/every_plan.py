"""Model every plan of the space, and keep what each of them needs and reaches.

``python -m ipu_course.lessons.capstone.every_plan`` models the plans of one size, which takes minutes, and compares
the best one with the stored result; ``--write`` stores the new result, and ``--search`` lets ``make_it_fit`` search.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, replace
from typing import Any, Iterable, Sequence

from ipu_course import engine
from ipu_course.lessons.capstone.plan_results import (
    COMMAND,
    EveryPlan,
    PlanResult,
    SearchResult,
    file_of,
    stored_plans,
)
from ipu_course.lessons.capstone.plans import (
    IPUS,
    MACHINE,
    MICRO_BATCHES,
    Plan,
    PlanGraph,
    as_it_is,
    captured_graph,
    every_graph,
    plans_of,
    profile_plan,
)
from ipu_course.lessons.capstone.published_plans import PUBLISHED_PLANS, PUBLISHED_TASKS
from ipu_course.lessons.capstone.transformer import BASE, LARGE, SIZES, TransformerSize


def model_plans(size: TransformerSize, micro_batch: int) -> list[PlanResult]:
    """Model the plans of the space with one micro-batch."""
    results = []
    for graph in every_graph(size):
        if graph.micro_batch == micro_batch:
            module = captured_graph(size, graph)
            results += [result_of(plan, profile_plan(module, size, plan)) for plan in plans_of(graph)]
    return results


def result_of(plan: Plan, profile: engine.Profile) -> PlanResult:
    """Return the stored figures of a plan's profile."""
    tiles = tuple(ipu.max_tile_bytes for ipu in profile.memory)
    return PlanResult(plan, tiles, engine.memory_verdict(profile), round(profile.samples_per_second, 2))


def model_every_plan(size: TransformerSize, jobs: int = 1) -> EveryPlan:
    """Model every plan of a size, in so many processes."""
    batches = MICRO_BATCHES[size.name]
    if jobs == 1:
        parts: Iterable[list[PlanResult]] = [model_plans(size, each) for each in batches]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            parts = list(pool.map(model_plans, [size] * len(batches), batches))
    return EveryPlan(size, tuple(result for part in parts for result in part))


def search(size: TransformerSize) -> SearchResult:
    """Let ``make_it_fit`` search from the program as it is, on at most four IPUs; it never changes the global batch.

    Raises ``RuntimeError`` when it finds nothing that fits.
    """
    model, inputs, options, optimiser = as_it_is(size)
    found = engine.make_it_fit(model, inputs, options, optimiser, machine=MACHINE, ipus=IPUS)
    if found.fastest is None:
        raise RuntimeError(f"make_it_fit finds nothing for {size.name}")
    changes = tuple(change.text for change in found.fastest.changes)
    return SearchResult(round(found.fastest.samples_per_second, 2), changes, len(found.tried))


def model_published_task(size: TransformerSize) -> float:
    """Return the modelled rate of the published configuration on its own task, with this lesson's network.

    It runs on the 16 IPUs of a Bow Pod16, four replicas with sharded state. BERT-Large's rows hold 1.17 sequences.
    """
    plan, task = PUBLISHED_PLANS[size.name], PUBLISHED_TASKS[size.name]
    module = captured_graph(size, PlanGraph(plan.layers, plan.head, plan.micro_batch))
    profile = module.profile(
        machine="Bow-POD16",
        replicas=4,
        gradient_accumulation=task.accumulation,
        optimiser_off_chip=True,
        optimiser_sharded=True,
        available_memory_proportion=task.proportions,
        checkpoints=[f"layers.{number}" for number in range(size.layers)],
    )
    return round(task.sequences_in_a_row * profile.samples_per_second, 1)


def write_plans(every: EveryPlan) -> None:
    """Store the results of a size, one plan a line."""
    lines = ",\n  ".join(json.dumps(_written(result)) for result in every.results)
    found = json.dumps(None if every.search is None else astuple(every.search))
    head = f'"command": "{COMMAND} --size {every.size.name} --search --write",\n "search": {found}'
    head += f',\n "published_task": {json.dumps(every.published_task)}'
    file_of(every.size).write_text(f'{{\n {head},\n "plans": [\n  {lines}\n ]\n}}\n', encoding="utf-8")


def _written(result: PlanResult) -> list[Any]:
    return [*astuple(result.plan), result.tile_bytes, result.verdict, result.sequences_per_second]


def main(arguments: Sequence[str] | None = None) -> int:
    """Model the plans, compare them with the stored ones, and write them if asked to."""
    parser = argparse.ArgumentParser(description="Model every plan of the capstone's space.")
    parser.add_argument("--size", choices=(BASE.name, LARGE.name), default=BASE.name)
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--search", action="store_true", help="let make_it_fit search, too")
    parser.add_argument("--write", action="store_true", help="store the result")
    parsed = parser.parse_args(arguments)
    size = SIZES[parsed.size]
    every = model_every_plan(size, parsed.jobs)
    if parsed.search:
        every = replace(every, search=search(size), published_task=model_published_task(size))
    _print(every)
    if parsed.write:
        write_plans(every)
        return 0
    stored = stored_plans(size)
    same = stored == (every if parsed.search else replace(stored, results=every.results))
    print("The stored results are the same." if same else "The stored results differ.")
    return 0 if same else 1


def _print(every: EveryPlan) -> None:
    print(f"{every.size.name}: {len(every.results)} plans, {len(every.fitting)} fit with room to spare (modelled)")
    print(f"the best: {every.best.plan}, {every.best.sequences_per_second:,.1f} sequences/s")
    if every.search is not None:
        print(
            f"make_it_fit: {every.search.sequences_per_second:,.1f} sequences/s, by {'; '.join(every.search.changes)}"
        )


if __name__ == "__main__":
    raise SystemExit(main())
