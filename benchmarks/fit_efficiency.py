"""Fit hetcli/catalog/efficiency.yaml from tables of published measurements.

    python benchmarks/fit_efficiency.py FOLDER

FOLDER holds matmul.csv (gpu, dtype, m, n, k, time_ms or tflops, source), layer_profiles.csv (gpu,
model, hidden, heads, ffn_hidden, seq_len, micro_batch, dtype, fwd_ms, bwd_ms, source) and
homogeneous.csv and homogeneous_vtrain_single.csv (the columns that `hetcli validate` reads).
Kernels come first: what products and layers reach alone; then the terms that only whole training
runs show; last what the host needs to launch a layer under DeepSpeed, which only small models show.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import nnls

from hetcli.catalog.efficiency import EfficiencyTable, Term
from hetcli.catalog.gpu import Gpu
from hetcli.catalog.hardware import find_gpu
from hetcli.errors import UnknownNameError
from hetcli.perf.compute.operations import Attention, Matmul, layer_operations
from hetcli.perf.configuration import Shape
from hetcli.perf.validation.fit import leave_one_source_out, publisher
from hetcli.perf.validation.knobs import MIN_ROWS
from hetcli.perf.validation.predict import predict_runs, runs_of
from hetcli.perf.validation.runs import Run
from hetcli.perf.validation.table import read_table
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
)

Floats = NDArray[np.float64]
Row = Mapping[str, str]

HEADER = """\
# What devices reach of their data sheets, and what frameworks add. Written by
# benchmarks/fit_efficiency.py; `rows` counts the published measurements behind a term, none is
# fitted on fewer than {minimum}. A device without an entry borrows from the nearest one (assumed).
"""
# Starting values of the terms that training runs correct; `origin: assumed` where they stay.
ATTENTION = (0.6, 0.5, "FlashAttention-2 reaches 50 to 73 % on A100 forward (arXiv 2307.08691)")
STREAMING = (0.8, "what a copy kernel reaches of the HBM rate; no row")
# What a copy reaches of the data sheet's HBM rate (Jia et al., arXiv 1903.07486: 220 of 320 GB/s on
# T4, 750 of 900 on V100, 510 of 732 on P100).
MEASURED_STREAMING = {
    "T4": 220 / 320,
    "V100-SXM2-16GB": 750 / 900,
    "V100-PCIE-16GB": 750 / 900,
    "P100-PCIE-16GB": 510 / 732,
}
# A card of 70 W that takes most of its clock from a boost (data sheet: 585 MHz, at most 1590) is
# taken to train halfway between both; no row that may be shipped says what it keeps.
SUSTAINED = {
    "T4": ((585 + 1590) / 2 / 1590, "halfway from base to boost clock, NVIDIA T4 data sheet")
}
GROUPED = (0.8, "experts' products are a little smaller than dense ones; no row of its own")
FRAMEWORKS: tuple[dict[str, Any], ...] = (
    {
        "name": "megatron",
        "elementwise": 1.3,
        "weight_bytes": 8.0,
        "host_layer_s": 3e-4,
        "tensor_exposed": 0.5,
        "attention_after_ampere": 1.0,
        "gather": 1.0,
        "gather_exposed": 0.05,
        "routed": 1.2,
    },
    {
        "name": "megatron",
        "since": "26.06",
        "elementwise": 1.3,
        "weight_bytes": 8.0,
        "host_layer_s": 3e-4,
        "tensor_exposed": 0.5,
        "attention_after_ampere": 1.0,
        "gather": 1.0,
        "gather_exposed": 0.05,
        "routed": 0.8,
    },
    {
        "name": "deepspeed",
        "elementwise": 1.3,
        "weight_bytes": 12.0,
        "host_layer_s": 1.2e-3,
        "tensor_exposed": 1.0,
        "attention_after_ampere": 0.6,
        "gather": 0.1,
        "gather_exposed": 0.5,
        "routed": 1.2,
    },
    {
        "name": "fsdp",
        "elementwise": 1.8,
        "weight_bytes": 25.0,
        "host_layer_s": 1.2e-3,
        "tensor_exposed": 1.0,
        "attention_after_ampere": 0.6,
        "gather": 1.0,
        "gather_exposed": 0.05,
        "routed": 1.2,
    },
)
# Layers whose traffic and launch were not told apart borrow those of a measured product.
BORROWED = {"left": 1.0, "right": 1.0, "output": 1.0, "launch_s": 6e-6}
HALF = ("fp16", "bf16")


# Publications whose licence does not let a number that is derived from them be shipped.
UNSHIPPABLE = re.compile(r"DachengLi1/AMP|SamsungLabs/Metis")


def shippable(source: str) -> bool:
    return UNSHIPPABLE.search(source) is None


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def robust(features: Floats, seconds: Floats, rounds: int = 40) -> tuple[Floats, Floats]:
    """Non-negative coefficients of least absolute relative error, and the relative errors."""
    ratio = features / seconds[:, None]
    scale = np.where(ratio.max(0) > 0, ratio.max(0), 1)
    weight = np.ones(len(seconds))
    error = np.zeros(len(seconds))
    found = np.zeros(features.shape[1])
    for _ in range(rounds):
        found, _ = nnls(ratio / scale * weight[:, None], weight)
        error = ratio / scale @ found - 1
        weight = 1 / np.sqrt(np.maximum(np.abs(error), 0.02))
    return found / scale, error


def usable(gpu: Gpu, dtype: str) -> float:
    return float(gpu.usable_flops.get(dtype, gpu.peak_flops.get(dtype, 0)))  # type: ignore[call-overload]


def short(sources: Sequence[str]) -> str:
    """The publishers behind rows."""
    return ", ".join(sorted({publisher(source) for source in sources}))


def matmul_curve(found: Sequence[Row], gpu: Gpu, dtype: str) -> dict[str, Any]:
    m, n, k = (np.array([float(row[name]) for row in found]) for name in ("m", "n", "k"))
    seconds = np.array(
        [
            float(row["time_ms"]) * 1e-3
            if row["time_ms"]
            else 2 * a * b * c / float(row["tflops"]) / 1e12
            for row, a, b, c in zip(found, m, n, k, strict=True)
        ]
    )
    features = np.stack([2 * m * n * k, m * k, k * n, m * n, np.ones(len(m))], 1)
    coefficients, error = robust(features, seconds)
    traffic = coefficients * gpu.memory_bytes_per_s
    return {
        "compute": round(1 / (coefficients[0] * usable(gpu, dtype)), 4),
        "left": round(float(traffic[1]), 3),
        "right": round(float(traffic[2]), 3),
        "output": round(float(traffic[3]), 3),
        "launch_s": float(f"{coefficients[4]:.2e}"),
        "residual": round(float(np.median(np.abs(error))), 4),
        "rows": len(found),
        "origin": "fitted",
        "source": short([row["source"] for row in found]),
    }


def matmul_curves(path: Path) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows(path):
        groups.setdefault(find_gpu(row["gpu"]).name, {}).setdefault(row["dtype"], []).append(row)
    curves: dict[str, dict[str, Any]] = {}
    for name, by_dtype in groups.items():
        gpu = find_gpu(name)
        half = [row for dtype in HALF for row in by_dtype.get(dtype, [])]
        pooled = dict.fromkeys((d for d in HALF if gpu.supports(d)), half)  # type: ignore[arg-type]
        for dtype, found in {**by_dtype, **pooled}.items():
            if len(found) >= MIN_ROWS:
                curves.setdefault(name, {})[dtype] = matmul_curve(found, gpu, dtype)
    return curves


def layer_features(row: Row, dtype: str) -> tuple[float, float, float, float, float]:
    """FLOPs of products and of attention, bytes of elementwise kernels, scores and weights."""
    hidden = int(row["hidden"])
    heads = int(row["heads"]) if row["heads"] else hidden // 128
    layer = Layer(
        attention=GroupedQueryAttention(heads=heads, kv_heads=heads, head_dim=hidden // heads),
        feed_forward=DenseFeedForward(size=int(row["ffn_hidden"]), gated="llama" in row["model"]),
    )
    model = Model(
        name="layer",
        architecture="measured",
        hidden_size=hidden,
        vocab_size=32000,
        max_sequence=int(row["seq_len"]),
        layers=(LayerRun(count=1, layer=layer),),
    )
    shape = Shape(
        sequence=int(row["seq_len"]),
        micro_batch_size=int(row["micro_batch"]),
        precision="fp16" if dtype == "fp16" else "fp32",
        kernel="flash",
    )
    size = 2 if dtype == "fp16" else 4
    products = attention = touched = scores = weights = 0.0
    for _, operation in layer_operations(layer, model, shape):
        if isinstance(operation, Matmul):
            products += operation.flops
            weights += operation.weights
        elif isinstance(operation, Attention):
            attention += operation.flops
            scores += operation.scores * size
        else:
            touched += operation.elements * size
    return products, attention, touched, scores, weights


def layer_shares(found: Sequence[Row], dtype: str) -> dict[str, dict[str, Any]]:
    """Share of the peak that each device's products reach inside eager layers of the longer half.

    One fit over all devices tells products from elementwise kernels (whose passes are the
    framework's, not the card's), weights' traffic and a constant; the share is then that of the
    longer half of a card's layers, which are long enough to be hot.
    """
    names = sorted({find_gpu(row["gpu"]).name for row in found})
    count = len(names)
    features, seconds, owner, length = [], [], [], []
    for row in found:
        gpu = find_gpu(row["gpu"])
        products, attention, touched, scores, weights = layer_features(row, dtype)
        fused = gpu.flash_attention and dtype == "fp16"
        for backward in (0, 1):
            line = np.zeros(count + 7)
            core = attention * 0.5 / ATTENTION[0] * (2.5 if backward else 1)
            work = products * (2 if backward else 1)
            work += core if fused else attention * (2 if backward else 1)
            line[names.index(gpu.name)] = work / usable(gpu, dtype)
            line[count + backward] = touched / gpu.memory_bytes_per_s
            line[count + 2] = backward * weights / gpu.memory_bytes_per_s
            line[count + 3 + backward] = 1
            if not fused:
                line[count + 5 + backward] = scores / gpu.memory_bytes_per_s
            features.append(line)
            seconds.append(float(row["bwd_ms" if backward else "fwd_ms"]) * 1e-3)
            owner.append(gpu.name)
            length.append(float(row["fwd_ms"]) + float(row["bwd_ms"]))
    x, t, duration = np.array(features), np.array(seconds), np.array(length)
    coefficients, _ = robust(x, t)
    other = x[:, count:] @ coefficients[count:]
    shares = {}
    for index, name in enumerate(names):
        own = np.array([each == name for each in owner])
        hot = own & (duration >= np.median(duration[own]))
        share = float(np.median(x[hot, index] / (t[hot] - other[hot])))
        error = (other[own] + x[own, index] / share) / t[own] - 1
        number = int(own.sum()) // 2
        if number >= MIN_ROWS:
            shares[name] = {
                "compute": round(share, 4),
                **BORROWED,
                "residual": round(float(np.median(np.abs(error))), 4),
                "rows": number,
                "origin": "fitted",
                "source": short([row["source"] for row in found]) + "; traffic, launch borrowed",
            }
    return shares


def layer_curves(path: Path) -> dict[str, dict[str, Any]]:
    def usable_row(row: Row, dtype: str) -> bool:
        if row["dtype"] != dtype or "benson-guo" not in row["source"] or not row["fwd_ms"]:
            return False
        try:
            return find_gpu(row["gpu"]).vendor == "nvidia"
        except UnknownNameError:
            return False

    table = rows(path)
    curves: dict[str, dict[str, Any]] = {}
    for label, dtype in (("float16", "fp16"), ("float32", "fp32")):
        found = [row for row in table if usable_row(row, label)]
        for name, curve in layer_shares(found, dtype).items():
            for each in HALF if dtype == "fp16" else ("fp32",):
                if find_gpu(name).supports(each):  # type: ignore[arg-type]
                    curves.setdefault(name, {})[each] = curve
    return curves


def term(value: float, source: str) -> dict[str, Any]:
    return {"value": value, "origin": "assumed", "rows": 0, "source": source}


def streaming(name: str) -> dict[str, Any]:
    share = MEASURED_STREAMING.get(name)
    if share is None:
        return term(*STREAMING)
    return {
        "value": share,
        "origin": "measured",
        "rows": 1,
        "source": "arXiv 1903.07486, memory bandwidth by microbenchmark",
    }


def base_table(folder: Path) -> EfficiencyTable:
    """Kernels alone; the terms of whole runs at their starting values."""
    layers = layer_curves(folder / "layer_profiles.csv")
    products = matmul_curves(folder / "matmul.csv")
    curves = {name: layers.get(name, {}) | products.get(name, {}) for name in layers | products}
    start = "starting value; no measured run decides it"
    devices = [
        {
            "name": name,
            "matmul": dict(sorted(found.items())),
            "sustained": {
                dtype: term(*SUSTAINED.get(name, (1.0, start))) for dtype in sorted(found)
            },
            "attention": term(ATTENTION[0], ATTENTION[2]),
            "attention_backward": term(ATTENTION[1], ATTENTION[2]),
            "grouped": term(GROUPED[0], GROUPED[1]),
            "streaming": streaming(name),
        }
        for name, found in sorted(curves.items())
    ]
    frameworks = [
        {
            key: value if key in ("name", "since") else term(value, start)
            for key, value in each.items()
        }
        for each in FRAMEWORKS
    ]
    return EfficiencyTable.model_validate(
        {"devices": devices, "frameworks": frameworks}, strict=False
    )


# Factors that are tried for the host's time; runs repeat to within such a step.
HOST_FACTORS = (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0)


def with_host_time(table: EfficiencyTable, runs: Sequence[Run]) -> EfficiencyTable:
    """DeepSpeed's `host_layer_s`, from runs whose layers are shorter than their launch."""
    measured = np.array([run.measured_s for run in runs], dtype=float)

    def scaled_by(factor: float) -> EfficiencyTable:
        frameworks = []
        for each in table.frameworks:
            if each.name == "deepspeed":
                value = each.host_layer_s.value * factor
                source = f"{short([run.source for run in runs])}, small models on one node"
                found = term(value, source) | {"origin": "fitted", "rows": len(runs)}
                host = Term.model_validate(found, strict=False)
                frameworks.append(each.model_copy(update={"host_layer_s": host}))
            else:
                frameworks.append(each)
        return table.model_copy(update={"frameworks": tuple(frameworks)})

    def error(factor: float) -> float:
        return float(np.median(np.abs(np.log(predict_runs(runs, scaled_by(factor)) / measured))))

    return scaled_by(min(HOST_FACTORS, key=error))


