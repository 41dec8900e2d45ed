"""The exercises of lesson 15."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

import poptorch
from ipu_course import engine
from ipu_course.exercises import Exercise, Number, Points, as_number
from ipu_course.lessons.the_host_path.allocators import MAPS
from ipu_course.lessons.the_host_path.compilations import (
    SMALL_SIDE,
    count_calls,
    count_compilations,
    small_land_cover,
)
from ipu_course.lessons.the_host_path.land_cover import (
    BANDS,
    BYTES,
    ITERATIONS,
    LEAST_IO_TILES,
    MOST_IO_TILES,
    SCORES,
    SIDE,
    TILE_BYTES,
    HostPath,
    land_cover,
    profile_classifier,
    profile_path,
    step_milliseconds,
)
from ipu_course.not_modelled import NOT_MODELLED

PIXELS = SIDE * SIDE
BOUND_MS = 8.4
RETURNS_TILES = "It has to return a number of tiles"
SHARE_OF_DATA = 1.05  # the guide's allowance for exchange code and buffers
BATCHES, SIZE = (8, 8, 5, 8, 3), 8

# Samples and bytes of a sample. Two need more tiles than PopTorch gives, and the last needs few by any reading.
TILE_CASES = (
    (16, PIXELS * 25),
    (16, PIXELS * 46),
    (19, 1_048_576),
    (4, 150_528),
    (1, 60_000),
    (32, PIXELS * 46),
    (64, PIXELS * 46),
    (64, 4_096),
)


def io_tiles_needed(samples: int, bytes_per_sample: int) -> int | None:
    """Return the power of two of I/O tiles that holds a micro-batch, or ``None`` where PopTorch has none."""
    return _in_range(_power(SHARE_OF_DATA * samples * bytes_per_sample / TILE_BYTES))


def _power(wanted: float, rounded: Callable[[float], float] = math.ceil) -> int:
    return int(2 ** rounded(math.log2(max(1.0, wanted))))


def _in_range(tiles: int) -> int | None:
    return max(LEAST_IO_TILES, tiles) if tiles <= MOST_IO_TILES else None


def _wanted(samples: int, size: int, share: float = SHARE_OF_DATA) -> float:
    return share * samples * size / TILE_BYTES


PRINTED = "That is the rule as the guide prints it. Which two different quantities belong into the product?"
MISREAD: tuple[tuple[Callable[[int, int], int | None], str], ...] = (
    (lambda samples, size: _in_range(_power(_wanted(samples, samples))), PRINTED),
    (lambda samples, size: _in_range(_power(_wanted(size, size))), PRINTED),
    (lambda samples, size: _in_range(_power(1024 * _wanted(samples, size))),
     "You divide bytes by kilobytes: a tile has 638,976 bytes."),
    (lambda samples, size: _in_range(_power(_wanted(samples, size), math.floor)),
     "You round down: the data has to fit."),
    (lambda samples, size: _in_range(_power(_wanted(samples, size), round)),
     "You take the nearest power of two: round up."),
    (lambda samples, size: _in_range(_power(_wanted(samples, size, 1.0))),
     "Code and buffers of the exchange take about 5 % on top of the data."),
    (lambda samples, size: _power(_wanted(samples, size)), "Keep to what PopTorch accepts: 32 to 192 tiles, or None."),
)  # fmt: skip
"""Functions that follow from a misunderstanding, and the hint to each."""


def _tiles_hint(io_tiles: Any) -> str | None:
    if not callable(io_tiles):
        return "io_tiles should be a function of samples and bytes_per_sample."
    answers = [io_tiles(*case) for case in TILE_CASES]
    right = [io_tiles_needed(*case) for case in TILE_CASES]
    if answers == right:
        return None
    for misread, hint in MISREAD:
        if answers == [misread(*case) for case in TILE_CASES]:
            return hint
    wrong = next(place for place, answer in enumerate(answers) if answer != right[place])
    samples, size = TILE_CASES[wrong]
    returned = f"For {samples} samples of {size:,} bytes, your function returns {answers[wrong]!r}. "
    if _as_printed(as_number(answers[wrong]), samples, size):
        return returned + PRINTED
    return returned + _tiles_mistake(answers[wrong], right[wrong])


def _as_printed(number: float | None, samples: int, size: int) -> bool:
    """Tell whether a number is the printed formula's, in any unit of a tile, rounded up or not at all."""
    if number is None:
        return False
    printed = [SHARE_OF_DATA * one * one / tile for one in (samples, size) for tile in (624, 624_000, TILE_BYTES)]
    return any(
        math.isclose(number, each, rel_tol=1e-6) or number == math.ceil(each) >= LEAST_IO_TILES for each in printed
    )


