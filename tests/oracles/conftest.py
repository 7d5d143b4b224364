"""Real frameworks as judges. Each is installed once, into a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".ci" / "oracles"
sys.path.insert(0, str(HERE.parent / "export"))

# The wheel asks for Python 3.12 but runs on 3.11; of its dependencies torch and NumPy are enough.
MEGATRON = "megatron-core==0.19.2"
# Wheels of the other releases that hetcli writes for.
MEGATRON_BEFORE = ("megatron-core==0.17.1", "megatron-core==0.18.0")
# The last wheel for Python 3.11. It has Megatron core alone, so it needs no stubs.
MEGATRON_CORE = "megatron-core==0.16.1"
MEGATRON_OPTIONS = (
    "--ignore-requires-python",
    "--only-binary=:all:",
    "--python-version",
    "3.12",
)
# DeepSpeed with what it imports; torch is here already, in the build for this machine.
DEEPSPEED = "deepspeed==0.19.8"
DEEPSPEED_IMPORTS = (
    "einops",
    "hjson",
    "msgpack",
    "ninja",
    "packaging",
    "psutil",
    "py-cpuinfo",
    "tqdm",
)
# torchtitan with what its configuration imports; its data and log libraries are stubbed.
TORCHTITAN = "torchtitan==0.3.0"
TORCHTITAN_IMPORTS = (
    "docstring_parser",
    "einops",
    "pillow",
    "safetensors",
    "shtab",
    "spmd_types==0.2.3",
    "tokenizers",
    "torch_checkpointing",
    "torchdata",
    "typeguard",
    "tyro",
)
INSTALL_TIMEOUT_S = 300


def installed(requirement: str, *more: str) -> Path:
    """A folder that holds the package, installed by pip when it is not there yet.

    `more` are options of pip and further packages.

    Skips where the package index cannot be reached, unless HETCLI_ORACLES=required.
    """
    folder = CACHE / requirement.replace("==", "-")
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        target = Path(scratch) / "package"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        result = subprocess.run(
            [*command, "--target", str(target), requirement, *more],
            capture_output=True,
            text=True,
            env={**os.environ, "DS_BUILD_OPS": "0"},
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        if result.returncode:
            missing(f"{requirement} cannot be installed: {result.stderr.strip()[-300:]}")
        if not folder.exists():  # Another worker may have been faster.
            target.rename(folder)
    return folder


def missing(why: str) -> None:
    if os.environ.get("HETCLI_ORACLES") == "required":
        pytest.fail(why)
    pytest.skip(why)


class Judge:
    """A process that holds a framework and answers questions about arguments."""

    def __init__(self, *command: str) -> None:
        # torchrun's parser makes a folder for logs at every question.
        self.scratch = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": self.scratch.name},
        )
        assert self._read() == {"ok": True}

    def ask(self, kind: str, **question: Any) -> dict[str, Any]:
        """The framework's answer: `ok` and facts, or the `error` in its own words."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"kind": kind, **question}).encode() + b"\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the judge died"
        return dict(json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=30)
        self.scratch.cleanup()


@pytest.fixture(scope="session")
def megatron_folder() -> Path:
    pytest.importorskip("torch")
    return installed(MEGATRON, *MEGATRON_OPTIONS)


@pytest.fixture(scope="session")
def megatron(megatron_folder: Path) -> Iterator[Judge]:
    judge = Judge(sys.executable, str(HERE / "megatron_worker.py"), str(megatron_folder))
    yield judge
    judge.close()


@pytest.fixture(scope="session", params=MEGATRON_BEFORE)
def megatron_before(request: pytest.FixtureRequest) -> Iterator[tuple[str, Judge]]:
    """An older release: its version, and the judge."""
    pytest.importorskip("torch")
    folder = installed(request.param, *MEGATRON_OPTIONS)
    judge = Judge(sys.executable, str(HERE / "megatron_worker.py"), str(folder))
    yield request.param.partition("==")[2], judge
    judge.close()


@pytest.fixture(scope="session")
def megatron_core_folder() -> Path:
    pytest.importorskip("torch")
    return installed(MEGATRON_CORE)


@pytest.fixture(scope="session")
def deepspeed_folder() -> Path:
    pytest.importorskip("torch")
    return installed(DEEPSPEED, *DEEPSPEED_IMPORTS)


@pytest.fixture(scope="session")
def deepspeed(deepspeed_folder: Path) -> Iterator[Judge]:
    judge = Judge(sys.executable, str(HERE / "deepspeed_worker.py"), str(deepspeed_folder))
    yield judge
    judge.close()


@pytest.fixture(scope="session")
def torchtitan() -> Iterator[Judge]:
    pytest.importorskip("torch")
    folder = installed(TORCHTITAN, *TORCHTITAN_IMPORTS)
    judge = Judge(sys.executable, str(HERE / "torchtitan_worker.py"), str(folder))
    yield judge
    judge.close()
