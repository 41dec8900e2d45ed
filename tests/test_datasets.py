"""The data sets of the lessons: what ``ipu_course.datasets`` gives and which source it takes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ipu_course import course_files
from ipu_course.data_folder import data_file, from_json
from ipu_course.datasets import DataError, ImageDataset, mnist
from ipu_course.datasets.augmentation import Ranges, extend
from ipu_course.datasets.images import normalise

TRAINING_ORIGINALS = 997
TUTORIAL_STEP = 40 * 10 * 10
NO_CHANGE = Ranges(rotation_degrees=0.0, scale=1.0, shift_pixels=0.0)


@pytest.fixture(scope="module")
def training() -> ImageDataset:
    return mnist(train=True)


@pytest.fixture(scope="module")
def testing() -> ImageDataset:
    return mnist(train=False)


def test_items_are_what_the_tutorial_s_loader_gives(training: ImageDataset) -> None:
    image, label = training[0]
    assert image.shape == (1, 28, 28)
    assert image.dtype == torch.float32
    assert label.shape == ()
    assert label.dtype == torch.int64


def test_an_epoch_is_whole_steps_at_the_tutorial_s_defaults(training: ImageDataset) -> None:
    assert len(training) == 5 * TUTORIAL_STEP


def test_the_test_part_is_one_step_at_the_tutorial_s_defaults(testing: ImageDataset) -> None:
    assert len(testing) == 8 * 100


def test_the_test_part_is_the_bundled_originals_unchanged(testing: ImageDataset) -> None:
    with np.load(data_file("digits.npz")) as archive:
        assert torch.equal(testing.pixels, torch.from_numpy(archive["test_images"]))
        assert testing.labels.tolist() == archive["test_labels"].tolist()


def test_the_training_part_begins_with_its_originals_unchanged(training: ImageDataset) -> None:
    with np.load(data_file("digits.npz")) as archive:
        assert torch.equal(training.pixels[:TRAINING_ORIGINALS], torch.from_numpy(archive["train_images"]))
        assert training.labels[:TRAINING_ORIGINALS].tolist() == archive["train_labels"].tolist()


def test_no_augmented_image_is_an_unchanged_copy(training: ImageDataset) -> None:
    flat = training.pixels.reshape(len(training), -1)
    assert len(torch.unique(flat, dim=0)) == len(training)


def test_the_training_classes_are_balanced(training: ImageDataset) -> None:
    # 98 to 102 of the 997 originals show each digit, so each class has 9.8 to 10.3 % of every whole round.
    shares = torch.bincount(training.labels) / len(training)
    assert shares.min() > 0.097
    assert shares.max() < 0.103


def test_the_same_call_gives_the_same_images(training: ImageDataset) -> None:
    again = mnist(train=True)
    assert torch.equal(again.pixels, training.pixels)
    assert torch.equal(again.labels, training.labels)


def test_another_seed_gives_other_images_after_the_originals() -> None:
    first, second = (mnist(train=True, images=1200, seed=seed) for seed in (0, 1))
    assert torch.equal(first.pixels[:TRAINING_ORIGINALS], second.pixels[:TRAINING_ORIGINALS])
    assert not torch.equal(first.pixels[TRAINING_ORIGINALS:], second.pixels[TRAINING_ORIGINALS:])


def test_a_shorter_epoch_is_the_beginning_of_a_longer_one(training: ImageDataset) -> None:
    short = mnist(train=True, images=1200)
    assert torch.equal(short.pixels, training.pixels[:1200])
    assert torch.equal(short.labels, training.labels[:1200])


def test_an_epoch_below_the_originals_is_refused() -> None:
    with pytest.raises(ValueError, match="997 originals"):
        mnist(train=True, images=996)


def test_the_test_part_cannot_be_extended() -> None:
    with pytest.raises(ValueError, match="always whole"):
        mnist(train=False, images=1000)


def test_normalisation_is_torchvision_s() -> None:
    transforms = pytest.importorskip("torchvision.transforms", reason="compared with torchvision's transforms")
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16)
    chain = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]  # the tutorial's
    )
    assert torch.equal(normalise(pixels), chain(pixels[0].numpy()))


def test_images_are_normalised_pixels(testing: ImageDataset) -> None:
    expected = (testing.pixels[3].double() / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(testing[3][0][0].double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (torch.zeros(4, 28, 28), torch.zeros(4), "uint8"),
        (torch.zeros(4, 784, dtype=torch.uint8), torch.zeros(4), r"\[N, H, W\]"),
        (torch.zeros(4, 28, 28, dtype=torch.uint8), torch.zeros(3), r"need labels \[4\]"),
    ],
)
def test_images_and_labels_that_do_not_fit_are_refused(
    pixels: torch.Tensor, labels: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ImageDataset(pixels, labels, "")


class TestAugmentation:
    @settings(max_examples=20, deadline=None)
    @given(count=st.integers(1, 20), added=st.integers(0, 60), seed=st.integers(0, 99))
    def test_every_original_is_used_equally_often(self, count: int, added: int, seed: int) -> None:
        images = torch.full((count, 28, 28), 7, dtype=torch.uint8)
        pixels, originals = extend(images, count + added, seed)
        assert len(pixels) == len(originals) == count + added
        uses = torch.bincount(originals, minlength=count)
        assert uses.max() - uses.min() <= 1

    def test_without_ranges_the_copies_are_exact(self) -> None:
        images = _noise(5)
        pixels, originals = extend(images, 15, 0, NO_CHANGE)
        assert torch.equal(pixels, images[originals])

    def test_a_shift_moves_the_centre_by_at_most_its_range(self) -> None:
        images = torch.zeros(50, 28, 28, dtype=torch.uint8)
        images[:, 13:15, 13:15] = 200
        pixels, _ = extend(images, 100, 0, Ranges(rotation_degrees=0.0, scale=1.0, shift_pixels=2.0))
        for centres in _centres(pixels[50:]):
            assert centres.abs().max() <= 2.05  # bilinear values are rounded to whole grey levels
            assert centres.min() < -1
            assert centres.max() > 1

    def test_a_rotation_turns_by_at_most_its_range(self) -> None:
        # A spot 10 pixels right of the middle, turned by 30 degrees, moves 10 sin 30 = 5 pixels up or down.
        images = torch.zeros(50, 28, 28, dtype=torch.uint8)
        images[:, 13:15, 23:25] = 200
        pixels, _ = extend(images, 100, 0, Ranges(rotation_degrees=30.0, scale=1.0, shift_pixels=0.0))
        down, right = _centres(pixels[50:])
        assert 4 < down.abs().max() <= 5.1
        torch.testing.assert_close(torch.hypot(down, right), torch.full((50,), 10.0), rtol=0, atol=0.1)

    def test_a_scale_stretches_by_at_most_its_factor(self) -> None:
        images = torch.zeros(50, 28, 28, dtype=torch.uint8)
        images[:, 13:15, 21:23] = 200  # 8 pixels right of the middle
        pixels, _ = extend(images, 100, 0, Ranges(rotation_degrees=0.0, scale=1.5, shift_pixels=0.0))
        _, right = _centres(pixels[50:])
        assert 8 / 1.5 - 0.1 <= right.min() < 6.5
        assert 10 < right.max() <= 8 * 1.5 + 0.1

    def test_fewer_images_than_originals_are_refused(self) -> None:
        with pytest.raises(ValueError, match="originals alone are more"):
            extend(torch.zeros(3, 28, 28, dtype=torch.uint8), 2, 0)


def _centres(pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Centres of mass below and right of the middle, in pixels."""
    masses = pixels.float()
    places = torch.arange(28) + 0.5 - 14
    total = masses.sum((1, 2))
    return (masses.sum(2) * places).sum(1) / total, (masses.sum(1) * places).sum(1) / total


