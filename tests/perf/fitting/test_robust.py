"""Regression that finds the law behind times, also where some of them are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcli.perf.fitting.robust import fit_seconds

SIZES = np.array([2.0**power for power in range(10, 25, 2)])


def line(latency: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    terms = np.column_stack([np.ones(len(SIZES)), SIZES])
    return terms, latency + SIZES / rate


# Without a deadline: the first example imports the solver.
@settings(deadline=None)
@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e11))
def test_an_exact_law_is_found_exactly(latency: float, rate: float) -> None:
    terms, seconds = line(latency, rate)
    fit = fit_seconds(terms, seconds)
    assert fit.residual < 1e-6
    assert fit.seconds(terms) == pytest.approx(seconds, rel=1e-4)


@pytest.mark.parametrize("factor", [8, 1 / 8], ids=["too long", "too short"])
def test_outliers_do_not_decide(factor: float) -> None:
    terms, seconds = line(50e-6, 1e9)
    seconds[[2, 6]] *= factor
    fit = fit_seconds(terms, seconds)
    assert 1 / fit.coefficients[1] == pytest.approx(1e9, rel=0.05)
    assert fit.coefficients[0] == pytest.approx(50e-6, rel=0.05)


def test_noise_averages_out() -> None:
    generator = np.random.default_rng(0)
    terms, seconds = line(50e-6, 1e9)
    terms, seconds = np.tile(terms, (20, 1)), np.tile(seconds, 20)
    fit = fit_seconds(terms, seconds * np.exp(generator.normal(0, 0.1, len(seconds))))
    assert 1 / fit.coefficients[1] == pytest.approx(1e9, rel=0.05)
    # The median of |N(0, 0.1)| is 0.0674.
    assert fit.residual == pytest.approx(0.0674, rel=0.25)


def test_no_coefficient_is_negative() -> None:
    terms, seconds = line(0.0, 1e9)
    fit = fit_seconds(terms, seconds - 0.4 * seconds[0])
    assert (fit.coefficients >= 0).all()


def test_the_residual_is_the_median_error() -> None:
    terms = np.ones((3, 1))
    fit = fit_seconds(terms, np.array([1.0, 1.0, 2.0]))
    assert fit.residual == pytest.approx(np.median(np.abs(fit.coefficients[0] / [1, 1, 2] - 1)))


def test_a_term_that_is_never_there_is_zero() -> None:
    terms, seconds = line(1e-4, 1e9)
    fit = fit_seconds(np.column_stack([terms, np.zeros(len(seconds))]), seconds)
    assert fit.coefficients[2] == 0


def test_nothing_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="nothing to fit"):
        fit_seconds(np.zeros((0, 2)), np.zeros(0))
