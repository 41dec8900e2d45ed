# needs: transformers
"""Compare throughput and outputs of two vision backbones on replicas, in single and in half precision."""

import time
from collections import OrderedDict

import torch
from transformers import ConvNextConfig, ConvNextForImageClassification, SwinConfig, SwinForImageClassification

import poptorch

MODELS = OrderedDict(
    swin=lambda: SwinForImageClassification(
        SwinConfig(
            image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5
        )
    ),
    convnext=lambda: ConvNextForImageClassification(
        ConvNextConfig(num_stages=2, hidden_sizes=[16, 32], depths=[1, 1], patch_size=4, image_size=32, num_labels=5)
    ),
)


class LogitsOnly(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values):
        return self.model(pixel_values=pixel_values).logits


def benchmark(executor, images, repeats=3):
    executor.compile(images)
    start = time.perf_counter()
    for _ in range(repeats):
        out = executor(images)
    return out, repeats * len(images) / (time.perf_counter() - start)


def main():
    torch.manual_seed(0)
    images = torch.randn(2 * 2 * 2, 3, 32, 32)
    for name, build in MODELS.items():
        model = LogitsOnly(build()).eval()
        with torch.no_grad():
            expected = model(images)
        opts = poptorch.Options()
        opts.replicationFactor(2)
        opts.deviceIterations(2)
        executor = poptorch.inferenceModel(model, opts)
        logits, rate = benchmark(executor, images)
        print(f"{name}: {rate:.0f} images/s")
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-4)
        executor.destroy()

        half = poptorch.inferenceModel(model.half(), opts)
        logits, rate = benchmark(half, images.half())
        print(f"{name}, half: {rate:.0f} images/s")
        assert logits.dtype == torch.half
        assert (logits.float() - expected).abs().max() < 0.05 * max(1.0, expected.abs().max().item())
        half.destroy()


if __name__ == "__main__":
    main()
