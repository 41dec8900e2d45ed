import ctypes
import pathlib

import torch

import poptorch


def load_library():
    library = next(pathlib.Path("tests").rglob("libcustom_cube_op.*"))
    ctypes.cdll.LoadLibrary(str(library))


def cube(x):
    load_library()
    return poptorch.custom_op([x], "Cube", "com.acme", 1, example_outputs=[x])


def test_custom_op():
    assert cube(torch.ones(1)) == 1.0


def test_attributes_are_checked():
    class Model(torch.nn.Module):
        def forward(self, x):
            return poptorch.custom_op([x], "Relu", "ai.onnx", 1, example_outputs=[x], attributes={"a": 1.5})

    assert Model()(torch.ones(1))[0].shape == (1,)
