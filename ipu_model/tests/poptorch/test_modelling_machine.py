"""Which machine a program is modelled on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modelling_support import Chain, inferred, quiet

import poptorch
from ipu_model.front_ends import program_behind
from ipu_model.predict.hardware import known_hardware, system_named
from ipu_model.predict.program import Program
from poptorch._backend.modelling import machine_for

MACHINE, VERSION = "IPU_MODEL_MACHINE", "POPTORCH_IPU_MODEL_VERSION"


@pytest.fixture(autouse=True)
def _no_choice_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (MACHINE, VERSION):
        monkeypatch.delenv(name, raising=False)


def program(options: poptorch.Options | None = None, replicas: int = 1, wanted: str | None = None) -> Program:
    """Return a program of `replicas` IPUs."""
    return inferred((options or quiet()).replicationFactor(replicas), ipus=1, machine=wanted)


class TestDefault:
    @pytest.mark.parametrize(
        ("ipus", "name"), [(1, "M2000"), (4, "M2000"), (5, "POD16"), (17, "POD64"), (65, "POD128"), (256, "POD256")]
    )
    def test_the_smallest_gc200_system_with_enough_ipus(self, ipus: int, name: str) -> None:
        assert machine_for(poptorch.Options(), ipus).name == name

    @settings(max_examples=30)
    @given(st.integers(1, 256))
    def test_no_smaller_system_would_do(self, ipus: int) -> None:
        chosen = machine_for(poptorch.Options(), ipus)
        gc200 = [s for s in known_hardware().systems.values() if s.chip.name == "GC200"]
        assert chosen.ipus >= ipus
        assert not [s for s in gc200 if ipus <= s.ipus < chosen.ipus]

    def test_more_than_any_system_has(self) -> None:
        with pytest.raises(poptorch.Error, match=r"No system has 257 IPUs.*POD256"):
            machine_for(poptorch.Options(), 257)

    def test_costs_are_those_of_its_chip(self) -> None:
        found = program(wanted="Bow")
        assert found.settings.device.chip == found.system.chip == system_named("Bow").chip


class TestVersions:
    @pytest.mark.parametrize(("version", "chip"), [(1, "GC2"), (2, "GC200"), (21, "C600")])
    def test_an_offline_target_names_the_chip(self, version: int, chip: str) -> None:
        assert program(quiet().useOfflineIpuTarget(version)).system.chip.name == chip

    def test_a_version_that_does_not_exist(self) -> None:
        with pytest.raises(poptorch.Error, match=r"no IPU version 3 .*1 \(GC2\), 2 \(GC200\), 21 \(C600\)"):
            program(quiet().useOfflineIpuTarget(3))

    @pytest.mark.parametrize(("version", "chip"), [("ipu1", "GC2"), ("ipu2", "GC200"), ("ipu21", "C600")])
    def test_so_does_the_variable_of_poptorchs_simulator(
        self, version: str, chip: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(VERSION, version)
        assert program().system.chip.name == chip
        assert program(quiet().useOfflineIpuTarget(2)).system.chip.name == "GC200"


class TestEnvironment:
    @pytest.mark.parametrize("name", ["POD16", "pod-16", "Bow-POD16"])
    def test_a_named_machine(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(MACHINE, name)
        assert program().system == system_named(name)

    def test_a_chip_stands_for_its_smallest_system_with_enough_ipus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(MACHINE, "Bow")
        assert program().system.name == "Bow-2000"
        assert program(replicas=9).system.name == "Bow-POD16"
        monkeypatch.setenv(MACHINE, "GC-200")
        assert program(replicas=9).system.name == "POD16"

    def test_one_that_is_too_small_is_refused_with_both_counts_and_the_nearest_that_fits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(MACHINE, "Bow-2000")
        with pytest.raises(poptorch.Error, match=f"needs 6 IPUs, but Bow-2000, which .*{MACHINE}.* has 4.*Bow-POD16"):
            program(replicas=6)

    def test_an_executor_does_not_compile_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = Chain(1)
        executor = poptorch.trainingModel(model, quiet().replicationFactor(8))
        x = torch.ones(8, 8)
        monkeypatch.setenv(MACHINE, "M2000")
        with pytest.raises(poptorch.Error, match="needs 8 IPUs, but M2000"):
            executor.compile(x, x)
        assert type(model) is Chain
        monkeypatch.setenv(MACHINE, "POD16")
        executor.compile(x, x)
        assert program_behind(executor).system.name == "POD16"

    def test_one_that_does_not_exist(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(MACHINE, "POD7")
        with pytest.raises(poptorch.Error, match=r"no machine 'POD7'.*POD16"):
            program()

    def test_an_offline_target_of_another_chip_wins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(MACHINE, "POD64")
        assert program(quiet().useOfflineIpuTarget(21)).system.chip.name == "C600"
        assert program(quiet().useOfflineIpuTarget(2)).system.name == "POD64"

    def test_bow_ipus_are_version_2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(MACHINE, "Bow-POD16")
        assert program(quiet().useOfflineIpuTarget(2)).system.name == "Bow-POD16"


class TestArgument:
    def test_it_wins_over_everything(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(MACHINE, "POD16")
        monkeypatch.setenv(VERSION, "ipu1")
        assert program(quiet().useOfflineIpuTarget(21), wanted="POD64").system.name == "POD64"

    def test_it_may_be_a_system(self) -> None:
        found = inferred(quiet(), ipus=1, machine=system_named("POD128"))
        assert found.system is system_named("POD128")

    @pytest.mark.parametrize("wanted", [16, b"POD16", ["POD16"], system_named("Bow").chip])
    def test_other_things_are_refused(self, wanted: Any) -> None:
        with pytest.raises(poptorch.Error, match="named by a text such as 'POD16' or 'Bow', or it is"):
            program(wanted=wanted)

    def test_one_that_is_too_small(self) -> None:
        with pytest.raises(poptorch.Error, match=r"needs 5 IPUs, but M2000, which the argument machine names.*POD16"):
            program(replicas=5, wanted="M2000")


class TestReservedIpus:
    def test_rounding_up_occupies_idle_ipus(self) -> None:
        options = quiet().autoRoundNumIPUs(True).deviceIterations(5)
        found = inferred(options, ipus=5)
        assert found.reserved_ipus == 8
        assert found.ipus_per_replica == 5

    def test_of_every_process(self) -> None:
        options = quiet().autoRoundNumIPUs(True).replicationFactor(3)
        options.Distributed.configureProcessId(0, 5)
        found = inferred(options, ipus=1)
        assert (found.reserved_ipus, found.system.name) == (20, "POD64")

    def test_without_it_only_used_ones_count(self) -> None:
        assert inferred(quiet().replicationFactor(3), ipus=1).reserved_ipus is None
