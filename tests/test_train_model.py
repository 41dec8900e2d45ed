"""What the training program puts on the IPUs, and how it loads images: compared with plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import poptorch
from ipu_course.errors import SettingsError
from ipu_course.models import ClassifierWithLoss, NormaliseOnDevice
from ipu_course.programs.options import nearest
from ipu_course.programs.train.cifar10 import cifar10
from ipu_course.programs.train.loading import host_transform, loading, measured_seconds_per_image
from ipu_course.programs.train.model import example_micro_batch, make_optimiser, training_module, training_options
from ipu_course.programs.train.settings import TrainSettings

SMALL = {"model": "shufflenet_v2_x0_5", "image_size": 32, "batch_size": 4, "gradient_accumulation": 1, "seed": 1}


def small(**changes: Any) -> TrainSettings:
    return TrainSettings(**{**SMALL, **changes})


def blocks(module: nn.Module) -> dict[str, str]:
    """The layers that begin a block, with the text of their annotation."""
    found = {}
    for name, layer in module.named_modules():
        for hook in layer._forward_pre_hooks.values():
            found[name] = repr(hook)
    return found


class TestClassifier:
    def test_it_gives_loss_logits_and_accuracy(self) -> None:
        logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [0.0, 3.0, 1.0], [1.0, 0.0, 0.0]])
        labels = torch.tensor([0, 1, 1, 0])
        loss, out, accuracy = ClassifierWithLoss(nn.Identity())(logits, labels)
        assert torch.equal(out, logits)
        torch.testing.assert_close(loss, F.cross_entropy(logits, labels))
        assert accuracy.item() == 75

    @pytest.mark.parametrize(
        ("precision", "weights", "images"),
        [
            ("16.16", torch.float16, torch.float16),
            ("16.32", torch.float32, torch.float16),
            ("32.32", torch.float32, torch.float32),
        ],
    )
    def test_precision_names_the_types_of_images_and_weights(
        self, precision: str, weights: torch.dtype, images: torch.dtype
    ) -> None:
        settings = small(precision=precision)
        assert {p.dtype for p in training_module(settings).parameters()} == {weights}
        transformed, _ = cifar10(train=True, source="shapes", transform=host_transform(settings))[0]
        assert transformed.dtype == images
        assert example_micro_batch(settings)[0].dtype == images

    def test_the_model_is_torchvision_s_with_1000_outputs(self) -> None:
        torch.manual_seed(0)
        ours = training_module(small(precision="32.32")).model
        torch.manual_seed(0)
        theirs = torchvision.models.shufflenet_v2_x0_5()
        images = torch.rand(2, 3, 32, 32)
        assert torch.equal(ours.eval()(images), theirs.eval()(images))
        assert theirs(images).shape == (2, 1000)


class TestEightBitInput:
    def test_the_device_normalises_as_the_host_does(self) -> None:
        pictures = cifar10(train=True, source="shapes")
        settings = small(precision="32.32")
        torch.manual_seed(2)  # the flip is random
        on_host = host_transform(settings)(pictures[3][0])
        torch.manual_seed(2)
        sent = host_transform(small(precision="32.32", eight_bit_io=True))(pictures[3][0])
        assert sent.dtype == torch.uint8
        on_device = NormaliseOnDevice(torch.float32)(sent)
        torch.testing.assert_close(on_device, on_host, rtol=1e-6, atol=1e-6)

    def test_a_model_in_half_precision_normalises_in_half_precision(self) -> None:
        module = training_module(small(eight_bit_io=True))
        assert {buffer.dtype for buffer in module.normalise.buffers()} == {torch.float16}
        images, labels = example_micro_batch(small(eight_bit_io=True))
        assert images.dtype == torch.uint8
        assert module.eval()(images, labels)[1].dtype == torch.float16

    def test_without_it_the_model_takes_images_as_they_are(self) -> None:
        assert training_module(small()).normalise is None


class TestSplit:
    def test_the_workshop_s_split_of_resnet_101(self) -> None:
        # day03-resnet101.md: model.layer3[8] = poptorch.BeginBlock(model.layer3[8], ipu_id=1).
        found = blocks(training_module(TrainSettings(image_size=32, batch_size=2)))
        assert list(found) == ["model.layer3.8"]
        assert "ipu_id=1" in found["model.layer3.8"]

    def test_layers_begin_on_the_next_ipu_in_the_model_s_order(self) -> None:
        found = blocks(training_module(small(model="resnet18", split=("layer4.0", "layer2"))))
        assert ["ipu_id=1" in found["model.layer2"], "ipu_id=2" in found["model.layer4.0"]] == [True, True]

    def test_other_models_are_not_split(self) -> None:
        assert blocks(training_module(small())) == {}

    def test_an_unknown_layer_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(SettingsError, match=r"--split layer3\.88: resnet101 has no such layer.*layer3\.8"):
            training_module(TrainSettings(image_size=32, split=("layer3.88",)))

    @pytest.mark.parametrize(
        ("split", "words"),
        [
            (
                ("layer3.8", "layer3.8"),
                r"--split layer3\.8: there is no layer between it and layer3\.8",
            ),
            (("layer3", "layer2", "layer3"), "--split layer3: there is no layer between it and layer3"),
            (("layer3", "layer3.0"), r"--split layer3\.0: there is no layer between it and layer3"),
            (("layer3.0.conv1", "layer3"), r"--split layer3: .* layer3\.0\.conv1"),
            (("conv1",), "--split conv1: there is no layer between it and the beginning of the model"),
        ],
    )
    def test_a_split_that_leaves_a_stage_empty_is_refused(self, split: tuple[str, ...], words: str) -> None:
        with pytest.raises(SettingsError, match=words):
            training_module(TrainSettings(image_size=32, split=split))
        training_module(small(model="resnet18", split=("layer3", "layer3.1", "fc")))


class TestRefusals:
    def test_an_unknown_model_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(SettingsError, match=r"no such classifier; nearest: .*resnet18"):
            training_module(small(model="resnet81"))

    @pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn", "raft_small"])
    def test_a_model_that_is_no_classifier_is_refused(self, name: str) -> None:
        with pytest.raises(SettingsError, match="no such classifier"):
            training_module(small(model=name))

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"model": "alexnet", "image_size": 16}, "Output size is too small"),
            ({"model": "vit_b_16", "image_size": 40}, "indivisible by patch size"),
            ({"model": "resnet18", "image_size": 16, "batch_size": 1}, "more than 1 value per channel"),
        ],
    )
    def test_images_that_do_not_pass_are_refused_with_torchvision_s_reason(
        self, changes: dict[str, Any], reason: str
    ) -> None:
        with pytest.raises(SettingsError, match=reason) as refusal:
            training_module(small(**changes))
        assert "--image-size 224" in str(refusal.value)
        assert "\n" not in str(refusal.value)

    @pytest.mark.parametrize("name", ["vit_b_16", "googlenet", "regnet_y_400mf", "swin_t", "mobilenet_v3_small"])
    def test_models_with_settings_of_their_own_work(self, name: str) -> None:
        module = training_module(small(model=name, precision="32.32")).eval()
        loss, logits, _ = module(torch.rand(2, 3, 32, 32), torch.tensor([1, 2]))
        assert logits.shape == (2, 1000)
        assert torch.isfinite(loss)

    def test_there_is_always_a_name_to_suggest(self) -> None:
        assert nearest("???", ["first", "second"]) == "nearest: first, second"


class TestOptimiserAndOptions:
    def test_16_16_has_the_published_optimiser(self) -> None:
        settings = small(learning_rate=0.001)
        optimiser: Any = make_optimiser(settings, training_module(settings))
        # day03-resnet101.md, "Optimiser".
        assert isinstance(optimiser, poptorch.optim.AdamW)
        assert optimiser.loss_scaling == 1000
        assert optimiser.accum_type == torch.float16
        assert optimiser.first_order_momentum_accum_type == torch.float16
        assert optimiser.second_order_momentum_accum_type == torch.float32
        assert optimiser.param_groups[0]["lr"] == 0.001

    @pytest.mark.parametrize("precision", ["16.32", "32.32"])
    def test_other_precisions_have_a_plain_adamw(self, precision: str) -> None:
        settings = small(precision=precision, learning_rate=0.5)
        optimiser: Any = make_optimiser(settings, training_module(settings))
        assert isinstance(optimiser, poptorch.optim.AdamW)
        assert optimiser.loss_scaling == 1
        assert optimiser.accum_type == torch.float32
        assert optimiser.param_groups[0]["lr"] == 0.5

    def test_the_options_are_the_settings(self) -> None:
        options = training_options(small(device_iterations=4, gradient_accumulation=8, replicas=2))
        assert options.device_iterations == 4
        assert options.Training.gradient_accumulation == 8
        assert options.replication_factor == 2
        assert options.random_seed == 1


class TestLoading:
    def test_an_item_holds_the_images_of_a_call(self) -> None:
        settings = small(device_iterations=2, gradient_accumulation=3, replicas=2, eight_bit_io=True)
        images = cifar10(train=True, source="shapes", transform=host_transform(settings))
        with loading(settings, training_options(settings), images) as loader:
            pixels, labels = next(iter(loader))
            assert len(loader) == 50_000 // 48
        assert (pixels.shape, pixels.dtype) == ((4 * 2 * 3 * 2, 3, 32, 32), torch.uint8)
        assert len(labels) == 48

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_a_limited_epoch_takes_other_images_each_time(self, asynchronous: bool) -> None:
        settings = small(limit_batches=3, async_dataloader=asynchronous)
        images = cifar10(train=True, source="shapes", transform=host_transform(settings))
        with loading(settings, training_options(settings), images) as loader:
            epochs = [[pixels.clone() for pixels, _ in loader] for _ in range(2)]
            assert len(loader) == 3
        assert [len(epoch) for epoch in epochs] == [3, 3]
        assert not torch.equal(epochs[0][0], epochs[1][0])

    def test_images_get_the_size_asked_for(self) -> None:
        settings = small(image_size=48)
        transformed, _ = cifar10(train=True, source="shapes", transform=host_transform(settings))[0]
        assert transformed.shape == (3, 48, 48)

    def test_the_loader_s_speed_is_measured(self) -> None:
        seconds = measured_seconds_per_image(small(), cifar10(True, source="shapes", transform=host_transform(small())))
        assert seconds > 0
