"""The programs in examples/: they learn, compute what plain PyTorch computes, and are profiled at full size."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from types import ModuleType

import bert
import lstm
import program
import pytest
import torch
import unet
import vit

import ipu_model
import poptorch
from ipu_model.predict.profile import Profile

PROGRAMS: dict[str, ModuleType] = {"bert": bert, "unet": unet, "lstm": lstm, "vit": vit}
# Steps until the mean loss of the last three is below this share of the first step's.
LEARNS = {"bert": (10, 0.95), "unet": (6, 0.85), "lstm": (12, 0.95), "vit": (8, 0.97)}


def parsed(name: str, *options: str) -> argparse.Namespace:
    arguments: argparse.ArgumentParser = PROGRAMS[name].arguments()
    return arguments.parse_args(options)


def made(name: str, *options: str) -> program.Program:
    found: program.Program = PROGRAMS[name].program(parsed(name, *options))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_small_program_learns_in_half_precision(name: str) -> None:
    steps, share = LEARNS[name]
    losses = PROGRAMS[name].main(["--steps", str(steps)])
    assert len(losses) == steps
    assert sum(losses[-3:]) / 3 < share * losses[0]


def plain_pytorch(of: program.Program, accumulation: int, steps: int) -> tuple[list[float], torch.nn.Module]:
    """Train in plain PyTorch as the IPUs do: the mean gradient of the micro-batches, then one update."""
    model, wanted = of.build()
    groups = [{key: group[key] for key in ("params", "lr", "betas", "eps", "weight_decay")}
              for group in wanted.param_groups]  # fmt: skip
    optimizer = torch.optim.AdamW(groups)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        chunks = [tensor.split(of.micro_batch) for tensor in of.data(of.micro_batch * accumulation, step)]
        of_step = [model(*rows)[-1] for rows in zip(*chunks)]
        (sum(of_step) / accumulation).backward()
        optimizer.step()
        losses.append(sum(of_step).item() / accumulation)
    return losses, model


@pytest.mark.parametrize(
    "options",
    [("bert", "--optimizer", "adamw"), ("unet",), ("unet", "--strategy", "sharded"), ("lstm",), ("vit",)],
    ids=" ".join,
)
def test_in_float32_a_small_program_computes_what_plain_pytorch_computes(options: tuple[str, ...]) -> None:
    of = made(*options, "--precision", "32")
    model, optimizer = of.build()
    expected, reference = plain_pytorch(of, of.options.Training.gradient_accumulation, steps=2)
    found = program.train(program.Program(lambda: (model, optimizer), of.options, of.data, of.micro_batch), steps=2)
    assert found == pytest.approx(expected, rel=1e-5)
    # Adam divides gradients by their size: where one is nearly nothing, its rounding error counts in full.
    apart = torch.cat([(one - two).flatten() for one, two in zip(model.parameters(), reference.parameters())]).abs()
    rate = optimizer.param_groups[0]["lr"]
    assert apart.mean() < 1e-3 * rate
    assert apart.max() < rate


def full_size(name: str, *options: str) -> tuple[torch.nn.Module, Profile]:
    of = made(name, "--size", "full", *options)
    with torch.device("meta"):
        model, optimizer = of.build()
    shapes = tuple(tensor.to("meta") for tensor in of.data(of.micro_batch, 0))
    return model, ipu_model.profile_module(model, shapes, of.options, optimizer=optimizer, micro_batch=True)


def flops(profile: Profile, phase: str) -> int:
    """Of one micro-batch, nothing computed twice."""
    return sum(op.flops for op in profile.ops if op.phase == phase)


def held(profile: Profile, category: str) -> float:
    return sum(each.total_bytes for ipu in profile.memory for each in ipu.categories if each.name == category)


def check_memory(model: torch.nn.Module, profile: Profile, ipus: int) -> None:
    """It fits, every op has a formula, and half-precision weights take two bytes, tied ones once."""
    assert profile.fits
    assert len(profile.memory) == ipus
    assert {op.target for op in profile.fallbacks} == set()
    assert held(profile, "variables") == pytest.approx(2 * sum(weight.numel() for weight in model.parameters()))


@pytest.mark.slow
def test_bert_large_at_full_size() -> None:
    """Multiply-adds count two: 12 d^2 of them for each token and layer, 2 L d in attention; heads for M words."""
    model, profile = full_size("bert")
    check_memory(model, profile, ipus=4)
    assert profile.limited_by == "stage 1"  # seven layers, as stages 2 and 3; IPU 0 has three and both ends
    c = bert.SIZES["full"]
    layers = 24 * c.length * (24 * c.width**2 + 4 * c.length * c.width)
    gather = 2 * c.masked * c.length * c.width
    heads = c.masked * (2 * c.width**2 + 2 * c.width * c.vocabulary) + 2 * c.width**2 + 4 * c.width
    assert flops(profile, "forward") == c.micro_batch * (layers + gather + heads)
    assert flops(profile, "backward") == c.micro_batch * (2 * layers + gather + 2 * heads)
    # Only the last stage of the way forward, the heads', is not computed again for the way back.
    assert profile.flops_per_call == c.accumulation * c.micro_batch * (4 * layers + 2 * gather + 3 * heads)


@pytest.mark.slow
def test_vit_b_16_at_full_size() -> None:
    """196 patches and one class token; the gradient of the images is not computed."""
    model, profile = full_size("vit")
    check_memory(model, profile, ipus=4)
    tokens, width, rows = 197, 768, vit.SIZES["full"].micro_batch
    layers = 12 * tokens * (24 * width**2 + 4 * tokens * width)
    patches, head = 196 * 2 * width * 3 * 16**2, 2 * width * 1000
    assert flops(profile, "forward") == rows * (layers + patches + head)
    assert flops(profile, "backward") == rows * (2 * layers + patches + 2 * head)


@pytest.mark.slow
def test_the_lstm_at_full_size() -> None:
    """Four gates of d x 2d for each word and layer; the first word's state is zero and has no gradient."""
    model, profile = full_size("lstm")
    check_memory(model, profile, ipus=1)
    c = lstm.SIZES["full"]
    forward = c.micro_batch * c.length * (c.layers * 16 * c.width**2 + 2 * c.width * c.vocabulary)
    assert flops(profile, "forward") == forward
    assert flops(profile, "backward") == 2 * forward - c.micro_batch * c.layers * 8 * c.width**2


