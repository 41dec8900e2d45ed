"""The bundled digits are what ``data/README.md`` says: source, split, balance, checksums."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).resolve().parents[1] / "data"
ORIGINALS = 1797  # images in sklearn.datasets.load_digits
TEST_IMAGES = 800  # test batch 8 x 100 device iterations, the tutorial's defaults


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_digits", DATA / "make_digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def arrays() -> dict[str, Any]:
    with np.load(DATA / "digits.npz") as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture(scope="module")
def readme() -> str:
    return (DATA / "README.md").read_text(encoding="utf-8")


def test_the_images_have_mnist_s_format(arrays: dict[str, Any]) -> None:
    for part, count in (("train", ORIGINALS - TEST_IMAGES), ("test", TEST_IMAGES)):
        assert arrays[part + "_images"].shape == (count, 28, 28)
        assert arrays[part + "_images"].dtype == np.uint8
        assert arrays[part + "_labels"].shape == (count,)
        assert set(arrays[part + "_labels"].tolist()) == set(range(10))


def test_every_image_uses_the_whole_range_of_grey(arrays: dict[str, Any]) -> None:
    for part in ("train", "test"):
        images = arrays[part + "_images"]
        assert (images.max(axis=(1, 2)) == 255).all()
        assert (images.min(axis=(1, 2)) == 0).all()


def test_every_image_is_centred_by_mass_to_half_a_pixel(arrays: dict[str, Any]) -> None:
    # A box can only be placed on whole pixels, and rounding moves a centre by half a pixel at most.
    places = np.arange(28) + 0.5
    for part in ("train", "test"):
        images = arrays[part + "_images"].astype(np.float64)
        total = images.sum(axis=(1, 2))
        for axis in (1, 2):
            centres = (images.sum(axis=axis) * places).sum(axis=1) / total
            assert np.abs(centres - 14).max() <= 0.5 + 1e-9


def test_train_and_test_share_no_original_and_leave_none_out(arrays: dict[str, Any]) -> None:
    train, test = arrays["train_originals"], arrays["test_originals"]
    assert not set(train.tolist()) & set(test.tolist())
    assert sorted(train.tolist() + test.tolist()) == list(range(ORIGINALS))


def test_no_two_images_are_equal(arrays: dict[str, Any]) -> None:
    # Equal images with different numbers would put the same original into both parts.
    images = np.concatenate([arrays["train_images"], arrays["test_images"]])
    assert len(np.unique(images.reshape(ORIGINALS, -1), axis=0)) == ORIGINALS


def test_the_split_is_stratified_by_digit(arrays: dict[str, Any]) -> None:
    train, test = (np.bincount(arrays[part + "_labels"], minlength=10) for part in ("train", "test"))
    exact = (train + test) * TEST_IMAGES / ORIGINALS
    assert np.abs(test - exact).max() < 1


def test_the_parts_are_in_the_order_of_the_source(arrays: dict[str, Any]) -> None:
    for part in ("train", "test"):
        assert (np.diff(arrays[part + "_originals"]) > 0).all()


def test_making_the_data_again_gives_the_same_bytes(maker: ModuleType, arrays: dict[str, Any]) -> None:
    pytest.importorskip("sklearn", reason="the digits are made from scikit-learn's, which is not installed")
    fresh = maker.make_arrays()
    assert sorted(fresh) == sorted(arrays)
    for name, array in fresh.items():
        assert array.dtype == arrays[name].dtype
        assert array.tobytes() == arrays[name].tobytes(), name


def test_the_script_s_check_tells_whether_the_file_is_its_own(
    maker: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="the digits are made from scikit-learn's, which is not installed")
    assert maker.main(["--check"]) == 0
    other = maker.make_arrays()
    other["test_images"][0, 14, 14] ^= 1
    np.savez_compressed(tmp_path / "digits.npz", **other)
    monkeypatch.setattr(maker, "DIGITS_FILE", tmp_path / "digits.npz")
    assert maker.main(["--check"]) == 1


def test_the_readme_has_the_checksums_and_the_size(maker: ModuleType, arrays: dict[str, Any], readme: str) -> None:
    content = (DATA / "digits.npz").read_bytes()
    assert len(content) < 1_000_000
    assert f"{len(content):,} bytes" in readme
    assert hashlib.sha256(content).hexdigest() in readme
    assert maker.checksum(arrays) in readme


@pytest.mark.parametrize("word", ["UCI", "CC BY 4.0", "scikit-learn", "make_digits.py"])
def test_the_readme_names_source_licence_and_script(readme: str, word: str) -> None:
    assert word in readme


def test_the_enlargement_keeps_a_flat_image_flat_and_interpolates_a_slope(maker: ModuleType) -> None:
    weights = maker.enlarging_weights()
    assert (weights.sum(axis=1) == 2000).all()
    # Bicubic interpolation is exact on a slope. Away from the edges sample i is at 0.4 i - 0.3 of the source.
    slope = weights @ (10 * np.arange(8))
    inner = np.arange(4, 16)
    assert (slope[inner] == 2000 * (4 * inner - 3)).all()
