"""What share of its data sheet a GPU reaches, per kind of work; the data are in efficiency.yaml."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter

from hetcli.catalog.gpu import Dtype, Gpu
from hetcli.spec.base import Name, Origin, Record

__all__ = ["Efficiency", "efficiency_of"]

Share = Annotated[float, Field(gt=0, le=1.2)]
Seconds = Annotated[float, Field(ge=0)]


class Efficiency(Record):
    """Shares of the data-sheet peaks that a GPU reaches, and the fixed cost of a kernel.

    `name` is a GPU, or an architecture for the GPUs without an entry of their own. `matmul` is
    the share of the dense peak that large matrix products reach, `attention` that of a fused
    attention kernel, `grouped` that of the experts' products; `memory` is the share of the HBM
    bandwidth that elementwise kernels reach. `rows` counts the measurements behind the entry.
    """

    name: Name
    matmul: dict[Dtype, Share]
    attention: Share
    grouped: Share
    memory: Share
    launch_s: Seconds
    rows: Annotated[int, Field(ge=0)]
    origin: Origin
    source: Annotated[str, Field(min_length=1)]


@cache
def _entries() -> dict[str, Efficiency]:
    text = resources.files("hetcli.catalog").joinpath("efficiency.yaml").read_text("utf-8")
    adapter = TypeAdapter(list[Efficiency])
    entries = adapter.validate_python(yaml.safe_load(text), strict=False)
    return {entry.name: entry for entry in entries}


@cache
def _resolve(name: str, architecture: str) -> Efficiency:
    entries = _entries()
    if name in entries:
        return entries[name]
    borrowed = entries.get(architecture) or entries["default"]
    return borrowed.model_copy(update={"origin": Origin.ASSUMED})


def efficiency_of(gpu: Gpu) -> Efficiency:
    """The entry of the GPU itself, else of its architecture or the default, marked assumed."""
    return _resolve(gpu.name, gpu.architecture)
