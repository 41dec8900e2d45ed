"""Half precision as programs see it: lost gradients, lost updates, lost sums, what keeps them, and who decides.

Which values meet in an op, and what becomes of them: `engine/test_half_values.py`.

Every expected number is arithmetic on the float16 format: 11 significant bits, smallest number 2^-24,
largest 65504.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from executor_support import Module, inference, quiet, scale, sgd, training, with_loss
from torch import Tensor, nn

import poptorch
from ipu_model.compute.gradients import AutomaticLossScaling, LossScalingSettings

HALF = torch.float16


def weighed(*start: float, factor: float = 1.0) -> Any:
    """Return a model of `weight * x`, whose sum times `factor` is the loss; the gradient is the sum of x's rows."""

    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        out = model.weight * x
        return out, poptorch.identity_loss(out.float() * factor, "sum")

    return Module(forward, weight=nn.Parameter(torch.tensor(start)))


def half(**settings: float) -> Any:
    return weighed(1.0, **settings).half()


def test_gradients_above_the_range_are_clipped_and_nothing_skips_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 * 2^14 = 65536; a GPU's gradient, and so its weight, would be infinite."""
    for switch, expected in ((None, 1 - 0.125 * 65504 / 2**14), ("infinity", -math.inf)):
        if switch is not None:
            monkeypatch.setenv("IPU_MODEL_HALF_OVERFLOW", switch)
        model, _, executor = scale(None, None, weighed(1.0, 1.0).half(), loss_scaling=2.0**14)
        executor(torch.tensor([[4.0, 2.0]], dtype=HALF))
        assert model.weight.tolist() == [torch.tensor(expected).half().item(), 0.75]
    monkeypatch.setenv("IPU_MODEL_HALF_OVERFLOW", "nan")
    with pytest.raises(poptorch.Error, match=r"IPU_MODEL_HALF_OVERFLOW must be 'clip' .* or 'infinity' .* not 'nan'"):
        inference(nn.Identity())(torch.ones(1, dtype=HALF))


COUNT, STEPS = 4096, 64


def after_small_steps(dtype: torch.dtype, *, stochastic: bool) -> Tensor:
    """Take 64 steps of 2^-13 down from 1.0, where float16 numbers are 2^-11 apart; return the weights."""
    model = weighed(*[1.0] * COUNT).to(dtype)
    executor = training(model, quiet(randomSeed=3, enableStochasticRounding=stochastic), lr=2.0**-13)
    for _ in range(STEPS):
        executor(torch.ones(1, COUNT, dtype=HALF))
    executor.destroy()
    return model.weight.detach()


def test_stochastic_rounding_keeps_them_on_average() -> None:
    """Without it updates of half weights are lost; those of float32 weights never are.

    Steps of 2^-11 with probability 1/4: mean 1 - 64 * 2^-13, deviation sqrt(64 * 3/16) * 2^-11.
    """
    assert torch.equal(after_small_steps(HALF, stochastic=False), torch.ones(COUNT, dtype=HALF))
    assert torch.equal(after_small_steps(torch.float32, stochastic=False), torch.full((COUNT,), 1 - STEPS * 2.0**-13))
    weights = after_small_steps(HALF, stochastic=True)
    assert weights.dtype is HALF
    deviation = math.sqrt(STEPS * 3 / 16) * 2.0**-11
    assert float(weights.double().mean()) == pytest.approx(1 - STEPS * 2.0**-13, abs=5 * deviation / math.sqrt(COUNT))
    assert float(weights.double().std()) == pytest.approx(deviation, rel=0.1)
    assert torch.equal(weights, after_small_steps(HALF, stochastic=True)), "the same under the same randomSeed"


def test_master_weights_of_a_layer_follow_a_half_input() -> None:
    """The layer computes in float16 with the rounded weight, its float32 weight takes every step of 2^-13."""
    model = with_loss(lambda m, x: m.layer(x), layer=nn.Linear(1, 1, bias=False))
    nn.init.ones_(model.layer.weight)
    executor = training(model, lr=2.0**-13)
    outputs = [executor(torch.ones(1, 1, dtype=HALF))[0] for _ in range(5)]
    assert {o.dtype for o in outputs} == {HALF}
    # 1 - 2^-13 rounds to 1; 1 - 2^-12 is a tie, to even; 1 - 3 * 2^-13 and 1 - 4 * 2^-13 round to 1 - 2^-11.
    assert [o.item() for o in outputs] == [1.0, 1.0, 1.0, 1 - 2.0**-11, 1 - 2.0**-11]
    assert model.layer.weight.item() == 1 - 5 * 2.0**-13


