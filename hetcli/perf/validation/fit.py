"""Fit the terms that only whole training runs show, and say how far that carries.

A term is multiplied by a factor that starts at one; the factors that make the logarithms of
predicted and measured seconds agree best are found by Gauss-Newton steps under a robust loss, with
a pull towards one whose strength is stated for every term. The error to believe is that of runs
whose source was left out of the fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hetcli.catalog.efficiency import EfficiencyTable
from hetcli.perf.chains import chains
from hetcli.perf.stage import Costs
from hetcli.perf.step import micro_exposed
from hetcli.perf.synchronisation import synchronisation
from hetcli.perf.validation.knobs import Knob, depends, knobs, scaled
from hetcli.perf.validation.predict import Clusters, predict_runs
from hetcli.perf.validation.runs import Run

__all__ = ["Fit", "fit", "leave_one_source_out", "publisher"]

Floats = NDArray[np.float64]

# Relative error from which on the loss grows linearly, so that outliers do not decide.
ROBUST_SCALE = 0.08
# What a run that its own source calls noisy counts for.
NOISY_WEIGHT = 0.05
# Numerical derivative, longest step of a round in a factor's logarithm, rounds.
_DIFFERENCE = 0.05
_LONGEST_STEP = 0.6
_ROUNDS = 2
_REWEIGHTINGS = 60


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted table, the factor of every knob, how many runs decided it, and what is left.

    `errors` are logarithms of predicted over measured seconds, run by run.
    """

    table: EfficiencyTable
    factors: Mapping[str, float]
    rows: Mapping[str, int]
    errors: Floats


def publisher(source: str) -> str:
    """Who measured: the repository or paper in a row's source; releases are not told apart."""
    found = re.search(r"github\.com/([\w.-]+/[\w.-]+)", source) or re.search(
        r"arXiv:?\s*([\d.]+)", source
    )
    return found[1].removesuffix(".") if found else source


def _errors(runs: Sequence[Run], table: EfficiencyTable) -> Floats:
    measured = np.array([run.measured_s for run in runs], dtype=float)
    errors: Floats = np.log(np.array(predict_runs(runs, table)) / measured)
    return errors


def _work_s(run: Run, clusters: Clusters) -> float:
    """Seconds of the busiest stage of a run, without the pipeline's bubble: quick to compute."""
    configuration, pipeline = run.configuration, run.configuration.pipelines[0]
    hardware = clusters(run.hardware)
    chain = chains(configuration, pipeline, hardware, Costs(run.model))[0]
    stages = range(len(chain.stages))
    passes = max(
        ((chain.forward(stage), chain.backward(stage)) for stage in stages),
        key=lambda both: both[0].total + both[1].total,
    )
    waiting = 0.0
    if configuration.zero_stage == 3:
        sync = synchronisation(
            configuration, run.model, pipeline.stages[0], (), hardware, first=True, last=True
        )
        waiting = micro_exposed(sync, *passes)
    return chain.micro_batches * (passes[0].total + passes[1].total + waiting)


def _jacobian(runs: Sequence[Run], table: EfficiencyTable, turned: Sequence[Knob]) -> Floats:
    """Change of each run's logarithmic seconds with each knob's logarithm.

    What is not the busiest stage's work (bubble, synchronisation) keeps its share of the step.
    """
    first: dict[object, int] = {}
    for index, run in enumerate(runs):
        first.setdefault(run.key, index)
    clusters = Clusters(table)
    work = {index: _work_s(runs[index], clusters) for index in first.values()}
    slopes = np.zeros((len(runs), len(turned)))
    for column, knob in enumerate(turned):
        moved = Clusters(scaled(table, {knob: _DIFFERENCE}, {}))
        for index in first.values():
            if depends(runs[index], knob):
                change = _work_s(runs[index], moved) / work[index]
                slopes[index, column] = math.log(change) / _DIFFERENCE
    return np.array([slopes[first[run.key]] for run in runs])


