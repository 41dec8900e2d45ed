"""Which value a training model is differentiated from, and how (executor reference, sections 8 and 10).

The oracle is plain PyTorch: at rate 1 a step moves the weight by its gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, Scale, inference, quiet, raw, training
from torch import Tensor, nn
from zoo_support import check_training, numbers

import poptorch

REDUCTIONS = ("sum", "mean", "none")
X, REAL = numbers(4, 6), numbers(4, 6, seed=1)
CLASSES, SIGNS = torch.tensor([1, 5, 0, 3]), REAL.sign()
SHARES, CHANCES = REAL.softmax(-1), REAL.sigmoid()


def layered(function: Callable[..., Any]) -> Any:
    """Returns what `function(linear(x), *rest)` returns."""
    torch.manual_seed(1)
    return Module(lambda m, x, *rest: m.inner(m.linear(x), *rest), linear=nn.Linear(6, 6), inner=function)


def steps(function: Callable[..., Any], *inputs: Tensor) -> tuple[Tensor, Any]:
    """Train one step at rate 1; return how far the weight moved, which is the gradient, and the outputs."""
    model = layered(function)
    before = model.linear.weight.detach().clone()
    executor = training(model, lr=1.0)
    results = executor(*inputs)
    return before - model.linear.weight.detach(), results


def gradient(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return the gradient of the sum of `function`'s result, by plain PyTorch."""
    model = layered(function)
    model(*inputs).sum().backward()
    weight: Tensor = model.linear.weight.grad
    return weight


def check(function: Callable[..., Any], *inputs: Tensor, plain: Callable[..., Tensor] | None = None) -> Any:
    """Compare the gradient with that of `plain`, which is the same function by default; return the outputs."""
    moved, results = steps(function, *inputs)
    torch.testing.assert_close(moved, gradient(plain or function, *inputs), atol=1e-6, rtol=1e-5)
    return results


def logarithms(x: Tensor) -> Tensor:
    return F.log_softmax(x, dim=-1)


# Every loss of torch.nn with what it is called with; some take another form of the layer's outputs.
LOSSES: list[tuple[Any, tuple[Tensor, ...], Callable[[Tensor], Tensor] | None]] = [
    (nn.L1Loss(), (REAL,), None),
    (nn.MSELoss(), (REAL,), None),
    (nn.SmoothL1Loss(beta=0.5), (REAL,), None),
    (nn.HuberLoss(delta=0.5), (REAL,), None),
    (nn.CrossEntropyLoss(label_smoothing=0.1), (CLASSES,), None),
    (nn.CrossEntropyLoss(ignore_index=5), (CLASSES,), None),
    (nn.CrossEntropyLoss(), (SHARES,), None),
    (nn.CrossEntropyLoss(), (CLASSES.int(),), None),  # targets may be 32 bits wide
    (nn.NLLLoss(), (CLASSES,), logarithms),
    (nn.BCELoss(), (CHANCES,), torch.sigmoid),
    (nn.BCEWithLogitsLoss(), (CHANCES,), None),
    (nn.BCEWithLogitsLoss(pos_weight=torch.arange(6.0)), (CHANCES,), None),
    (nn.KLDivLoss(reduction="batchmean"), (SHARES,), logarithms),
    (nn.KLDivLoss(log_target=True, reduction="sum"), (SHARES.log(),), logarithms),
    (nn.PoissonNLLLoss(full=True), (3 * CHANCES,), None),
    (nn.GaussianNLLLoss(full=True), (REAL, CHANCES), None),
    (nn.SoftMarginLoss(), (SIGNS,), None),
    (nn.HingeEmbeddingLoss(), (SIGNS,), None),
    (nn.MarginRankingLoss(), (REAL, SIGNS), None),
    (nn.MultiLabelSoftMarginLoss(), ((CHANCES > 0.5).float(),), None),
    (nn.MultiMarginLoss(), (CLASSES,), None),
    (nn.MultiLabelMarginLoss(), (torch.tensor([[1, 2, -1, 0, 0, 0]] * 4),), None),
    (nn.CosineEmbeddingLoss(), (REAL, SIGNS[:, 0]), None),
    (nn.TripletMarginLoss(), (REAL, REAL.flip(0)), None),
    (nn.TripletMarginWithDistanceLoss(), (REAL, REAL.flip(0)), None),
    (
        nn.CTCLoss(),
        (torch.tensor([[1, 2], [3, 3]]), torch.tensor([4, 4]), torch.tensor([2, 1])),
        lambda x: logarithms(x).unsqueeze(1).expand(-1, 2, -1),
    ),
    # Without reduction the gradient equals that of the sum.
    *[(nn.MSELoss(reduction=reduction), (REAL,), None) for reduction in REDUCTIONS],
]


