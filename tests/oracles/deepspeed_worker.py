"""Ask real DeepSpeed: one JSON question a line, one answer a line, without devices.

Usage: deepspeed_worker.py DIRECTORY_WITH_DEEPSPEED
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import warnings
from collections import OrderedDict
from typing import Any


def config(question: dict[str, Any]) -> dict[str, Any]:
    """What DeepSpeedConfig reads of a ds_config.json, and the keys that it would ignore."""
    import deepspeed.comm
    from deepspeed.runtime.config import DeepSpeedConfig

    deepspeed.comm.get_rank = lambda *_: 0
    deepspeed.comm.get_world_size = lambda *_: question["world"]
    read = DeepSpeedConfig(question["config"])
    zero = read.zero_config
    return {
        "train_batch_size": read.train_batch_size,
        "micro_batch_size": read.train_micro_batch_size_per_gpu,
        "accumulation": read.gradient_accumulation_steps,
        "zero_stage": int(zero.stage),
        "bf16": read.bfloat16_config.enabled,
        "fp16": read.float16_config.enabled,
        "gradient_clipping": read.gradient_clipping,
        "offload_optimizer": str(zero.offload_optimizer and zero.offload_optimizer.device),
        "offload_param": str(zero.offload_param and zero.offload_param.device),
        "optimizer": read.optimizer_name,
    }


def launch(question: dict[str, Any]) -> dict[str, Any]:
    """The launcher's own arguments, hostfile and inclusion: devices of every host, in its order."""
    from deepspeed.launcher import runner

    arguments = runner.parse_args(question["argv"])
    pool = runner._parse_hostfile(question["hostfile"].splitlines())
    active: OrderedDict[str, list[int]] = runner.parse_inclusion_exclusion(
        pool, arguments.include, arguments.exclude
    )
    return {
        "slots": dict(pool),
        "active": list(active.items()),
        "node_rank": arguments.node_rank,
        "no_ssh": arguments.no_ssh,
        "no_local_rank": arguments.no_local_rank,
        "script": arguments.user_script,
        "arguments": arguments.user_args,
    }


QUESTIONS = {"config": config, "launch": launch}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return {"ok": True, **QUESTIONS[question["kind"]](question)}
    except SystemExit:
        return {"ok": False, "error": said.getvalue().strip().splitlines()[-1]}
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def main() -> None:
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "wb")
    # What the framework prints must not be taken for an answer.
    os.dup2(2, 1)
    sys.path.insert(0, sys.argv[1])
    import deepspeed  # noqa: F401

    out.write(b'{"ok": true}\n')
    out.flush()
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line)), default=str).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
