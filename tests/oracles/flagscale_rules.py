"""What FlagScale asserts of a heterogeneous run before it trains, asked of the files themselves.

Its checks need devices, so they are written down here. Source: pre_validate_args in
flagscale/train/arguments.py, RankMapper and ProcessMesh in hetero/parallel_context.py, and the
hostfile of flagscale/runner/utils.py, of FlagScale 0.9.
"""

from __future__ import annotations

import math
from typing import Any

import yaml

MESH = ("tp", "cp", "ep", "dp", "pp")


def meshes_of(hetero: dict[str, Any]) -> list[dict[str, int]]:
    flat = hetero["hetero_process_meshes"]
    rows = [flat[start : start + len(MESH)] for start in range(0, len(flat), len(MESH))]
    return [dict(zip(MESH, row, strict=True)) for row in rows]


def broken_rules(config: str, hostfile: str) -> list[str]:
    """The rules that flagscale.yaml and its hostfile break."""
    train = yaml.safe_load(config)["train"]
    system, model = train["system"], train["model"]
    hetero = system["hetero"]
    if len(hetero["hetero_process_meshes"]) % len(MESH):
        return ["five numbers a mesh"]
    meshes = meshes_of(hetero)
    first, last = meshes[0], meshes[-1]
    types = hetero["hetero_device_types"]
    split = hetero["hetero_pipeline_layer_split"]
    samples = first["dp"] * model["micro_batch_size"]
    shared = not model.get("untie_embeddings_and_output_weights") or model.get("mtp_num_layers")
    unlike = first["dp"] != last["dp"] and system["use_distributed_optimizer"]
    sliced = hetero["expert_tensor_parallel_size_per_process_mesh"]
    rules = {
        "the samples of a step divide by every dp": all(samples % m["dp"] == 0 for m in meshes),
        "one cp": {m["cp"] for m in meshes} == {system["context_parallel_size"]} == {1},
        "ep is 1 in all meshes or in none": len({m["ep"] == 1 for m in meshes}) == 1,
        "stages are those of the meshes": system["pipeline_model_parallel_size"]
        == sum(m["pp"] for m in meshes)
        == len(split),
        "the embedding has no stage of its own": hetero["standalone_embedding_stage"] is False,
        "a shared embedding has one tp": not shared or first["tp"] == last["tp"],
        "a shared embedding has dp that divide": not (shared and unlike)
        or max(first["dp"], last["dp"]) % min(first["dp"], last["dp"]) == 0,
        "a shared embedding is reduced partially": not (shared and unlike)
        or hetero["use_partial_reduce_for_shared_embedding"] is True,
        "no virtual stages": "num_layers_per_virtual_pipeline_stage" not in system,
        "the split is of all layers": sum(split) == model["num_layers"],
        "a type a mesh": len(types) == len(meshes) == len(sliced),
        "the current type is one of them": hetero["hetero_current_device_type"] in types,
        "experts fill the mesh": all(
            m["tp"] * m["cp"] * m["dp"] * m["pp"] % (etp * m["ep"] * m["pp"]) == 0
            for m, etp in zip(meshes, sliced, strict=True)
        ),
        "whole micro-batches": all(
            model["global_batch_size"] % (m["dp"] * (samples // m["dp"])) == 0 for m in meshes
        ),
    }
    return [name for name, holds in rules.items() if not holds] + _devices(meshes, types, hostfile)


def _devices(meshes: list[dict[str, int]], types: list[str], hostfile: str) -> list[str]:
    """Ranks are sorted by type, so each mesh must find devices of its own type in its place."""
    sorted_types: list[str] = []
    lines = [line.split()[1:] for line in hostfile.splitlines() if line]
    hosts = [dict(field.split("=") for field in fields) for fields in lines]
    for host in sorted(hosts, key=lambda host: types.index(host["type"])):
        sorted_types += [host["type"]] * int(host["slots"])
    wanted: list[str] = []
    for mesh, kind in zip(meshes, types, strict=True):
        wanted += [kind] * math.prod(mesh[name] for name in ("tp", "cp", "dp", "pp"))
    return [] if sorted_types == wanted else ["each mesh on devices of its type"]


def megatron_options(config: str, number: int) -> tuple[int, list[str]]:
    """The devices, and the options that FlagScale makes of its keys, for one mesh as one stage."""
    train = yaml.safe_load(config)["train"]
    system, model = train["system"], train["model"]
    meshes = meshes_of(system["hetero"])
    mesh = meshes[number]
    values = {
        **{key: value for key, value in system.items() if not isinstance(value, dict)},
        **system["logging"],
        **system["recompute"],
        **system["precision"],
        **model,
        "mock_data": True,
        "tokenizer_type": "NullTokenizer",
        "tensor_model_parallel_size": mesh["tp"],
        "pipeline_model_parallel_size": 1,
        "micro_batch_size": meshes[0]["dp"] * model["micro_batch_size"] // mesh["dp"],
        "sequence_parallel": system["sequence_parallel"] and mesh["tp"] > 1,
    }
    if "expert_model_parallel_size" in values:
        sliced = system["hetero"]["expert_tensor_parallel_size_per_process_mesh"]
        values |= {
            "expert_model_parallel_size": mesh["ep"],
            "expert_tensor_parallel_size": sliced[number],
        }
    options = []
    for key, value in values.items():
        if value is not False:
            options.append("--" + key.replace("_", "-"))
            options += [] if value is True else [str(value)]
    return mesh["tp"] * mesh["dp"], options
