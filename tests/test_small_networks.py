"""The small colour images, the network for them, and the loops that train and test it."""

from __future__ import annotations

import pickle

import pytest
import torch

import poptorch
from ipu_course.datasets import ColourImages, colour_shapes
from ipu_course.datasets.cifar10_shapes import FIRST_TEST_SEED, draw
from ipu_course.loops import accuracy, train_epoch
from ipu_course.loops import test_accuracy as accuracy_on_ipu
from ipu_course.models import SmallNetwork, WithLoss


class TestColourShapes:
    def test_images_are_those_of_the_seeds(self) -> None:
        images = colour_shapes(train=False, images=12)
        assert torch.equal(images.pixels[11].permute(1, 2, 0), torch.from_numpy(draw(1, FIRST_TEST_SEED + 11)))
        assert images.labels.tolist() == [*range(10), 0, 1]
        assert "12 test images" in images.description

    def test_floats_are_normalised_and_bytes_are_left_alone(self) -> None:
        images = colour_shapes(train=True, images=3)
        image, label = images[2]
        # (pixel / 255 - 0.5) / 0.25, as the data set says.
        assert torch.allclose(image, (images.pixels[2].float() / 255 - 0.5) / 0.25)
        assert (image.dtype, int(label), len(images)) == (torch.float32, 2, 3)
        assert torch.equal(images.as_bytes()[2][0], images.pixels[2])

    def test_a_loader_worker_gets_the_same_images(self) -> None:
        images = colour_shapes(train=True, images=3).as_bytes()
        copy = pickle.loads(pickle.dumps(images))
        assert torch.equal(copy.images, images.images)
        assert (copy.description, copy.images.dtype) == (images.description, torch.uint8)

    def test_what_does_not_fit_together_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least 1 image, not 0"):
            colour_shapes(train=True, images=0)
        with pytest.raises(ValueError, match="uint8"):
            ColourImages(torch.zeros(2, 3, 4, 4), torch.zeros(2), "floats")
        with pytest.raises(ValueError, match=r"2 images need labels \[2\]"):
            ColourImages(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3), "labels")


def test_the_network_learns_and_is_tested_on_the_same_weights() -> None:
    torch.manual_seed(0)
    images = colour_shapes(train=True, images=200)
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    options.deviceIterations(5)
    options.outputMode(poptorch.OutputMode.All)
    network = SmallNetwork(width=4)
    optimiser = poptorch.optim.AdamW(network.parameters(), lr=0.01)
    training_model = poptorch.trainingModel(WithLoss(network), options, optimiser)
    batches = poptorch.DataLoader(options, images, batch_size=20)
    results = [train_epoch(training_model, batches) for _ in range(12)]
    assert results[-1].loss < 0.8 * results[0].loss
    training_model.detachFromDevice()
    inference_model = poptorch.inferenceModel(network.eval(), options)
    ipu = accuracy_on_ipu(inference_model, batches)
    assert ipu == pytest.approx(accuracy(network(images.images), images.labels), abs=0.6)


def test_an_epoch_without_a_batch_says_why() -> None:
    with pytest.raises(ValueError, match="no batch to train on"):
        train_epoch(None, [])  # type: ignore[arg-type]  # never asked
    with pytest.raises(ValueError, match="no batch to test on"):
        accuracy_on_ipu(None, [])  # type: ignore[arg-type]  # never asked
