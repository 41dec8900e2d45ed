"""What the check of exercise 1 asks of a byte path: the host's transform, and the module that normalises."""

from __future__ import annotations

from typing import Any

import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

import poptorch
from ipu_course.lessons.eight_bit_io.pictures import pictures
from ipu_course.models import MEAN, STD

SIDE = 64
# Enough that a random flip is missed once in a million checks.
TRIES = 20
# Four roundings to fp16, of numbers up to 2.64: the results lie 2 ** -9 apart there, and a rounded mean or deviation
# counts 4.5 times (1 / 0.22).
FP16_TOLERANCE = 2.0**-7
FEWEST_DIFFERENT = 200
RESIZING_TOLERANCE = 2


def byte_path_hint(to_bytes: Any, normalise: Any) -> str | None:
    """Return the first fault of a transform and a module's class, or ``None`` when the path is right."""
    return transform_hint(to_bytes) or module_hint(normalise) or _device_hint(to_bytes, normalise)


def transform_hint(to_bytes: Any) -> str | None:
    """Return what is wrong with a transform from a picture to a uint8 tensor [3, 64, 64]."""
    if not callable(to_bytes):
        return f"to_bytes is a transform, which is a function of a picture; you wrote {to_bytes!r}."
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        picture = pictures()[3][0]
        results = [to_bytes(picture.copy()) for _ in range(TRIES)]
    if results[0] is None:
        return "to_bytes returns nothing: return the tensor."
    if not isinstance(results[0], Tensor):
        return f"to_bytes returns a {type(results[0]).__name__}, and the loader needs a tensor: add PILToTensor()."
    return _type_hint(results[0]) or _pixels_hint(picture, results)


def _type_hint(image: Tensor) -> str | None:
    if image.is_floating_point():
        return (
            f"to_bytes returns {image.dtype}, so that each number takes {image.element_size()} bytes on the link. "
            "Leave out what converts and normalises; transforms.ToTensor converts, too, but PILToTensor does not."
        )
    if image.dtype != torch.uint8:
        return f"to_bytes returns {image.dtype}: pixels from 0 to 255 need torch.uint8."
    if tuple(image.shape) == (SIDE, SIDE, 3):
        return "The colours come last in your tensor, and PyTorch wants them first: [3, 64, 64]."
    if tuple(image.shape) != (3, SIDE, SIDE):
        return f"to_bytes returns a tensor {list(image.shape)}; the host still resizes to [3, 64, 64]."
    return None


