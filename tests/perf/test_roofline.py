"""Intensity and roof by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetcli.perf.roofline import matmul_intensity, roof


def test_square_product_in_16_bit_has_a_third_of_its_side() -> None:
    # 2 n^3 operations over 3 n^2 elements of 2 bytes.
    assert matmul_intensity(3000, 3000, 3000, "bf16") == 1000


def test_vector_product_moves_about_an_element_an_operation() -> None:
    assert 0.24 < matmul_intensity(1, 4096, 4096, "fp32") / 2 <= 0.25


@given(st.floats(1e-3, 1e6), st.floats(1e9, 1e13), st.floats(1e9, 1e16))
def test_roof_is_the_lower_of_its_two_lines(intensity: float, memory: float, peak: float) -> None:
    found = roof(intensity, memory, peak)
    assert found in (peak, intensity * memory)
    assert found <= peak
    assert found <= intensity * memory
