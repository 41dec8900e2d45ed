"""The rebuilt programs of the published rows are those that the sources describe."""

from __future__ import annotations

import pytest

from ipu_model.predict.program import Program
from published import convolutional, transformers


@pytest.mark.parametrize(
    ("program", "samples", "ipus"),
    [
        # published.toml: micro-batch x accumulation x device iterations x replicas, and IPUs of a replica
        (convolutional.mlperf_pod64_program, 20 * 3 * 64, 1),
        (convolutional.mlperf_bow_pod64_program, 20 * 4 * 64, 1),
        (convolutional.user_guide_program, 18 * 57 * 16, 1),
        (transformers.bert_base_program, 32 * 512 * 4, 4),
        (transformers.bert_large_program, 8 * 1752 * 4, 4),
        (transformers.vit_program, 8 * 2048 * 4, 4),
        (transformers.swin_program, 4 * 64 * 4, 4),
        (convolutional.efficientnet_program, 4 * 32 * 4 * 8, 2),
    ],
)
def test_a_call_has_the_published_number_of_samples_and_ipus(program: Program, samples: int, ipus: int) -> None:
    built = program()
    assert built.samples_per_call == samples
    assert built.ipus_per_replica == ipus
    assert built.training


# Weights as published by the networks' authors, in millions.
@pytest.mark.parametrize(
    ("program", "millions"),
    [
        (transformers.bert_base_program, 110),
        (transformers.bert_large_program, 336),
        (transformers.vit_program, 86.6),
        (transformers.swin_program, 28.3),
        (convolutional.mlperf_program, 25.6),
    ],
)
def test_networks_have_as_many_weights_as_their_authors_say(program: Program, millions: float) -> None:
    step = program().step
    weights = sum(step.tensors[each.tensor].elements for each in step.variables if each.trainable)
    assert weights / 1e6 == pytest.approx(millions, rel=0.01)


def test_bert_ends_on_the_ipu_where_it_begins() -> None:
    """The decoder shares its weights with the word embedding, so both are on IPU 0, in different stages."""
    stages = transformers.bert_base_program().step.stages
    assert [stage.ipu for stage in stages][:5] == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("layers", [(3, 3, 3, 3), (2, 4, 4, 2)])
def test_a_vision_transformer_has_its_layers_where_they_are_asked_for(layers: tuple[int, ...]) -> None:
    step = transformers.vit_program(layers).step
    found = [{op.scope.split("layers.")[1].split(".")[0] for op in step.ops if op.ipu == ipu and "layers." in op.scope}
             for ipu in range(len(layers))]  # fmt: skip
    assert tuple(map(len, found)) == layers