def rounded(value: Any, of: Callable[[float], float] = lambda x: float(f"{x:.4g}")) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each, of) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each, of) for each in value]
    return of(value) if isinstance(value, float) else value


def stated(errors: Floats) -> str:
    """Figures of logarithmic errors, in per cent of the measured time."""
    relative = np.expm1(errors) * 100
    size = np.abs(relative)
    return (
        f"median {np.median(size):.1f} %, p90 {np.quantile(size, 0.9):.1f} %, "
        f"bias {np.median(relative):+.1f} % of {len(size)} runs"
    )


def main() -> None:
    folder = Path(sys.argv[1])
    table = [row for row in read_table(folder / "homogeneous.csv") if shippable(row.source)]
    runs = [run for run in runs_of(table)[0] if run.measured_s is not None]
    fitted, left_out = leave_one_source_out(
        runs, base_table(folder), sources={"publisher": publisher, "table": str}
    )
    for name, factor in fitted.factors.items():
        sys.stderr.write(f"{name:36} x{factor:.3f}  {fitted.rows[name]} runs\n")
    judged = np.array([not run.noisy for run in runs])
    found = {"in the fit": fitted.errors} | {
        f"without its own {name}": errors for name, errors in left_out.items()
    }
    figures = [f"{name}: {stated(errors[judged])}" for name, errors in found.items()]
    for line in figures:
        sys.stderr.write(f"{line}\n")
    target = Path(__file__).parents[1] / "hetcli" / "catalog" / "efficiency.yaml"
    small = runs_of(read_table(folder / "homogeneous_vtrain_single.csv"))[0]
    final = with_host_time(fitted.table, small)
    body = yaml.safe_dump(
        rounded(final.model_dump(mode="json", exclude_none=True)),
        sort_keys=False,
        default_flow_style=None,
        width=118,
        allow_unicode=True,
    )
    notes = "".join(f"# {line}\n" for line in figures)
    target.write_text(HEADER.format(minimum=MIN_ROWS) + notes + body, "utf-8")


if __name__ == "__main__":
    main()
