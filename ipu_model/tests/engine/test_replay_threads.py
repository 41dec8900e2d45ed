"""How many threads a replay uses: the choice from the work and the free cores, and PyTorch's setting around a run."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tracing_support import Net, session_of, traced

from ipu_model.capture.describe import step_of
from ipu_model.compute.threads import SWITCH, ParallelWork, Threads, choose, threads_for, work_of
from ipu_model.cores import Cores, CoreWatch
from ipu_model.errors import Error
from ipu_model.step import Step

MICROSECOND, MILLISECOND = 1e-6, 1e-3
TINY = Counter({ParallelWork(4 * MICROSECOND): 10})
SMALL = Counter({ParallelWork(400 * MICROSECOND): 20})
LARGE = Counter({ParallelWork(80 * MILLISECOND): 5})


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let PyTorch use four threads, whatever the machine has."""
    monkeypatch.delenv(SWITCH, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def convolution() -> Net:
    """A convolution of images of 10 x 10 pixels, and its loss."""
    return Net(lambda net, x: F.mse_loss(net.conv(x), torch.zeros(4, 8, 8, 8)), conv=nn.Conv2d(3, 8, 3, bias=False))


class TestChoice:
    def test_on_a_free_machine_only_tiny_work_uses_one_thread(self) -> None:
        assert [choose(work, Cores(2), 2) for work in (TINY, SMALL, LARGE)] == [1, 2, 2]

    def test_on_a_busy_machine_only_large_ops_use_several_threads(self) -> None:
        busy = Cores(2, busy=2)
        assert [choose(work, busy, 2) for work in (TINY, SMALL, LARGE)] == [1, 1, 2]

    def test_with_sleeping_threads_smaller_ops_use_several_threads(self) -> None:
        medium = Counter({ParallelWork(2 * MILLISECOND): 20})
        assert choose(medium, Cores(2, busy=2), 2) == 1
        assert choose(medium, Cores(2, busy=2), 2, asleep=True) == 2

    def test_small_ops_use_the_cores_that_are_left(self) -> None:
        assert choose(SMALL, Cores(4, busy=2), 4) == 2
        assert choose(SMALL, Cores(4, busy=3), 4) == 1

    def test_never_more_than_the_user_set(self) -> None:
        assert choose(LARGE, Cores(64), 3) == 3

    def test_never_more_than_a_quota_even_for_large_ops(self) -> None:
        assert choose(LARGE, Cores(64, quota=2), 64) == 2
        assert choose(LARGE, Cores(64, quota=0.5), 64) == 1

    def test_more_work_uses_more_threads(self) -> None:
        chosen = [choose(work, Cores(64), 64) for work in (TINY, SMALL, LARGE)]
        assert chosen == sorted(chosen)
        assert chosen[-1] > 32

    def test_work_that_does_not_divide_needs_one_thread(self) -> None:
        assert choose(Counter({ParallelWork(80 * MILLISECOND, most=1): 5}), Cores(8), 8) == 1


class TestWork:
    """Seconds at one operation per second are numbers of operations."""

    def test_a_product_counts_its_multiplications_and_additions(self) -> None:
        step = step_of(traced(nn.Linear(16, 32, bias=False), torch.zeros(8, 16), training=False))
        assert work_of(step, 1.0) == Counter({ParallelWork(2 * 8 * 16 * 32): 1})

    def test_a_convolution_counts_forward_and_backward(self) -> None:
        step = step_of(traced(convolution(), torch.zeros(4, 3, 10, 10), training=True))
        forward = 2 * (4 * 8 * 8 * 8) * (3 * 3 * 3)
        # Backward computes only the weights' gradient, which takes as many operations: the input needs none.
        assert work_of(step, 1.0)[ParallelWork(forward)] == 2

    def test_pytorch_divides_elements_only_in_large_parts(self) -> None:
        def piece(elements: int) -> ParallelWork:
            step = step_of(traced(nn.Tanh(), torch.zeros(elements), training=False))
            (found,) = work_of(step, 1.0)
            return found

        assert piece(1000).most == 1
        assert piece(4 * 32768).most == 4

    def test_views_are_no_work(self) -> None:
        step = step_of(traced(nn.Flatten(), torch.zeros(4, 5, 6), training=False))
        assert not work_of(step, 1.0)

    def test_a_recurrent_layer_is_many_small_pieces(self) -> None:
        model = Net(lambda net, x: net.lstm(x)[0], lstm=nn.LSTM(16, 32))
        step = step_of(traced(model, torch.zeros(10, 4, 16), training=False))
        # In each of 10 steps 4 sequences meet the weights of 4 gates: 32 states by 16 inputs and 32 states.
        assert work_of(step, 1.0)[ParallelWork(2 * 4 * 4 * 32 * (16 + 32))] == 10

    @pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
    def test_backward_has_as_many_pieces_as_forward(self, layer: type[nn.Module]) -> None:
        model = Net(lambda net, x: F.mse_loss(net.layer(x)[0], torch.zeros(10, 4, 32)), layer=layer(16, 32))
        step = step_of(traced(model, torch.zeros(10, 4, 16)))
        # Nobody asks for the gradient of the input, so the first result of the backward op is that of a weight.
        gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[layer]
        assert work_of(step, 1.0)[ParallelWork(2 * 4 * gates * 32 * (16 + 32))] == 2 * 10


class TestSetting:
    def test_a_run_within_a_run_gives_back_the_number_of_the_outer_one(self) -> None:
        # As when poptorch.CPU calls a function that runs another model.
        with Threads(2).in_use():
            with Threads(1).in_use():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 4

    def test_a_run_uses_its_number_and_restores_the_users(self) -> None:
        class Update:
            def step(self, gradients: Mapping[str, Tensor], scale: float) -> None:
                seen.append(torch.get_num_threads())

        seen: list[int] = []
        images = torch.zeros(4, 3, 10, 10)
        session = session_of(convolution(), images, threads=Threads(2))
        session.update = Update().step
        session.run([images])
        assert seen == [2]
        assert torch.get_num_threads() == 4

    def test_it_restores_the_users_number_after_an_error_too(self) -> None:
        with pytest.raises(ZeroDivisionError), Threads(2).in_use():
            raise ZeroDivisionError
        assert torch.get_num_threads() == 4

    def test_a_smaller_number_that_the_user_sets_later_applies(self) -> None:
        torch.set_num_threads(1)
        with Threads(2).in_use():
            assert torch.get_num_threads() == 1

    def test_a_fixed_number_holds_whatever_the_user_sets(self) -> None:
        torch.set_num_threads(1)
        with Threads(2, fixed=True).in_use():
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1

    def test_overlapping_runs_in_two_python_threads_restore_the_users_number(self) -> None:
        """The second begins while the first has set its own number, and ends after it."""
        first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()
        seen: list[int] = []

        def first() -> None:
            with Threads(1).in_use():
                first_is_in.set()
                second_is_in.wait(10)
            first_is_out.set()

        def second() -> None:
            first_is_in.wait(10)
            with Threads(2).in_use():
                seen.append(torch.get_num_threads())
                second_is_in.set()
                first_is_out.wait(10)

        def later() -> None:
            seen.append(torch.get_num_threads())

        in_python_threads(first, second)
        in_python_threads(later)
        assert seen == [2, 4]


def in_python_threads(*functions: Callable[[], None]) -> None:
    started = [threading.Thread(target=function) for function in functions]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(20)


class TestPrograms:
    @pytest.fixture
    def step(self) -> Step:
        return step_of(traced(nn.Linear(4, 4), torch.zeros(2, 4), training=False))

    def test_a_tiny_program_takes_one_thread(self, step: Step) -> None:
        assert threads_for(step, CoreWatch()) == Threads(1)

    def test_the_environment_fixes_the_number(self, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(SWITCH, "3")
        assert threads_for(step, CoreWatch()) == Threads(3, fixed=True)

    @pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
    def test_anything_but_a_number_is_refused(self, step: Step, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setenv(SWITCH, text)
        with pytest.raises(Error, match=f"IPU_MODEL_THREADS must be the number of threads .* got '{text}'"):
            threads_for(step, CoreWatch())

    def test_a_large_program_takes_the_cores_that_a_container_may_use(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64), raising=False)
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text("0::/")
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/cpu.max").write_text("200000 100000")
        large = step_of(traced(nn.Linear(4096, 4096), torch.zeros(4096, 4096), training=False))
        assert threads_for(large, CoreWatch(tmp_path)) == Threads(2)