@pytest.mark.parametrize(
    ("accum_type", "reduction", "gradients", "total"),
    [
        (torch.float32, "Sum", [2048.0] + [0.5] * 7, 2048 + 7 * 0.5),
        (HALF, "Sum", [2048.0] + [0.5] * 7, 2048.0),  # above 2048 float16 numbers are 2 apart
        (HALF, "Sum", [30000.0] * 4, 65504.0),  # clipped
        (HALF, "Mean", [30000.0] * 4, pytest.approx(30000.0, rel=2.0**-9)),  # PopTorch's mean is then a running one
    ],
)
def test_half_accumulators_lose_small_addends_and_overflow(
    accum_type: torch.dtype, reduction: str, gradients: list[float], total: Any
) -> None:
    kind = poptorch.ReductionType[reduction]
    options = quiet(accumulation=len(gradients), accumulationAndReplicationReductionType=kind)
    model = weighed(0.0)
    executor = training(model, options, lr=2.0**-10, accum_type=accum_type, use_combined_accum=False)
    executor(torch.tensor(gradients)[:, None])
    assert -1024 * model.weight.item() == total


EDGE = 0.125 * 65504
ONE = torch.ones(1, 1, dtype=HALF)


def automatic(popart: dict[str, Any] | None = None, **settings: Any) -> poptorch.Options:
    options = quiet(setAutomaticLossScaling=True, **settings)
    for name, value in (popart or {}).items():
        options._Popart.set(f"automaticLossScalingSettings.{name}", value)
    return options