def _pixels_hint(picture: Image.Image, results: list[Tensor]) -> str | None:
    if len(results[0].unique()) <= 2:
        return "Your images have only the values 0 and 1: something divided by 255 before you converted to uint8."
    plain = torchvision.transforms.functional.pil_to_tensor(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    mirrored = plain.flip(2)
    matches = [(_same_pixels(each, plain), _same_pixels(each, mirrored)) for each in results]
    if not all(any(match) for match in matches):
        return "Your images differ from flipped and resized pictures: the pixels must arrive unchanged."
    if len(set(matches)) < 2:
        return "Your images are never flipped, or always: keep RandomHorizontalFlip() on the host."
    return None


def _same_pixels(one: Tensor, other: Tensor) -> bool:
    # Resizing a tensor rounds differently from resizing a picture.
    return int((one.int() - other.int()).abs().max()) <= RESIZING_TOLERANCE


def every_pixel() -> Tensor:
    """Return images [2, 3, 8, 16] uint8 that hold every value from 0 to 255 in each colour."""
    return torch.arange(256, dtype=torch.uint8).view(2, 1, 8, 16).expand(2, 3, 8, 16).clone()


def normalised(pixels: Tensor) -> Tensor:
    """Return what host normalisation makes of ``pixels`` [N, 3, H, W], in double precision."""
    mean, std = (torch.tensor(each, dtype=torch.float64).view(3, 1, 1) for each in (MEAN, STD))
    return (pixels.double() / 255 - mean) / std


def module_hint(normalise: Any) -> str | None:
    """Return what is wrong with a module's class that normalises uint8 images to fp16."""
    if isinstance(normalise, nn.Module):
        return "Normalise is the class itself, and you passed a module made of it: leave out the brackets."
    if not (isinstance(normalise, type) and issubclass(normalise, nn.Module)):
        return "Normalise is a class that begins with class Normalise(nn.Module)."
    module = normalise().half()
    if list(module.parameters()):
        return "An optimiser would train your mean and std: register them as buffers, not as parameters."
    pixels = every_pixel()
    try:
        result = module(pixels.clone())
    except RuntimeError:
        if any(buffer.dim() == 1 for buffer in module.buffers()):
            return (
                "Your mean has its 3 numbers in one dimension, which lines up with the width of the images. Colours "
                "are the second dimension of [N, 3, H, W]: .view(3, 1, 1) lines the numbers up with them."
            )
        raise
    if not isinstance(result, Tensor):
        return f"forward returns {type(result).__name__}: return the normalised images."
    if result.shape != pixels.shape:
        return f"forward turns images {list(pixels.shape)} into {list(result.shape)}, but the shape must not change."
    hint = _values_hint(result.double(), pixels)
    if hint is None and result.dtype != torch.float16:
        begin = f"The numbers are right, but after .half() your module still returns {result.dtype}. "
        if not list(module.buffers()):
            return begin + "It has no buffers, and .half() leaves other tensors as they are: use register_buffer."
        return begin + "Cast the images to the type of the buffers before you divide."
    return hint


def _values_hint(result: Tensor, pixels: Tensor) -> str | None:
    wanted = normalised(pixels)
    if not bool(result.isfinite().all()):
        return "Some results are infinite or not a number."
    if _near(result, wanted):
        return None
    by_value = result.transpose(0, 1).flatten(1)  # [3, 256], in the order of the pixel values
    if bool((by_value.diff(dim=1) < -FP16_TOLERANCE).any()):
        return (
            "Brighter pixels become darker somewhere: a calculation in uint8 went past 0 or 255 and wrapped around. "
            "Cast to a floating-point type before you calculate."
        )
    if by_value[0].unique().numel() < FEWEST_DIFFERENT:
        return "Different pixels come out equal: a whole-number division cut them. Cast before you divide."
    return _formula_hint(result, pixels) or (
        f"Pixel 0 of the first colour becomes {by_value[0, 0]:.3f} instead of {wanted[0, 0, 0, 0]:.3f}: divide by 255, "
        "subtract the mean, then divide by std, each with the value of its colour."
    )


def _formula_hint(result: Tensor, pixels: Tensor) -> str | None:
    mean, std = (torch.tensor(each, dtype=torch.float64).view(3, 1, 1) for each in (MEAN, STD))
    images = pixels.double()
    known = {
        "This only goes from 0 to 1: subtract the mean and divide by std as well.": images / 255,
        "You only cast the pixels: divide by 255, subtract the mean and divide by std.": images,
        "MEAN and STD belong to pixels from 0 to 1: divide by 255 first.": (images - mean) / std,
        "You multiply by std, and normalising divides by it.": (images / 255 - mean) * std,
        "You subtract the mean but do not divide by std.": images / 255 - mean,
        "Your brackets divide only the mean by std: subtract first, then divide.": images / 255 - mean / std,
    }
    return next((hint for hint, values in known.items() if _near(result, values)), None)


def _near(result: Tensor, wanted: Tensor) -> bool:
    # Around 255, fp16's numbers lie 1/8 apart, so that the tolerance grows with the numbers.
    return bool(((result - wanted).abs() <= FP16_TOLERANCE * (1 + wanted.abs() / 2)).all())


def _device_hint(to_bytes: Any, normalise: Any) -> str | None:
    """Send a batch through a loader and the module through PopTorch, and compare with the host's normalisation."""
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    with torch.random.fork_rng(devices=[]):
        (images, _), *_ = poptorch.DataLoader(options, pictures(to_bytes, 16), batch_size=16)
    model = poptorch.inferenceModel(normalise().half().eval(), options)
    on_device = model(images)
    model.destroy()
    if not _near(on_device.double(), normalised(images)):
        return "PopTorch computes a different result from PyTorch: does forward do the same every time?"
    return None
