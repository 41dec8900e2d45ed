"""The networks of the benchmarks: torchvision's, with other groups, norms and types of weights where asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from ipu_course.programs.bench import settings_of_model
from ipu_course.programs.bench.layers import units
from ipu_course.programs.bench.module import benchmark_module, example_micro_batch, network
from ipu_course.programs.bench.settings import BenchSettings


def on_meta(model: str, **changes: Any) -> nn.Module:
    with torch.device("meta"):
        return network(settings_of_model(model, **changes))


def shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def convolutions(module: nn.Module) -> list[nn.Conv2d]:
    return [each for each in module.modules() if isinstance(each, nn.Conv2d)]


@pytest.mark.parametrize(
    ("model", "torchvision_s"),
    [("resnet18", "resnet18"), ("resnet50", "resnet50"), ("resnext50", "resnext50_32x4d"),
     ("efficientnet-b0", "efficientnet_b0"), ("efficientnet-b4", "efficientnet_b4")],
)  # fmt: skip
def test_they_are_torchvision_s(model: str, torchvision_s: str) -> None:
    with torch.device("meta"):
        theirs = torchvision.models.get_model(torchvision_s)
    assert shapes(on_meta(model)) == shapes(theirs)


def test_resnext101_has_the_paper_s_parameters() -> None:
    # Xie et al. (2017), table 3 for 32x4d: 44.3 million for ResNeXt-101 (44,177,704 in common implementations).
    assert sum(parameter.numel() for parameter in on_meta("resnext101").parameters()) == 44_177_704


def test_a_group_has_so_many_channels() -> None:
    groups = {layer.in_channels: layer.groups for layer in convolutions(on_meta("efficientnet-b4", group_dim=16))
              if layer.groups > 1}  # fmt: skip
    assert {channels: channels // count for channels, count in groups.items() if channels % 16 == 0} == {
        channels: 16 for channels in groups if channels % 16 == 0
    }
    # The one number that 16 does not divide gets its largest divisor below 16.
    assert [channels for channels in groups if channels % 16] == [24]
    assert groups[24] == 2


def test_groups_of_16_and_expansion_by_4_are_the_modified_network() -> None:
    plain, modified = on_meta("efficientnet-b4"), on_meta("efficientnet-b4", group_dim=16, expand_ratio=4)
    wide, narrow = (max(layer.groups * (layer.in_channels // layer.groups) for layer in convolutions(each)
                        if layer.groups > 1) for each in (plain, modified))  # fmt: skip
    # The widest middle has 448 x 6 channels, then 448 x 4.
    assert (wide, narrow) == (2688, 1792)


def test_norm_layers_are_those_asked_for() -> None:
    batch, group = on_meta("resnet50"), on_meta("resnet50", normalisation="group", norm_groups=32)
    assert sum(isinstance(each, nn.BatchNorm2d) for each in batch.modules()) == 53
    norms = [each for each in group.modules() if isinstance(each, nn.GroupNorm)]
    assert (len(norms), {each.num_groups for each in norms}) == (53, {32})


@pytest.mark.parametrize("model", ["resnet18", "resnet101", "resnext101", "efficientnet-b0", "efficientnet-b4"])
def test_every_place_to_split_is_a_module(model: str) -> None:
    modules = dict(on_meta(model).named_modules())
    assert [unit for unit in units(model) if unit not in modules] == []


@pytest.mark.parametrize("model", ["resnet18", "efficientnet-b0"])
def test_places_to_split_run_in_their_order_and_hold_every_layer(model: str) -> None:
    made, ran = on_meta(model), []
    for unit in units(model):
        made.get_submodule(unit).register_forward_hook(lambda *_, unit=unit: ran.append(unit))
    made(torch.empty(2, 3, 64, 64, device="meta"))
    assert ran == list(units(model))
    held = {name for name, each in made.named_modules() if not list(each.children())}
    assert all(any(f"{name}.".startswith(f"{unit}.") for unit in units(model)) for name in held)


class TestPrecision:
    @pytest.mark.parametrize(
        ("precision", "images", "kept", "used"),
        [
            ("16.16", torch.float16, torch.float16, torch.float16),
            ("16.32", torch.float16, torch.float32, torch.float16),
            ("32.32", torch.float32, torch.float32, torch.float32),
        ],
    )
    def test_weights_are_kept_in_one_type_and_used_in_another(
        self, precision: str, images: torch.dtype, kept: torch.dtype, used: torch.dtype
    ) -> None:
        settings = settings_of_model("resnet18", precision=precision)
        module = benchmark_module(settings, "meta")
        assert example_micro_batch(settings)[0].dtype is images
        assert {parameter.dtype for parameter in module.parameters()} == {kept}
        assert module.model.conv1.weight.dtype is used  # type: ignore[union-attr]  # a module's attribute

    def test_a_cast_weight_computes_what_the_half_weight_does(self) -> None:
        torch.manual_seed(0)
        mixed = benchmark_module(settings_of_model("resnet18", training=False, precision="16.32"))
        half = benchmark_module(settings_of_model("resnet18", training=False))
        names = {name.replace("parametrizations.", "").replace(".original", ""): tensor
                 for name, tensor in mixed.state_dict().items()}  # fmt: skip
        half.load_state_dict(names)
        images = torch.rand(1, 3, 32, 32).half()
        assert torch.equal(mixed(images), half(images))

    def test_bytes_are_normalised_on_the_device(self) -> None:
        settings = settings_of_model("resnet18", training=False, eight_bit_io=True, precision="32.32")
        module = benchmark_module(settings)
        pixels = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
        # ImageNet's mean and standard deviation by colour.
        mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        images = (pixels / 255 - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
        torch.testing.assert_close(module(pixels), module.model(images))


def test_the_loss_has_its_smoothing() -> None:
    module = benchmark_module(settings_of_model("resnet18", precision="32.32", label_smoothing=0.1))
    images, labels = torch.rand(2, 3, 32, 32), torch.tensor([3, 7])
    module.eval()
    expected = nn.functional.cross_entropy(module.model(images), labels, label_smoothing=0.1)
    torch.testing.assert_close(module(images, labels), expected)


def test_a_micro_batch_has_shapes_and_no_numbers() -> None:
    images, labels = example_micro_batch(BenchSettings("resnet18", batch_size=3, image_size=32, eight_bit_io=True))
    assert (images.shape, images.dtype, images.device.type) == ((3, 3, 32, 32), torch.uint8, "meta")
    assert labels.shape == (3,)
