"""The catalogue in the terminal: GPUs, presets, and what a model consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from hetcli.catalog.gpu import Dtype, Gpu
from hetcli.report.tables import pairs, table
from hetcli.units import (
    format_bytes,
    format_flop,
    format_flops,
    format_money,
    format_rate,
)

__all__ = ["gpu_details", "gpu_table", "model_details", "preset_table"]

_DTYPES: tuple[Dtype, ...] = ("fp32", "tf32", "fp16", "bf16", "fp8")
_COLUMNS: tuple[Dtype, ...] = ("fp32", "fp16", "bf16", "fp8")


def _peak(gpu: Gpu, dtype: Dtype) -> str:
    rate = gpu.peak_flops.get(dtype)
    return "-" if rate is None else f"{rate / 1e12:,.4g}"


def gpu_table(gpus: Sequence[Gpu]) -> Table:
    """One line a GPU; dense peaks in TFLOP/s."""
    made = table(
        "GPU",
        "memory",
        "HBM rate",
        "fp32",
        "fp16",
        "bf16",
        "fp8",
        "link",
        "",
        numbers=("memory", "HBM rate", "fp32", "fp16", "bf16", "fp8"),
    )
    for gpu in gpus:
        made.add_row(
            gpu.name,
            format_bytes(gpu.memory_bytes),
            format_rate(gpu.memory_bytes_per_s),
            *(_peak(gpu, dtype) for dtype in _COLUMNS),
            gpu.intra_link,
            gpu.origin.letter,
        )
    made.caption = (
        "Dense peaks in TFLOP/s. Last column: d = data sheet, a = assumed or secondary source. "
        "Sources: hetcli gpus NAME"
    )
    made.caption_justify = "left"
    return made


def gpu_details(gpu: Gpu) -> Table:
    """Everything the catalogue holds of one GPU."""
    peaks = ", ".join(
        f"{dtype} {format_flops(gpu.peak_flops[dtype])}"
        for dtype in _DTYPES
        if dtype in gpu.peak_flops
    )
    ceilings = ", ".join(
        f"{dtype} {format_flops(rate)}" for dtype, rate in gpu.usable_flops.items()
    )
    rows = [
        ("name", gpu.name),
        ("also known as", ", ".join(gpu.aliases) or "(no other name)"),
        ("vendor", gpu.vendor),
        ("architecture", gpu.architecture),
        ("compute capability", gpu.compute_capability or "(not a CUDA device)"),
        ("memory", f"{format_bytes(gpu.memory_bytes)} at {format_rate(gpu.memory_bytes_per_s)}"),
        ("dense peaks", peaks),
        ("sustained ceilings", ceilings or "(none known below the peaks)"),
        ("FlashAttention", "yes" if gpu.flash_attention else "no"),
        ("link in a node", gpu.intra_link),
        ("power", f"{gpu.tdp_w:g} W" if gpu.tdp_w else "(unknown)"),
        (
            "price",
            f"{format_money(gpu.price_per_hour)} an hour" if gpu.price_per_hour else "(unknown)",
        ),
        ("origin", gpu.origin.value),
        ("source", gpu.source),
    ]
    if gpu.notes:
        rows.append(("notes", gpu.notes))
    return pairs(rows)


def preset_table(names: Sequence[str]) -> Text:
    """The presets, one a line."""
    return Text("\n".join(names))


def model_details(summary: Mapping[str, Any]) -> Table:
    """What hetcli reads from a model: see `hetcli.perf.summary.summarize_model`."""
    rows = [
        ("model", f"{summary['name']} ({summary['architecture']})"),
        (
            "parameters",
            f"{summary['parameters']:,} in all, {summary['active_parameters']:,} active",
        ),
        ("hidden size", f"{summary['hidden_size']:,}"),
        ("vocabulary", f"{summary['vocab_size']:,}"),
        ("sequence", f"{summary['sequence']:,} tokens (maximum {summary['max_sequence']:,})"),
        ("embedding", f"{summary['embedding_parameters']:,} parameters"),
        (
            "head",
            "tied to the embedding"
            if summary["tied_embeddings"]
            else f"{summary['head_parameters']:,} parameters",
        ),
        ("step FLOPs", f"{format_flop(summary['model_flops'])} a sequence, forward and backward"),
        ("legal tp", ", ".join(str(degree) for degree in summary["legal_tensor_parallel"])),
    ]
    for run in summary["layers"]:
        rows.append(
            (
                f"{run['count']} x layer",
                f"{run['description']}; {run['parameters']:,} parameters"
                f" ({run['active_parameters']:,} active), "
                f"{format_flop(run['forward_flops'])} forward, "
                f"{format_bytes(run['activation_bytes'])} activations a sequence",
            )
        )
    return pairs(rows)