def _tiles_mistake(answer: object, right: int | None) -> str:
    """Say what is wrong with the ``answer`` for one micro-batch."""
    number = as_number(answer)
    if right is None:
        return "No power of two up to 192 holds that much: return None."
    if number is None:
        return f"{RETURNS_TILES}, as PopTorch has enough tiles for this."
    if number < LEAST_IO_TILES:
        return "PopTorch reserves at least 32 tiles."
    if math.log2(number) % 1:
        return "Round up to a power of two."
    if number < right:
        return "That is too few for the bytes of all samples and the 5 % on top."
    return "That is more than the data needs. Check the units: bytes, divided by the bytes of a tile."


IO_TILES = Exercise(
    ("io_tiles",),
    _tiles_hint,
    praise="The explorer below shows whether so many tiles really hold a micro-batch of the service.",
)


def path_step(path: HostPath) -> float:
    """Return the milliseconds of a step of a setting, modelled."""
    return step_milliseconds(profile_path(path))


def _saved_hint(saved: object, saved_overlapping: object, fewest: object, using: object) -> str | None:
    plain, overlapping = (
        path_step(HostPath(1, tiles, results)) - path_step(HostPath(3, tiles, results))
        for tiles, results in ((0, SCORES), (64, BYTES))
    )
    wanted = (
        Number("saved", plain,
               {path_step(HostPath(3)): "That is the step itself. How much shorter is it?",
                -plain: "The step with depth 3 is shorter, so what it saves is positive: take depth 1 minus depth 3."},
               "Look at the steps of depth 1 and 3, with all scores and no I/O tiles, and subtract.", 0.03),
        Number("saved_overlapping", overlapping,
               {plain: "That is what it saves without overlap. Reserve 64 tiles and return class bytes first.",
                path_step(HostPath(3, 64, BYTES)): "That is the step itself: how much shorter is it?"},
               "Set 64 I/O tiles and class bytes, and subtract the steps of depth 3 and depth 1.", 0.03),
        Number("fewest", 128, {64: "64 tiles hold class bytes, but not all scores: look at the fullest tile.",
                               32: "32 tiles hold neither: look at the fullest tile.",
                               192: "192 tiles hold them. Do fewer, too?"},
               "Choose all scores, and move the I/O tiles until the fullest tile fits."),
    )  # fmt: skip
    hints = (number.hint(answer) for number, answer in zip(wanted, (saved, saved_overlapping, fewest)))
    return next((hint for hint in hints if hint is not None), None)


KNOBS = Exercise(
    ("saved", "saved_overlapping", "fewest"),
    _saved_hint,
    praise="When transfers hide behind the computation, the copy hides there, too: it costs only what sticks out.",
)


def _options_hint(options: object) -> str | None:
    if not isinstance(options, poptorch.Options):
        return f"service_options has to return poptorch.Options, not {type(options).__name__}."
    if options.device_iterations != ITERATIONS:
        return f"Keep deviceIterations({ITERATIONS}): callers wait for the results of a call."
    if options.replication_factor != 1 or options.Training.gradient_accumulation != 1:
        return "Stay with one replica and no accumulation."
    return None


def _service_hint(service: Any, service_options: Any, using: object) -> str | None:
    if isinstance(service, nn.Module) or not callable(service):
        return "Service should be the class itself, and no object of it."
    if not callable(service_options):
        return "service_options should be a function that returns the options."
    options = service_options()
    return _options_hint(options) or _numbers_hint(service) or _speed_hint(service, options)