class TestWorkers:
    def test_a_pickled_data_set_is_equal_and_small(self, testing: ImageDataset) -> None:
        pickled = pickle.dumps(testing)
        as_bytes = testing.pixels.numel() + 8 * len(testing)  # the pixels and int64 labels, not the floats
        assert len(pickled) < 1.01 * as_bytes
        copy = pickle.loads(pickled)
        assert torch.equal(copy.images, testing.images)
        assert torch.equal(copy.labels, testing.labels)
        assert copy.description == testing.description

    def test_spawned_workers_give_the_same_batches(self, testing: ImageDataset) -> None:
        loader = DataLoader(testing, batch_size=400, num_workers=1, multiprocessing_context="spawn")
        images = torch.cat([images for images, _ in loader])
        assert torch.equal(images, testing.images)


class TestSource:
    def test_the_description_says_which_data_are_used_and_has_no_path(
        self, training: ImageDataset, testing: ImageDataset
    ) -> None:
        for data, part in (
            (training, "20000 training images from 997 originals"),
            (testing, "800 test images"),
        ):
            assert "bundled" in data.description
            assert part in data.description
            assert "\n" not in data.description
            assert str(Path.cwd()) not in data.description

    def test_a_root_without_mnist_gives_the_bundled_digits(self, tmp_path: Path) -> None:
        assert "bundled" in mnist(train=False, root=tmp_path).description

    def test_a_root_with_only_some_of_mnist_gives_the_bundled_digits(self, tmp_path: Path) -> None:
        _write_mnist(tmp_path)
        (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
        assert "bundled" in mnist(train=False, root=tmp_path).description

    def test_a_root_with_mnist_gives_mnist(self, tmp_path: Path) -> None:
        pytest.importorskip("torchvision", reason="MNIST is read with torchvision, which is not installed")
        pixels = _write_mnist(tmp_path)
        training = mnist(train=True, root=tmp_path)
        assert training.description == "MNIST (torchvision), 6 training images"
        assert torch.equal(training.pixels, pixels)
        assert training.labels.tolist() == [0, 1, 2, 3, 4, 5]
        assert mnist(train=False, root=tmp_path).description == "MNIST (torchvision), 6 test images"
        assert torch.equal(mnist(train=True, root=tmp_path, images=4).pixels, pixels[:4])

    def test_more_images_than_mnist_has_are_refused(self, tmp_path: Path) -> None:
        pytest.importorskip("torchvision", reason="MNIST is read with torchvision, which is not installed")
        _write_mnist(tmp_path)
        with pytest.raises(ValueError, match="MNIST has 6 training images"):
            mnist(train=True, root=tmp_path, images=7)

    def test_a_failed_download_names_what_works(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")

        def offline(*_: object, **__: object) -> None:
            raise RuntimeError("no network")

        monkeypatch.setattr(datasets, "MNIST", offline)
        with pytest.raises(DataError, match=r"could not be downloaded .*no network.*bundled digits"):
            mnist(train=True, root=tmp_path, download=True)


class TestDataFolder:
    def test_it_is_found_from_any_working_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert data_file("digits.npz").is_file()

    def test_it_is_found_above_the_working_directory_when_the_package_is_elsewhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(course_files, "PACKAGE", Path("/somewhere/site-packages/ipu_course"))
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "digits.npz").touch()
        (tmp_path / "notebooks").mkdir()
        monkeypatch.chdir(tmp_path / "notebooks")
        assert data_file("digits.npz") == tmp_path / "data" / "digits.npz"

    def test_without_it_the_error_tells_what_to_do(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(course_files, "PACKAGE", Path("/somewhere/site-packages/ipu_course"))
        monkeypatch.chdir(tmp_path)
        with pytest.raises(DataError, match="pip install -e"):
            mnist(train=False)

    def test_the_environment_variable_decides(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("IPU_COURSE_DATA", str(tmp_path))
        with pytest.raises(DataError, match="IPU_COURSE_DATA is set"):
            mnist(train=False)
        (tmp_path / "digits.npz").touch()
        assert data_file("digits.npz") == tmp_path / "digits.npz"

    def test_a_damaged_file_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        content = bytearray(data_file("digits.npz").read_bytes())
        monkeypatch.setenv("IPU_COURSE_DATA", str(tmp_path))
        for damaged in (b"", bytes(content[:200_000]), _with_a_wrong_byte(content)):
            (tmp_path / "digits.npz").write_bytes(damaged)
            with pytest.raises(DataError, match=r"'digits.npz' is damaged"):
                mnist(train=True)

    def test_an_archive_of_something_else_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("IPU_COURSE_DATA", str(tmp_path))
        pixels, labels = np.zeros((3, 28, 28), np.uint8), np.zeros(3, np.uint8)
        for images, numbers in (
            (pixels.astype(np.float32), labels), (pixels[:, 0], labels), (pixels, labels[:2]),
            (pixels, labels.astype(str)), (pixels.astype(object), labels),
        ):  # fmt: skip
            np.savez(tmp_path / "digits.npz", train_images=images, train_labels=numbers)
            with pytest.raises(DataError, match=r"'digits.npz' is damaged"):
                mnist(train=True)
        np.save(tmp_path / "alone.npy", pixels)
        (tmp_path / "alone.npy").replace(tmp_path / "digits.npz")
        with pytest.raises(DataError, match=r"'digits.npz' is damaged"):
            mnist(train=True)

    @pytest.mark.parametrize("text", ["[" * 100_000, '{"a": 1' + "0" * 5000 + "}", "4", "", "\0"])
    def test_damaged_json_is_named(self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("IPU_COURSE_DATA", str(tmp_path))
        (tmp_path / "x.json").write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=r"'x\.json' is damaged"):
            from_json("x.json", lambda content: content.get("a").b)


def test_the_data_sets_need_no_poptorch() -> None:
    code = "import sys, ipu_course.datasets; sys.exit('poptorch' in sys.modules or 'ipu_model' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def _with_a_wrong_byte(content: bytearray) -> bytes:
    changed = bytearray(content)
    changed[100_000] ^= 0xFF
    return bytes(changed)


def _noise(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=generator)


def _write_mnist(root: Path) -> torch.Tensor:
    """Write six images in MNIST's idx format, as training and as test part."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = _noise(6)
    for part in ("train", "t10k"):
        header = b"".join(number.to_bytes(4, "big") for number in (0x803, 6, 28, 28))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.numpy().tobytes())
        labels = b"".join(number.to_bytes(4, "big") for number in (0x801, 6)) + bytes(range(6))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return pixels
