"""Which value a training model is differentiated from, and how (executor reference, sections 8 and 10)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import Scale, inference, quiet, raw, training
from torch import Tensor, nn

import poptorch


class Trained(nn.Module):
    """Returns what `function(linear(x), *rest)` returns."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(3, 4)
        self.function = function

    def forward(self, x: Tensor, *rest: Tensor) -> Any:
        return self.function(self.linear(x), *rest)


X = torch.linspace(-1, 1, 6).reshape(2, 3)
CLASS = torch.tensor([1, 3])
REAL = torch.linspace(0, 1, 8).reshape(2, 4)
SIGN = torch.tensor([[1.0, -1, 1, 1], [-1, -1, 1, -1]])


def steps(function: Callable[..., Any], *inputs: Tensor) -> tuple[Tensor, Any]:
    """Train one step at rate 1; return how far the weight moved, which is the gradient, and the outputs."""
    model = Trained(function)
    before = model.linear.weight.detach().clone()
    executor = training(model, lr=1.0)
    results = executor(*inputs)
    return before - model.linear.weight.detach(), results


def gradient(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return the gradient of the sum of `function`'s result, by plain PyTorch."""
    model = Trained(function)
    model(*inputs).sum().backward()
    assert model.linear.weight.grad is not None
    return model.linear.weight.grad


def check(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    moved, _ = steps(function, *inputs)
    torch.testing.assert_close(moved, gradient(function, *inputs), atol=1e-6, rtol=1e-5)


LOSSES: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "L1": (nn.L1Loss(), REAL),
    "MSE": (nn.MSELoss(), REAL),
    "smooth L1": (nn.SmoothL1Loss(), REAL),
    "cross entropy": (nn.CrossEntropyLoss(), CLASS),
    "NLL": (lambda o, t: F.nll_loss(F.log_softmax(o, -1), t), CLASS),
    "BCE": (lambda o, t: F.binary_cross_entropy(torch.sigmoid(o), t), REAL),
    "BCE with logits": (nn.BCEWithLogitsLoss(), REAL),
    "KL": (lambda o, t: F.kl_div(F.log_softmax(o, -1), t, reduction="batchmean"), REAL),
    "Poisson NLL": (nn.PoissonNLLLoss(), REAL),
    "hinge embedding": (nn.HingeEmbeddingLoss(), SIGN),
    "soft margin": (nn.SoftMarginLoss(), SIGN),
    "multi-label soft margin": (nn.MultiLabelSoftMarginLoss(), (SIGN > 0).float()),
    "cosine embedding": (lambda o, t: F.cosine_embedding_loss(o, t, torch.tensor([1.0, -1.0])), REAL),
    "margin ranking": (lambda o, t: F.margin_ranking_loss(o, t, torch.ones(2, 4)), REAL),
    "triplet margin": (lambda o, t: F.triplet_margin_loss(o, t, 1 - t), REAL),
}


class TestBuiltInLosses:
    @pytest.mark.parametrize("name", LOSSES)
    def test_each_one_marks_itself(self, name: str) -> None:
        check(*((LOSSES[name][0], X, LOSSES[name][1])))

    def test_ctc(self) -> None:
        def ctc(logits: Tensor, targets: Tensor) -> Tensor:
            scores = F.log_softmax(logits.reshape(4, 1, 2), -1)
            return F.ctc_loss(scores, targets, torch.tensor([4]), torch.tensor([2]))

        check(ctc, X, torch.tensor([[1, 1]]))

    @pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
    def test_every_reduction(self, reduction: str) -> None:
        """Without reduction the gradient equals that of the sum."""
        check(lambda o, t: F.mse_loss(o, t, reduction=reduction), X, REAL)

    def test_integer_targets_may_be_32_bits_wide(self) -> None:
        function = LOSSES["cross entropy"][0]
        expected = gradient(function, X, CLASS)
        moved, _ = steps(function, X, CLASS.int())
        torch.testing.assert_close(moved, expected, atol=1e-6, rtol=1e-5)

    def test_class_weights_are_refused(self) -> None:
        with pytest.raises(poptorch.Error, match=r"class weights are not supported.*identity_loss"):
            steps(lambda o, t: F.cross_entropy(o, t, weight=torch.ones(4)), X, CLASS)


class TestTheFinalLoss:
    def test_no_loss(self) -> None:
        with pytest.raises(poptorch.Error, match=r"Couldn't find a loss in graph.*identity_loss"):
            steps(lambda o: o.mean(), X)

    @pytest.mark.parametrize("returns", [lambda out: out, lambda out: None], ids=["another output", "nothing"])
    @pytest.mark.parametrize("reduction", ["sum", "none"])
    def test_a_loss_need_not_be_returned(self, returns: Any, reduction: str) -> None:
        def keeps(out: Tensor, target: Tensor) -> Any:
            poptorch.identity_loss((out - target) ** 2, reduction)
            return returns(out)

        moved, result = steps(keeps, X, REAL)
        torch.testing.assert_close(moved, gradient(lambda o, t: (o - t) ** 2, X, REAL), atol=1e-6, rtol=1e-5)
        assert (result is None) == (returns(0) is None)

    def test_next_to_a_loss_that_is_returned_one_that_is_not_does_not_count(self) -> None:
        def forgets(out: Tensor, target: Tensor) -> Tensor:
            F.mse_loss(out, target)
            return F.l1_loss(out, target)

        moved, _ = steps(forgets, X, REAL)
        torch.testing.assert_close(moved, gradient(F.l1_loss, X, REAL), atol=1e-6, rtol=1e-5)

    @pytest.mark.parametrize(
        "function",
        [lambda o, t: F.mse_loss(o, t) + F.l1_loss(o, t), lambda o, t: (F.mse_loss(o, t), F.l1_loss(o, t))],
        ids=["sum", "both returned"],
    )
    def test_two_independent_losses(self, function: Any) -> None:
        with pytest.raises(poptorch.Error, match=r"Multiple independent losses found.*identity_loss"):
            steps(function, X, REAL)

    @pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
    def test_a_combination_is_marked_with_identity_loss(self, reduction: str) -> None:
        def both(out: Tensor, target: Tensor) -> Tensor:
            return F.mse_loss(out, target) + 0.5 * F.l1_loss(out, target)

        moved, _ = steps(lambda o, t: poptorch.identity_loss(both(o, t), reduction), X, REAL)
        torch.testing.assert_close(moved, gradient(both, X, REAL), atol=1e-6, rtol=1e-5)

    def test_losses_may_be_chained_and_the_last_mark_counts(self) -> None:
        def chained(out: Tensor, target: Tensor) -> Any:
            inner = F.mse_loss(out, target)
            return inner, poptorch.identity_loss(3 * inner, "none")

        moved, _ = steps(chained, X, REAL)
        expected = 3 * gradient(lambda o, t: F.mse_loss(o, t), X, REAL)
        torch.testing.assert_close(moved, expected, atol=1e-6, rtol=1e-5)

    def test_what_follows_the_mark_scales_the_returned_value_but_not_the_gradient(self) -> None:
        moved, scaled = steps(lambda o, t: 5 * F.mse_loss(o, t), X, REAL)
        _, plain = steps(lambda o, t: F.mse_loss(o, t), X, REAL)
        torch.testing.assert_close(scaled, 5 * plain)
        torch.testing.assert_close(moved, gradient(lambda o, t: F.mse_loss(o, t), X, REAL), atol=1e-6, rtol=1e-5)

    def test_its_place_in_the_outputs_is_irrelevant_and_other_outputs_get_no_gradient(self) -> None:
        moved, out = steps(lambda o, t: {"more": [o * 100, (F.mse_loss(o, t), o.sum())]}, X, REAL)
        torch.testing.assert_close(moved, gradient(lambda o, t: F.mse_loss(o, t), X, REAL), atol=1e-6, rtol=1e-5)
        assert out["more"][0].shape == (2, 4)

    def test_a_metric_made_by_a_loss_function_from_detached_values_is_a_second_loss(self) -> None:
        with pytest.raises(poptorch.Error, match="Multiple independent losses"):
            steps(lambda o, t: (F.mse_loss(o, t), F.l1_loss(o.detach(), t)), X, REAL)

    def test_an_unsupported_reduction(self) -> None:
        with pytest.raises(AssertionError, match="Unsupported reduction type!"):
            steps(lambda o: poptorch.identity_loss(o, "average"), X)

    def test_inference_needs_no_loss(self) -> None:
        assert inference(Trained(lambda o: o))(X).shape == (2, 4)


class TestGradientsThatAreCut:
    def test_frozen_parameters_stay(self) -> None:
        model = Trained(lambda o, t: F.mse_loss(o, t))
        model.linear.bias.requires_grad_(False)
        before = copy.deepcopy(model.state_dict())
        executor = poptorch.trainingModel(model, quiet())
        executor(X, REAL)
        assert torch.equal(model.linear.bias, before["linear.bias"])
        assert not torch.equal(model.linear.weight, before["linear.weight"])

    @pytest.mark.parametrize("cut", [lambda o: o.detach(), lambda o: _without_gradient(o)], ids=["detach", "no_grad"])
    def test_detached_parts_contribute_nothing(self, cut: Callable[[Tensor], Tensor]) -> None:
        def half_cut(out: Tensor) -> Tensor:
            return poptorch.identity_loss(out[0] + cut(out)[1], "sum")

        moved, _ = steps(half_cut, X)
        torch.testing.assert_close(moved, gradient(lambda o: o[0], X))

    def test_the_surroundings_of_a_call_do_not_matter(self) -> None:
        model = Scale()
        executor = training(model, lr=0.5)
        with torch.no_grad():
            executor(torch.ones(2))
        with torch.inference_mode():
            executor(torch.ones(2))
        assert model.weight.item() == 0

    def test_a_hook_of_a_parameter_gets_its_gradient(self) -> None:
        model = Trained(lambda o, t: F.mse_loss(o, t))
        model.linear.weight.register_hook(lambda gradient: gradient * 0)
        executor = training(model)
        before = raw(model, "linear.weight"), raw(model, "linear.bias")
        executor(X, REAL)
        assert torch.equal(model.linear.weight, before[0])
        assert not torch.equal(model.linear.bias, before[1])

    def test_hooks_after_accumulation_do_not_run_and_a_warning_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        model = Trained(lambda o, t: F.mse_loss(o, t))
        ran = []
        model.linear.weight.register_post_accumulate_grad_hook(ran.append)
        training(model)(X, REAL)
        assert not ran
        assert "accumulated are not run on the device: linear.weight" in caplog.text

    def test_a_parameter_that_is_not_used_stays(self) -> None:
        model = Trained(lambda o, t: F.mse_loss(o, t))
        model.unused = nn.Parameter(torch.ones(2))
        executor = training(model, weight_decay=0.5)
        executor(X, REAL)
        assert model.unused.tolist() == [1, 1]


def _without_gradient(out: Tensor) -> Tensor:
    with torch.no_grad():
        return out * 1


class TestReduction:
    """Section 10: one update from the micro-batches of a step."""

    @pytest.mark.parametrize(
        ("a", "r", "kind", "moved"),
        [(1, 1, "Mean", 2), (4, 1, "Mean", 2), (4, 1, "Sum", 8), (2, 2, "Mean", 2), (2, 2, "Sum", 8)],
    )
    def test_gradients_are_averaged_or_summed_over_accumulation_and_replicas(
        self, a: int, r: int, kind: str, moved: float
    ) -> None:
        options = quiet().replicationFactor(r)
        options.Training.gradientAccumulation(a)
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType[kind])
        model = Scale()
        executor = training(model, options, lr=1.0)
        executor(torch.full((a * r,), 2.0))
        assert model.weight.item() == 1 - moved

    @pytest.mark.parametrize("strategy", [poptorch.MeanReductionStrategy.Running, poptorch.MeanReductionStrategy.Post])
    def test_the_mean_strategy_changes_rounding_only(self, strategy: poptorch.MeanReductionStrategy) -> None:
        options = quiet()
        options.Training.gradientAccumulation(3).setMeanAccumulationAndReplicationReductionStrategy(strategy)
        model = Scale()
        executor = training(model, options, lr=1.0)
        executor(torch.tensor([1.0, 2.0, 6.0]))
        assert model.weight.item() == pytest.approx(1 - 3)

    def test_accumulation_equals_a_larger_micro_batch_with_a_mean_loss(self) -> None:
        results = []
        for a in (1, 2):
            options = quiet()
            options.Training.gradientAccumulation(a)
            model = Trained(lambda o, t: F.mse_loss(o, t))
            executor = training(model, options, lr=0.5)
            executor(X, REAL)
            results.append(model.linear.weight.detach().clone())
        torch.testing.assert_close(*results)

    def test_each_device_iteration_starts_from_the_weights_of_the_one_before(self) -> None:
        class Square(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.tensor([1.0]))

            def forward(self, x: Tensor) -> Tensor:
                return poptorch.identity_loss(x * self.weight**2, "sum")

        model = Square()
        executor = training(model, quiet().deviceIterations(3), lr=0.25)
        executor(torch.ones(3))
        assert model.weight.item() == 0.5**3, "each update takes 0.25 * 2 w off"

    def test_replicas_keep_the_same_weights(self) -> None:
        model = Scale()
        executor = training(model, quiet().replicationFactor(2).outputMode(poptorch.OutputMode.All))
        for _ in range(2):
            out, _ = executor(torch.tensor([1.0, 3.0]))
        assert out[0] * 3 == pytest.approx(out[1])
