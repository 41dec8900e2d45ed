"""Parameters of which every group of replicas trains its own slice, against plain PyTorch on each group's rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executor_support import quiet, sgd
from torch import Tensor, nn

import poptorch
from poptorch import CommGroupType, VariableRetrievalMode

ONE = VariableRetrievalMode.OnePerGroup
REPLICAS, FEATURES = 4, 3

# (kind, replicas of a group, the group of each replica): options reference, section 10.
GROUPINGS = [
    (CommGroupType.All, 4, (0, 0, 0, 0)),
    (CommGroupType.Consecutive, 2, (0, 0, 1, 1)),
    (CommGroupType.Orthogonal, 2, (0, 1, 0, 1)),
    (CommGroupType.NoGrouping, 0, (0, 1, 2, 3)),
]
IDS = [kind.name for kind, *_ in GROUPINGS]


class Grouped(nn.Module):
    """`own` has a slice for each group, `shared` is the same on all replicas; the loss is a mean square."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.own = nn.Parameter(torch.randn(groups, FEATURES, generator=generator))
        self.shared = nn.Parameter(torch.randn(FEATURES, generator=generator))
        self.seen: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.append(tuple(self.own.shape))
        out = (x * self.own * self.shared).sum(1)
        return out, poptorch.identity_loss(out * out, "mean")


def wrapped(
    kind: CommGroupType, shards: int, groups: int, options: poptorch.Options, make: Any = sgd
) -> tuple[Grouped, poptorch.PoplarExecutor, Any]:
    model = Grouped(groups)
    optimizer = make(model)
    executor = poptorch.trainingModel(model, options.replicationFactor(REPLICAS), optimizer)
    executor.own.replicaGrouping(kind, shards, ONE)
    return model, executor, optimizer


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))


def plain(group_of: tuple[int, ...], x: Tensor, updates: int, accumulation: int, optimiser: Any, mean: bool) -> Grouped:
    """Train in plain PyTorch; rows come in the order [update, accumulation, replica, row]."""
    groups = max(group_of) + 1
    model = Grouped(groups)
    optimizer = optimiser(model.parameters())
    for update in x.view(updates, accumulation, REPLICAS, -1, FEATURES):
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