def _numbers_hint(service: Callable[[nn.Module], nn.Module]) -> str | None:
    """Compare a service around a small network with plain PyTorch."""
    network = small_land_cover()
    images = torch.randn(2, BANDS, SMALL_SIDE, SMALL_SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = network(images).argmax(1), service(network)(images)
    if not isinstance(found, Tensor):
        return f"Service has to return one tensor, not {type(found).__name__}."
    if found.shape == (2, 11, SMALL_SIDE, SMALL_SIDE):
        return "Service returns all scores: return the number of the class with the best one, argmax(1)."
    if found.shape != expected.shape:
        return f"Service returns {list(found.shape)}, not one class for each pixel: {list(expected.shape)}."
    if not torch.equal(found.long(), expected):
        return "These are not the classes with the best scores: take argmax over dimension 1 of the network's output."
    return None


ADVICE = (
    ("ShardedExecution", "PopTorch overlaps transfers in no pipeline, and PipelinedExecution is its default even on "
     "one IPU: options.setExecutionStrategy(poptorch.ShardedExecution())."),
    ("No IO tiles", "overlapped transfers need tiles of their own: options.TensorLocations.numIOTiles."),
    ("output mode", "overlapped transfers need OutputMode.All, which is the default for inference."),
    ("only op applied", "mark the images first of all, and go on with what set_overlap_for_input returns."),
    ("not a tensor output", "mark what you return, in its final type, last of all."),
)  # fmt: skip


def _modelled_service(service: Any, options: poptorch.Options) -> Any:
    """Return the profile of a learner's service, or the reason why PopTorch refuses it."""
    try:
        with torch.device("meta"):
            module = service(land_cover())
        return profile_classifier(module, options)
    except poptorch.Error as refused:
        words = str(refused)
        return next((f"PopTorch refuses this: {advice}" for part, advice in ADVICE if part in words), words)


def _speed_hint(service: Any, options: poptorch.Options) -> str | None:
    profile = _modelled_service(service, options)
    if isinstance(profile, str) or profile is NOT_MODELLED:
        return str(profile)
    program = profile.program
    if program.synthetic_data:
        return "Synthetic data reads no images: this service would classify random numbers."
    if not program.overlaps_input or not program.overlaps_output:
        side, mark = ("images", "input") if not program.overlaps_input else ("results", "output")
        return f"The transfer of the {side} does not overlap yet: mark them with set_overlap_for_{mark}."
    fullest = profile.memory.max_tile_bytes
    if engine.memory_verdict(profile) != "fits":
        return (
            f"With {program.io_tiles} I/O tiles, the fullest tile needs {fullest / 1024:.0f} of {TILE_BYTES // 1024} "
            f"KiB: {engine.memory_verdict(profile)}. How many tiles does your function of exercise 1 say?"
        )
    step = step_milliseconds(profile)
    if step < BOUND_MS:
        return None
    return f"A step takes {step:.2f} ms (modelled), not less than {BOUND_MS}. {_slow(program, service)}"


def _slow(program: Any, service: Callable[[nn.Module], nn.Module]) -> str:
    if program.prefetch_depth < 2:
        return "The host still copies images while the link waits: set the prefetch depth."
    if program.io_tiles > 64:
        return "Every I/O tile is one that does not compute: reserve fewer."
    if _bytes_of_a_class(service) > 1:
        return "How many bytes does the number of one of 11 classes need?"
    return "Depth, tiles and bytes are right. Which other option or step slows your program down?"


def _bytes_of_a_class(service: Callable[[nn.Module], nn.Module]) -> int:
    """Return the bytes of the number that a service returns for a pixel."""
    with torch.no_grad():
        found: Tensor = service(small_land_cover())(torch.zeros(1, BANDS, SMALL_SIDE, SMALL_SIDE))
    return found.element_size()


def _service_score(service: Any, service_options: Callable[[], Any], using: object) -> Points | None:
    profile = _modelled_service(service, service_options())
    return Points(step_milliseconds(profile), "ms a step", "lower")


SERVICE = Exercise(
    ("Service", "service_options"),
    _service_hint,
    praise="The first version took 21.6 ms. Of the powers of two, 64 tiles are best, with 8.22 ms.",
    score=_service_score,
)


def _batches_hint(classify_all: Any) -> str | None:
    if not callable(classify_all):
        return "classify_all should be a function of model, batches and size."
    network = small_land_cover()
    random = torch.Generator().manual_seed(1)
    batches = [torch.randn(rows, BANDS, SMALL_SIDE, SMALL_SIDE, generator=random) for rows in BATCHES]
    model = poptorch.inferenceModel(network, poptorch.Options().showCompilationProgressBar(False))
    with count_compilations() as compilations, count_calls(model) as calls:
        try:
            found = classify_all(model, batches, SIZE)
        except poptorch.Error as refused:
            if "hape" in str(refused):
                return "A call had another number of images than the one before. Pad every batch to `size` images."
            raise
    with torch.no_grad():
        expected = [network(images) for images in batches]
    return _results_hint(found, expected) or _count_hint(compilations.count) or _calls_hint(calls)


def _results_hint(found: Any, expected: Sequence[Tensor]) -> str | None:
    if not isinstance(found, (list, tuple)):
        return f"Return a list with the scores of each batch, not {type(found).__name__}."
    if len(found) != len(expected):
        return f"There are {len(expected)} batches, and you return the scores of {len(found)}."
    for number, (scores, right) in enumerate(zip(found, expected), 1):
        if not isinstance(scores, Tensor) or scores.shape[1:] != right.shape[1:]:
            return f"The scores of batch {number} have to be a tensor of {list(right.shape)}."
        if len(scores) > len(right):
            return f"Batch {number} has {len(right)} images, but you return {len(scores)}: the padding is still there."
        if len(scores) < len(right):
            return f"Batch {number} has {len(right)} images, but you return the scores of {len(scores)}."
        if not torch.allclose(scores, right, atol=1e-4):
            return f"The scores of batch {number} are not those of its images. Where is the padding?"
    return None


def _count_hint(count: int) -> str | None:
    if count == 1:
        return None
    if not count:
        return "No model was compiled: call `model`."
    return f"The scores are right, but there were {count} compilations. Never destroy the model: use a single size."


def _calls_hint(calls: Sequence[int]) -> str | None:
    if len(calls) <= len(BATCHES):
        return None
    images = "one image" if set(calls) == {1} else f"{max(calls)} images at most"
    return (
        f"The scores are right after one compilation, but you make {len(calls)} calls for {len(BATCHES)} batches, with "
        f"{images} each. Every call costs time on the host and to start the device: send a whole batch with one call."
    )


ONE_GRAPH = Exercise(
    ("classify_all",),
    _batches_hint,
    praise="5 batches of 3 sizes, and one compilation. In training, padding must not count in the loss either.",
)


def _environment_hint(with_allocator: Any) -> str | None:
    if not callable(with_allocator):
        return "with_allocator should be a function of environment and library."
    given = {"HOME": "/home/ada", "LD_PRELOAD": "/opt/lib/libtrace.so"}
    empty = {"HOME": "/home/ada"}
    library = "/usr/lib/libjemalloc.so.2"
    both, alone = with_allocator(dict(given), library), with_allocator(dict(empty), library)
    for found in (both, alone):
        if not isinstance(found, Mapping):
            return f"Return the changed environment, a dict of names and texts, not {type(found).__name__}."
        if "LD_PRELOAD" not in found:
            return "The loader reads the variable LD_PRELOAD, which your environment does not have."
        if found.get("HOME") != "/home/ada":
            return "The program needs the other variables, too: copy the environment, and add to the copy."
    return _preload_hint(both["LD_PRELOAD"], alone["LD_PRELOAD"], library, given) or _changed_hint(with_allocator)


def _preload_hint(both: object, alone: object, library: str, given: Mapping[str, str]) -> str | None:
    if not isinstance(both, str) or not isinstance(alone, str):
        return "Values of an environment are texts."
    libraries = both.replace(":", " ").split()
    if given["LD_PRELOAD"] not in libraries:
        return "LD_PRELOAD was set already: keep what it holds."
    if libraries != [library, given["LD_PRELOAD"]]:
        return "The first library that has malloc wins: put yours before the others, with a colon between them."
    if alone.replace(":", " ").split() != [library] or alone != library:
        return f"Without an older LD_PRELOAD, its value is only the library; yours is {alone!r}."
    return None


def _changed_hint(with_allocator: Callable[[Mapping[str, str], str], Any]) -> str | None:
    """Give the function an environment that cannot change, and start a program with a real library."""
    try:
        with_allocator(MappingProxyType({"HOME": "/"}), "lib.so")
    except TypeError:
        return "You change the environment that you are given, which may be os.environ: change a copy of it."
    library = _some_library()
    if library is None:
        return None
    ended = subprocess.run(["/bin/cat", str(MAPS)], env=with_allocator({}, library), capture_output=True, text=True)
    return None if library in ended.stdout else f"A program that was started with it did not load {Path(library).name}."


def _some_library() -> str | None:
    """Return a library of this process that ``cat`` does not load, where a process can tell."""
    if not sys.platform.startswith("linux") or not Path("/bin/cat").exists():
        return None
    paths = {line.split()[-1] for line in MAPS.read_text(encoding="utf-8").splitlines() if "/" in line}
    found = sorted(path for path in paths if Path(path).name.startswith(("libgomp", "libz", "libm.so")))
    return found[0] if found else None


ALLOCATOR = Exercise(
    ("with_allocator",),
    _environment_hint,
    praise="`subprocess.run([...], env=with_allocator(os.environ, library))` compiles with it.",
)
