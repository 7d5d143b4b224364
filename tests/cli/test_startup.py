"""The command line answers at once, and planning needs neither torch nor NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetcli import __version__

PLAN = [
    "plan",
    "--cluster",
    "sample:dgx-a100-v100",
    "--model",
    "llama-3-8b",
    "--global-batch",
    "512",
    "--seq-len",
    "4096",
    "--json",
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hetcli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_version_is_printed() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"hetcli {__version__}\n", "")


def test_help_takes_little_more_than_what_it_is_made_of() -> None:
    # CPU seconds of processes, so that a busy machine does not decide; the best of five.
    def cpu_seconds(*arguments: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = os.times()
        return (after.children_user - before.children_user) + (
            after.children_system - before.children_system
        )

    libraries = ("-c", "import typer.main, rich.console, rich.table, rich.panel")
    ours, theirs = (
        min(cpu_seconds(*arguments) for _ in range(5))
        for arguments in (("-m", "hetcli", "--help"), libraries)
    )
    assert ours < 2 * theirs


@pytest.mark.parametrize(
    "command",
    [["--help"], ["plan", "--help"], ["gpus"], PLAN],
    ids=["help", "plan-help", "gpus", "plan"],
)
def test_neither_torch_nor_nvml_is_imported(command: list[str]) -> None:
    script = (
        "import sys\n"
        "from hetcli.cli import app\n"
        f"sys.argv = ['hetcli', *{command!r}]\n"
        "try:\n"
        "    app()\n"
        "except SystemExit as done:\n"
        "    assert not done.code, done.code\n"
        "loaded = {'torch', 'pynvml'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_importing_the_package_is_cheap() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import hetcli, sys; print(sorted(sys.modules))"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for heavy in ("numpy", "scipy", "pydantic", "torch", "pynvml"):
        assert f"'{heavy}'" not in done.stdout


def test_json_is_one_document_and_nothing_else(tmp_path: Path) -> None:
    done = run(*PLAN, "-o", str(tmp_path / "plan.json"))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert json.loads((tmp_path / "plan.json").read_text()) == document
    assert "plan.json" in done.stderr
