"""How numbers read, and the layout of tables of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.report import quantities
from ipu_model.report.quantities import aligned


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (quantities.whole, 638976.4, "638,976"),
        (quantities.short, 12345.6, "12,346"),
        (quantities.short, 568.94, "568.9"),
        (quantities.short, 42.409, "42.41"),
        (quantities.short, 1.23456, "1.235"),
        (quantities.short, 0, "0"),
        (quantities.percent, 0.5764, "57.6 %"),
        (quantities.duration, 0, "0 s"),
        (quantities.duration, 492e-6, "492.0 µs"),
        (quantities.duration, 0.0424, "42.40 ms"),
        (quantities.duration, 8.0, "8 s"),
        (quantities.duration, 487.3, "8 min 07 s"),
        (quantities.duration, 1e-9, "0.001 µs"),
        (quantities.size, 638976, "624.0 KiB"),
        (quantities.size, 12, "12 B"),
        (quantities.size, 3 * 2**30, "3.0 GiB"),
    ],
)
def test_a_number_reads_like_this(function, value: float, text: str) -> None:
    assert function(value) == text


def test_a_rate_has_its_prefix() -> None:
    assert quantities.rate(31.24e12, "FLOP/s") == "31.2 TFLOP/s"
    assert quantities.rate(0.0, "FLOP/s") == "0.0 FLOP/s"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (100, 152.6, "+52.6 %"), (100, 50, "-50.0 %"), (3, 3, "same"), (0, 3, "new"), (3, 0, "gone"), (0, 0, "same"),
        (1, 9.5, "+850.0 %"), (2, 9_322, "x 4,661"), (9_322, 2, "x 1/4,661"),
    ],
)  # fmt: skip
def test_a_change_has_a_sign(before: float, after: float, text: str) -> None:
    assert quantities.change(before, after) == text


@given(st.text())
def test_plain_text_is_one_printable_line_of_ascii(text: str) -> None:
    plain = quantities.plain(text)
    assert plain.isascii()
    assert plain.isprintable()


@given(st.text("abc xyz,.-()"))
def test_plain_text_keeps_its_words(text: str) -> None:
    assert quantities.plain(text).split() == text.split()


def test_columns_of_a_table_line_up() -> None:
    assert aligned([("name", "IPU 0", "IPU 1"), ("weights", "5"), ("all", "12", "7,000")]) == [
        "  name     IPU 0  IPU 1",
        "  weights      5",
        "  all         12  7,000",
    ]
