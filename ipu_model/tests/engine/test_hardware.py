"""Machines: what the table says, how they are found, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.errors import Error
from ipu_model.predict.calibration import parse
from ipu_model.predict.hardware import (
    Catalogue,
    Chip,
    System,
    catalogue_of,
    chip,
    chip_of_offline_target,
    known_hardware,
    provenance,
    system_named,
    system_with,
)


class TestChips:
    def test_gc200_is_the_mk2_of_the_documents(self) -> None:
        gc200 = chip("GC200")
        assert (gc200.tiles, gc200.tile_bytes, gc200.clock_hz) == (1472, 624 * 1024, 1.33e9)

    @pytest.mark.parametrize(
        ("name", "element_bytes", "half", "published_teraflops"),
        [
            ("GC200", 2, True, 249.7),  # POD64 datasheet: 15.978 PFLOP/s / 64
            ("GC200", 4, False, 62.4),  # POD64 datasheet: 3.994 PFLOP/s / 64
            ("Bow", 2, True, 348.6),
            ("Bow", 4, False, 87.1),
            ("C600", 2, True, 282.6),
            ("GC2", 2, False, 124.5),  # Mk1: fp16 products summed in fp32
            ("GC2", 4, False, 31.1),
        ],
    )
    def test_matrix_units_give_the_published_peak(
        self, name: str, element_bytes: int, half: bool, published_teraflops: float
    ) -> None:
        peak = chip(name).peak_flops(element_bytes, half_partials=half) / 1e12
        assert peak == pytest.approx(published_teraflops, rel=0.01)

    def test_fp32_partials_halve_the_fp16_rate(self) -> None:
        gc200 = chip("GC200")
        assert gc200.peak_flops(2) == gc200.peak_flops(2, half_partials=True) / 2

    def test_vectors_fill_the_data_path(self) -> None:
        assert [chip("GC200").vector_width(b) for b in (1, 2, 4, 8)] == [8, 4, 2, 1]

    def test_seconds_follow_the_clock(self) -> None:
        assert chip("GC200").seconds(1.33e9) == 1.0
        assert chip("Bow").seconds(1.85e9) == 1.0

    @pytest.mark.parametrize(("version", "name"), [(1, "GC2"), (2, "GC200"), (21, "C600")])
    def test_offline_versions(self, version: int, name: str) -> None:
        assert chip_of_offline_target(version).name == name

    def test_unknown_offline_version_lists_those_there_are(self) -> None:
        with pytest.raises(Error, match=r"no IPU version 3.*1 \(GC2\), 2 \(GC200\), 21 \(C600\)"):
            chip_of_offline_target(3)


class TestSystems:
    @pytest.mark.parametrize(
        ("name", "ipus", "chip_name"),
        [
            ("M2000", 4, "GC200"), ("POD4", 4, "GC200"), ("POD16", 16, "GC200"), ("POD64", 64, "GC200"),
            ("POD128", 128, "GC200"), ("POD256", 256, "GC200"), ("Bow-2000", 4, "Bow"),
            ("Bow-POD16", 16, "Bow"), ("Bow-POD64", 64, "Bow"), ("Bow-POD256", 256, "Bow"),
        ],
    )  # fmt: skip
    def test_sizes(self, name: str, ipus: int, chip_name: str) -> None:
        system = system_named(name)
        assert (system.ipus, system.chip.name, system.ipus_per_machine) == (ipus, chip_name, 4)

    @pytest.mark.parametrize("name", ["POD16", "pod16", "IPU-POD16", "ipu pod 16", "Pod16"])
    def test_spelling_does_not_matter(self, name: str) -> None:
        assert system_named(name) is system_named("POD16")

    @pytest.mark.parametrize(("name", "system"), [("GC200", "M2000"), ("bow", "Bow-2000")])
    def test_a_chip_stands_for_its_smallest_system(self, name: str, system: str) -> None:
        assert system_named(name).name == system

    def test_host_links_are_those_measured_on_one_m2000(self) -> None:
        # published/other.md, M4
        m2000 = system_named("M2000")
        assert m2000.host_to_device_bytes_per_second == 14.55e9
        assert m2000.device_to_host_bytes_per_second == 6.33e9

    @given(st.integers(1, 256))
    def test_smallest_system_that_is_large_enough(self, ipus: int) -> None:
        found = system_with("GC200", ipus)
        smaller = [s for s in known_hardware().systems.values() if s.chip.name == "GC200" and s.ipus < found.ipus]
        assert found.ipus >= ipus
        assert all(s.ipus < ipus for s in smaller)

    def test_no_system_is_large_enough(self) -> None:
        with pytest.raises(Error, match=r"No system has 257 IPUs.*POD256 with 256"):
            system_with("GC200", 257)

    def test_no_ipu_at_all(self) -> None:
        with pytest.raises(Error, match="at least one IPU"):
            system_with("GC200", 0)

    def test_unknown_machine_lists_those_there_are(self) -> None:
        with pytest.raises(Error, match=r"no machine 'POD17'.*M2000.*POD256.*GC200"):
            system_named("POD17")


class TestProvenance:
    def test_every_number_has_unit_source_and_confidence(self) -> None:
        for name, facts in known_hardware().facts.items():
            for number, fact in facts.items():
                assert fact.unit, (name, number)
                assert len(fact.source) > 10, (name, number)
                assert fact.confidence in ("published", "derived", "estimated"), (name, number)

    def test_inherited_numbers_keep_their_source(self) -> None:
        assert provenance("Bow")["tiles"] == provenance("GC200")["tiles"]
        assert provenance("Bow")["clock_hz"].source != provenance("GC200")["clock_hz"].source


class TestImpossibleMachines:
    @pytest.mark.parametrize(
        ("change", "fragment"),
        [
            ({"tiles": 0}, "tiles = 0: it must be above 0"),
            ({"clock_hz": -1.0}, "clock_hz = -1.0: it must be above 0"),
            ({"clock_hz": float("nan")}, "clock_hz = nan: it must be a finite number"),
            ({"tiles": 10.5}, "tiles = 10.5: it must be a whole number"),
            ({"workers": True}, "workers = True"),
            ({"tile_bytes": "624k"}, "tile_bytes = '624k'"),
        ],
    )
    def test_chips(self, change: dict[str, object], fragment: str) -> None:
        with pytest.raises(Error, match=fragment):
            replace(chip("GC200"), **change)

    @pytest.mark.parametrize(
        ("change", "fragment"),
        [
            ({"ipus": 0}, "ipus = 0"),
            ({"link_bytes_per_second": 0.0}, "link_bytes_per_second = 0.0"),
            ({"streaming_bytes": -1.0}, "streaming_bytes = -1.0: it must not be negative"),
        ],
    )
    def test_systems(self, change: dict[str, object], fragment: str) -> None:
        with pytest.raises(Error, match=fragment):
            replace(system_named("M2000"), **change)


def described(chip_lines: str, system_lines: str = "") -> Catalogue:
    return read(f"[chips.X]\n{chip_lines}\n{system_lines}")


def read(text: str) -> Catalogue:
    return catalogue_of(parse(text, "a description"), "a description")


class TestOwnDescriptions:
    def test_a_chip_like_a_described_one(self) -> None:
        tables = "\n".join(
            f'{name} = {{ value = {fact.value}, unit = "u", source = "a data sheet", confidence = "published" }}'
            for name, fact in provenance("GC200").items()
        )
        slow = '[chips.Slow]\nlike = "X"\nclock_hz = { value = 1e9, unit = "Hz", source = "s", confidence = "derived" }'
        found = described(tables, slow)
        assert isinstance(found.chips["Slow"], Chip)
        assert (found.chips["Slow"].clock_hz, found.chips["Slow"].tiles) == (1e9, 1472)
        assert isinstance(system_named("M2000"), System)

    @pytest.mark.parametrize(
        ("text", "fragment"),
        [
            ("tiles =", "not valid TOML"),
            ('like = "Y"', "is like 'Y', which is not described"),
            ('like = "X"', "never ends"),
            ("tiles = 1472", "has no tile_bytes"),
        ],
    )
    def test_bad_descriptions(self, text: str, fragment: str) -> None:
        with pytest.raises(Error, match=fragment):
            described(text)

    def test_a_number_without_source(self) -> None:
        names = provenance("GC200")
        tables = "\n".join(f"{name} = 1" for name in names)
        with pytest.raises(Error, match="tiles must be a table with value, unit, source, confidence"):
            described(tables)

    def test_a_system_with_an_unknown_chip(self) -> None:
        with pytest.raises(Error, match="system Y has chip 'Z'"):
            read('[systems.Y]\nchip = "Z"')
