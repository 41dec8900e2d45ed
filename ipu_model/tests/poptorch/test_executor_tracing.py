"""What `forward` may do while it is traced: constants, devices, values (executor reference, section 4)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, inference, quiet, training
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ipu_model
import poptorch

X = torch.tensor([1.0, 2.0])
GLOBAL = torch.tensor([3.0, 4.0])


def runs(function: Callable[..., Any]) -> nn.Module:
    return Module(lambda model, x: function(x))


def run(function: Callable[..., Any], x: Tensor = X) -> Any:
    return inference(runs(function))(x)


class TestPythonRunsOnce:
    def test_python_values_are_frozen(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            model.n += 1
            return x * model.n

        executor = inference(Module(forward, n=0))
        assert [executor(X).tolist() for _ in range(3)] == [[1, 2]] * 3

    @pytest.mark.parametrize(
        ("branch", "words"),
        [
            (lambda x: x if x.sum() > 0 else -x, "branches on data"),
            (lambda x: x * x[0].item(), "branches on data"),
            (lambda x: x * float(x[0]), "branches on data"),
            (lambda x: [x for _ in range(x[0].int())], "branches on data"),
            (lambda x: x.tolist(), "branches on data"),
            (lambda x: x[x > 1], "shape of a result depends on data"),
            (lambda x: x.nonzero(), "shape of a result depends on data"),
            (lambda x: x.numpy(), "Illegal move to CPU"),
            (lambda x: np.asarray(x), "Illegal move to CPU"),
        ],
    )
    def test_what_depends_on_data_is_refused_with_its_line(self, branch: Any, words: str) -> None:
        with pytest.raises(poptorch.Error, match=words) as refusal:
            run(branch)
        assert "test_executor_tracing" in str(refusal.traceback) or "<lambda>" in refusal.value.message
        assert refusal.value.__suppress_context__  # so that Python prints no second traceback, from inside of torch
        assert not poptorch.isRunningOnIpu()

    def test_two_code_paths(self) -> None:
        def both(x: Tensor) -> Tensor:
            return x * 2 if poptorch.isRunningOnIpu() else x * 3

        model = runs(both)
        assert inference(model)(X).tolist() == [2, 4]
        assert model(X).tolist() == [3, 6]

    def test_validation_of_distributions_is_off_and_comes_back(self) -> None:
        drawn = run(lambda x: torch.distributions.Normal(x, x).log_prob(x))
        assert drawn.shape == (2,)
        with pytest.raises(ValueError, match="constraint"):
            torch.distributions.Normal(X, -X)


class TestFactories:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.zeros(2), lambda: torch.ones(2), lambda: torch.full((2,), 5.0),
            lambda: torch.arange(2), lambda: torch.tensor([1.0, 2.0]), lambda: torch.linspace(0, 1, 2),
            lambda: torch.as_tensor([7.0, 8.0]),
            lambda: torch.eye(2)[0], lambda: torch.scalar_tensor(3.0), lambda: torch.tensor(2),
        ],
    )  # fmt: skip
    def test_new_tensors_land_on_the_device(self, make: Callable[[], Tensor]) -> None:
        torch.testing.assert_close(run(lambda x: x + make()), X + make())

    def test_many_short_lived_ones_are_not_taken_for_each_other(self) -> None:
        def forward(x: Tensor) -> Tensor:
            return torch.stack([x.sum() * 0 + torch.tensor(float(i)) for i in range(50)])

        assert run(forward).tolist() == list(range(50))

    def test_a_warning_says_so_once_for_each_function_and_compilation(self, caplog: pytest.LogCaptureFixture) -> None:
        executor = inference(runs(lambda x: x + torch.zeros(2) + torch.zeros(2)))
        for _ in range(2):
            executor(X)
        assert caplog.text.count("No device set in torch.zeros(): forcing to IPU") == 1

    def test_naming_a_device_says_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        assert run(lambda x: x + torch.zeros(2, device=x.device)).tolist() == [1, 2]
        assert run(lambda x: x + torch.zeros(2, device="ipu")).tolist() == [1, 2]
        assert "forcing" not in caplog.text


class TestHostTensors:
    """A real tensor that the model does not hold never reaches the device."""

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.LongTensor([1, 2]), lambda: torch.FloatTensor([1, 2]), lambda: torch.Tensor([1, 2]),
            lambda: torch.from_numpy(np.ones(2)), lambda: GLOBAL, lambda: GLOBAL * 2,
        ],
    )  # fmt: skip
    def test_mixing_one_with_tensors_of_the_device_is_refused(self, make: Callable[[], Tensor]) -> None:
        with pytest.raises(poptorch.Error, match=r"Expected an IPU tensor but got tensor\(device=cpu") as refusal:
            run(lambda x: x + make())
        assert "torch.tensor(...)" in refusal.value.message
        assert "torch.nn.ModuleList" in refusal.value.message

    def test_layers_in_a_plain_list_are_refused_as_nothing_would_train_them(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            return poptorch.identity_loss(model.head(model.layers[0](x)), "sum")

        with pytest.raises(poptorch.Error, match=r"Expected an IPU tensor.*ModuleList"):
            training(Module(forward, layers=[nn.Linear(2, 2)], head=nn.Linear(2, 2)))(X[None])

    def test_a_weight_reached_behind_the_modules_back_is_refused_by_name(self) -> None:
        body = nn.Sequential(nn.Linear(2, 2))
        weight = body[0].weight
        with pytest.raises(poptorch.Error, match=r"'body.0.weight' is used through a reference kept outside"):
            inference(Module(lambda model, x: x @ weight, body=body))(X[None])

    @pytest.mark.parametrize(
        "move",
        [
            lambda t, x: t.to(x.device),
            lambda t, x: t.to(x),
            lambda t, x: t.to("ipu"),
            lambda t, x: torch.tensor(t),
        ],
    )
    @pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
    def test_moving_it_there_is_fine(self, move: Any) -> None:
        assert run(lambda x: x + move(GLOBAL, x)).tolist() == [4, 6]
        assert run(lambda x: x + move(torch.FloatTensor([3, 4]), x)).tolist() == [4, 6]

    def test_constants_that_the_model_holds_are_fine_also_in_containers(self) -> None:
        model = Module(
            lambda m, x: (x + m.one + m.more["two"][0])[m.index],
            one=torch.tensor([1.0, 1.0]),
            more={"two": [torch.tensor([2.0, 2.0])]},
            index=torch.LongTensor([1, 0]),
        )
        assert inference(model)(X).tolist() == [5, 4]

    def test_work_on_host_tensors_alone_happens_once_on_the_host(self) -> None:
        calls = []

        def forward(x: Tensor) -> Tensor:
            scale = (torch.from_numpy(np.arange(3.0)) + GLOBAL.sum()).max().item()
            calls.append(scale)
            return x * scale

        executor = inference(runs(forward))
        assert [executor(X).tolist() for _ in range(2)] == [[9, 18]] * 2
        assert calls == [9]


class TestMoves:
    @pytest.mark.parametrize("move", [lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.to(device="cpu")])
    def test_to_the_cpu_is_illegal(self, move: Callable[[Tensor], Tensor]) -> None:
        with pytest.raises(poptorch.Error, match=r"Illegal move to CPU.*Instead, return this output as an IPU tensor"):
            run(move)

    @pytest.mark.parametrize(
        "move",
        [
            lambda x: x.cuda(), lambda x: x.to("cuda"), lambda x: x.to(torch.device("cuda:1")), lambda x: x.to(0),
            lambda x: x.to(device="cuda"), lambda x: x + torch.zeros(2, device="cuda"),
            lambda x: x + torch.FloatTensor([3, 4]).cuda(), lambda x: nn.Linear(2, 2).cuda()(x),
        ],
    )  # fmt: skip
    def test_to_a_gpu_is_refused_with_what_to_write_instead(self, move: Callable[[Tensor], Tensor]) -> None:
        """As programs for GPUs have them in forward."""
        with pytest.raises(poptorch.Error, match=r"on the device 'cuda'.*Leave out \.cuda\(\).*device=x\.device"):
            run(move)

    @pytest.mark.parametrize(
        "move",
        [lambda x: x.to("ipu"), lambda x: x.to("ipu:0", torch.float16), lambda x: x.to(device="ipu"),
         lambda x: x.to(x.device), lambda x: x.to(torch.float16)],
    )  # fmt: skip
    def test_to_where_it_is_already_is_fine(self, move: Callable[[Tensor], Tensor]) -> None:
        assert run(move).tolist() == [1, 2]


class TestCheckpoints:
    """`torch.utils.checkpoint` changes nothing on the device, which has recomputation of its own."""

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_dropout_inside_has_the_same_mask_in_both_passes(self, reentrant: bool) -> None:
        def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            dropped = checkpoint(lambda x: F.dropout(x * model.weight), x, use_reentrant=reentrant)
            return dropped, poptorch.identity_loss(dropped.sum(), "none")

        model: Any = Module(forward, weight=nn.Parameter(torch.ones(64)))
        executor = training(model, lr=1.0)
        dropped, _loss = executor(torch.ones(1, 64))
        assert 0 < dropped.count_nonzero() < 64
        assert torch.equal(1 - model.weight, dropped[0])

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_no_op_runs_again(self, reentrant: bool) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            out = checkpoint(model.body, x, use_reentrant=reentrant) if model.checks else model.body(x)
            return poptorch.identity_loss(out, "sum")

        body = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.Tanh())
        ops = []
        for checks in (False, True):
            executor = training(Module(forward, body=copy.deepcopy(body), checks=checks))
            executor(torch.ones(1, 2))
            ops.append([(op.target, op.phase) for op in ipu_model.profile(executor).ops])
        assert ops[0] == ops[1]


class TestArithmetic:
    @pytest.mark.parametrize("difference", [lambda b: b - b, lambda b: 1 - b, lambda b: b - 1, lambda b: b.sub_(b)])
    def test_a_difference_of_bools_is_refused_in_its_line_of_forward(
        self, difference: Callable[[Tensor], Tensor]
    ) -> None:
        """As by PyTorch itself (GPT-2's old mask); fake tensors alone do not notice."""
        with pytest.raises(RuntimeError, match=r"Subtraction, the `-` operator, with .* bool tensor") as refusal:
            run(lambda x: difference(x > 1))
        assert any(entry.frame.code.name == "forward" for entry in refusal.traceback)


class TestPrinting:
    def test_a_tensor_of_the_device_prints_without_values(self, capsys: pytest.CaptureFixture[str]) -> None:
        def shows(x: Tensor) -> Tensor:
            print(x, f"{x.half()}", [x > 1])
            return x

        run(shows)
        assert capsys.readouterr().out == (
            "tensor(<unavailable>, size=(2,), device='ipu:0') "
            "tensor(<unavailable>, size=(2,), device='ipu:0', dtype=torch.float16) "
            "[tensor(<unavailable>, size=(2,), device='ipu:0')]\n"
        )


class TestAfterTracing:
    def test_what_forward_caches_is_no_fake(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            model.seen.append(1)
            if model.mask is None:
                model.mask = torch.ones(2)
            return x * model.mask

        model: Any = Module(forward, mask=None, seen=[])
        executor = inference(model, quiet())
        assert executor(X).tolist() == [1, 2]
        assert model.mask is None
        assert model.seen == [1], "Python's own side effects stay"
        assert torch.equal(model(X), X)

    def test_gradient_settings_and_backends_are_as_before(self) -> None:
        def settings() -> tuple[bool, ...]:
            modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
            return (*modes, torch.backends.mha.get_fastpath_enabled())

        before = settings()
        run(lambda x: x * 2)
        with pytest.raises(ZeroDivisionError):
            run(lambda x: x * (1 // 0))
        assert settings() == before
