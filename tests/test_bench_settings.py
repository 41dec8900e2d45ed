"""The settings of ``python -m ipu_course bench``: arithmetic of a step, names of layers, what is refused and how."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ipu_course.errors import SettingsError
from ipu_course.programs.bench import changed, configuration, settings_of_model
from ipu_course.programs.bench.layers import page_names, stage_starts, units
from ipu_course.programs.bench.results import check
from ipu_course.programs.bench.settings import BenchSettings, changes_from, check_settings
from ipu_course.programs.command_line import main, make_parser


class TestArithmetic:
    @pytest.mark.parametrize(
        ("name", "images"),
        [
            # The page's numbers multiplied: batch x micro-batches an update x replicas.
            ("resnet50-train-m2000", 16 * 1024 * 1),
            ("resnet50-train-pod16", 16 * 256 * 4),
            ("resnext101-train-m2000", 6 * 64 * 2),
            ("resnext101-train-pod16", 6 * 16 * 8),
            ("efficientnet-b4-g1-train-m2000", 5 * 40 * 1),
            ("efficientnet-b4-g16-train-m2000", 5 * 160 * 1),
            ("efficientnet-b4-g16-train-pod16", 5 * 40 * 4),
        ],
    )
    def test_the_global_batch_is_the_page_s(self, name: str, images: int) -> None:
        assert configuration(name).settings.global_batch == images

    @pytest.mark.parametrize("model", ["resnet50", "efficientnet-b4-g1", "efficientnet-b4-g16"])
    def test_a_pod64_keeps_the_global_batch_of_the_pod16(self, model: str) -> None:
        small, large = (configuration(f"{model}-train-{machine}").settings for machine in ("pod16", "pod64"))
        assert (large.replicas, large.global_batch) == (16, small.global_batch)

    def test_inference_does_not_accumulate(self) -> None:
        settings = settings_of_model("resnet18", training=False, batch_size=3, replicas=4, gradient_accumulation=7)
        assert settings.global_batch == 12
        assert settings.images_per_step == 12 * settings.device_iterations

    def test_bytes_of_an_image(self) -> None:
        # 3 colours of 224 x 224 numbers, of 1, 2 and 4 bytes.
        plain = settings_of_model("resnet50")
        assert changed(plain, eight_bit_io=True).image_bytes == 150_528
        assert plain.image_bytes == 301_056
        assert changed(plain, precision="32.32").image_bytes == 602_112

    def test_another_model_has_its_own_image_size(self) -> None:
        assert changed(settings_of_model("resnet50"), model="efficientnet-b4").image_size == 380
        assert changed(settings_of_model("resnet50"), model="efficientnet-b4", image_size=64).image_size == 64


class TestLayers:
    @pytest.mark.parametrize(
        ("model", "splits", "starts"),
        [
            # ResNet-50 has 3, 4, 6 and 3 blocks: the page's first two splits fall between its groups of blocks.
            ("resnet50", ("b1/2/relu", "b2/3/relu", "b3/3/relu"), ("layer2.0", "layer3.0", "layer3.4")),
            ("resnext101", ("b3/3/relu",), ("layer3.4",)),
            # EfficientNet-B4 has 2, 4, 4, 6, 6, 8 and 2 blocks; c is the third one.
            ("efficientnet-b4", ("block2c", "block4c", "block6a"), ("features.2.3", "features.4.3", "features.6.1")),
            ("efficientnet-b0", ("block1a", "block7a"), ("features.2.0", "features.8")),
            ("resnet50", ("layer3.4",), ("layer3.4",)),
            ("resnet50", ("layer3",), ("layer3.0",)),
            ("resnet50", ("b4/2",), ("avgpool",)),
            ("resnet50", ("layer3.0", "b1/2/relu"), ("layer2.0", "layer3.0")),
        ],
    )
    def test_names_of_the_page_end_a_stage_and_modules_begin_one(
        self, model: str, splits: tuple[str, ...], starts: tuple[str, ...]
    ) -> None:
        assert stage_starts(BenchSettings(model, shards=len(splits) + 1, pipeline_splits=splits)) == starts

    @pytest.mark.parametrize(("model", "blocks"), [("resnet50", 16), ("resnext101", 33), ("efficientnet-b4", 32)])
    def test_every_block_has_a_name_of_the_page(self, model: str, blocks: int) -> None:
        # 3 + 4 + 6 + 3, 3 + 4 + 23 + 3, and 2 + 4 + 4 + 6 + 6 + 8 + 2.
        assert len(page_names(model)) == blocks
        assert set(page_names(model).values()) < set(units(model))

    @pytest.mark.parametrize(
        ("model", "splits", "fragment"),
        [
            ("resnet50", ("b2/9/relu",), "resnet50 has no such layer; nearest: b2/3/relu"),
            ("resnet50", ("layr3.4",), "resnet50 has no such layer; nearest: layer3.4"),
            ("efficientnet-b4", ("block4z",), "efficientnet-b4 has no such layer; nearest: block4"),
            ("resnet50", ("layer3.4.conv2",), "stages begin with whole blocks; nearest: layer3.4"),
            ("resnet50", ("conv1",), "so a stage would be empty; the nearest split that works is bn1"),
            ("resnet50", ("layer3", "layer3.0"), "no layer between it and layer3, so a stage would be empty"),
            ("resnet50", ("b1/2/relu", "layer2.0"), "no layer between it and b1/2/relu, so a stage would be empty"),
        ],
    )
    def test_other_splits_are_refused(self, model: str, splits: tuple[str, ...], fragment: str) -> None:
        with pytest.raises(SettingsError) as refusal:
            stage_starts(BenchSettings(model, pipeline_splits=splits))
        assert fragment in str(refusal.value)

    @given(places=st.sets(st.integers(1, 21), min_size=1))
    def test_any_different_places_make_stages_in_the_model_s_order(self, places: set[int]) -> None:
        order = units("resnet50")
        names = tuple(order[place] for place in sorted(places, reverse=True))
        assert stage_starts(BenchSettings("resnet50", pipeline_splits=names)) == tuple(reversed(names))


def test_the_page_s_own_words_are_understood() -> None:
    words = (
        "--optimiser RMSprop --enable-recomputation --stable-norm --enable-half-partials --pipeline-schedule Grouped "
        "--shards=4 --pipeline-split block2c block4c block6a --pipeline --groups=4 --batch-norm --eight-bit-io "
        "--available-memory-proportion=0.15 --disable-variable-offloading --precision=16.32 --generated-data "
        "--gradient-accumulation-count=40 --num-replicas=4 --num-instances 4 --repeat 10"
    )
    parsed = make_parser().parse_args(["bench", "--model", "efficientnet-b4", *words.split()])
    assert changes_from(parsed) == {
        "model": "efficientnet-b4",
        "optimiser": "rmsprop",
        "recomputation": True,
        "stable_norm": True,
        "half_partials": True,
        "schedule": "grouped",
        "shards": 4,
        "pipeline_splits": ("block2c", "block4c", "block6a"),
        "pipeline": True,
        "norm_groups": 4,
        "normalisation": "batch",
        "eight_bit_io": True,
        "available_memory_proportion": 0.15,
        "variable_offloading": False,
        "precision": "16.32",
        "data": "generated",
        "gradient_accumulation": 40,
        "replicas": 4,
        "instances": 4,
        "repeat": 10,
    }


def test_every_setting_is_an_option() -> None:
    known = set(vars(make_parser().parse_args(["bench", "--all"])))
    assert [name for name in BenchSettings.__dataclass_fields__ if name not in known] == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "fragment"),
        [
            ("--config resnet50-trian-m2000", "no such configuration; nearest: resnet50-train-m2000"),
            ("--model resnet51", "no such model; nearest: resnet5"),
            ("--config resnet50-train-m2000 --pipeline-splits b1/2/relu b2/9/relu b3/3/relu", "nearest: b2/3/relu"),
            ("--config resnet50-train-m2000 --pipeline-splits layer3 layer3.0 layer4.0", "a stage would be empty"),
            ("--config resnet50-train-m2000 --shards 2", "3 splits make 4 shards; use --shards 4, or 1 split"),
            ("--config resnet50-train-m2000 --shards 1", "use --shards 4, or --pipeline-splits none"),
            ("--model resnet50 --shards 4", "0 splits make 1 shard; use --shards 1, or 3 splits"),
            ("--config resnet50-train-m2000 --replicas 4", "M2000 has 4 IPUs, and --replicas 4 x --shards 4 need 16"),
            ("--config resnet50-train-m2000 --machine POD15", "There is no machine 'POD15'. Systems: M2000,"),
            ("--config resnet50-train-m2000 --gradient-accumulation 6", "at least 2 x 4 - 1 = 7 micro-batches"),
            ("--config resnet50-train-pod16 --instances 3", "the nearest that works is --instances 2"),
            (
                "--model resnet18 --inference --shards 2 --pipeline --pipeline-splits layer3 --device-iterations 1",
                "use --device-iterations 2 or more",
            ),
            ("--model resnet50 --available-memory-proportion 1.5", "above 0 and at most 1"),
            ("--model resnet50 --momentum -1", "--momentum -1.0: it must be from 0 to below 1"),
            ("--model resnet50 --label-smoothing nan", "--label-smoothing nan: it must be from 0 to below 1"),
            ("", "say what to model: --config NAME or --model NAME"),
            ("--all --batch-size 4", "--all shows the whole page, so --batch-size cannot change it"),
            ("--list --all", "--list shows the whole page, so --all cannot change it"),
            ("--model resnet18 --figure a.png", "--figure needs --sweep"),
            ("--model resnet18 --batch-sizes 1 2", "--batch-sizes needs --sweep"),
            ("--model resnet18 --sweep --batch-size 2", "use --batch-sizes N N ..."),
            ("--model resnet18 --sweep --run", "leave one of them out"),
            ("--model resnet18 --sweep --figure a.pdf", "use a name that ends in .png"),
            ("--model resnet18 --run-steps 3", "--run-steps needs --run"),
            ("--model resnet18 --run --run-steps 1", "use 2 or more"),
            ("--model resnet18 --json - --csv -", "write one of them to a file"),
            ("--model resnet18 --norm-groups 7 --normalisation group", "--norm-groups 7: resnet18 has numbers"),
        ],
    )
    def test_what_does_not_go_together_is_one_line(
        self, options: str, fragment: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["bench", *options.split()]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("python -m ipu_course bench: error: ")
        assert fragment in line

    @pytest.mark.parametrize(
        ("options", "fragment"),
        [
            ("--batch-size 0", "argument --batch-size: '0' is below 1"),
            ("--sweep --batch-sizes 1 -4", "argument --batch-sizes: '-4' is below 1"),
            ("--precision 8.8", "argument --precision: invalid choice: '8.8'"),
            ("--recomputation maybe", "'maybe' is neither on nor off"),
            ("--training --inference", "not allowed with argument --training"),
        ],
    )
    def test_a_bad_value_is_refused_by_its_option(
        self, options: str, fragment: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as end:
            main(["bench", "--model", "resnet18", *options.split()])
        assert end.value.code == 2
        assert fragment in capsys.readouterr().err.splitlines()[-1]

    @pytest.mark.parametrize("size", [3, 7, 24, 32, 10**30])
    def test_groups_that_do_not_divide_the_channels_are_refused(self, size: int) -> None:
        with pytest.raises(SettingsError, match=rf"--group-dim {size}: .* the nearest that works is --group-dim \d+$"):
            check(BenchSettings("efficientnet-b0", group_dim=size))
        check(BenchSettings("efficientnet-b4", group_dim=16, expand_ratio=4))

    @pytest.mark.parametrize("changed", [{"group_dim": 16}, {"expand_ratio": 4}])
    def test_what_only_an_efficientnet_has_is_refused_for_others(self, changed: dict[str, int]) -> None:
        with pytest.raises(SettingsError, match="is for EfficientNets; leave it out for resnet50"):
            check(BenchSettings("resnet50", **changed))

    def test_settings_made_in_a_notebook_are_checked_too(self) -> None:
        with pytest.raises(SettingsError, match="--batch-size 0: it must be a whole number from 1 on"):
            check_settings(BenchSettings("resnet18", batch_size=0))
        with pytest.raises(SettingsError, match="there is no setting 'batchsize'; nearest: batch_size"):
            settings_of_model("resnet18", batchsize=4)

    @given(
        shards=st.integers(1, 6), replicas=st.integers(1, 64), instances=st.integers(1, 64), count=st.integers(1, 20)
    )
    def test_what_a_refusal_offers_works(self, shards: int, replicas: int, instances: int, count: int) -> None:
        splits = tuple(f"layer3.{block}" for block in range(shards - 1))
        settings = BenchSettings("resnet50", pipeline=True, shards=shards, pipeline_splits=splits, replicas=replicas)
        accumulation = replace(settings, gradient_accumulation=count)
        least = 2 * shards - 1 if shards > 1 else 1
        if count < least:
            with pytest.raises(SettingsError, match=f"use --gradient-accumulation {least} or more"):
                check_settings(accumulation)
            accumulation = replace(settings, gradient_accumulation=least)
        check_settings(accumulation)
        assume(replicas % instances)
        with pytest.raises(SettingsError) as refusal:
            check_settings(replace(accumulation, instances=instances))
        check_settings(replace(accumulation, instances=int(str(refusal.value).split()[-1])))


def test_help_needs_neither_torch_nor_poptorch() -> None:
    code = (
        "import sys\nfrom ipu_course.programs.command_line import main\nimport ipu_course.programs.bench\n"
        "try:\n    main(['bench', '--help'])\nexcept SystemExit:\n    pass\n"
        "main(['bench', '--list'])\n"
        "sys.exit('torch' in sys.modules or 'poptorch' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=120)
    assert finished.returncode == 0, finished.stderr.decode()
