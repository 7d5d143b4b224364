from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli import units


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80GiB", 80 * 2**30),
        ("80GB", 80 * 10**9),
        ("80 GB", 80 * 10**9),
        (" 512B ", 512),
        ("1.5KiB", 1536),
        ("16MiB", 16 * 2**20),
        ("2TB", 2 * 10**12),
        ("0.5KB", 500),
        ("0.5kB", 500),
        ("9007199254740993B", 2**53 + 1),
    ],
)
def test_sizes_tell_decimal_and_binary_units_apart(text: str, value: int) -> None:
    assert units.parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200Gbps", 25e9),
        ("200Gb/s", 25e9),
        ("200 Gbit/s", 25e9),
        ("25GB/s", 25e9),
        ("25GBps", 25e9),
        ("1GiB/s", 2**30),
        ("100Mbps", 12.5e6),
        ("0.117Gbps", 0.117e9 / 8),
    ],
)
def test_rates_tell_bits_and_bytes_apart(text: str, value: float) -> None:
    assert units.parse_rate(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5us", 5e-6),
        ("5\u00b5s", 5e-6),
        ("5\u03bcs", 5e-6),
        ("250ns", 250e-9),
        ("3ms", 3e-3),
        ("10s", 10.0),
        ("2min", 120.0),
        ("7.9h", 28440.0),
        ("30d", 2592000.0),
    ],
)
def test_durations(text: str, value: float) -> None:
    assert units.parse_duration(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("512", 512),
        ("4Ki", 4096),
        ("128k", 128_000),
        ("128K", 128_000),
        ("1.5M", 1_500_000),
        ("300B", 300 * 10**9),
        ("1e6", 10**6),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_counts(text: str, value: int) -> None:
    assert units.parse_count(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("312TFLOP/s", 312e12), ("1.98PFLOPS", 1.98e15), ("65 Tflops", 65e12)]
)
def test_compute_rates(text: str, value: float) -> None:
    assert units.parse_flops(text) == value


Parse = Callable[[str], float]
PARSERS: list[Parse] = [
    units.parse_bytes,
    units.parse_rate,
    units.parse_duration,
    units.parse_count,
    units.parse_flops,
]


@pytest.mark.parametrize("parse", [p for p in PARSERS if p is not units.parse_count])
def test_a_bare_number_is_refused(parse: Parse) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse("80")


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "GB",
        "-1GB",
        "1,5GB",
        "nanGB",
        "inf",
        "1_0GB",
        "80 Gx",
        "1e9999GB",
        "9" * 5000,
        "٣GB",
        "5m",
    ],
)
def test_what_is_no_quantity_is_a_value_error(parse: Parse, text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse(text)


def test_a_quantity_beyond_floating_point_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        units.parse_rate("1e999GB/s")
    with pytest.raises(ValueError, match="whole number"):
        units.parse_count("1.5")


@pytest.mark.parametrize("text", ["80Gbps", "80b"])
def test_bits_are_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        units.parse_bytes(text)


@given(st.integers(0, 2**63 - 1))
def test_every_size_is_read_back_from_its_exact_spelling(value: int) -> None:
    assert units.parse_bytes(units.format_bytes_exact(value)) == value


positive = st.floats(min_value=1e-300, max_value=1e300)


@given(positive)
def test_every_rate_and_duration_is_read_back_from_its_exact_spelling(value: float) -> None:
    assert units.parse_rate(units.format_rate_exact(value)) == value
    assert units.parse_duration(units.format_duration_exact(value)) == value


@given(st.integers(1, 10**6))
def test_exact_spellings_of_rates_are_the_ones_that_people_write(megabytes: int) -> None:
    text = units.format_rate_exact(units.parse_rate(f"{megabytes}MB/s"))
    assert "e" not in text
    assert len(text) <= len("123.456GB/s")


def test_exact_spellings_of_common_values() -> None:
    assert units.format_rate_exact(12.5e9) == "12.5GB/s"
    assert units.format_duration_exact(5e-6) == "5us"
    assert units.format_duration_exact(0.0) == "0.0s"
    assert units.format_bytes_exact(80 * 2**30) == "80GiB"


@given(st.integers(0, 2**63 - 1))
def test_printed_sizes_are_right_to_three_digits(value: int) -> None:
    text = units.format_bytes(value).replace(",", "")
    assert units.parse_bytes(text) == pytest.approx(value, rel=0.006, abs=0.5)


@given(st.floats(min_value=1e-8, max_value=1e15))
def test_printed_rates_and_durations_are_right_to_three_digits(value: float) -> None:
    for spelled, parse in (
        (units.format_rate(value), units.parse_rate),
        (units.format_duration(value), units.parse_duration),
        (units.format_flops(value), units.parse_flops),
    ):
        assert parse(spelled.replace(",", "")) == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        (units.format_bytes(78.2 * 2**30), "78.2 GiB"),
        (units.format_bytes(0), "0 B"),
        (units.format_bytes(1023), "1,023 B"),
        (units.format_bytes(2**30 - 1), "1 GiB"),
        (units.format_bytes(-1.5 * 2**20), "-1.5 MiB"),
        (units.format_bytes(2**60), "1,048,576 TiB"),
        (units.format_rate(25e9), "25 GB/s"),
        (units.format_rate(999.9e6), "1 GB/s"),
        (units.format_rate(117e6 / 8), "14.6 MB/s"),
        (units.format_duration(12.34), "12.3 s"),
        (units.format_duration(0.0045), "4.5 ms"),
        (units.format_duration(7560), "2.1 h"),
        (units.format_duration(90), "90 s"),
        (units.format_duration(0.99999), "1 s"),
        (units.format_duration(0), "0 s"),
        (units.format_duration(5e-8), "50 ns"),
        (units.format_flops(312e12), "312 TFLOP/s"),
        (units.format_flops(999.9e12), "1 PFLOP/s"),
        (units.format_flop(4.195e15), "4.2 PFLOP"),
        (units.format_flop(3e18), "3 EFLOP"),
        (units.format_count(6738415616), "6.74B"),
        (units.format_count(32768), "32.8k"),
        (units.format_count(-1500), "-1.5k"),
        (units.format_count(12), "12"),
        (units.format_money(0.2781), "$0.278"),
        (units.format_money(0.9999), "$1.00"),
        (units.format_money(1234.5), "$1,234.50"),
        (units.format_money(-2), "-$2.00"),
        (units.format_money(0), "$0"),
    ],
)
def test_what_people_read(spelled: str, expected: str) -> None:
    assert spelled == expected
