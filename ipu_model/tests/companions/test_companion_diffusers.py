"""Stable Diffusion as optimum-graphcore runs it, unmodified: its pictures are the plain pipeline's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from companion_packages import need
from torch import Tensor, nn

import poptorch

need("diffusers", "transformers", "optimum")

from diffusers import (  # noqa: E402
    AutoencoderKL,
    DDIMScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from optimum.graphcore.diffusers import IPUStableDiffusionPipeline  # noqa: E402
from optimum.graphcore.diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion_mixin import (  # noqa: E402
    override_module_eps,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer  # noqa: E402

SIDE = 64  # pixels; the latent picture has an eighth
WORDS = ["<unk>", "<|startoftext|>", "<|endoftext|>", "a</w>", "cat</w>", "c", "t"]


def denoiser() -> nn.Module:
    """Return Stable Diffusion 1's network with few channels; optimum knows it by the width of the text."""
    torch.manual_seed(1)
    return UNet2DConditionModel(block_out_channels=(32, 32, 64, 64), cross_attention_dim=768, sample_size=64).eval()


class Denoised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = denoiser()

    def forward(self, latent: Tensor, step: Tensor, text: Tensor) -> Tensor:
        return self.network(latent, step, text).sample


def test_the_denoiser_computes_what_it_does_without_poptorch() -> None:
    inputs = (torch.randn(2, 4, 8, 8), torch.tensor([3, 3]), torch.randn(2, 7, 768))
    model = Denoised()
    with torch.no_grad():
        expected = model(*inputs)
    torch.testing.assert_close(poptorch.inferenceModel(model)(*inputs), expected)


@pytest.fixture
def parts(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Return a function that makes the parts of a pipeline, with the same weights each time."""
    (tmp_path / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(WORDS)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    words = CLIPTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), model_max_length=8)
    text = CLIPTextConfig(
        vocab_size=len(WORDS), hidden_size=768, intermediate_size=32, num_attention_heads=4, num_hidden_layers=1,
        max_position_embeddings=8,
    )  # fmt: skip

    def make() -> dict[str, Any]:
        network = denoiser()
        return {
            "unet": network,
            "vae": AutoencoderKL(
                block_out_channels=[32, 32, 32, 32], layers_per_block=2, down_block_types=["DownEncoderBlock2D"] * 4,
                up_block_types=["UpDecoderBlock2D"] * 4,
            ).eval(),
            "text_encoder": CLIPTextModel(text).eval(), "tokenizer": words, "scheduler": DDIMScheduler(),
            "safety_checker": None, "feature_extractor": None, "requires_safety_checker": False,
        }  # fmt: skip

    return make


@pytest.mark.parametrize(("ipus", "there"), [(4, ["unet"]), (16, ["unet", "text_encoder", "vae"])])
def test_pictures_are_those_of_the_plain_pipeline_to_half_precision(
    ipus: int, there: list[str], parts: Callable[[], dict[str, Any]]
) -> None:
    how = {"num_inference_steps": 2, "height": SIDE, "width": SIDE, "output_type": "numpy"}
    no_cache = {"executable_cache_dir": "disabled"}
    on_ipus = IPUStableDiffusionPipeline(**parts(), n_ipu=ipus, common_ipu_config_kwargs=no_cache)
    found = on_ipus("a cat", generator=torch.Generator().manual_seed(0), **how).images
    plain = parts()
    for name in there:
        override_module_eps(plain[name])  # as optimum-graphcore does for half precision
    expected = StableDiffusionPipeline(**plain)("a cat", generator=torch.Generator().manual_seed(0), **how).images
    assert found.shape == (1, SIDE, SIDE, 3)
    # Half precision, half partials included, over two steps; without IPUs, half precision alone changes it by 0.006.
    assert abs(found - expected).max() < 0.02
    assert expected.std() > 0.1
