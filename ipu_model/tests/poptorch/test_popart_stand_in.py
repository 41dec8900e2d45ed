"""`import popart` where PopART is not installed: values of options, and a refusal by name of everything else.

Values and members: the reference of PopTorch's names ("What public programs take from popart") and the options
reference, section 9.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import popart
import poptorch

ENUMERATIONS = {
    "RecomputationType": "NoRecompute Standard NormOnly Pipeline RecomputeAll",
    "AccumulateOuterFragmentSchedule": "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized",
    "SubgraphCopyingStrategy": "OnEnterAndExit JustInTime",
    "BatchSerializationBatchSchedule": "Scheduler Isomorphic OverlapOnIo OverlapOnCompute",
    "BatchSerializationMethod": "UnrollDynamic UnrollStatic Loop",
    "BatchSerializationTransformContext": "Fwd Bwd",
    "SyntheticDataMode": "Off Zeros RandomNormal RandomUniform",
    "VirtualGraphMode": "Off Manual Auto ExecutionPhases",
    "MergeVarUpdateType": "Off All AutoLoose AutoTight",
    "ReductionType": "Sum Mean NoReduction",
    "Instrumentation": "Outer Inner",
    "TensorStorage": "OnChip OffChip",
    "ReplicatedTensorSharding": "Off On",
    "TileSet": "Compute IO",
}


class TestEnumerations:
    @pytest.mark.parametrize("name", ENUMERATIONS)
    def test_members_count_from_0_as_poparts_do(self, name: str) -> None:
        enumeration = getattr(popart, name)
        assert [member.name for member in enumeration] == ENUMERATIONS[name].split()
        assert [int(member) for member in enumeration] == list(range(len(enumeration)))

    def test_none_is_a_second_name_where_python_has_a_keyword_of_it(self) -> None:
        assert popart.RecomputationType["None"] is popart.RecomputationType.NoRecompute

    def test_a_member_prints_its_name(self) -> None:
        assert f"{popart.RecomputationType.Standard}" == "RecomputationType.Standard"
        assert repr(popart.RecomputationType.Standard) == "<RecomputationType.Standard: 1>"

    @pytest.mark.parametrize("given", [popart.RecomputationType.RecomputeAll, int(popart.RecomputationType(4)), 4])
    def test_members_and_their_ints_are_the_same_setting(self, given: int) -> None:
        options = poptorch.Options().outputMode(poptorch.OutputMode.All)
        options._Popart.set("autoRecomputation", given)
        poptorch.poptorch_core._validateOptions(options.toDict())
        assert options.toDict()["autoRecomputation"] == 4

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("accumulateOuterFragmentSettings.schedule", popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized),
            ("subgraphCopyingStrategy", popart.SubgraphCopyingStrategy.JustInTime),
            ("batchSerializationSettings.batchSchedule", popart.BatchSerializationBatchSchedule.OverlapOnCompute),
            ("syntheticDataMode", popart.SyntheticDataMode.RandomUniform),
            ("virtualGraphMode", popart.VirtualGraphMode.ExecutionPhases),
            ("mergeVarUpdate", popart.MergeVarUpdateType.AutoTight),
        ],
    )
    def test_every_enumeration_suits_its_key(self, key: str, value: int) -> None:
        options = poptorch.Options().outputMode(poptorch.OutputMode.All)
        options._Popart.set(key, value)
        poptorch.poptorch_core._validateOptions(options.toDict())


class TestTensorLocation:
    OFF_CHIP = popart.TensorStorage.OffChip
    SHARDED = popart.ReplicatedTensorSharding.On
    IO = popart.TileSet.IO

    @pytest.mark.parametrize(
        "location",
        [
            popart.TensorLocation(OFF_CHIP, SHARDED),
            popart.TensorLocation(1, 1),
            popart.TensorLocation(storage=OFF_CHIP, replicatedTensorSharding=SHARDED),
        ],
    )
    def test_it_reaches_the_settings_of_poptorchs_own(self, location: popart.TensorLocation) -> None:
        own = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
        options, expected = poptorch.Options(), poptorch.Options()
        options.TensorLocations.setOptimizerLocation(location)
        expected.TensorLocations.setOptimizerLocation(own)
        assert options.TensorLocations.toDict() == expected.TensorLocations.toDict()

    def test_the_long_form_has_the_tiles_that_load_and_store(self) -> None:
        location = popart.TensorLocation(self.OFF_CHIP, self.IO, popart.TileSet.Compute, self.SHARDED)
        own = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding()
        assert location.toDict() == own.useIOTilesToLoad().useIOTilesToStore(False).toDict()
        assert (location.loadTileSet, location.storageTileSet) == (self.IO, popart.TileSet.Compute)

    def test_what_is_left_out_is_at_the_default(self) -> None:
        location = popart.TensorLocation()
        assert location.toDict() == {}
        assert (location.storage, location.replicatedTensorSharding) == (
            popart.TensorStorage.OnChip, popart.ReplicatedTensorSharding.Off
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("values", "named"), [((0, 0, 0, 0, 0), {}), ((0,), {"storage": 1}), ((0,), {"shardingDomain": 1})]
    )
    def test_other_forms_are_refused(self, values: tuple[int, ...], named: dict[str, int]) -> None:
        with pytest.raises(TypeError, match=r"takes \(storage, replicatedTensorSharding\) or"):
            popart.TensorLocation(*values, **named)


def test_the_version_says_what_it_is() -> None:
    assert popart.versionString() == poptorch.__version__


class TestOtherNames:
    @pytest.mark.parametrize("name", ["Builder", "InferenceSession", "TrainingSession", "DeviceManager", "PyStepIO"])
    def test_they_are_refused_when_they_are_used(self, name: str) -> None:
        assert not hasattr(popart, name)
        with pytest.raises(AttributeError, match=rf"popart\.{name} is not available.*poptorch\.trainingModel"):
            getattr(popart, name)

    def test_a_misspelt_one_is_told_the_nearest(self) -> None:
        with pytest.raises(AttributeError, match=r"Did you mean popart\.RecomputationType\?"):
            popart.RecomputeType  # noqa: B018

    @pytest.mark.parametrize("statement", ["from popart import Builder", "import popart.ir", "import popart.ir.ops"])
    def test_importing_one_fails_with_the_reason(self, statement: str) -> None:
        with pytest.raises(ImportError, match=r"popart\.(Builder|ir) .* PopART is not installed"):
            exec(statement)


class TestAnInstalledPopart:
    """PopART itself, installed or on `PYTHONPATH`, is what `import popart` finds, wherever this module is."""

    PROGRAM = "import popart, poptorch; print(popart.Builder, popart.__name__)"

    @staticmethod
    def install(folder: Path) -> str:
        package = folder / "popart"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("Builder = 'the real one'\n")
        return str(folder)

    @pytest.mark.parametrize("order", ["before", "after"])
    def test_it_comes_first_in_either_order(self, order: str, tmp_path: Path, program_path: list[str]) -> None:
        real = self.install(tmp_path)
        path = [real, *program_path] if order == "before" else [*program_path, real]
        done = self.run(self.PROGRAM, path)
        assert done == "the real one popart\n"

    def test_it_comes_first_in_the_same_folder(self, tmp_path: Path, program_path: list[str]) -> None:
        (tmp_path / "popart.py").write_text(Path(str(popart.__file__)).read_text(encoding="utf-8"))
        done = self.run(self.PROGRAM, [self.install(tmp_path), *program_path])
        assert done == "the real one popart\n"

    def test_a_second_copy_of_this_module_is_none(self, tmp_path: Path, program_path: list[str]) -> None:
        (tmp_path / "popart.py").write_text(Path(str(popart.__file__)).read_text(encoding="utf-8"))
        program = "import popart; print(popart.TileSet.IO)"
        assert self.run(program, [*program_path, str(tmp_path)]) == "TileSet.IO\n"

    def test_a_mere_folder_of_that_name_is_none(self, tmp_path: Path, program_path: list[str]) -> None:
        (tmp_path / "popart").mkdir()
        assert self.run("import popart; print(popart.TileSet.IO)", [str(tmp_path), *program_path]) == "TileSet.IO\n"

    @pytest.fixture
    def program_path(self) -> list[str]:
        sources = [Path(str(popart.__file__)).parent, Path(str(poptorch.__file__)).parents[1]]
        return [str(folder) for folder in dict.fromkeys(sources)]

    @staticmethod
    def run(program: str, path: list[str]) -> str:
        whole = f"import sys; sys.path[:0] = {path!r}\n{program}"
        done = subprocess.run([sys.executable, "-c", whole], check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout


def test_the_module_can_be_imported_before_poptorch() -> None:
    """Programs sort their imports, and popart comes first."""
    program = "import popart, poptorch; print(poptorch.Options().TensorLocations is not None)"
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "True\n"
