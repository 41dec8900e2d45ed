"""What instances compare before they train together; that they do: tests/popdist."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from poptorch._backend.compile import check_programs

# Prints what one process would compare; sets have another order wherever this runs with another hash seed.
SCRIPT = """
import torch, poptorch
from poptorch._backend.compile import program_text
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout())
model.forward = lambda x: poptorch.identity_loss(torch.nn.Sequential.forward(model, x), "sum")
optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.5)
training = poptorch.trainingModel(model, poptorch.Options().showCompilationProgressBar(False), optimizer)
training.compile(torch.ones(2, 3))
print(program_text(training._compiled.graph, training._compiled.step, training.options, training._optimisation.spec))
"""


@given(instances=st.integers(2, 5), data=st.data())
def test_what_differs_is_named_with_an_instance_for_each_value(instances: int, data: st.DataObject) -> None:
    programs = [{"deviceIterations": "2", "the optimiser": "ADAM"} for _ in range(instances)]
    check_programs(programs[:1])
    check_programs(programs)
    odd = data.draw(st.integers(1, instances - 1))
    programs[odd]["deviceIterations"] = "3"
    with pytest.raises(poptorch.Error) as refusal:
        check_programs(programs)
    assert f"deviceIterations: 2 in instance 0, 3 in instance {odd}." in refusal.value.message
    assert "ADAM" not in refusal.value.message


def test_the_same_program_reads_the_same_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    exec(SCRIPT, {})
    here = capsys.readouterr().out
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    assert (
        subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True).stdout == here
    )
    assert "lr=0.5" in here
