"""What the tests of lesson 16 share: the record of the layers that the notebook makes, too."""

from __future__ import annotations

import pytest
import torch

import poptorch
from ipu_course.lessons.numerics_layer_by_layer.layer_values import (
    ACTIVATION_GRADIENTS,
    ACTIVATIONS,
    UPDATED,
    WEIGHT_GRADIENTS,
    WEIGHTS,
    LayerValues,
)
from ipu_course.lessons.numerics_layer_by_layer.two_sensors import (
    LAYERS,
    LEARNING_RATE,
    TwoSensors,
    calls,
    training_options,
)

NAMES = {
    WEIGHTS: "{}.weight",
    ACTIVATIONS: "{}/Gemm:0",
    ACTIVATION_GRADIENTS: "Gradient___{}/Gemm:0",
    WEIGHT_GRADIENTS: "Gradient___{}.weight",
    UPDATED: "UpdatedVar___{}.weight",
}


@pytest.fixture(scope="session")
def record() -> LayerValues:
    """The layers of the network at the last update of the first epoch, in float32."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    options, network = training_options(), TwoSensors()
    for layer in LAYERS:
        for quantity, name in NAMES.items():
            options.anchorTensor(f"{layer} {quantity}", name.format(layer))
    optimizer = poptorch.optim.AdamW(network.parameters(), lr=LEARNING_RATE)
    model = poptorch.trainingModel(network, options, optimizer)
    for call in calls(torch.float32, epochs=1):
        model(*call)
    values = {
        (layer, quantity): model.getAnchoredTensor(f"{layer} {quantity}") for layer in LAYERS for quantity in NAMES
    }
    model.destroy()
    torch.set_num_threads(threads)
    return values
