"""Anchored tensors and the names they are asked for by (options reference 3.4, executor reference 15)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, X, Y, in_plain_pytorch, inference, quiet, scale, training, with_loss
from modelling_support import Chain, batch, trainable
from torch import Tensor, nn

import poptorch
from ipu_model.front_ends import program_of_module
from ipu_model.predict.order import traffic_of
from poptorch import OutputMode


def blocks() -> Any:
    """Return two layers in a block each: `forward(x)` is inference, `forward(x, y)` returns `(output, loss)`."""

    def forward(model: Any, x: Tensor, y: Tensor | None = None) -> Any:
        out = model.second(model.act(model.first(x)))
        return out if y is None else (out, model.loss(out, y))

    torch.manual_seed(1)
    model = Module(forward, first=nn.Linear(3, 4), act=nn.ReLU(), second=nn.Linear(4, 2), loss=nn.MSELoss())
    poptorch.BeginBlock(model.first, "body", ipu_id=0)
    poptorch.BeginBlock(model.second, "head", ipu_id=1)
    return model


def anchoring(options: poptorch.Options | None = None, **long_names: str) -> poptorch.Options:
    options = options or quiet()
    for short_name, long_name in long_names.items():
        options.anchorTensor(short_name, long_name)
    return options


def sharded(**settings: Any) -> poptorch.Options:
    """Return options under which several IPUs need no more micro-batches than one."""
    return quiet(setExecutionStrategy=poptorch.ShardedExecution(), **settings)


def names(executor: poptorch.PoplarExecutor, *inputs: Tensor) -> list[str]:
    executor.compile(*inputs)
    return executor.getTensorNames()


def number(long_names: list[str]) -> dict[str, str]:
    return {f"t{i}": name for i, name in enumerate(long_names)}


FORWARD = ["first/Gemm:0", "act/Relu:0", "second/Gemm:0"]
WEIGHTS = ["first.weight", "first.bias", "second.weight", "second.bias"]


class TestNames:
    def test_module_paths_can_be_left_out(self) -> None:
        for options in (sharded(), sharded().useOfflineIpuTarget()):
            assert names(inference(blocks(), options), X) == ["input", *WEIGHTS, *FORWARD]
        found = names(inference(blocks(), sharded().disableModuleNamescope()), X)
        assert found[-3:] == ["Gemm:0", "Relu:0", "Gemm:0/1"]

    def test_every_one_of_them_can_be_anchored(self) -> None:
        forward = [*FORWARD, "loss/MeanSquaredError:0"]
        gradients = [f"Gradient___{name}" for name in (*WEIGHTS, *forward, "loss")]
        kinds = ("scaledLearningRate0", "weightDecayScaleFactor0")
        numbers = [f"{kind}___specific___{name}" for name in WEIGHTS for kind in kinds]
        listed = ["input", "input/1", *WEIGHTS, *forward, "loss", *gradients]
        listed += [*(f"UpdatedVar___{name}" for name in WEIGHTS), *numbers, "lossScaling_FLOAT"]
        executor = training(blocks(), anchoring(sharded(), **number(listed)))
        assert names(executor, X, Y) == listed
        executor(X, Y)
        assert all(isinstance(executor.getAnchoredTensor(short_name), Tensor) for short_name in number(listed))

    def test_of_ops(self) -> None:
        """Without a PopART name, its own in camel case; several results are counted, and a second op gets a number."""
        model = Module(lambda m, x: (torch.count_nonzero(x), *x.topk(2), x * 2 * x))
        found = ["CountNonzero:0", "TopK:0", "TopK:1", "Mul:0", "Mul:0/1"]
        assert names(inference(model), X) == ["input", *found]

    def test_tied_weights_have_all_their_names(self) -> None:
        model = blocks()
        model.extra = nn.Linear(4, 2)
        model.extra.weight = model.second.weight
        found = names(training(model, sharded()), X, Y)
        for prefix in ("", "Gradient___", "UpdatedVar___"):
            assert {f"{prefix}second.weight", f"{prefix}extra.weight"} <= set(found)


def returning() -> Any:
    """Return a model that returns what the anchor `hidden` asks for as well, so that the two can be compared."""

    def forward(model: Any, x: Tensor, y: Tensor | None = None) -> Any:
        hidden = model.layer(x)
        out = torch.tanh(hidden)[:, :2]
        return hidden, hidden.sum(), out if y is None else model.loss(out, y)

    return Module(forward, layer=nn.Linear(3, 4), loss=nn.MSELoss())


class TestOutputModes:
    @pytest.mark.parametrize("mode", [OutputMode.All, OutputMode.Final, OutputMode.Sum, (OutputMode.EveryN, 2)])
    @pytest.mark.parametrize("replicas", [1, 2])
    def test_in_inference_and_in_training(self, mode: Any, replicas: int) -> None:
        x, y = torch.randn(8 * replicas, 3), torch.randn(8 * replicas, 2)
        options = quiet(deviceIterations=4, replicationFactor=replicas, outputMode=mode)
        executor = inference(returning(), anchoring(options, hidden="layer/Gemm:0", total="ReduceSum:0"))
        hidden, total, _ = executor(x)
        assert torch.equal(executor.getAnchoredTensor("hidden"), hidden)
        assert torch.equal(executor.getAnchoredTensor("total"), total)
        options = quiet(deviceIterations=2, replicationFactor=replicas, outputMode=mode, accumulation=2)
        executor = training(returning(), anchoring(options, hidden="layer/Gemm:0", loss="loss"))
        hidden, _, loss = executor(x, y)
        assert torch.equal(executor.getAnchoredTensor("hidden"), hidden)
        assert torch.equal(executor.getAnchoredTensor("loss"), loss)

    def test_the_default_is_the_wrappers_and_an_own_one_has_no_effect(self, caplog: pytest.LogCaptureFixture) -> None:
        anchor, x = ("hidden", "layer/Gemm:0"), torch.ones(8, 3)
        executor = training(returning(), quiet(deviceIterations=4, anchorTensor=anchor))
        executor(x, torch.ones(8, 2))
        assert executor.getAnchoredTensor("hidden").shape == (2, 4)
        for own in ((), (OutputMode.Final,)):
            assert caplog.text == ""
            executor = inference(returning(), quiet(deviceIterations=4, anchorTensor=(*anchor, *own)))
            executor(x)
            assert executor.getAnchoredTensor("hidden").shape == (8, 4)
        assert "output mode of 'hidden' (Final) has no effect" in caplog.text

    def test_every_call_and_every_short_name_has_a_tensor_of_its_own(self) -> None:
        executor = inference(returning(), anchoring(a="layer/Gemm:0", b="layer/Gemm:0"))
        executor(X)
        first = executor.getAnchoredTensor("a")
        kept = first.clone()
        hidden, *_ = executor(X + 1)
        a, b = executor.getAnchoredTensor("a"), executor.getAnchoredTensor("b")
        assert torch.equal(a, hidden)
        assert torch.equal(b, hidden)
        assert torch.equal(first, kept)
        assert a.data_ptr() != b.data_ptr()


def plain_step(x: Tensor = X, y: Tensor = Y) -> dict[str, Tensor]:
    """Return what plain PyTorch computes for one micro-batch of `blocks()`, under the names of the tensors."""
    model = blocks()
    hidden = model.first(x)
    active = F.relu(hidden)
    out = model.second(active)
    results = {"first/Gemm:0": hidden, "act/Relu:0": active, "second/Gemm:0": out, "loss": F.mse_loss(out, y)}
    tensors = {**results, **dict(model.named_parameters())}
    gradients = torch.autograd.grad(tensors["loss"], list(tensors.values()))
    return {**tensors, **{f"Gradient___{name}": gradient for name, gradient in zip(tensors, gradients)}}


ALL = [*FORWARD, "loss", *WEIGHTS]
ALL += [f"Gradient___{name}" for name in ALL]


class TestTraining:
    def test_each_tensor_is_that_of_plain_pytorch(self) -> None:
        plain, model = blocks(), blocks()
        other, executor = training(plain, sharded()), training(model, anchoring(sharded(), **number(ALL)))
        results = executor(X, Y)
        found = {name: executor.getAnchoredTensor(short_name) for short_name, name in number(ALL).items()}
        torch.testing.assert_close(found, {name: plain_step()[name].detach() for name in ALL})
        for a, b in zip((*results, *executor(X, Y)), (*other(X, Y), *other(X, Y)), strict=True):
            assert torch.equal(a, b)
        for a, b in zip(plain.state_dict().values(), model.state_dict().values(), strict=True):
            assert torch.equal(a, b)

    @pytest.mark.parametrize(
        "options",
        [
            sharded(accumulation=2, replicationFactor=2, outputMode=OutputMode.All),
            quiet(accumulation=4, outputMode=OutputMode.All),
        ],
        ids=["replicas", "pipeline"],
    )
    def test_gradients_are_those_of_each_micro_batch(self, options: poptorch.Options) -> None:
        anchored = {"g": "Gradient___first.weight", "b": "Gradient___act/Relu:0", "a": "act/Relu:0"}
        executor = training(blocks(), anchoring(options.clone(), **anchored, loss="Gradient___loss"))
        executor(X, Y)
        parts = [plain_step(X[i : i + 1], Y[i : i + 1]) for i in range(4)]
        for short_name, name in anchored.items():
            expected = torch.cat([part[name] for part in parts]).detach()
            torch.testing.assert_close(executor.getAnchoredTensor(short_name), expected)
        assert executor.getAnchoredTensor("loss").tolist() == [1.0] * 4

    def test_gradients_contain_the_loss_scaling_and_updated_parameters_are_what_the_host_then_has(self) -> None:
        model, before = blocks(), blocks().first.weight
        watched = {"before": "first.weight", "after": "UpdatedVar___first.weight", "g": "Gradient___first.weight"}
        executor = training(model, anchoring(sharded(), **watched, loss="Gradient___loss"), loss_scaling=128.0)
        executor(X, Y)
        torch.testing.assert_close(executor.getAnchoredTensor("g"), plain_step()["Gradient___first.weight"] * 128)
        assert executor.getAnchoredTensor("loss") == 128
        assert torch.equal(executor.getAnchoredTensor("before"), before)
        assert torch.equal(executor.getAnchoredTensor("after"), model.first.weight)
        assert not torch.equal(model.first.weight, before)

    def test_an_updated_parameter_comes_once_for_each_update(self) -> None:
        options = sharded(accumulation=2, deviceIterations=2, outputMode=OutputMode.All)
        executor = training(blocks(), anchoring(options, after="UpdatedVar___second.bias"))
        executor(X, Y)
        plain = blocks()
        expected = []
        for rows in (slice(2), slice(2, 4)):  # The mean over two micro-batches of one row is that of both rows.
            in_plain_pytorch(plain, (X[rows], Y[rows]))
            expected.append(plain.second.bias.detach().clone())
        torch.testing.assert_close(executor.getAnchoredTensor("after"), torch.cat(expected))

    def test_numbers_of_the_optimiser_are_those_of_each_update(self) -> None:
        """Plain SGD reads lr*(1-dm)/ls."""
        options = sharded(deviceIterations=2, outputMode=OutputMode.All)
        options = anchoring(options, rate="scaledLearningRate0___specific___first.bias", scale="lossScaling_FLOAT")
        _, optimiser, executor = scale(None, options, blocks(), lr=0.5, dampening=0.5, loss_scaling=4.0)
        for rate in (0.5, 1.0):
            optimiser.param_groups[0]["lr"] = rate
            executor.setOptimizer(optimiser)
            executor(X, Y)
            assert executor.getAnchoredTensor("rate").tolist() == [rate * 0.5 / 4] * 2
            assert executor.getAnchoredTensor("scale").tolist() == [4.0, 4.0]
        assert set(optimiser.state_dict()["ipu_param"]) <= set(executor.getTensorNames())


class TestValuesOverwritten:
    """An anchor has the value of the moment, whatever writes into that storage later."""

    def test_by_an_activation_in_place_or_through_a_view(self) -> None:
        def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x * 2
            y.view(-1).add_(1)
            return F.relu(model.linear(x), inplace=True), y

        anchors = anchoring(linear="linear/Gemm:0", y="Mul:0", view="Reshape:0")
        executor = inference(Module(forward, linear=nn.Linear(4, 4)), anchors)
        x = torch.randn(3, 4)
        after, y = executor(x)
        before = executor.getAnchoredTensor("linear")
        assert (before < 0).any()
        assert torch.equal(before.relu(), after)
        assert torch.equal(y, x * 2 + 1)
        assert torch.equal(executor.getAnchoredTensor("y"), x * 2)
        assert torch.equal(executor.getAnchoredTensor("view"), (x * 2).view(-1))

    def test_running_statistics_are_those_before_the_micro_batch(self) -> None:
        model = with_loss(lambda m, x: m.norm(x) ** 2, norm=nn.BatchNorm1d(3))
        executor = training(model, anchoring(mean="norm.running_mean"), lr=0.0)
        executor(X)
        assert torch.equal(executor.getAnchoredTensor("mean"), torch.zeros(3))
        executor(X)
        torch.testing.assert_close(executor.getAnchoredTensor("mean"), X.mean(0) * 0.1)


class TestErrors:
    @pytest.mark.parametrize(
        ("wrap", "wrong", "nearest"),
        [
            (training, "first.weigth", "first.weight"),
            (training, "Gradient__first.weight", "Gradient___first.weight"),
            (training, "act", "act/Relu:0"),
            (training, "eps___specific___first.bias", ""),  # plain SGD has none
            (inference, "eps___specific___first.bias", ""),
            (inference, "Gradient___first.weight", "first.weight"),
        ],
    )
    def test_an_unknown_name_is_told_the_nearest_ones(self, wrap: Any, wrong: str, nearest: str) -> None:
        model = blocks()
        with pytest.raises(poptorch.Error) as refusal:
            wrap(model, anchoring(sharded(), it=wrong)).compile(*((X, Y) if wrap is training else (X,)))
        assert f"no tensor named '{wrong}'" in refusal.value.message
        assert nearest in refusal.value.message
        assert "getTensorNames()" in refusal.value.message
        assert training(model, sharded())(X, Y)[0].shape == (4, 2), "the model stays usable"

    def test_names_need_a_compiled_model_and_anchors_one_that_has_run(self) -> None:
        executor = inference(blocks(), anchoring(sharded(), it="act/Relu:0"))
        for _ in range(2):
            with pytest.raises(AssertionError, match="Model must be compiled"):
                executor.getTensorNames()
            with pytest.raises(AssertionError, match="No tensor with name it found"):
                executor.getAnchoredTensor("it")
            executor.compile(X)
            with pytest.raises(AssertionError, match="No tensor with name it found: the model has not run yet"):
                executor.getAnchoredTensor("it")
            executor(X)
            assert executor.getTensorNames()
            assert executor.getAnchoredTensor("it").shape == (4, 4)
            with pytest.raises(AssertionError, match=r"No tensor with name act/Relu:0 found\. Anchored: it"):
                executor.getAnchoredTensor("act/Relu:0")
            executor.destroy()


class TestPerformanceModel:
    def test_anchors_travel_to_the_host(self) -> None:
        def sent(options: poptorch.Options) -> float:
            return sum(traffic_of(program_of_module(options, Chain(), batch(options), training=True).step).outputs)

        # Two rows of eight float32 numbers, and an eight by eight gradient.
        watched = anchoring(trainable(), a="layers/0/Gemm:0", g="Gradient___layers.1.weight")
        assert sent(watched) - sent(trainable()) == 4 * (2 * 8 + 8 * 8)

    def test_performance_counters_are_those_of_forwards_own_results(self) -> None:
        for options in (sharded(), anchoring(sharded(), a="act/Relu:0")):
            executor = training(blocks(), options)
            executor(X, Y)
            assert len(executor.getPerfCounters()["output"]) == 2
