"""Run exported scripts with stubs first on PATH that only write down how they were called."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetcli.export import LaunchDirectory, write_directory

STUB = """#!{python}
import json, os, sys
with open(os.environ["RECORDING"], "a") as file:
    call = dict(program=os.path.basename(sys.argv[0]), argv=sys.argv[1:], env=dict(os.environ))
    file.write(json.dumps(call) + "\\n")
"""
SMI = """#!/bin/bash
cat "$SMI_ANSWER"
"""
OK = "#!/bin/sh\n"


@dataclass(frozen=True)
class Call:
    program: str
    argv: list[str]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Stage:
    """A folder with stub programs, and a Megatron-LM checkout that only tells its version."""

    root: Path

    @property
    def path(self) -> str:
        return f"{self.root / 'bin'}:/usr/bin:/bin"

    def run(
        self, folder: Path, script: str, *arguments: str, **environment: str
    ) -> tuple[subprocess.CompletedProcess[str], list[Call]]:
        record = self.root / "recording"
        record.unlink(missing_ok=True)
        result = subprocess.run(
            ["bash", str(folder / script), *arguments],
            env={
                "PATH": self.path,
                "RECORDING": str(record),
                "MEGATRON_PATH": str(self.root / "megatron"),
                "PREFLIGHT": "off",
                "HOME": str(self.root),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        calls: list[dict[str, Any]] = []
        if record.exists():
            calls = [json.loads(line) for line in record.read_text().splitlines()]
        return result, [Call(**call) for call in calls]

    def smi(self, *rows: str) -> str:
        """A file that the stub nvidia-smi prints."""
        answer = self.root / "smi"
        answer.write_text("".join(f"{row}\n" for row in rows))
        return str(answer)


def stage(root: Path, version: str = "0.19.2") -> Stage:
    bin_ = root / "bin"
    bin_.mkdir(parents=True)
    python = sys.executable
    stubs = {name: STUB.format(python=python) for name in ("torchrun", "deepspeed", "ssh", "srun")}
    stubs |= {"nvidia-smi": SMI, "getent": OK, "python3": f'#!/bin/sh\nexec {python} "$@"\n'}
    for name, text in stubs.items():
        (bin_ / name).write_text(text)
        (bin_ / name).chmod(0o755)
    core = root / "megatron" / "megatron" / "core"
    core.mkdir(parents=True)
    (root / "megatron" / "pretrain_gpt.py").touch()
    (core / "package_info.py").write_text(f"__version__ = {version!r}\n")
    return Stage(root)


def written(launch: LaunchDirectory, root: Path) -> Path:
    return write_directory(launch, root / "launch", force=True)


def node_scripts(launch: LaunchDirectory) -> list[str]:
    return [f"run_node_{rank}.sh" for rank in range(len(launch.files)) if _has(launch, rank)]


def _has(launch: LaunchDirectory, rank: int) -> bool:
    return f"run_node_{rank}.sh" in launch.files


def environment_of(call: Call) -> dict[str, str]:
    """What the script added to the environment."""
    ours = ("CUDA", "HIP", "NCCL", "GLOO", "OMP", "FI_", "MASTER", "TORCH")
    return {key: value for key, value in call.env.items() if key.startswith(ours)}


__all__ = ["Call", "Stage", "environment_of", "node_scripts", "stage", "written"]