class TestTraining:
    @pytest.mark.parametrize(("kind", "shards", "group_of"), GROUPINGS, ids=IDS)
    @pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
    def test_each_group_trains_its_slice_on_its_own_rows(
        self, kind: CommGroupType, shards: int, group_of: tuple[int, ...], mean: bool
    ) -> None:
        options = quiet().deviceIterations(2)
        options.Training.gradientAccumulation(2)
        if not mean:
            options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
        model, executor, _ = wrapped(kind, shards, max(group_of) + 1, options)
        x = rows(2 * 2 * REPLICAS * 2)
        executor(x)
        oracle = plain(group_of, x, 2, 2, lambda p: torch.optim.SGD(p, lr=0.1), mean)
        torch.testing.assert_close(model.own.data, oracle.own.data)
        torch.testing.assert_close(model.shared.data, oracle.shared.data)

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (lambda m: sgd(m, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
            (lambda m: sgd(m, momentum=0.9, use_combined_accum=True),
             lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
            (lambda m: poptorch.optim.Adam(m.parameters(), lr=0.1), lambda p: torch.optim.Adam(p, lr=0.1)),
            (lambda m: torch.optim.RMSprop(m.parameters(), lr=0.1), lambda p: torch.optim.RMSprop(p, lr=0.1))
        ],
        ids=["separate", "combined", "Adam", "torch RMSprop"]
    )  # fmt: skip
    def test_optimisers_keep_state_for_each_slice(self, ours: Any, theirs: Any) -> None:
        model, executor, optimizer = wrapped(CommGroupType.NoGrouping, 0, REPLICAS, quiet(), ours)
        x = rows(3 * REPLICAS * 2)
        for part in x.split(REPLICAS * 2):
            executor(part)
        oracle = plain((0, 1, 2, 3), x, 3, 1, theirs, mean=True)
        torch.testing.assert_close(model.own.data, oracle.own.data, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(model.shared.data, oracle.shared.data, atol=1e-5, rtol=1e-4)
        if isinstance(optimizer, poptorch.optim.Optimizer):
            assert optimizer.state_dict()["ipu_state"]["Accl1___own"].shape == (REPLICAS, FEATURES)

    def test_losses_and_outputs_are_those_of_each_replica(self) -> None:
        model, executor, _ = wrapped(CommGroupType.NoGrouping, 0, REPLICAS, quiet())
        own, shared, x = model.own.detach().clone(), model.shared.detach().clone(), rows(REPLICAS)
        out, loss = executor(x)
        torch.testing.assert_close(out, (x * own * shared).sum(1))
        torch.testing.assert_close(loss, out**2)

    def test_equal_slices_with_equal_rows_train_like_a_shared_weight(self) -> None:
        model, executor, _ = wrapped(CommGroupType.NoGrouping, 0, REPLICAS, quiet())
        with torch.no_grad():
            model.own.copy_(torch.ones(REPLICAS, FEATURES))
        executor(rows(1).expand(REPLICAS, FEATURES).contiguous())
        assert all(torch.equal(own, model.own[0]) for own in model.own)
        assert not torch.equal(model.own[0], torch.ones(FEATURES))

    def test_groups_may_share_their_input(self) -> None:
        options = quiet().replicationFactor(REPLICAS).inputReplicaGrouping(2, CommGroupType.Orthogonal)
        model, executor, _ = wrapped(CommGroupType.Orthogonal, 2, 2, options)
        x = rows(2)
        executor(x)
        oracle = plain((0, 1, 0, 1), x[[0, 1, 0, 1]], 1, 1, lambda p: torch.optim.SGD(p, lr=0.1), mean=True)
        torch.testing.assert_close(model.own.data, oracle.own.data)


class TestWeights:
    def test_forward_sees_the_parameter_without_the_leading_dimension(self) -> None:
        model, executor, _ = wrapped(CommGroupType.Consecutive, 2, 2, quiet())
        executor(rows(REPLICAS))
        assert model.seen == [(FEATURES,)]
        assert model.own.shape == (2, FEATURES)
        assert model.state_dict()["own"].shape == (2, FEATURES)

    def test_values_of_the_host_reach_their_groups(self) -> None:
        _, executor, _ = wrapped(CommGroupType.NoGrouping, 0, REPLICAS, quiet(), lambda m: sgd(m, lr=0.0))
        x = torch.ones(REPLICAS, FEATURES)
        executor(x)
        executor.load_state_dict({"own": torch.arange(12.0).view(4, 3), "shared": torch.ones(3)})
        assert executor(x)[0].tolist() == [3, 12, 21, 30]

    def test_inference_uses_each_groups_slice(self) -> None:
        model = Grouped(2)
        executor = poptorch.inferenceModel(model, quiet().replicationFactor(REPLICAS))
        executor.own.replicaGrouping(CommGroupType.Consecutive, 2, VariableRetrievalMode.AllReplicas)
        x = rows(REPLICAS)
        expected = (x * model.own[[0, 0, 1, 1]] * model.shared).sum(1)
        torch.testing.assert_close(executor(x)[0], expected.detach())

    def test_an_updated_slice_can_be_anchored_for_each_replica(self) -> None:
        options = quiet()
        options.anchorTensor("own", "UpdatedVar___own")
        model, executor, _ = wrapped(CommGroupType.Orthogonal, 2, 2, options)
        executor(rows(REPLICAS))
        anchored = executor.getAnchoredTensor("own").view(REPLICAS, FEATURES)
        assert torch.equal(anchored, model.own.data[[0, 1, 0, 1]])

    def test_a_failed_trace_leaves_the_parameter_whole(self) -> None:
        model, executor, _ = wrapped(CommGroupType.Consecutive, 2, 2, quiet())
        with pytest.raises(RuntimeError, match=r"broadcast|size of tensor"):
            executor(torch.ones(REPLICAS, FEATURES + 1))
        assert model.own.shape == (2, FEATURES)


class TestRules:
    def grouping(self, parameter: Tensor, *arguments: Any) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(parameter)

        executor = poptorch.inferenceModel(Model(), quiet().replicationFactor(REPLICAS))
        executor.weight.replicaGrouping(*arguments)

    def test_scalars_are_refused(self) -> None:
        with pytest.raises(poptorch.Error, match="Scalars cannot be passed as per-replica"):
            self.grouping(torch.ones(()), CommGroupType.NoGrouping, 0, ONE)

    @pytest.mark.parametrize("shards", [0, 3, 8])
    def test_groups_divide_the_replicas(self, shards: int) -> None:
        with pytest.raises(poptorch.Error, match=f"4 replicas do not divide into groups of {shards}"):
            self.grouping(torch.ones(2, 1), CommGroupType.Consecutive, shards, ONE)

    def test_the_leading_dimension_enumerates_the_groups(self) -> None:
        with pytest.raises(poptorch.Error, match="leading dimension is 3, but 4 replicas in groups of 2 are 2 groups"):
            self.grouping(torch.ones(3, 1), CommGroupType.Consecutive, 2, ONE)

    @pytest.mark.parametrize("arguments", [(1, 2, ONE), (CommGroupType.All, "2", ONE), (CommGroupType.All, 2, 0)])
    def test_arguments_have_their_types(self, arguments: tuple[Any, ...]) -> None:
        with pytest.raises(AssertionError):
            self.grouping(torch.ones(1, 1), *arguments)

    def test_a_compiled_model_keeps_its_groups(self) -> None:
        _, executor, _ = wrapped(CommGroupType.NoGrouping, 0, REPLICAS, quiet())
        executor(rows(REPLICAS))
        with pytest.raises(poptorch.Error, match="the model is compiled"):
            executor.own.replicaGrouping(CommGroupType.NoGrouping, 0, ONE)

    @pytest.mark.parametrize(
        ("make", "word"),
        [
            (lambda m: poptorch.optim.LAMB(m.parameters()), "with LAMB"),
            (lambda m: poptorch.optim.Adam(m.parameters(), max_grad_norm=1.0), "with max_grad_norm"),
        ],
        ids=["LAMB", "clipping"],
    )
    def test_norms_over_whole_tensors_are_refused(self, make: Any, word: str) -> None:
        _, executor, _ = wrapped(CommGroupType.NoGrouping, 0, REPLICAS, quiet(), make)
        with pytest.raises(poptorch.Error, match=word):
            executor(rows(REPLICAS))

    def test_a_parameter_under_two_names_is_refused(self) -> None:
        model = Grouped(REPLICAS)
        model.again = model.own
        executor = poptorch.trainingModel(model, quiet().replicationFactor(REPLICAS), sgd(model))
        executor.own.replicaGrouping(CommGroupType.NoGrouping, 0, ONE)
        with pytest.raises(poptorch.Error, match="under several names"):
            executor(rows(REPLICAS))

    def test_several_processes_are_refused(self) -> None:
        options = quiet()
        options.Distributed.configureProcessId(0, 2)
        _, executor, _ = wrapped(CommGroupType.NoGrouping, 0, REPLICAS, options)
        with pytest.raises(poptorch.Error, match="with several processes"):
            executor(rows(REPLICAS))