def _step(
    errors: Floats, slopes: Floats, at: Floats, deviations: Floats, weights: Floats
) -> Floats:
    """The change of the logarithms that the robust, regularised linear problem asks for."""
    move = np.zeros(len(at))
    for _ in range(_REWEIGHTINGS):
        scaled_errors = (errors + slopes @ move) / ROBUST_SCALE
        # Derivative of the soft L1 loss over that of the square.
        root = np.sqrt(weights / np.sqrt(1 + scaled_errors**2)) / ROBUST_SCALE
        rows = np.vstack([slopes * root[:, None], np.diag(1 / deviations)])
        target = np.concatenate([-errors * root, -at / deviations])
        move = np.linalg.lstsq(rows, target, rcond=None)[0]
    return move


def _weights(runs: Sequence[Run]) -> Floats:
    return np.array([NOISY_WEIGHT if run.noisy else 1.0 for run in runs])


@dataclass(frozen=True, slots=True)
class _Problem:
    base: EfficiencyTable
    turned: tuple[Knob, ...]
    at: Floats
    errors: Floats
    slopes: Floats

    def table(self, logs: Floats, rows: Mapping[str, int]) -> EfficiencyTable:
        return scaled(self.base, dict(zip(self.turned, logs.tolist(), strict=True)), rows)

    @property
    def deviations(self) -> Floats:
        return np.array([knob.deviation for knob in self.turned])


def _solve(runs: Sequence[Run], base: EfficiencyTable) -> _Problem:
    turned = tuple(knobs(runs))
    at = np.zeros(len(turned))
    weights = _weights(runs)
    problem = _Problem(base, turned, at, _errors(runs, base), np.zeros((len(runs), len(turned))))
    for round_ in range(_ROUNDS + 1):
        table = problem.table(at, {})
        errors = _errors(runs, table)
        problem = _Problem(base, turned, at, errors, _jacobian(runs, table, turned))
        if round_ < _ROUNDS:
            move = _step(errors, problem.slopes, at, problem.deviations, weights)
            at = at + np.clip(move, -_LONGEST_STEP, _LONGEST_STEP)
    return problem


def _result(problem: _Problem, runs: Sequence[Run]) -> Fit:
    rows = {knob.name: sum(depends(run, knob) for run in runs) for knob in problem.turned}
    return Fit(
        table=problem.table(problem.at, rows),
        factors={
            knob.name: math.exp(log)
            for knob, log in zip(problem.turned, problem.at.tolist(), strict=True)
        },
        rows=rows,
        errors=problem.errors,
    )


def fit(runs: Sequence[Run], base: EfficiencyTable) -> Fit:
    """The terms of `base` that these runs can decide, corrected."""
    return _result(_solve(runs, base), runs)


def leave_one_source_out(
    runs: Sequence[Run],
    base: EfficiencyTable,
    *,
    sources: Mapping[str, Callable[[str], str]] = MappingProxyType({"publisher": publisher}),
) -> tuple[Fit, dict[str, Floats]]:
    """The fit on all runs, and the errors of runs under fits without their own source.

    `sources` says what of a run's source is one: by default all tables and releases of a publisher.
    For each entry the errors are in the order of the runs. The fits without a source start from
    the fit on all runs and take one more step.
    """
    problem = _solve(runs, base)
    weights = _weights(runs)
    left_out = {
        label: _without_each(problem, runs, weights, np.array([of(run.source) for run in runs]))
        for label, of in sources.items()
    }
    return _result(problem, runs), left_out


def _without_each(
    problem: _Problem, runs: Sequence[Run], weights: Floats, names: NDArray[np.str_]
) -> Floats:
    errors = np.zeros(len(runs))
    for name in sorted(set(names.tolist())):
        kept = names != name
        move = _step(
            problem.errors[kept],
            problem.slopes[kept],
            problem.at,
            problem.deviations,
            weights[kept],
        )
        table = problem.table(problem.at + np.clip(move, -1, 1), {})
        errors[~kept] = _errors(
            [run for run, keep in zip(runs, kept, strict=True) if not keep], table
        )
    return errors
