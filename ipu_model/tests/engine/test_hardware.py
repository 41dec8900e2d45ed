"""Machines and constants: what the tables say, how they are found and replaced, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipu_model.errors import Error
from ipu_model.predict.calibration import calibrated, constant_facts, parse
from ipu_model.predict.hardware import (
    Catalogue,
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
        assert gc200.seconds(1.33e9) == chip("Bow").seconds(1.85e9) == 1.0
        assert [gc200.vector_width(size) for size in (1, 2, 4, 8)] == [8, 4, 2, 1]

    @pytest.mark.parametrize(
        ("name", "element_bytes", "half", "published_teraflops"),
        [
            ("GC200", 2, True, 249.7),  # POD64 datasheet: 15.978 PFLOP/s / 64
            ("GC200", 2, False, 249.7 / 2),  # fp32 partials halve the rate
            ("GC200", 4, False, 62.4),  # POD64 datasheet: 3.994 PFLOP/s / 64
            ("Bow", 2, True, 348.6),
            ("Bow", 4, False, 87.1),
            ("C600", 2, True, 282.6),
            ("GC2", 2, False, 124.5),  # Mk1: fp16 products summed in fp32
            ("GC2", 4, False, 31.1),
        ],
    )
    def test_matrix_units_give_the_published_peak(self, name, element_bytes, half, published_teraflops) -> None:
        peak = chip(name).peak_flops(element_bytes, half_partials=half) / 1e12
        assert peak == pytest.approx(published_teraflops, rel=0.01)

    def test_offline_versions(self) -> None:
        assert [chip_of_offline_target(version).name for version in (1, 2, 21)] == ["GC2", "GC200", "C600"]


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

    @pytest.mark.parametrize(
        ("spelling", "name"),
        [
            *((spelling, "POD16") for spelling in ("pod16", "IPU-POD16", "ipu pod 16", "Pod16")),
            ("GC200", "M2000"),  # a chip stands for its smallest system
            ("bow", "Bow-2000"),
        ],
    )
    def test_spelling_does_not_matter(self, spelling: str, name: str) -> None:
        assert system_named(spelling) is system_named(name)


def test_every_number_has_unit_source_and_confidence_and_inherited_ones_keep_their_source() -> None:
    labels = {"published", "derived", "estimated"}
    for facts, allowed in ((known_hardware().facts, labels), (constant_facts(), labels | {"fitted"})):
        for name, numbers in facts.items():
            for number, fact in numbers.items():
                assert fact.unit, (name, number)
                assert len(fact.source) > 10, (name, number)
                assert fact.confidence in allowed, (name, number)
    assert provenance("Bow")["tiles"] == provenance("GC200")["tiles"]
    assert provenance("Bow")["clock_hz"].source != provenance("GC200")["clock_hz"].source


class TestConstants:
    def test_every_entry_of_the_file_has_a_field_with_its_value(self) -> None:
        for section, facts in constant_facts().items():
            values = {name: fact.value for name, fact in facts.items()}
            assert vars(getattr(calibrated(), section)) == values

    def test_other_values_leave_the_calibration_itself_and_all_other_constants_as_they_are(self) -> None:
        before = calibrated()
        changed = before.with_values({"cost.sync_cycles": 500, "memory.close_low": 0.5})
        assert (changed.cost.sync_cycles, changed.memory.close_low) == (500, 0.5)
        assert changed.cost.exchange_fixed_cycles == before.cost.exchange_fixed_cycles
        assert calibrated() == before != changed


def described(chip_lines: str, system_lines: str = "") -> Catalogue:
    return read(f"[chips.X]\n{chip_lines}\n{system_lines}")


def read(text: str) -> Catalogue:
    return catalogue_of(parse(text, "a description"), "a description")


def test_a_chip_like_a_described_one() -> None:
    tables = "\n".join(
        f'{name} = {{ value = {fact.value}, unit = "u", source = "a data sheet", confidence = "published" }}'
        for name, fact in provenance("GC200").items()
    )
    slow = '[chips.Slow]\nlike = "X"\nclock_hz = { value = 1e9, unit = "Hz", source = "s", confidence = "derived" }'
    chips = described(tables, slow).chips
    assert (chips["Slow"].clock_hz, chips["Slow"].tiles, chips["X"].clock_hz) == (1e9, 1472, 1.33e9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: chip_of_offline_target(3), r"no IPU version 3.*1 \(GC2\), 2 \(GC200\), 21 \(C600\)"),
        (lambda: system_with("GC200", 257), r"No system has 257 IPUs.*POD256 with 256"),
        (lambda: system_with("GC200", 0), "at least one IPU"),
        (lambda: system_named("POD17"), r"no machine 'POD17'.*M2000.*POD256.*GC200"),
        (lambda: calibrated().with_values({"cost.speed": 1}), r"no constant cost\.speed"),
        *(
            (lambda value=value: calibrated().with_values({"cost.sync_cycles": value}), "sync_cycles cannot be")
            for value in (-1, float("inf"), float("nan"))
        ),
        (lambda: described("tiles ="), "not valid TOML"),
        (lambda: described('like = "Y"'), "is like 'Y', which is not described"),
        (lambda: described('like = "X"'), "never ends"),
        (lambda: described("tiles = 1472"), "has no tile_bytes"),
        (lambda: described(" = 1\n".join([*provenance("GC200"), ""])), "tiles must be a table with value, unit"),
        (lambda: read('[systems.Y]\nchip = "Z"'), "system Y has chip 'Z'"),
        (lambda: replace(chip("GC200"), tiles=0), "tiles = 0: it must be above 0"),
        (lambda: replace(chip("GC200"), clock_hz=-1.0), "clock_hz = -1.0: it must be above 0"),
        (lambda: replace(chip("GC200"), clock_hz=float("nan")), "clock_hz = nan: it must be a finite number"),
        (lambda: replace(chip("GC200"), tiles=10.5), "tiles = 10.5: it must be a whole number"),
        (lambda: replace(chip("GC200"), workers=True), "workers = True"),
        (lambda: replace(chip("GC200"), tile_bytes="624k"), "tile_bytes = '624k'"),
        (lambda: replace(system_named("M2000"), ipus=0), "ipus = 0"),
        (lambda: replace(system_named("M2000"), link_bytes_per_second=0.0), "link_bytes_per_second = 0.0"),
        (lambda: replace(system_named("M2000"), streaming_bytes=-1.0), "streaming_bytes = -1.0: it must not be neg"),
    ],
)  # fmt: skip
def test_what_no_machine_has_is_refused_by_name(call, message: str) -> None:
    with pytest.raises(Error, match=message):
        call()
