"""Parameters of which every group of replicas trains its own slice, against plain PyTorch on each group's rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executor_support import Module, quiet, sgd
from torch import Tensor, nn

import poptorch
from poptorch import CommGroupType, VariableRetrievalMode

ONE = VariableRetrievalMode.OnePerGroup
REPLICAS, FEATURES = 4, 3

# (kind, replicas of a group) and the group of each replica: options reference, section 10.
APART, PAIRS = (CommGroupType.NoGrouping, 0), (CommGroupType.Consecutive, 2)
GROUPINGS = {
    (CommGroupType.All, 4): (0, 0, 0, 0), PAIRS: (0, 0, 1, 1), (CommGroupType.Orthogonal, 2): (0, 1, 0, 1),
    APART: (0, 1, 2, 3),
}  # fmt: skip


def model_of(groups: int) -> Module:
    """Return a model whose `own` has a slice for each group, and `shared` is the same on all replicas."""

    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        assert model.own.shape == model.shared.shape, "forward sees no leading dimension"
        out = (x * model.own * model.shared).sum(1)
        return out, poptorch.identity_loss(out * out, "mean")

    random = torch.Generator().manual_seed(3)
    own, shared = (nn.Parameter(torch.randn(*shape, generator=random)) for shape in ((groups, FEATURES), (FEATURES,)))
    return Module(forward, own=own, shared=shared)


def grouped(
    grouping: tuple[CommGroupType, int] = APART, options: poptorch.Options | None = None, make: Any = sgd
) -> tuple[Module, Any, Any]:
    model = model_of(max(GROUPINGS[grouping]) + 1)
    optimizer = make(model)
    executor = poptorch.trainingModel(model, (options or quiet()).replicationFactor(REPLICAS), optimizer)
    executor.own.replicaGrouping(*grouping, ONE)
    return model, optimizer, executor


def rows(count: int) -> Tensor:
    return torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(0))


def plain(group_of: tuple[int, ...], x: Tensor, accumulation: int, optimizer: Any, mean: bool = True) -> Module:
    """Train in plain PyTorch; `x` has the dimensions [update * accumulation, replica, row, feature]."""
    groups = max(group_of) + 1
    model = model_of(groups)
    optimizer = optimizer(model.parameters())
    for update in x.split(accumulation):
        own, shared = torch.zeros_like(model.own), torch.zeros_like(model.shared)
        for micro_batches in update:
            for replica, batch in enumerate(micro_batches):
                loss = (((batch * model.own[group_of[replica]] * model.shared).sum(1)) ** 2).mean()
                gradients = torch.autograd.grad(loss, [model.own, model.shared])
                own, shared = own + gradients[0], shared + gradients[1]
        size = REPLICAS // groups
        model.own.grad = own / (accumulation * size) if mean else own
        model.shared.grad = shared / (accumulation * REPLICAS) if mean else shared
        optimizer.step()
    return model


def assert_equal_weights(model: Module, oracle: Module, **tolerance: float) -> None:
    torch.testing.assert_close(model.own.data, oracle.own.data, **tolerance)
    torch.testing.assert_close(model.shared.data, oracle.shared.data, **tolerance)


def plain_sgd(parameters: Any, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, **settings)


class TestTraining:
    @pytest.mark.parametrize("grouping", GROUPINGS, ids=lambda grouping: grouping[0].name)
    @pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
    def test_each_group_trains_its_slice_on_its_own_rows(self, grouping: Any, mean: bool) -> None:
        options = quiet(accumulation=2, deviceIterations=2)
        if not mean:
            options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
        model, _, executor = grouped(grouping, options)
        assert executor.per_replica_params == {"own": (*grouping, ONE)}
        x = rows(2 * 2 * REPLICAS * 2)
        executor(x)
        x = x.view(4, REPLICAS, 2, FEATURES)
        assert_equal_weights(model, plain(GROUPINGS[grouping], x, 2, plain_sgd, mean))

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (lambda m: sgd(m, momentum=0.9), lambda p: plain_sgd(p, momentum=0.9)),
            (lambda m: sgd(m, momentum=0.9, use_combined_accum=True), lambda p: plain_sgd(p, momentum=0.9)),
            (lambda m: poptorch.optim.Adam(m.parameters(), lr=0.1), lambda p: torch.optim.Adam(p, lr=0.1)),
            (lambda m: torch.optim.RMSprop(m.parameters(), lr=0.1), lambda p: torch.optim.RMSprop(p, lr=0.1)),
        ],
        ids=["separate", "combined", "Adam", "torch RMSprop"],
    )
    def test_optimisers_keep_state_for_each_slice(self, ours: Any, theirs: Any) -> None:
        model, optimizer, executor = grouped(make=ours)
        x = rows(3 * REPLICAS * 2)
        for part in x.split(REPLICAS * 2):
            executor(part)
        oracle = plain(GROUPINGS[APART], x.view(3, REPLICAS, 2, FEATURES), 1, theirs)
        assert_equal_weights(model, oracle, atol=1e-5, rtol=1e-4)
        if isinstance(optimizer, poptorch.optim.Optimizer):
            assert optimizer.state_dict()["ipu_state"]["Accl1___own"].shape == (REPLICAS, FEATURES)

    def test_parameters_of_submodules_are_grouped_by_their_dotted_names(self) -> None:
        """As public programs do; by the closed form, each replica moves its slice by the gradient of its own sum."""
        layer = nn.Linear(1, 1, bias=False)
        layer.weight = nn.Parameter(torch.arange(4.0).view(4, 1, 1))
        model = Module(lambda m, x: poptorch.identity_loss(m.layer(x), "sum"), layer=layer)
        executor = poptorch.trainingModel(model, quiet(replicationFactor=REPLICAS), sgd(model, lr=1.0))
        executor.per_replica_params["layer.weight"] = (*APART, ONE)
        executor(torch.arange(4.0).view(4, 1))
        assert model.layer.weight.flatten().tolist() == [0, 0, 0, 0]
        executor.destroy()
        for name, grouping, words in (
            ("weight", (*APART, ONE), "'weight': the model has no parameter of this name"),
            ("layer.weight", APART, "is a tuple of poptorch.CommGroupType, shards and"),
        ):
            executor.per_replica_params = {name: grouping}
            with pytest.raises(poptorch.Error, match=words):
                executor(torch.ones(4, 1))

    def test_groups_may_share_their_input(self) -> None:
        options = quiet().replicationFactor(REPLICAS).inputReplicaGrouping(2, CommGroupType.Orthogonal)
        model, _, executor = grouped((CommGroupType.Orthogonal, 2), options)
        x = rows(2)
        executor(x)
        assert_equal_weights(model, plain((0, 1, 0, 1), x[[0, 1, 0, 1]].view(1, 4, 1, FEATURES), 1, plain_sgd))


class TestWeights:
    def test_values_of_the_host_reach_their_groups(self) -> None:
        model, _, executor = grouped(make=lambda m: sgd(m, lr=0.0))
        x = torch.ones(REPLICAS, FEATURES)
        executor(x)
        executor.load_state_dict({"own": torch.arange(12.0).view(4, 3), "shared": torch.ones(3)})
        assert executor(x)[0].tolist() == [3, 12, 21, 30]
        assert model.state_dict()["own"].shape == model.own.shape == (REPLICAS, FEATURES)

    def test_inference_uses_each_groups_slice(self) -> None:
        model, x = model_of(2), rows(REPLICAS)
        executor = poptorch.inferenceModel(model, quiet(replicationFactor=REPLICAS))
        executor.own.replicaGrouping(*PAIRS, VariableRetrievalMode.AllReplicas)
        expected = (x * model.own[[0, 0, 1, 1]] * model.shared).sum(1)
        torch.testing.assert_close(executor(x)[0], expected.detach())

    def test_an_updated_slice_can_be_anchored_for_each_replica(self) -> None:
        options = quiet()
        options.anchorTensor("own", "UpdatedVar___own")
        model, _, executor = grouped((CommGroupType.Orthogonal, 2), options)
        executor(rows(REPLICAS))
        anchored = executor.getAnchoredTensor("own").view(REPLICAS, FEATURES)
        assert torch.equal(anchored, model.own.data[[0, 1, 0, 1]])

    def test_a_failed_trace_leaves_the_parameter_whole(self) -> None:
        model, _, executor = grouped(PAIRS)
        with pytest.raises(RuntimeError, match=r"broadcast|size of tensor"):
            executor(torch.ones(REPLICAS, FEATURES + 1))
        assert model.own.shape == (2, FEATURES)


class TestRefusals:
    def test_a_compiled_model_keeps_its_groups(self) -> None:
        _, _, executor = grouped()
        executor(rows(REPLICAS))
        with pytest.raises(poptorch.Error, match="the model is compiled"):
            executor.own.replicaGrouping(*APART, ONE)

    @pytest.mark.parametrize(
        ("make", "processes", "words"),
        [
            (lambda m: poptorch.optim.LAMB(m.parameters()), 1, "with LAMB"),
            (lambda m: poptorch.optim.Adam(m.parameters(), max_grad_norm=1.0), 1, "with max_grad_norm"),
            (lambda m: m.__setattr__("again", m.own) or sgd(m), 1, "under several names"),
            (sgd, 2, "with several processes"),
        ],
    )
    def test_what_knows_no_groups(self, make: Any, processes: int, words: str) -> None:
        _, _, executor = grouped(options=quiet(configureProcessId=(0, processes)), make=make)
        with pytest.raises(poptorch.Error, match=words):
            executor(rows(REPLICAS))
