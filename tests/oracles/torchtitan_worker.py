"""Ask real torchtitan: one JSON question a line, one answer a line, without devices.

Usage: torchtitan_worker.py DIRECTORY_WITH_TORCHTITAN
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import types
import warnings
from typing import Any

import cpu_torch

# What reads data and writes logs, which no configuration needs.
STUBBED = ("datasets", "datasets.distributed", "torch.utils.tensorboard")


def config(question: dict[str, Any]) -> dict[str, Any]:
    """What ConfigManager makes of the options, with the directory's titan_plan.py."""
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims

    sys.modules.pop("titan_plan", None)
    importlib.invalidate_caches()
    sys.path.insert(0, question["folder"])
    try:
        read = ConfigManager().parse_args(question["argv"])
    finally:
        sys.path.remove(question["folder"])
    training, parallelism = read.training, read.parallelism
    dims = ParallelDims(
        dp_replicate=parallelism.data_parallel_replicate_degree,
        dp_shard=parallelism.data_parallel_shard_degree,
        cp=parallelism.context_parallel_degree,
        tp=parallelism.tensor_parallel_degree,
        pp=parallelism.pipeline_parallel_degree,
        ep=parallelism.expert_parallel_degree,
        world_size=question["world"],
    )
    if dims.pp > 1:
        _schedule(read, dims.pp)
    model = read.model_spec.model
    return {
        "dims": [dims.dp_replicate, dims.dp_shard, dims.cp, dims.tp, dims.pp],
        "layers": len(model.layers),
        "hidden_size": model.dim,
        "vocabulary": model.vocab_size,
        "sequence": training.seq_len,
        "steps": training.steps,
        "local_batch": training.local_batch_size,
        "global_batch": training.global_batch_size,
        "micro_batch": parallelism.pipeline_parallel_microbatch_size,
        "schedule": parallelism.pipeline_parallel_schedule,
        "parts": parallelism.module_fqns_per_model_part,
        "recompute": type(read.activation_checkpoint).__qualname__,
        "dataset": read.dataloader.dataset,
    }


def _schedule(read: Any, ranks: int) -> None:
    """Build the schedule of the first pipeline rank, whose stages know only their places.

    Its checks are the same on every rank.
    """
    from torchtitan.distributed.pipeline_parallel import _build_pipeline_schedule

    parts = len(read.parallelism.module_fqns_per_model_part)
    _build_pipeline_schedule(
        parallelism=read.parallelism,
        local_batch_size=read.training.local_batch_size,
        stages=[
            types.SimpleNamespace(
                stage_index=index,
                num_stages=parts,
                group_size=ranks,
                group_rank=0,
                is_first=index == 0,
                is_last=index == parts - 1,
                has_backward=True,
            )
            for index in range(0, parts, ranks)
        ],
        loss_fn=lambda *_: None,
    )


def answer(question: dict[str, Any]) -> dict[str, Any]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return {"ok": True, **config(question)}
    except SystemExit:
        return {"ok": False, "error": said.getvalue().strip()[-2000:]}
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def main() -> None:
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "wb")
    # What the framework prints must not be taken for an answer.
    os.dup2(2, 1)
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    sys.path.insert(0, sys.argv[1])
    cpu_torch.stub_triton()
    for name in STUBBED:
        sys.modules[name] = cpu_torch.inert_module(name)
    import torchtitan.models.llama3.config_registry  # noqa: F401
    import tyro._docstrings

    # The parser reads the sources of all classes for its help, which takes most of its time.
    tyro._docstrings.get_field_docstring = lambda *_, **__: None

    out.write(b'{"ok": true}\n')
    out.flush()
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line)), default=str).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
