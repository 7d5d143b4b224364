"""Start an exported directory for real: torchrun on this machine, several "nodes", CPU and gloo."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from recording import node_scripts, written

from hetcli.export import LaunchDirectory

HERE = Path(__file__).parent
# One run on a busy machine.
TIMEOUT_S = 240
_DEEPSPEED_LOSS = re.compile(r"step \d+/\d+ \| loss (\S+)")
_MEGATRON_LOSS = re.compile(r"lm loss: (\S+)")
# What Megatron-LM needs where neither CUDA, Transformer Engine nor Apex is; none of it is planned.
CPU_ARGUMENTS = (
    "--transformer-impl=local",
    "--distributed-backend=gloo",
    "--use-cpu-initialization",
    "--no-gradient-accumulation-fusion",
    "--no-masked-softmax-fusion",
    "--no-bias-swiglu-fusion",
    "--no-bias-dropout-fusion",
    "--no-persist-layer-norm",
    "--no-rope-fusion",
)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_nodes(
    launch: LaunchDirectory, root: Path, *arguments: str, **settings: str
) -> tuple[str, ...]:
    """Run every node's script at the same time; what each printed."""
    folder = written(launch, root)
    bin_ = root / "bin"
    bin_.mkdir()
    for name, module in (
        ("torchrun", "torch.distributed.run"),
        ("deepspeed", "deepspeed.launcher.runner"),
        ("python3", ""),
    ):
        call = f"-m {module}" if module else ""
        (bin_ / name).write_text(f'#!/bin/sh\nexec {sys.executable} {call} "$@"\n')
        (bin_ / name).chmod(0o755)
    environment = {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "HOME": str(root),
        "PYTHONWARNINGS": "ignore",
        "PREFLIGHT": "off",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        **settings,
    }
    # Files, since a node whose pipe nobody reads yet would stop, and all that wait for it.
    logs = [root / f"{Path(script).stem}.log" for script in node_scripts(launch)]
    nodes = []
    for script, log in zip(node_scripts(launch), logs, strict=True):
        with log.open("wb") as out:
            command = ["bash", str(folder / script), *arguments]
            nodes.append(
                subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
            )
    end = time.monotonic() + TIMEOUT_S
    try:
        codes = [node.wait(timeout=max(0.0, end - time.monotonic())) for node in nodes]
    except subprocess.TimeoutExpired:
        codes = ["timeout"]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    outputs = tuple(log.read_text(errors="replace") for log in logs)
    assert not any(codes), "\n".join((str(codes), *(text[-3000:] for text in outputs)))
    return outputs


def train(launch: LaunchDirectory, root: Path, packages: Path, **settings: str) -> list[float]:
    """The losses of the steps that DeepSpeed trains."""
    outputs = run_nodes(
        launch,
        root,
        PYTHONPATH=str(packages),
        TORCH_EXTENSIONS_DIR=str(root / "extensions"),
        **settings,
    )
    return [float(value) for output in outputs for value in _DEEPSPEED_LOSS.findall(output)]


def train_megatron(
    launch: LaunchDirectory, root: Path, packages: Path, steps: int
) -> tuple[list[float], str]:
    """The losses of the steps that Megatron-LM trains, and all that it printed."""
    checkout = root / "megatron"
    checkout.mkdir(parents=True)
    (checkout / "megatron").symlink_to(packages / "megatron")
    (checkout / "pretrain_gpt.py").write_text(
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport megatron_entry\n"
        "megatron_entry.main()\n"
    )
    outputs = run_nodes(
        launch,
        root,
        *CPU_ARGUMENTS,
        MEGATRON_PATH=str(checkout),
        TRAIN_ITERS=str(steps),
        # The same rate in every step, so that it is compared with nothing but itself.
        MIN_LR="1e-3",
        LR="1e-3",
        TORCHDYNAMO_DISABLE="1",
    )
    losses = [float(value) for output in outputs for value in _MEGATRON_LOSS.findall(output)]
    return losses, "\n".join(outputs)
