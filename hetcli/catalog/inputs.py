"""Turn a command-line argument into a model or a workload: a preset, a file, or standard input."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetcli.catalog.presets import find_preset
from hetcli.catalog.samples import read_cluster
from hetcli.errors import UsageError
from hetcli.spec.cluster import Cluster
from hetcli.spec.complaint import Locator
from hetcli.spec.hardware import HardwareFile
from hetcli.spec.model.architecture import Adapters, Model
from hetcli.spec.model.document import model_from_mapping
from hetcli.spec.source import read_document, read_mapping, validate
from hetcli.spec.workload import Pretrain

__all__ = ["read_cluster", "read_model", "read_workload", "with_adapters", "with_hardware"]

_FILE_SUFFIXES = {".json", ".yaml", ".yml"}


def read_model(argument: str) -> Model:
    """A model from a preset name, a config.json, a model file, a folder with one, or `-`.

    What looks like a path (a suffix, a separator, an existing file) is read as one.
    """
    path = Path(argument)
    if argument != "-" and "\0" not in argument and path.is_dir():
        path = path / "config.json"
    elif argument != "-" and path.suffix not in _FILE_SUFFIXES and "/" not in argument:
        return find_preset(argument)
    data, locator = read_mapping(argument if argument == "-" else path)
    # Hugging Face calls every file config.json: the folder says which model it is.
    name = path.resolve().parent.name if path.stem == "config" else path.stem
    return model_from_mapping(
        data,
        name="model" if argument == "-" else name,
        source=locator.label,
        locator=locator,
    )


def with_hardware(cluster: Cluster, path: str | None) -> Cluster:
    """The cluster with the fitted rates of a hardware.json; itself without a path.

    Raises SpecError with the line of what is wrong with the file.
    """
    if path is None:
        return cluster
    return cluster.model_copy(update={"hardware": read_document(path, HardwareFile)})


def with_adapters(model: Model, rank: int | None) -> Model:
    """The model with low-rank adapters, which are trained instead of it; itself without a rank.

    Raises UsageError for a rank that its narrowest matrix does not have.
    """
    if rank is None:
        return model
    if rank > model.hidden_size:
        raise UsageError(
            f"--lora-rank {rank}",
            why=f"the matrices of {model.name} have a rank of {model.hidden_size} at most",
            fix="ranks of 4 to 64 are usual",
        )
    return model.model_copy(update={"adapters": Adapters(rank=rank)})


def read_workload(
    argument: str | None, *, model: Model, flags: Mapping[str, int | str | None]
) -> Pretrain:
    """The workload of a file, or of the flags alone; a flag that is given overrides the file.

    The sequence defaults to the model's maximum. Raises UsageError without a global batch.
    """
    data: dict[str, Any] = {}
    locator = Locator("command line", "", None)
    if argument is not None:
        data, locator = read_mapping(argument)
    data |= {name: value for name, value in flags.items() if value is not None}
    data.setdefault("sequence", model.max_sequence)
    if "global_batch" not in data:
        raise UsageError(
            "no global batch",
            why="time, memory and money are those of one optimizer step",
            fix="--global-batch 512, or global_batch in a workload file",
        )
    workload = validate(data, locator, Pretrain)
    if workload.sequence > model.max_sequence and model.positions.kind == "learned":
        raise UsageError(
            f"--seq-len {workload.sequence}",
            why=f"{model.name} has a table of {model.max_sequence} learned positions",
            fix=f"--seq-len {model.max_sequence} or less",
        )
    return workload
