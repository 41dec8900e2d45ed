"""The rebuilt programs of the published rows are those that the sources describe."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ipu_model.predict.program import Program
from published import convolutional, transformers


# published.toml: micro-batch x accumulation x device iterations x replicas, and IPUs of a replica; weights as published
# by the networks' authors, in millions.
@pytest.mark.parametrize(
    ("program", "samples", "ipus", "millions"),
    [
        (convolutional.mlperf_pod64_program, 20 * 3 * 64, 1, 25.6),
        (convolutional.mlperf_bow_pod64_program, 20 * 4 * 64, 1, 25.6),
        (convolutional.user_guide_program, 18 * 57 * 16, 1, 25.6),
        (transformers.bert_base_program, 32 * 512 * 4, 4, 110),
        (transformers.bert_large_program, 8 * 1752 * 4, 4, 336),
        (transformers.vit_program, 8 * 2048 * 4, 4, 86.6),
        (transformers.swin_program, 4 * 64 * 4, 4, 28.3),
        (convolutional.efficientnet_program, 4 * 32 * 4 * 8, 2, None),
    ],
)
def test_a_program_has_the_published_samples_a_call_ipus_and_weights(
    program: Callable[[], Program], samples: int, ipus: int, millions: float | None
) -> None:
    built = program()
    step = built.step
    assert (built.samples_per_call, built.ipus_per_replica, built.training) == (samples, ipus, True)
    weights = sum(step.tensors[variable.tensor].elements for variable in step.variables if variable.trainable)
    assert millions is None or weights / 1e6 == pytest.approx(millions, rel=0.01)


def test_bert_ends_on_the_ipu_where_it_begins() -> None:
    """The decoder shares its weights with the word embedding, so both are on IPU 0, in different stages."""
    stages = transformers.bert_base_program().step.stages
    assert [stage.ipu for stage in stages][:5] == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("layers", [(3, 3, 3, 3), (2, 4, 4, 2)])
def test_a_vision_transformer_has_its_layers_where_they_are_asked_for(layers: tuple[int, ...]) -> None:
    ops = [op for op in transformers.vit_program(layers).step.ops if "layers." in op.scope]
    found = [{op.scope.split("layers.")[1].split(".")[0] for op in ops if op.ipu == ipu} for ipu in range(len(layers))]
    assert tuple(map(len, found)) == layers