# PopTorch knows these as ordinary ops.
UNMARKED = (
    nn.HuberLoss,
    nn.GaussianNLLLoss,
    nn.MultiMarginLoss,
    nn.MultiLabelMarginLoss,
    nn.TripletMarginWithDistanceLoss,
)


class TestLossesOfTorch:
    @pytest.mark.parametrize(
        ("loss", "targets", "prepare"), LOSSES, ids=[f"{n} {row[0]}" for n, row in enumerate(LOSSES)]
    )
    def test_each_one_marks_itself_and_has_pytorchs_value_and_gradient(
        self, loss: Any, targets: tuple[Tensor, ...], prepare: Any
    ) -> None:
        class Prepared(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.loss = loss

            def forward(self, out: Tensor, *rest: Tensor) -> Any:
                wide = [t.long() if t.dtype is torch.int32 and not poptorch.isRunningOnIpu() else t for t in rest]
                value = self.loss(prepare(out) if prepare else out, *wide)
                return poptorch.identity_loss(value, "none") if isinstance(loss, UNMARKED) else value

        function = Prepared()
        result = check(function, X, *targets)
        with torch.no_grad():
            torch.testing.assert_close(result, layered(function)(X, *targets), atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize(
        ("variance", "reduction"),
        [(CHANCES, "mean"), (CHANCES[:, 0], "sum"), (CHANCES[:, :1], "none"), (0.5, "mean")],
        ids=["each", "a row's", "a row's, kept", "a number"],
    )
    def test_a_gaussian_with_a_variance_of_any_shape(self, variance: Any, reduction: str) -> None:
        """The variance is learnt: its lower limit does not stop its gradient."""

        def forward(model: Any, x: Tensor, y: Tensor) -> Tensor:
            return F.gaussian_nll_loss(model.layer(x), y, model.variance, eps=0.4, reduction=reduction)

        learnt = nn.Parameter(variance.clone()) if isinstance(variance, Tensor) else variance
        check_training(Module(forward, layer=nn.Linear(6, 6), variance=learnt), X, REAL, rate=1e-3)

    def test_losses_of_every_pixel_with_a_class_to_ignore(self) -> None:
        classes = torch.arange(32).reshape(2, 4, 4) % 5
        segmentation = Module(
            lambda m, x, classes: F.cross_entropy(m.layer(x), classes, ignore_index=255), layer=nn.Conv2d(3, 5, 1)
        )
        check_training(segmentation, numbers(2, 3, 4, 4), classes.where(classes > 0, 255))

    def test_class_weights_are_refused(self) -> None:
        with pytest.raises(poptorch.Error, match=r"class weights are not supported.*identity_loss"):
            steps(lambda o, t: F.cross_entropy(o, t, weight=torch.ones(6)), X, CLASSES)


class TestIdentityLoss:
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_on_the_cpu_it_is_the_plain_reduction_and_a_copy(self, reduction: str) -> None:
        x = torch.tensor([[1.0, -2.0], [0.5, 4.0]])
        expected = {"sum": x.sum(), "mean": x.mean(), "none": x.clone()}[reduction]
        result = poptorch.identity_loss(x, reduction=reduction)
        assert torch.equal(result, expected)
        result.add_(1)
        assert x.sum() == 3.5

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_training_differentiates_from_ones_at_the_mark(self, reduction: str) -> None:
        result = check(lambda o: poptorch.identity_loss(o, reduction), X)
        with torch.no_grad():
            torch.testing.assert_close(result, layered(lambda o: poptorch.identity_loss(o, reduction))(X))

    @pytest.mark.parametrize("reduction", ["average", "Sum", "", None])
    def test_another_reduction_is_refused_on_the_cpu_and_when_traced(self, reduction: Any) -> None:
        with pytest.raises(AssertionError, match="Unsupported reduction type!"):
            poptorch.identity_loss(X, reduction)
        with pytest.raises(AssertionError, match="Unsupported reduction type!"):
            steps(lambda o: poptorch.identity_loss(o, reduction), X)

    def test_a_list_of_losses_is_refused(self) -> None:
        with pytest.raises(AssertionError, match=r"identity_loss takes a torch\.Tensor"):
            poptorch.identity_loss([torch.ones(2)], "sum")


def mse(out: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(out, target)


class TestTheFinalLoss:
    @pytest.mark.parametrize(
        ("function", "words"),
        [
            (lambda o, t: o.mean(), r"Couldn't find a loss in graph.*identity_loss"),
            (lambda o, t: mse(o, t) + F.l1_loss(o, t), r"Multiple independent losses found.*identity_loss"),
            (lambda o, t: (mse(o, t), F.l1_loss(o, t)), r"Multiple independent losses found.*identity_loss"),
            # A metric made by a loss function from detached values is a second loss.
            (lambda o, t: (mse(o, t), F.l1_loss(o.detach(), t)), "Multiple independent losses"),
        ],
    )
    def test_none_or_two_are_refused(self, function: Any, words: str) -> None:
        with pytest.raises(poptorch.Error, match=words):
            steps(function, X, REAL)

    @pytest.mark.parametrize("returns", [lambda out: out, lambda out: None], ids=["another output", "nothing"])
    @pytest.mark.parametrize("reduction", ["sum", "none"])
    def test_a_loss_need_not_be_returned(self, returns: Any, reduction: str) -> None:
        def keeps(out: Tensor, target: Tensor) -> Any:
            poptorch.identity_loss((out - target) ** 2, reduction)
            return returns(out)

        result = check(keeps, X, REAL, plain=lambda o, t: (o - t) ** 2)
        assert (result is None) == (returns(0) is None)

    def test_next_to_a_loss_that_is_returned_one_that_is_not_does_not_count(self) -> None:
        check(lambda o, t: (mse(o, t), F.l1_loss(o, t))[1], X, REAL, plain=F.l1_loss)

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_a_combination_is_marked_with_identity_loss(self, reduction: str) -> None:
        def both(out: Tensor, target: Tensor) -> Tensor:
            return F.mse_loss(out, target) + 0.5 * F.l1_loss(out, target)

        check(lambda o, t: poptorch.identity_loss(both(o, t), reduction), X, REAL, plain=both)

    def test_losses_may_be_chained_and_the_last_mark_counts(self) -> None:
        def chained(out: Tensor, target: Tensor) -> Any:
            inner = F.mse_loss(out, target)
            return inner, poptorch.identity_loss(3 * inner, "none")

        check(chained, X, REAL, plain=lambda o, t: 3 * mse(o, t))

    def test_what_follows_the_mark_scales_the_returned_value_but_not_the_gradient(self) -> None:
        scaled, plain = check(lambda o, t: 5 * mse(o, t), X, REAL, plain=mse), check(mse, X, REAL)
        torch.testing.assert_close(scaled, 5 * plain)

    def test_its_place_in_the_outputs_is_irrelevant_and_other_outputs_get_no_gradient(self) -> None:
        out = check(lambda o, t: {"more": [o * 100, (mse(o, t), o.sum())]}, X, REAL, plain=mse)
        assert out["more"][0].shape == (4, 6)

    def test_inference_needs_no_loss(self) -> None:
        assert inference(layered(lambda o: o))(X).shape == (4, 6)


def without_gradient(out: Tensor) -> Tensor:
    with torch.no_grad():
        return out * 1


class TestGradientsThatAreCut:
    def test_frozen_and_unused_parameters_stay(self) -> None:
        model = layered(mse)
        model.linear.bias.requires_grad_(False)
        model.unused = nn.Parameter(torch.ones(2))
        before = copy.deepcopy(model.state_dict())
        executor = training(model, weight_decay=0.5)
        executor(X, REAL)
        assert torch.equal(model.linear.bias, before["linear.bias"])
        assert not torch.equal(model.linear.weight, before["linear.weight"])
        assert model.unused.tolist() == [1, 1]

    @pytest.mark.parametrize("cut", [lambda o: o.detach(), without_gradient], ids=["detach", "no_grad"])
    def test_detached_parts_contribute_nothing(self, cut: Callable[[Tensor], Tensor]) -> None:
        check(lambda o: poptorch.identity_loss(o[0] + cut(o)[1], "sum"), X, plain=lambda o: o[0])

    def test_the_surroundings_of_a_call_do_not_matter(self) -> None:
        model = Scale()
        executor = training(model, lr=0.5)
        with torch.no_grad():
            executor(torch.ones(2))
        with torch.inference_mode():
            executor(torch.ones(2))
        assert model.weight.item() == 0

    def test_a_hook_of_a_parameter_gets_its_gradient(self) -> None:
        model = layered(mse)
        model.linear.weight.register_hook(lambda gradient: gradient * 0)
        executor = training(model)
        before = raw(model, "linear.weight"), raw(model, "linear.bias")
        executor(X, REAL)
        assert torch.equal(model.linear.weight, before[0])
        assert not torch.equal(model.linear.bias, before[1])

    def test_hooks_after_accumulation_do_not_run_and_a_warning_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        model, ran = layered(mse), []
        model.linear.weight.register_post_accumulate_grad_hook(ran.append)
        training(model)(X, REAL)
        assert not ran
        assert "accumulated are not run on the device: linear.weight" in caplog.text


class TestReduction:
    """Section 10: one update from the micro-batches of a step."""

    @pytest.mark.parametrize(
        ("a", "r", "kind", "moved"),
        [(1, 1, "Mean", 2), (4, 1, "Mean", 2), (4, 1, "Sum", 8), (2, 2, "Mean", 2), (2, 2, "Sum", 8)],
    )
    def test_gradients_are_averaged_or_summed_over_accumulation_and_replicas(
        self, a: int, r: int, kind: str, moved: float
    ) -> None:
        options = quiet(replicationFactor=r, accumulation=a)
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType[kind])
        model = Scale()
        executor = training(model, options, lr=1.0)
        executor(torch.full((a * r,), 2.0))
        assert model.weight.item() == 1 - moved

    @pytest.mark.parametrize("strategy", [poptorch.MeanReductionStrategy.Running, poptorch.MeanReductionStrategy.Post])
    def test_the_mean_strategy_changes_rounding_only(self, strategy: poptorch.MeanReductionStrategy) -> None:
        options = quiet(accumulation=3)
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
        model = Scale()
        executor = training(model, options, lr=1.0)
        executor(torch.tensor([1.0, 2.0, 6.0]))
        assert model.weight.item() == pytest.approx(1 - 3)

    def test_accumulation_equals_a_larger_micro_batch_with_a_mean_loss(self) -> None:
        results = []
        for accumulation in (1, 2):
            model = layered(mse)
            executor = training(model, quiet(accumulation=accumulation), lr=0.5)
            executor(X, REAL)
            results.append(model.linear.weight.detach().clone())
        torch.testing.assert_close(*results)

    def test_each_device_iteration_starts_from_the_weights_of_the_one_before(self) -> None:
        weight = nn.Parameter(torch.tensor([1.0]))
        model = Module(lambda m, x: poptorch.identity_loss(x * m.weight**2, "sum"), weight=weight)
        executor = training(model, quiet(deviceIterations=3), lr=0.25)
        executor(torch.ones(3))
        assert weight.item() == 0.5**3, "each update takes 0.25 * 2 w off"

    def test_replicas_keep_the_same_weights(self) -> None:
        executor = training(Scale(), quiet(replicationFactor=2, outputMode=poptorch.OutputMode.All))
        for _ in range(2):
            out, _ = executor(torch.tensor([1.0, 3.0]))
        assert out[0] * 3 == pytest.approx(out[1])