@pytest.mark.slow
def test_the_unet_at_full_size() -> None:
    """3 x 3 convolutions of n pixels, in and out, then the same with twice the channels coming in."""
    model, profile = full_size("unet")
    check_memory(model, profile, ipus=2)
    c = unet.SIZES["full"]
    pixels = [(c.pixels >> level) ** 2 for level in range(len(c.channels))]
    before = [1, *c.channels]
    down = sum(18 * n * (low * high + high**2) for n, low, high in zip(pixels, before, c.channels))
    up = sum(18 * n * 3 * width**2 for n, width in zip(pixels[:-1], c.channels))
    enlarged = sum(2 * n * low * high for n, low, high in zip(pixels, c.channels, c.channels[1:]))
    head, first = 2 * pixels[0] * c.channels[0] * unet.CLASSES, 18 * pixels[0] * c.channels[0]
    assert flops(profile, "forward") == down + up + enlarged + head
    assert flops(profile, "backward") == 2 * (down + up + enlarged + head) - first


@pytest.mark.parametrize("replicas", [1, 4])
def test_optimiser_state_is_shared_out_over_replicas_where_asked_for(replicas: int) -> None:
    of = made("bert", "--replicas", str(replicas), *["--sharded-state"] * (replicas > 1))
    assert of.options.replication_factor == replicas
    with torch.device("meta"):
        model, optimizer = of.build()
    rows = tuple(tensor.to("meta") for tensor in of.data(of.micro_batch, 0))
    profile = ipu_model.profile_module(model, rows, of.options, optimizer=optimizer, micro_batch=True)
    assert profile.options["location of optimiser"] == "off chip" + ", sharded" * (replicas > 1)


def test_a_profile_is_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lstm.main(["--profile", "--report", str(tmp_path)]) == []
    assert "training: training, modelled with 1 IPU" in capsys.readouterr().out
    assert (tmp_path / "report.html").is_file()


def test_without_the_ipu_model_popvision_gets_the_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "find_spec", lambda name: None)
    assert lstm.main(["--profile", "--report", str(tmp_path / "made")]) == []
    assert f"PopVision Graph Analyser opens {tmp_path / 'made'}" in capsys.readouterr().out
    assert any((tmp_path / "made").rglob("*.json"))


def test_the_programs_need_nothing_but_torch_and_poptorch(project: Path) -> None:
    """And nothing private of them: they run unchanged with Graphcore's PopTorch."""
    allowed = {"torch", "torchvision", "poptorch", "program", *sys.stdlib_module_names}
    for name in PROGRAMS:
        tree = ast.parse((project / "examples" / f"{name}.py").read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        modules = {(getattr(node, "module", None) or node.names[0].name).partition(".")[0] for node in imports}
        assert modules <= allowed
        private = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr[0] == "_"
                   and not (isinstance(node.value, ast.Name) and node.value.id == "self")
                   and not node.attr.startswith("__")]  # fmt: skip
        assert private == []


def test_poptorch_refuses_a_pipeline_that_is_filled_too_little() -> None:
    """BERT's five stages forward need an accumulation of nine: the least that the small one can have."""
    of = made("bert")
    of.options.Training.gradientAccumulation(8)
    with pytest.raises(poptorch.Error, match=r"number of pipeline stages \(9\)"):
        program.train(of, steps=1)
