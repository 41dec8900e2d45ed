"""Ops and tensors have the names of the user's modules, and a profile says what each op works on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hand_written import linear, tensor

from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import profile_program
from ipu_model.predict.op_profiles import naming_of
from ipu_model.predict.profile import CODE, RESERVED, OpProfile, Profile
from ipu_model.predict.program import Program, Recomputation
from ipu_model.step import FLOAT16, FLOAT32, Op, Source, step_of_ops, with_ops
from published.convolutional import day03_program


@pytest.fixture(scope="module")
def resnet() -> Profile:
    """ResNet-101 over two IPUs with recomputation on the first."""
    return profile_program(replace(day03_program(), recomputation=Recomputation.PIPELINE))


def one(profile: Profile, name: str, phase: str = "forward") -> OpProfile:
    (found,) = [op for op in profile.work if op.name == name and op.phase == phase]
    return found


def test_ops_and_tensors_are_known_by_their_module_and_what_happens_there() -> None:
    naming = naming_of(linear())
    assert naming.ops == {
        "out": "fc: matrix product", "loss": "sum", "g_out": "backward expand", "g_x": "fc: data gradient",
        "g_w": "fc: weight gradient", "g_b": "fc: bias gradient", "g_r": "act: relu backward",
    }  # fmt: skip
    assert [naming.tensors[name] for name in ("w", "out", "x")] == ["fc.weight", "fc: matrix product", "x"]
    sources = {"x_1": Source.INPUT, "c_1": Source.CONSTANT, "s": Source.SEED}
    step = step_of_ops([], [(tensor(name, 4), source) for name, source in sources.items()])
    assert list(naming_of(step).tensors.values()) == ["x 1", "constant c 1", "gradient of the loss"]


@pytest.mark.parametrize(("kind", "name", "further"), [
    ("_to_copy", "cast", ()), ("clone", "rearrangement", ()), ("bernoulli", "random mask", ()),
    ("threshold", "relu", ()), ("constant_pad_nd", "padding", ()), ("cat", "concatenation", ()),
    ("embedding_dense_backward", "embedding backward", ()), ("bmm", "matrix product", ()),
    ("nll_loss2d_forward", "negative log-likelihood", ()),
    ("nll_loss_backward", "negative log-likelihood backward", ()),
    ("_log_softmax_backward_data", "log softmax backward", ()), ("native_layer_norm", "layer norm", ()),
    ("max_pool2d_with_indices_backward", "max pool backward", ()),
    ("_embedding_bag", "embedding bag", ()),  # its own name, without what only PyTorch needs
    ("native_batch_norm", "batch norm", ("batch norm, mean", "batch norm, inverse standard deviation")),
    ("max_pool2d_with_indices", "max pool", ("max pool, indices",)),
    ("sort", "sort", ("sort, result 2",)),
    ("convolution_backward", "data gradient", ("weight gradient", "bias gradient")),
])  # fmt: skip
def test_words_for_a_kind_of_op_and_its_further_results(kind: str, name: str, further: tuple[str, ...]) -> None:
    results = tuple(replace(tensor(f"r{k}", 4, producer="op"), index=k) for k in range(1 + len(further)))
    naming = naming_of(step_of_ops([Op("op", kind, results, scope="layer")], []))
    assert list(naming.tensors.values()) == [f"layer: {words}" for words in (name, *further)]
    if kind != "convolution_backward":
        assert naming.ops == {"op": f"layer: {name}"}


def test_name_scopes_of_the_program_are_part_of_the_path() -> None:
    step = with_ops(linear(), lambda op: replace(op, name_scopes=((0, "head"),)) if op.scope else op)
    assert naming_of(step).ops["out"] == "head.fc: matrix product"
    assert {op.scope for op in profile_program(Program(step, training=True)).ops if op.node == "out"} == {"head.fc"}


def test_updates_and_states_are_known_by_their_weights_and_types() -> None:
    spec = OptimiserSpec("ADAM", Hyper(lr=0.1), first_dtype=FLOAT16, second_dtype=FLOAT32)
    profile = profile_program(Program(linear(), training=True, optimiser=spec))
    assert [op.name for op in profile.updates] == ["fc.weight: update", "fc.bias: update"]
    states = {tensor.dtype for tensor in profile.memory[0].live_at_peak if tensor.category == "optimiser state"}
    assert states == {"float16", "float32"}


def test_names_of_a_captured_network(resnet: Profile) -> None:
    """The gradients of a convolution are told apart, no op keeps a number of the graph, classes are known."""
    conv = "model.layer3.8.conv2"
    names = {op.name for op in resnet.ops if op.scope == conv}
    assert {f"{conv}: {what}" for what in ("convolution", "data gradient", "weight gradient")} <= names
    assert [op.name for op in resnet.work if "_default" in op.name] == []
    assert resnet.layers[conv] == "Conv2d"


def test_a_convolution_and_its_gradient_say_what_they_work_on_and_where(resnet: Profile) -> None:
    forward = one(resnet, "model.conv1: convolution")
    assert forward.operands == ("float16[64, 3, 64, 64]", "float16[64, 3, 7, 7]")
    assert forward.results == ("float16[64, 64, 32, 32]",)
    # 2 bytes for each element of image, kernel and result.
    assert forward.accessed_bytes == 2 * (64 * 3 * 64**2 + 64 * 3 * 7**2 + 64 * 64 * 32**2)
    assert forward.intensity == forward.flops / forward.accessed_bytes
    gradient = one(resnet, "model.layer3.8.conv2: weight gradient", "backward")
    assert gradient.results == ("float16[256, 256, 3, 3]",)
    assert gradient.operands == ("float16[64, 256, 4, 4]",) * 2
    assert "resnet.py" in forward.line
    assert "self.conv1(x)" in forward.line
    assert one(resnet, "model.conv1: weight gradient", "backward").line == forward.line


def test_no_contraction_is_faster_than_the_matrix_units(resnet: Profile) -> None:
    assert all(0 < op.utilisation <= 1 for op in resnet.work if op.flops)
    assert [op.utilisation for op in resnet.work if not op.flops and op.utilisation] == []
    # A GC200 does 62.5 TFLOP/s on fp16 with fp32 partials at 1.33 GHz: 1,472 tiles x 64 x 2 / 4 FLOPs a cycle x 2.
    peak = one(resnet, "model.conv1: convolution").peak_flops_per_cycle
    assert peak * resnet.machine.clock_hz == pytest.approx(day03_program().system.chip.peak_flops(2), rel=1e-9)


def test_only_the_first_stage_recomputes_and_its_phases_alternate(resnet: Profile) -> None:
    for op in resnet.ops:
        assert op.executions - op.recomputations == 8
        assert op.recomputations in ((0, 8) if op.stage == 0 and op.phase == "forward" else (0,))
    phases = [step.phase for step in resnet.memory[0].liveness if step.phase in ("recompute", "backward")]
    assert any(before != after for before, after in pairwise(phases))
    assert phases[0] == "recompute"
    known = {(op.node, op.part): (op.name, op.stage) for op in resnet.work}
    for memory in resnet.memory:
        assert all(known[step.node, step.part] == (step.name, step.stage) for step in memory.liveness)


def test_tensors_alive_at_the_peak_and_code_make_up_the_fullest_tile(resnet: Profile) -> None:
    """They add up to their categories, and all of them are in memory at the peak; the largest come first."""
    for memory in resnet.memory:
        alive = memory.live_at_peak
        by_category = {category.name: category for category in memory.categories}
        code = sum(by_category.pop(name).bytes_on_fullest_tile for name in (*CODE, RESERVED) if name in by_category)
        sizes = [tensor.bytes_on_fullest_tile for tensor in alive]
        assert sum(sizes) + code == pytest.approx(memory.max_tile_bytes)
        assert sizes == sorted(sizes, reverse=True)
        for name, category in by_category.items():
            own = [tensor for tensor in alive if tensor.category == name]
            assert sum(t.bytes_on_fullest_tile for t in own) == pytest.approx(category.bytes_on_fullest_tile)
            assert sum(t.total_bytes for t in own) == pytest.approx(category.total_bytes)
        assert all(tensor.first <= memory.peak <= tensor.last for tensor in alive)
        assert memory.liveness[memory.peak].bytes_on_tile == max(step.bytes_on_tile for step in memory.liveness)


def test_weights_have_the_names_of_users_and_are_always_live(resnet: Profile) -> None:
    first, second = ({t.name: t for t in m.live_at_peak if t.category == "variables"} for m in resnet.memory)
    assert "model.layer4.0.conv1.weight" in second
    weight = first["model.conv1.weight"]
    assert (weight.always_live, weight.first, weight.last) == (True, 0, len(resnet.memory[0].liveness) - 1)
    assert (weight.shape, weight.dtype) == ((64, 3, 7, 7), "float16")
