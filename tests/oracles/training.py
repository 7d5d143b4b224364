"""Start an exported directory for real: torchrun on this machine, several "nodes", CPU and gloo."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from recording import node_scripts, written

from hetcli.export import LaunchDirectory

# One run on a busy machine.
TIMEOUT_S = 240
_LOSS = re.compile(r"step \d+/\d+ \| loss (\S+)")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def train(launch: LaunchDirectory, root: Path, packages: Path, **settings: str) -> list[float]:
    """Run every node's script at the same time; the losses of the steps."""
    folder = written(launch, root)
    bin_ = root / "bin"
    bin_.mkdir()
    for name, module in (("torchrun", "torch.distributed.run"), ("python3", "")):
        call = f"-m {module}" if module else ""
        (bin_ / name).write_text(f'#!/bin/sh\nexec {sys.executable} {call} "$@"\n')
        (bin_ / name).chmod(0o755)
    environment = {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "HOME": str(root),
        "PYTHONPATH": str(packages),
        "PYTHONWARNINGS": "ignore",
        "PREFLIGHT": "off",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCH_EXTENSIONS_DIR": str(root / "extensions"),
        **settings,
    }
    nodes = [
        subprocess.Popen(
            ["bash", str(folder / script)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for script in node_scripts(launch)
    ]
    try:
        outputs = [node.communicate(timeout=TIMEOUT_S)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert all(node.returncode == 0 for node in nodes), "\n".join(outputs)[-6000:]
    return [float(value) for output in outputs for value in _LOSS.findall(output)]
