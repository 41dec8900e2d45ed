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

# Their members, and the option that takes them.
ENUMERATIONS = {
    "RecomputationType": ("NoRecompute Standard NormOnly Pipeline RecomputeAll", "autoRecomputation"),
    "AccumulateOuterFragmentSchedule": (
        "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized", "accumulateOuterFragmentSettings.schedule"
    ),
    "SubgraphCopyingStrategy": ("OnEnterAndExit JustInTime", "subgraphCopyingStrategy"),
    "BatchSerializationBatchSchedule": (
        "Scheduler Isomorphic OverlapOnIo OverlapOnCompute", "batchSerializationSettings.batchSchedule"
    ),
    "BatchSerializationMethod": ("UnrollDynamic UnrollStatic Loop", "batchSerializationSettings.method"),
    "BatchSerializationTransformContext": ("Fwd Bwd", "batchSerializationSettings.transformContext"),
    "GradientTensorTrackingMethod": (None, "automaticLossScalingSettings.gradientTensorTrackingMethod"),
    "SyntheticDataMode": ("Off Zeros RandomNormal RandomUniform", "syntheticDataMode"),
    "VirtualGraphMode": ("Off Manual Auto ExecutionPhases", "virtualGraphMode"),
    "MergeVarUpdateType": ("Off All AutoLoose AutoTight", "mergeVarUpdate"),
    "ReductionType": ("Sum Mean NoReduction", "accumulationAndReplicationReductionType"),
    "Instrumentation": ("Outer Inner", None),
    "TensorStorage": ("OnChip OffChip", None),
    "ReplicatedTensorSharding": ("Off On", None),
    "TileSet": ("Compute IO", None)
}  # fmt: skip


def validate(key: str, value: object) -> None:
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options._Popart.set(key, value)
    poptorch.poptorch_core._validateOptions(options.toDict())


class TestEnumerations:
    @pytest.mark.parametrize("name", ENUMERATIONS)
    def test_members_count_from_0_and_suit_their_key_to_the_last_one(self, name: str) -> None:
        enumeration, (members, key) = getattr(popart, name), ENUMERATIONS[name]
        assert members is None or [member.name for member in enumeration] == members.split()
        assert [int(member) for member in enumeration] == list(range(len(enumeration)))
        if key is not None:
            for value in (list(enumeration)[-1], len(enumeration) - 1):
                validate(key, value)
            with pytest.raises(poptorch.Error, match=rf"option {key} is out of range"):
                validate(key, len(enumeration))

    def test_members_print_their_names_and_have_pythons_keyword_as_a_second_one(self) -> None:
        assert popart.RecomputationType["None"] is popart.RecomputationType.NoRecompute
        assert popart.MergeVarUpdateType["None"] is popart.MergeVarUpdateType.Off
        assert f"{popart.RecomputationType.Standard}" == "RecomputationType.Standard"
        assert repr(popart.RecomputationType.Standard) == "<RecomputationType.Standard: 1>"


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
        options = poptorch.Options()
        options.TensorLocations.setOptimizerLocation(location)
        assert options.TensorLocations.toDict() == {"location_optimizer": own.toDict()}
        # The long form has the tiles that load and store.
        long = popart.TensorLocation(self.OFF_CHIP, self.IO, popart.TileSet.Compute, self.SHARDED)
        assert long.toDict() == own.useIOTilesToLoad().useIOTilesToStore(False).toDict()
        assert (long.loadTileSet, long.storageTileSet) == (self.IO, popart.TileSet.Compute)

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

    def test_it_comes_first_wherever_it_is(self, tmp_path: Path, program_path: list[str]) -> None:
        real = self.install(tmp_path)
        for path in ([real, *program_path], [*program_path, real]):
            assert self.run(self.PROGRAM, path) == "the real one popart\n"
        (tmp_path / "popart.py").write_text(Path(str(popart.__file__)).read_text(encoding="utf-8"))
        assert self.run(self.PROGRAM, [real, *program_path]) == "the real one popart\n"  # in the same folder

    def test_a_second_copy_of_this_module_and_a_mere_folder_are_none(
        self, tmp_path: Path, program_path: list[str]
    ) -> None:
        program = "import popart, poptorch; print(popart.TileSet.IO, popart.versionString() == poptorch.__version__)"
        (tmp_path / "popart.py").write_text(Path(str(popart.__file__)).read_text(encoding="utf-8"))
        assert self.run(program, [*program_path, str(tmp_path)]) == "TileSet.IO True\n"
        (tmp_path / "empty" / "popart").mkdir(parents=True)
        assert self.run(program, [str(tmp_path / "empty"), *program_path]) == "TileSet.IO True\n"

    @pytest.fixture
    def program_path(self) -> list[str]:
        sources = [Path(str(popart.__file__)).parent, Path(str(poptorch.__file__)).parents[1]]
        return [str(folder) for folder in dict.fromkeys(sources)]

    @staticmethod
    def run(program: str, path: list[str]) -> str:
        whole = f"import sys; sys.path[:0] = {path!r}\n{program}"
        done = subprocess.run([sys.executable, "-c", whole], check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout
