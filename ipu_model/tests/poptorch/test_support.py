"""The support table: complete against the reference, and true about each name."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
import torch
from names_page import NAMES

import ipu_model
import popart
import popdist
import popdist.poptorch
import poptorch
from popdist.run.options import FLAGS, OPTIONS
from poptorch._backend import support

X = torch.arange(8.0).reshape(2, 4)
ENTRIES = [(area, entry) for area in support.table() for entry in area.entries]
IDS = [f"{area.prefix}.{entry.name}" for area, entry in ENTRIES]
REFUSED = [e.name for area, e in ENTRIES if e.status == "refused" and area.owner != "horovod.torch"]
# Where no Python object bears the names.
NAMES_ONLY = ("environment", "poprun", "companion packages")

# (what programs write in front, the section that lists the names, the names)
REFERENCE: list[tuple[str, str, str]] = [
    (
        "",
        "options reference, section 11",
        """
        POPTORCH_LOG_LEVEL POPTORCH_CACHE_DIR POPTORCH_IPU_MODEL POPTORCH_WAIT_FOR_IPU
        POPTORCH_DEFAULT_OPTIONS POPTORCH_SMALL_IPU_MODEL POPTORCH_IPU_MODEL_VERSION POPTORCH_LOG_DEST
        POPTORCH_MAX_GRAPH_LEN POPTORCH_EXPORT_PROTO_FILE POPTORCH_EXPORT_PROTO_AS_BINARY
        POPLAR_ENGINE_OPTIONS PVTI_OPTIONS OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK RDMAV_FORK_SAFE""",
    ),
    (
        "popdist",
        "data reference, sections 5.1 and 5.2",
        """
        isPopdistEnvSet getNumTotalReplicas getNumLocalReplicas getNumIpusPerReplica getNumInstances
        getInstanceIndex getLocalInstanceIndex getReplicaIndexOffset getDeviceId checkNumIpusPerReplica init
        execute_on_instances synchronize isBackendInitialized finalizeBackend initializeBackend""",
    ),
    ("popdist.poptorch", "data reference, section 5.3", "Options"),
    (
        "horovod.torch",
        "data reference, section 6",
        """
        init rank size local_rank local_size allreduce Sum Average grouped_allreduce allgather broadcast
        broadcast_parameters""",
    ),
    (
        "poprun",
        "data reference, section 7",
        """
        --num-instances --num-replicas --ipus-per-replica --host -v --verbose -vv --vv --executable-cache-path
        --only-output-from-instance --mpi-global-args --mpi-local-args --numa-aware --print-topology
        --offline-mode --num-ilds --vipu-server-host --vipu-server-port --vipu-server-timeout --vipu-partition
        --vipu-allocation --vipu-cluster --update-partition --reset-partition --remove-partition --sync-type
        --allow-run-as-root --import-config --export-config --version --help""",
    ),
    (
        "",
        "data reference, section 7.1",
        """
        POPDIST_NUM_TOTAL_REPLICAS POPDIST_NUM_LOCAL_REPLICAS POPDIST_NUM_IPUS_PER_REPLICA
        POPDIST_REPLICA_INDEX_OFFSET POPDIST_UNIFORM_REPLICAS_PER_INSTANCE POPDIST_LOCAL_INSTANCE_INDEX
        OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_LOCAL_RANK IPUOF_VIPU_API_HOST IPUOF_VIPU_API_PORT
        IPUOF_VIPU_API_PARTITION_ID IPUOF_VIPU_API_TIMEOUT IPUOF_VIPU_API_GCD_ID IPUOF_LOG_LEVEL
        POPLAR_TARGET_OPTIONS""",
    ),
]

DEFAULTS = poptorch.Options()
OWNERS: dict[str, Any] = {
    "poptorch": poptorch,
    "poptorch.PoplarExecutor": poptorch.PoplarExecutor,
    "poptorch.DataLoader": poptorch.DataLoader(poptorch.Options(), [torch.zeros(1)]),
    "poptorch.AsynchronousDataAccessor": poptorch.AsynchronousDataAccessor,
    "poptorch.Options": DEFAULTS,
    "poptorch.TensorLocationSettings": poptorch.TensorLocationSettings(),
    "poptorch.options._TrainingOptions": DEFAULTS.Training,
    "poptorch.options._PrecisionOptions": DEFAULTS.Precision,
    "poptorch.options._TensorLocationOptions": DEFAULTS.TensorLocations,
    "poptorch.options._DistributedOptions": DEFAULTS.Distributed,
    "poptorch.options._JitOptions": DEFAULTS.Jit,
    "poptorch.options._PopartOptions": DEFAULTS._Popart,
    "poptorch.optim": poptorch.optim,
    "popdist": popdist,
    "popdist.poptorch": popdist.poptorch,
    "popart": popart,
    "horovod.torch": import_module("horovod.torch"),
}
# Those whose every public member is PopTorch's: loaders have what torch's loader has besides.
CLASSES = [name for name in OWNERS if "ptions" in name or "Executor" in name or "Settings" in name]


def resolve(owner: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        owner = getattr(owner, part)
    return owner


class TestCompleteness:
    @pytest.mark.parametrize(("prefix", "section", "names"), REFERENCE)
    def test_every_name_of_the_reference_is_in_the_table(self, prefix: str, section: str, names: str) -> None:
        listed = [f"{prefix}.{name}" if prefix else name for name in names.split()]
        assert [name for name in listed if support.status_of(name) is None] == [], section

    def test_every_public_name_of_poptorchs_modules_is_in_the_table(self) -> None:
        """Members of classes are asked for below, and in test_support_tests.py."""
        public = [n for n in NAMES if not n.owner and not n.name.startswith("_") and "._" not in n.module]
        public = [n for n in public if n.name != "BlockId"]  # a type alias
        in_sub_modules = ("poptorch.optim", "poptorch.profiling", "poptorch.testing")
        listed = [f"{name.module if name.module in in_sub_modules else 'poptorch'}.{name.name}" for name in public]
        assert len(listed) >= 70
        assert [name for name in listed if support.status_of(name) is None] == []

    def test_every_name_that_the_package_exports_is_in_the_table(self) -> None:
        assert [name for name in poptorch.__all__ if support.status_of(f"poptorch.{name}") is None] == []

    def test_every_name_of_popdist_and_every_option_of_poprun_is_in_the_table(self) -> None:
        options = {option.name for option in OPTIONS} | set(FLAGS) - {"-h"}
        listed = {entry.name for area, entry in ENTRIES if area.prefix == "poprun"}
        assert listed == options
        assert {entry.name for area, entry in ENTRIES if area.owner == "popdist"} == set(popdist.__all__)

    def test_options_of_poprun_have_no_effect_where_the_table_says_so(self) -> None:
        idle = {entry.name for area, entry in ENTRIES if area.prefix == "poprun" and entry.status == "no effect"}
        assert idle == {option.name for option in OPTIONS if not option.effective}

    @pytest.mark.parametrize("owner", CLASSES)
    def test_every_public_method_of_the_options_and_the_executor_is_in_the_table(self, owner: str) -> None:
        kind = OWNERS[owner] if inspect.isclass(OWNERS[owner]) else type(OWNERS[owner])
        generic = {entry.name for area, entry in ENTRIES if area.title == "Options: generic access"} | {"toDict"}
        sub_options = {"Training", "Precision", "TensorLocations", "Distributed", "Jit"}
        public = {name for name in dir(kind) if not name.startswith("_")} - generic - sub_options
        assert public - {entry.name for area, entry in ENTRIES if area.owner == owner} == set()

    def test_no_name_is_listed_twice(self) -> None:
        assert len(set(IDS)) == len(IDS)

    @pytest.mark.parametrize(("area", "entry"), ENTRIES, ids=IDS)
    def test_each_entry_has_a_known_status_and_says_what_differs(
        self, area: support.Area, entry: support.Entry
    ) -> None:
        assert entry.status in support.STATUSES
        assert entry.status == "works" or entry.text.endswith(".")


class TestPresence:
    def test_the_version_is_that_of_the_distribution(self) -> None:
        """After the +, which comparisons of versions ignore; before it is the PopTorch whose behaviour this is."""
        assert poptorch.__version__ == f"3.4.0+ipu.model.{ipu_model.__version__}"

    @pytest.mark.parametrize(("area", "entry"), ENTRIES, ids=IDS)
    def test_each_name_can_be_reached_refused_ones_included(self, area: support.Area, entry: support.Entry) -> None:
        if area.owner in NAMES_ONLY:
            return
        assert resolve(OWNERS[area.owner], entry.name) is not None

    def test_it_has_no_modules_that_poptorch_does_not_have(self) -> None:
        """Of PopTorch 3.4: the headings of the reference of its names."""
        of_poptorch = {
            "_args_parser", "_dataloader", "_impl", "_logging", "_optimizer_attributes", "_options_config",
            "_options_impl", "_poplar_executor", "_poptorch_data", "_printing", "_utils", "enums", "ops", "optim",
            "options", "poptorch_core", "profiling", "testing", "torch",
        }  # fmt: skip
        script = (
            "import types, poptorch\n"
            "print(*(name for name, value in vars(poptorch).items() if isinstance(value, types.ModuleType)))"
        )
        shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        assert set(shown.split()) <= of_poptorch

    def test_a_name_that_is_not_poptorchs_is_no_attribute(self) -> None:
        for module in (poptorch, poptorch.ops):
            assert not hasattr(module, "autocast")
            with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'autocast'"):
                _ = module.autocast


class TestRefusals:
    def test_of_poptorchs_names_only_those_of_its_own_files_are_refused(self) -> None:
        assert REFUSED == ["importPoptorchMetadataFromFile"]


class TestPage:
    def test_the_summary_counts_every_name_once(self) -> None:
        summary = support.as_markdown().splitlines()[2]
        counts = [int(word) for word in summary.replace(":", " ").split() if word.isdigit()]
        assert counts[0] == len(ENTRIES) == sum(counts[1:])

    def test_every_row_has_four_cells(self) -> None:
        rows = [line for line in support.as_markdown().splitlines() if line.startswith("|")]
        assert {row.count("|") for row in rows} == {5}

    def test_a_status_can_be_asked_for_by_the_name_as_written(self) -> None:
        entry = support.status_of("Options.Training.gradientAccumulation")
        assert entry is not None
        assert entry.status == "works"
        assert support.status_of("poptorch.autocast") is None
