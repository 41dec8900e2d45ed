"""The pictures of the training program: CIFAR-10 where it is, synthetic shapes where it is not."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ipu_course.data_folder import FOLDER_VARIABLE
from ipu_course.datasets.cifar10_shapes import CLASSES, SHAPES, draw
from ipu_course.errors import DataError
from ipu_course.programs.train.cifar10 import ShapePictures, StoredPictures, cifar10

ROWS_PER_FILE = 4


def shapes(train: bool = True) -> ShapePictures:
    found = cifar10(train, source="shapes")
    assert isinstance(found, ShapePictures)
    return found


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files as torchvision unpacks CIFAR-10, of four pictures each, that pass its checksums."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    random = np.random.RandomState(0)
    checksums: dict[str, list[list[str]]] = {"train_list": [], "test_list": []}
    names = [(f"data_batch_{number}", "train_list") for number in range(1, 6)] + [("test_batch", "test_list")]
    for name, part in names:
        rows = random.randint(0, 256, (ROWS_PER_FILE, 3072)).astype(np.uint8)
        checksums[part].append([name, write(folder / name, {"data": rows, "labels": list(range(ROWS_PER_FILE))})])
    words = {"label_names": [f"class {number}" for number in range(10)]}
    meta = {"filename": "batches.meta", "key": "label_names", "md5": write(folder / "batches.meta", words)}
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "meta", meta)
    for part, lists in checksums.items():
        monkeypatch.setattr(torchvision.datasets.CIFAR10, part, lists)
    return tmp_path


def write(path: Path, content: dict[str, Any]) -> str:
    path.write_bytes(pickle.dumps(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


class TestShapes:
    def test_format_and_size_are_cifar_10_s(self) -> None:
        # https://www.cs.toronto.edu/~kriz/cifar.html: 50,000 + 10,000 colour images of 32 x 32 in 10 classes.
        assert len(shapes()) == 50_000
        assert len(shapes(train=False)) == 10_000
        assert len(CLASSES) == 10
        picture, label = shapes()[49_999]
        assert (picture.size, picture.mode) == ((32, 32), "RGB")
        assert type(label) is int

    def test_each_class_has_as_many_pictures(self) -> None:
        labels = [shapes().pixels_and_label(index)[1] for index in range(200)]
        assert np.bincount(labels).tolist() == [20] * 10

    def test_there_is_an_end(self) -> None:
        with pytest.raises(IndexError, match="50000 pictures"):
            shapes()[50_000]

    @settings(max_examples=30)
    @given(index=st.integers(0, 49_999))
    def test_a_picture_is_always_the_same(self, index: int) -> None:
        assert np.array_equal(shapes().pixels_and_label(index)[0], shapes().pixels_and_label(index)[0])

    def test_no_picture_is_there_twice(self) -> None:
        drawn = {shapes().pixels_and_label(index)[0].tobytes() for index in range(300)}
        drawn |= {shapes(train=False).pixels_and_label(index)[0].tobytes() for index in range(300)}
        assert len(drawn) == 600

    @settings(max_examples=50)
    @given(label=st.integers(0, 9), seed=st.integers(0, 2**31))
    def test_a_shape_stands_out_from_its_background(self, label: int, seed: int) -> None:
        pixels = draw(label, seed).astype(np.float64)
        # 0.6 of 255 between the two colours at the middle of the gradient; the shape covers only a part.
        assert np.linalg.norm(pixels.reshape(-1, 3).std(axis=0)) > 10

    @pytest.mark.parametrize("name", CLASSES)
    def test_inside_and_outside_of_a_shape_are_where_they_should(self, name: str) -> None:
        far = SHAPES[name](np.array([1.5]), np.array([1.5]))
        grid = np.linspace(-1, 1, 41)
        inside = SHAPES[name](*np.meshgrid(grid, grid)) < 0
        assert far > 0
        assert 0.05 < inside.mean() < 0.8

    def test_what_it_is_is_said(self) -> None:
        assert shapes().description.startswith("synthetic shapes, CIFAR-10's format and size: 50000 training images")

    def test_loader_workers_get_the_same_pictures(self) -> None:
        some = pickle.loads(pickle.dumps(shapes()))
        assert np.array_equal(some.pixels_and_label(7)[0], shapes().pixels_and_label(7)[0])


class TestSource:
    def test_files_in_the_folder_are_used(self, files: Path) -> None:
        found = cifar10(train=True, root=files)
        assert isinstance(found, StoredPictures)
        assert found.description == f"CIFAR-10 (torchvision), {5 * ROWS_PER_FILE} training images"
        direct = torchvision.datasets.CIFAR10(str(files), train=True)
        for index in range(len(direct)):
            assert found[index][0].tobytes() == direct[index][0].tobytes()
            assert found[index][1] == direct[index][1]

    def test_the_test_part_is_the_test_file(self, files: Path) -> None:
        assert len(cifar10(train=False, root=files)) == ROWS_PER_FILE

    def test_the_course_s_data_folder_is_searched_too(self, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(FOLDER_VARIABLE, str(files))
        assert isinstance(cifar10(train=True, root="nowhere"), StoredPictures)

    def test_without_files_it_is_shapes(self, tmp_path: Path) -> None:
        assert isinstance(cifar10(train=True, root=tmp_path), ShapePictures)

    def test_shapes_can_be_had_in_spite_of_files(self, files: Path) -> None:
        assert isinstance(cifar10(train=True, root=files, source="shapes"), ShapePictures)

    def test_an_incomplete_folder_is_not_taken(self, files: Path) -> None:
        (files / "cifar-10-batches-py/data_batch_3").unlink()
        assert isinstance(cifar10(train=True, root=files), ShapePictures)
        with pytest.raises(DataError, match="no complete folder"):
            cifar10(train=True, root=files, source="cifar10")

    def test_a_damaged_file_is_named_and_not_replaced_by_shapes(self, files: Path) -> None:
        (files / "cifar-10-batches-py/data_batch_3").write_bytes(b"damaged")
        with pytest.raises(DataError, match=r"could not be read .*corrupted"):
            cifar10(train=True, root=files)

    def test_only_download_asks_for_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def refuse(self: Any) -> None:
            asked.append(self.root)
            raise OSError("no network")

        monkeypatch.setattr(torchvision.datasets.CIFAR10, "download", refuse)
        cifar10(train=True, root=tmp_path)
        assert asked == []
        with pytest.raises(DataError, match=r"could not be downloaded \(no network\)"):
            cifar10(train=True, root=tmp_path, download=True)
        assert asked == [str(tmp_path)]

    def test_an_unknown_source_is_refused(self) -> None:
        with pytest.raises(ValueError, match="one of auto, cifar10, shapes"):
            cifar10(train=True, source="imagenet")

    def test_the_transform_is_applied_to_pil_images(self) -> None:
        pictures = cifar10(train=True, source="shapes", transform=torchvision.transforms.PILToTensor())
        images, labels = next(iter(DataLoader(pictures, batch_size=10)))
        assert (images.shape, images.dtype) == ((10, 3, 32, 32), torch.uint8)
        assert labels.tolist() == list(range(10))


def test_shapes_need_no_torchvision() -> None:
    code = (
        "import sys\nsys.modules['torchvision'] = None\n"
        "from ipu_course.programs.train.cifar10 import cifar10\n"
        "print(len(cifar10(train=True, source='shapes')))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert finished.stdout == "50000\n", finished.stderr
