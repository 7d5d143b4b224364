"""Train the model of plan.json with DeepSpeed, on the devices and in the stages of the plan.

Every process finds its rank in the plan: its device, its pipeline stage, its layers. Data are
random tokens, or a one-dimensional NumPy array of token numbers (`--data tokens.npy`).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Plan = dict[str, Any]


def ranked_devices(plan: Plan) -> list[tuple[str, int]]:
    """The device of every global rank: stage by stage, replica by replica."""
    return [
        (device["node"], device["index"])
        for stage in plan["stages"]
        for replica in stage["replicas"]
        for device in replica["devices"]
    ]


def local_rank(plan: Plan, rank: int, visible: str | None) -> int:
    """The position of the planned device among the visible ones, whatever the launcher counted.

    The DeepSpeed launcher takes the rank modulo the node's processes, which turns the order on
    nodes of unlike sizes.
    """
    devices = ranked_devices(plan)
    node, index = devices[rank]
    if visible is not None:
        return visible.split(",").index(str(index))
    return [device for device in devices if device[0] == node].index((node, index))


def parse() -> argparse.Namespace:
    """The options that the launch scripts pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, default=Path("plan.json"))
    parser.add_argument("--config", type=Path, default=Path("ds_config.json"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--data", type=Path, help="tokens.npy; random tokens without it")
    parser.add_argument("--checkpoints", type=Path, help="where to save, and to go on from")
    parser.add_argument("--save-interval", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1234)
    return parser.parse_args()


def main() -> None:
    """Train for `--steps` optimizer steps."""
    options = parse()
    plan: Plan = json.loads(options.plan.read_text(encoding="utf-8"))
    config = json.loads(options.config.read_text(encoding="utf-8"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("HIP_VISIBLE_DEVICES")
    # DeepSpeed reads it when it picks the device.
    os.environ["LOCAL_RANK"] = str(local_rank(plan, int(os.environ["RANK"]), visible))

    import deepspeed
    import torch
    from data import Tokens, micro_batches
    from mesh import Mesh
    from stages import build

    accelerator = deepspeed.get_accelerator()
    if accelerator.device_name() == "cpu":
        # It would be compiled on first use; gloo does the same.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    world = len(ranked_devices(plan))
    if torch.distributed.get_world_size() != world:
        raise SystemExit(f"the plan has {world} ranks, {os.environ['WORLD_SIZE']} were started")
    torch.manual_seed(options.seed)

    mesh = Mesh(plan)
    model, loss = build(plan, config, mesh)
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config=config,
        mpu=None if mesh.pipelined else mesh,
    )
    first = 0
    if options.checkpoints is not None and (options.checkpoints / "latest").exists():
        _, state = engine.load_checkpoint(str(options.checkpoints))
        first = state["step"]
    sequence = plan["inputs"]["workload"]["sequence"]
    vocabulary = plan["inputs"]["model"]["vocab_size"]
    data = Tokens(options.data, sequence, vocabulary, options.seed)
    sizes = [
        [replica["micro_batch_size"]] * replica["micro_batches"]
        for replica in plan["stages"][0]["replicas"]
    ]
    tokens = plan["parallelism"]["global_batch"] * sequence
    replica = mesh.get_data_parallel_rank()
    weight = loss_weight(plan, replica)
    for step in range(first, options.steps):
        began = time.perf_counter()
        batches = micro_batches(data, step, sizes, replica)
        value = (
            float(engine.train_batch(batches))
            if mesh.pipelined
            else one_step(engine, batches, loss, weight)
        )
        accelerator.synchronize()
        took = time.perf_counter() - began
        if mesh.speaks:
            print(
                f"step {step + 1}/{options.steps} | loss {value:.6f} | step time (s) {took:.4f} "
                f"| tokens/s {tokens / took:.1f}",
                flush=True,
            )
        if options.checkpoints is not None and (step + 1) % options.save_interval == 0:
            engine.save_checkpoint(str(options.checkpoints), client_state={"step": step + 1})
    torch.distributed.destroy_process_group()


def loss_weight(plan: Plan, replica: int) -> float:
    """What a replica's mean loss is multiplied by; 1 where all micro-batches are equal.

    DeepSpeed divides by the replicas and the accumulation steps. The update is that of the whole
    batch when every sequence counts the same: a micro-batch of b sequences counts b / batch.
    """
    replicas = plan["stages"][0]["replicas"]
    mean = plan["parallelism"]["global_batch"] / len(replicas) / replicas[0]["micro_batches"]
    return float(replicas[replica]["micro_batch_size"] / mean)


def one_step(
    engine: Any, batches: Iterable[Any], loss: Callable[[Any, Any], Any], weight: float
) -> float:
    """One optimizer step without a pipeline; the mean loss of its sequences."""
    import torch

    total = torch.zeros((), device=engine.device)
    count = engine.gradient_accumulation_steps()
    for batch in batches:
        tokens, labels = (part.to(engine.device) for part in batch)
        value = loss(engine(tokens), labels) * weight
        engine.backward(value)
        engine.step()
        total += value.detach() / count
    torch.distributed.all_reduce(total)
    return float(total) / torch.distributed.get_world_size()


if __name__ == "__main__":
    main()
