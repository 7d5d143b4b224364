"""Rates of matrix products, memory and layers, by device type."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hetcli.catalog.gpu import Gpu
from hetcli.catalog.hardware import find_gpu
from hetcli.errors import UnknownNameError
from hetcli.perf.compute.operations import Matmul
from hetcli.perf.compute.rates import Rates
from hetcli.perf.configuration import Shape
from hetcli.perf.fitting.robust import fit_seconds
from hetcli.perf.hardware import DeviceType
from hetcli.spec.base import Origin
from hetcli.spec.hardware import ComputeRates, LayerTimes, MemoryRates
from hetcli.spec.profile import ComputeDtype, MatmulMeasurement, Profile

__all__ = ["catalogue_gpu", "device_name", "fit_layers", "fit_matmul", "fit_memory"]

# Fewer products than this cannot tell three operands apart: they share one term.
FEW_ROWS: Final = 10

Slow = Set[tuple[str, int]]


def catalogue_gpu(name: str) -> Gpu | None:
    """The catalogue's entry for what a driver calls a device; None where there is none."""
    try:
        return find_gpu(name)
    except UnknownNameError:
        return None


def device_name(name: str) -> str:
    """The catalogue's name of a device, or the driver's where the catalogue does not hold it."""
    gpu = catalogue_gpu(name)
    return name if gpu is None else gpu.name


def _devices(profile: Profile, slow: Slow) -> dict[int, str]:
    """Names of the devices that may speak for their type: usable and not found to be slow."""
    return {
        device.index: device_name(device.name)
        for device in profile.devices
        if device.usable and (profile.node, device.index) not in slow
    }


def _healthy(profiles: Sequence[Profile], slow: Slow) -> Iterator[tuple[Profile, dict[int, str]]]:
    for profile in profiles:
        yield profile, _devices(profile, slow)


def _sources(profiles: Sequence[Profile]) -> str:
    return "; ".join(dict.fromkeys(profile.source for profile in profiles))


def fit_matmul(profiles: Sequence[Profile], slow: Slow = frozenset()) -> tuple[ComputeRates, ...]:
    """One curve for each device type and dtype, from the devices that are not `slow`."""
    rows: dict[tuple[str, ComputeDtype], list[MatmulMeasurement]] = defaultdict(list)
    for profile, devices in _healthy(profiles, slow):
        for row in profile.matmul:
            if row.device in devices:
                rows[devices[row.device], row.dtype].append(row)
    return tuple(
        _curve(name, dtype, own, _sources(profiles)) for (name, dtype), own in sorted(rows.items())
    )


def _terms(rows: Sequence[MatmulMeasurement]) -> NDArray[np.float64]:
    """FLOPs, elements of both operands and of the result, and one launch."""
    m, n, k = (np.array([getattr(row, side) for row in rows], dtype=float) for side in "mnk")
    return np.column_stack([2 * m * n * k, m * k, k * n, m * n, np.ones(len(rows))])


def _curve(
    name: str, dtype: ComputeDtype, rows: Sequence[MatmulMeasurement], source: str
) -> ComputeRates:
    terms = _terms(rows)
    seconds = np.array([row.seconds.median for row in rows])
    shapes = {(row.m, row.n, row.k) for row in rows}
    if len(shapes) < FEW_ROWS:
        fit = fit_seconds(
            np.column_stack([terms[:, 0], terms[:, 1:4].sum(axis=1), terms[:, 4]]), seconds
        )
        work, moved, launch = fit.coefficients
        left = right = output = moved
    else:
        fit = fit_seconds(terms, seconds)
        work, left, right, output, launch = fit.coefficients
    if work <= 0:
        # The memory explains every row: no product was large enough to show the arithmetic.
        work = 1 / max(row.flop_per_s for row in rows)
    return ComputeRates(
        device=name,
        dtype=dtype,
        flop_per_s=float(1 / work),
        left_s=float(left),
        right_s=float(right),
        output_s=float(output),
        launch_s=float(launch),
        origin=Origin.FITTED,
        rows=len(rows),
        residual=fit.residual,
        versus_shipped=_versus_shipped(name, dtype, rows),
        source=source,
    )


def _versus_shipped(
    name: str, dtype: ComputeDtype, rows: Sequence[MatmulMeasurement]
) -> float | None:
    gpu = catalogue_gpu(name)
    if gpu is None or not gpu.supports(dtype):
        return None
    shape = Shape(
        sequence=1,
        micro_batch_size=1,
        precision="fp32" if dtype == "tf32" else dtype,
        kernel="flash",
        allow_tf32=dtype == "tf32",
    )
    shipped = Rates(DeviceType(gpu.name, gpu, gpu.memory_bytes, gpu.origin), shape)
    return statistics.median(
        row.seconds.median / shipped.product_s(Matmul(row.m, row.n, row.k)) for row in rows
    )


def fit_memory(profiles: Sequence[Profile], slow: Slow = frozenset()) -> tuple[MemoryRates, ...]:
    """The memory rate of each device type: the median over its devices."""
    rates: dict[str, list[float]] = defaultdict(list)
    for profile, devices in _healthy(profiles, slow):
        for row in profile.memory_bandwidth:
            if row.device in devices:
                rates[devices[row.device]].append(row.bytes_per_s)
    made = []
    for name, own in sorted(rates.items()):
        rate, gpu = statistics.median(own), catalogue_gpu(name)
        made.append(
            MemoryRates(
                device=name,
                bytes_per_s=rate,
                origin=Origin.MEASURED,
                rows=len(own),
                versus_datasheet=None if gpu is None else rate / gpu.memory_bytes_per_s,
                source=_sources(profiles),
            )
        )
    return tuple(made)


def fit_layers(profiles: Sequence[Profile], slow: Slow = frozenset()) -> tuple[LayerTimes, ...]:
    """Measured layers of each device type and shape: medians over devices."""
    rows = defaultdict(list)
    for profile, devices in _healthy(profiles, slow):
        for row in profile.layers:
            if row.device in devices:
                key = (
                    devices[row.device],
                    row.model,
                    row.dtype,
                    row.tensor_parallel,
                    row.micro_batch_size,
                    row.sequence,
                )
                rows[key].append(row)
    made = []
    for key, own in sorted(rows.items()):
        device, model, dtype, degree, batch, sequence = key
        peaks = [row.peak_memory_bytes for row in own if row.peak_memory_bytes is not None]
        made.append(
            LayerTimes(
                device=device,
                model=model,
                dtype=dtype,
                tensor_parallel=degree,
                micro_batch_size=batch,
                sequence=sequence,
                forward_s=statistics.median(row.forward_s.median for row in own),
                backward_s=statistics.median(row.backward_s.median for row in own),
                peak_memory_bytes=max(peaks, default=None),
                rows=len(own),
                source=_sources(profiles),
            )
        )
    return tuple(made)
