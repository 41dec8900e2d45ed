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
from poptorch.options.backend import validate_options

# Their members, and the option that takes them.
ENUMERATIONS = {
    "RecomputationType": ("NoRecompute Standard NormOnly Pipeline RecomputeAll", "autoRecomputation"),
    "AccumulateOuterFragmentSchedule": (
        "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized", "accumulateOuterFragmentSettings.schedule",
    ),
    "SubgraphCopyingStrategy": ("OnEnterAndExit JustInTime", "subgraphCopyingStrategy"),
    "BatchSerializationBatchSchedule": (
        "Scheduler Isomorphic OverlapOnIo OverlapOnCompute", "batchSerializationSettings.batchSchedule",
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
    "TileSet": ("Compute IO", None),
}  # fmt: skip


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_members_count_from_0_and_suit_their_key_to_the_last_one(name: str) -> None:
    enumeration, (members, key) = getattr(popart, name), ENUMERATIONS[name]
    assert members is None or [member.name for member in enumeration] == members.split()
    assert [int(member) for member in enumeration] == list(range(len(enumeration)))
    if key is not None:
        for value in (list(enumeration)[-1], len(enumeration) - 1):
            validate_options({key: value})
        with pytest.raises(poptorch.Error, match=rf"option {key} is out of range"):
            validate_options({key: len(enumeration)})


def test_members_print_their_names_and_have_pythons_keyword_as_a_second_one() -> None:
    assert popart.RecomputationType["None"] is popart.RecomputationType.NoRecompute
    assert popart.MergeVarUpdateType["None"] is popart.MergeVarUpdateType.Off
    assert f"{popart.RecomputationType.Standard}" == "RecomputationType.Standard"
    assert repr(popart.RecomputationType.Standard) == "<RecomputationType.Standard: 1>"


def test_a_location_reaches_the_settings_of_poptorchs_own() -> None:
    off_chip, sharded, io = popart.TensorStorage.OffChip, popart.ReplicatedTensorSharding.On, popart.TileSet.IO
    own = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
    for location in (
        popart.TensorLocation(off_chip, sharded), popart.TensorLocation(1, 1),
        popart.TensorLocation(storage=off_chip, replicatedTensorSharding=sharded),
    ):  # fmt: skip
        options = poptorch.Options()
        options.TensorLocations.setOptimizerLocation(location)
        assert options.TensorLocations.toDict() == {"location_optimizer": own.toDict()}
    # The long form has the tiles that load and store.
    long = popart.TensorLocation(off_chip, io, popart.TileSet.Compute, sharded)
    assert long.toDict() == own.useIOTilesToLoad().useIOTilesToStore(False).toDict()
    assert (long.loadTileSet, long.storageTileSet) == (io, popart.TileSet.Compute)
    default = popart.TensorLocation()
    assert default.toDict() == {}
    assert (default.storage, default.replicatedTensorSharding) == (0, 0)


@pytest.mark.parametrize("statement", ["from popart import Builder", "import popart.ir", "import popart.ir.ops"])
def test_other_names_are_none_and_importing_one_fails_with_the_reason(statement: str) -> None:
    assert not hasattr(popart, "Builder")
    with pytest.raises(ImportError, match=r"popart\.(Builder|ir) .* PopART is not installed"):
        exec(statement)


OURS = Path(str(popart.__file__))


def run(program: str, *path: Path) -> str:
    whole = f"import sys; sys.path[:0] = {[str(folder) for folder in path]!r}\nimport popart, poptorch; {program}"
    done = subprocess.run([sys.executable, "-c", whole], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


class TestAnInstalledPopart:
    """PopART itself, installed or on `PYTHONPATH`, is what `import popart` finds, wherever this module is."""

    FOLDERS = tuple(dict.fromkeys([OURS.parent, Path(str(poptorch.__file__)).parents[1]]))

    def test_it_comes_first_wherever_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "popart").mkdir()
        (tmp_path / "popart" / "__init__.py").write_text("Builder = 'the real one'\n")
        for path in ((tmp_path, *self.FOLDERS), (*self.FOLDERS, tmp_path)):
            assert run("print(popart.Builder, popart.__name__)", *path) == "the real one popart\n"
        (tmp_path / "popart.py").write_text(OURS.read_text(encoding="utf-8"))  # in the same folder
        assert run("print(popart.Builder)", tmp_path, *self.FOLDERS) == "the real one\n"

    def test_a_second_copy_of_this_module_and_a_mere_folder_are_none(self, tmp_path: Path) -> None:
        program = "print(popart.TileSet.IO, popart.versionString() == poptorch.__version__)"
        (tmp_path / "popart.py").write_text(OURS.read_text(encoding="utf-8"))
        assert run(program, *self.FOLDERS, tmp_path) == "TileSet.IO True\n"
        (tmp_path / "empty" / "popart").mkdir(parents=True)
        assert run(program, tmp_path / "empty", *self.FOLDERS) == "TileSet.IO True\n"
