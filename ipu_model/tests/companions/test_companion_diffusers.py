"""Stable Diffusion as optimum-graphcore runs it, unmodified: its pictures are the plain pipeline's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from companion_packages import Computes, need, seeded
from torch import nn

import poptorch

need("diffusers", "transformers", "optimum")

import diffusers  # noqa: E402
from optimum.graphcore.diffusers import IPUStableDiffusionPipeline  # noqa: E402
from optimum.graphcore.diffusers.pipelines.stable_diffusion import pipeline_stable_diffusion_mixin  # noqa: E402
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer  # noqa: E402

SIDE = 64  # pixels; the latent picture has an eighth
WORDS = ["<unk>", "<|startoftext|>", "<|endoftext|>", "a</w>", "cat</w>", "c", "t"]


def denoiser() -> nn.Module:
    """Return Stable Diffusion 1's network with few channels; optimum knows it by the width of the text."""
    sizes = {"block_out_channels": (32, 32, 64, 64), "cross_attention_dim": 768, "sample_size": 64}
    return seeded(lambda: diffusers.UNet2DConditionModel(**sizes)).eval()


def test_the_denoiser_computes_what_it_does_without_poptorch() -> None:
    inputs = (torch.randn(2, 4, 8, 8), torch.tensor([3, 3]), torch.randn(2, 7, 768))
    model = Computes(lambda network, *inputs: network(*inputs).sample, denoiser())
    with torch.no_grad():
        expected = model(*inputs)
    torch.testing.assert_close(poptorch.inferenceModel(model)(*inputs), expected)


@pytest.fixture
def parts(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Return a function that makes the parts of a pipeline, with the same weights each time."""
    (tmp_path / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(WORDS)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    words = CLIPTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), model_max_length=8)
    few = {"num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 8, "intermediate_size": 32}
    text = CLIPTextConfig(vocab_size=len(WORDS), hidden_size=768, **few)
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}

    def make() -> dict[str, Any]:
        return {
            "unet": denoiser(),
            "vae": diffusers.AutoencoderKL(block_out_channels=[32] * 4, layers_per_block=2, **blocks).eval(),
            "text_encoder": CLIPTextModel(text).eval(),
            "tokenizer": words,
            "scheduler": diffusers.DDIMScheduler(),
            **dict.fromkeys(("safety_checker", "feature_extractor")),
            "requires_safety_checker": False,
        }

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
    for name in there:  # as optimum-graphcore does for half precision
        pipeline_stable_diffusion_mixin.override_module_eps(plain[name])
    pipeline = diffusers.StableDiffusionPipeline(**plain)
    expected = pipeline("a cat", generator=torch.Generator().manual_seed(0), **how).images
    assert found.shape == (1, SIDE, SIDE, 3)
    # Half precision, half partials included, over two steps; without IPUs, half precision alone changes it by 0.006.
    assert abs(found - expected).max() < 0.02
    assert expected.std() > 0.1