def factor_of(optimizer: poptorch.optim.Optimizer) -> float:
    return float(optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"])


def factors(gradient: float, runs: int, options: poptorch.Options | None = None, **settings: Any) -> list[float]:
    """Train with the same gradient every time; return the factor before each run and after the last."""
    options = options or automatic()
    _, optimizer, executor = scale(None, options, half(), lr=0.0, **settings)
    rows = torch.full((options.device_iterations * options.Training.gradient_accumulation, 1), gradient, dtype=HALF)
    executor.compile(rows)
    return [factor_of(optimizer), *(executor(rows) and factor_of(optimizer) for _ in range(runs))]


def expected(gradient: float, updates: int, loss_scaling: float = 1.0) -> list[float]:
    """The rule, for a gradient of one element."""
    found = [1.0]
    for _ in range(updates):
        found.append(found[-1] * (0.5 if abs(gradient) * loss_scaling * found[-1] >= EDGE else 2.0))
    return found


class TestAutomaticLossScaling:
    """Automatic loss scaling: the factor follows the float16 gradients, the weights do not notice it.

    The rule is PopART's: after each update the factor is halved if more than a share of 1e-7 of the gradients' elements
    reach 0.125 x 65504 = 8188, else doubled.
    """

    @pytest.mark.parametrize(("gradient", "scaling"), [(1.0, 1.0), (1000.0, 1.0), (1.0, 4096.0), (60000.0, 1.0)])
    def test_it_doubles_until_gradients_reach_the_edge_and_halves_there(self, gradient: float, scaling: float) -> None:
        found = factors(gradient, 16, loss_scaling=scaling)
        assert found == expected(gradient, 16, scaling)
        assert max(EDGE, gradient) <= gradient * scaling * max(found) < max(2 * EDGE, gradient + 1)

    def test_it_adapts_after_every_update_with_all_its_micro_batches(self) -> None:
        assert factors(1000.0, 2, automatic(deviceIterations=3)) == expected(1000.0, 6)[::3]
        assert factors(1000.0, 5, automatic(accumulation=4)) == expected(1000.0, 5)

    def test_period_edge_and_threshold_can_be_moved(self) -> None:
        assert factors(1.0, 6, automatic({"updatePeriod": 3})) == [1, 1, 1, 2, 2, 2, 4]
        assert factors(100.0, 2, automatic({"binEdgeLocation": 0.001})) == [1, 0.5, 1]  # 65.5 lies between 50 and 100.
        assert factors(60000.0, 1, automatic({"thresholdUpperCountProportion": 1.0})) == [1, 2]

    def test_overflow_halves_it(self) -> None:
        assert factors(1.0, 2, loss_scaling=2.0**17) == [1, 0.5, 0.25]

    def test_it_stays_between_zero_and_the_largest_power_of_two_of_the_losss_type(self) -> None:
        for dtype, largest in ((HALF, 2.0**15), (torch.float32, 2.0**127)):
            scaling = AutomaticLossScaling(LossScalingSettings(), [True], dtype)
            for _ in range(200):
                scaling.adapt(2.0)
            assert 2.0 * scaling.factor == largest
        for _ in range(2000):
            scaling.observe([torch.tensor([math.nan])])
            scaling.adapt(1.0)
        assert 0 < scaling.factor < 1e-30

    def test_float32_gradients_are_not_counted(self) -> None:
        scaling = AutomaticLossScaling(LossScalingSettings(), [False, True], torch.float32)
        scaling.observe([torch.tensor([1e6]), torch.tensor([1.0])])
        scaling.adapt(1.0)
        assert scaling.factor == 2

    @pytest.mark.parametrize(
        "make",
        [
            lambda p: poptorch.optim.SGD(p, lr=0.25),
            lambda p: poptorch.optim.SGD(p, lr=0.25, momentum=0.5, use_combined_accum=False),
            lambda p: poptorch.optim.SGD(p, lr=0.25, momentum=0.5, use_combined_accum=True),
            lambda p: poptorch.optim.AdamW(p, lr=0.25),
            lambda p: poptorch.optim.RMSprop(p, lr=0.25),
            lambda p: torch.optim.SGD(p, lr=0.25, momentum=0.5),
        ],
    )
    @pytest.mark.parametrize("accumulation", [1, 2])
    def test_weights_are_those_of_training_without_it(self, make: Any, accumulation: int) -> None:
        """Powers of two change no digit of gradients that stay inside the range of float16."""
        trained = []
        for options in (quiet, automatic):
            settings = {"deviceIterations": 3, "accumulation": accumulation}
            model, _, executor = scale(lambda model: make(model.parameters()), options(**settings), half())
            for value in (0.5, -0.75):
                executor(torch.full((3 * accumulation, 1), value, dtype=HALF))
            trained.append(model.weight.item())
        assert trained[0] == trained[1] != 1.0

    def test_it_rescues_gradients_below_the_float16_range_as_a_fixed_scaling_does(self) -> None:
        for options, scaling, moves in ((quiet, 1.0, False), (quiet, 2.0**14, True), (automatic, 1.0, True)):
            tiny = half(factor=2.0**-26)
            model, _, executor = scale(None, options(deviceIterations=8), tiny, lr=2.0**20, loss_scaling=scaling)
            executor(torch.ones(8, 1, dtype=HALF))
            assert (model.weight.item() != 1.0) is moves

    def test_the_final_loss_scale_can_be_anchored(self) -> None:
        settings = {"outputMode": poptorch.OutputMode.All, "anchorTensor": ("scale", "finalLossScale")}
        _, _, executor = scale(None, automatic(deviceIterations=3, **settings), half(), loss_scaling=4.0)
        for scales in ([4, 8, 16], [32, 64, 128]):
            executor(torch.ones(3, 1, dtype=HALF))
            assert executor.getAnchoredTensor("scale").tolist() == scales
        assert "finalLossScale" in executor.getTensorNames()
        _, optimizer, executor = scale(model=half())
        executor(ONE)
        assert "finalLossScale" not in executor.getTensorNames()
        assert "lossScaleUpdateFactor" not in optimizer.state_dict()["ipu_state"]
        assert inference(half(), automatic())(ONE)[0] == 1, "inference ignores it"

    def test_the_loss_scaling_of_any_optimiser_becomes_variable(self) -> None:
        model, _, executor = scale(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), automatic(), half())
        executor(ONE)
        executor.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        executor.destroy()
        fixed = sgd(model, loss_scaling=2.0)
        fixed.variable_attrs.markAsConstant("loss_scaling")
        executor = poptorch.trainingModel(model, automatic(), fixed)
        executor(ONE)
        fixed.loss_scaling = 8.0
        executor.setOptimizer(fixed)
        executor(ONE)
        assert fixed.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 8

    @pytest.mark.parametrize(
        ("before", "after", "words"),
        [(automatic, automatic, ""), (automatic, quiet, "unexpected"), (quiet, automatic, "missing")],
    )
    def test_a_loaded_optimiser_goes_on_with_the_factor_or_says_what_the_checkpoint_lacks(
        self, before: Any, after: Any, words: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        _, first, executor = scale(None, before(), half(), momentum=0.5)
        for _ in range(3):
            executor(ONE)
        _, second, executor = scale(None, after(), half(), momentum=0.5)
        second.load_state_dict(first.state_dict())
        executor(ONE)
        if words:
            assert f"ignoring {words} state lossScaleUpdateFactor" in caplog.text
        else:
            assert (factor_of(first), factor_of(second)) == (8, 16)
            assert "lossScaleUpdateFactor" not in caplog.text

    @pytest.mark.parametrize(
        ("dtype", "setting", "words"),
        [
            (torch.float32, {}, "watches the gradients of float16 weights"),
            (HALF, {"binEdgeLocation": 1.5}, "binEdgeLocation"),
            (HALF, {"thresholdUpperCountProportion": -0.1}, "thresholdUpperCountProportion"),
            (HALF, {"updatePeriod": 0}, "updatePeriod"),
        ],
    )
    def test_what_it_cannot_work_with_is_refused(self, dtype: torch.dtype, setting: dict[str, Any], words: str) -> None:
        with pytest.raises(poptorch.Error, match=words):
            training(weighed(1.0).to(dtype), automatic(setting))(ONE.to(dtype))

    def test_it_expects_the_mean_over_micro_batches(self, caplog: pytest.LogCaptureFixture) -> None:
        training(half(), automatic(accumulationAndReplicationReductionType=poptorch.ReductionType.Sum))(ONE)
        assert "Automatic loss scaling expects" in caplog.text
