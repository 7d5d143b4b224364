"""Directories of every target and launcher, with names that a shell must never read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from plans import cluster, group, llama, make_plan
from recording import Stage, node_scripts, stage, written

from hetcli.catalog.presets import find_preset
from hetcli.errors import UnsupportedByTargetError
from hetcli.export import TARGETS, LaunchDirectory, render
from hetcli.spec.cluster import Cluster
from hetcli.spec.plan import Plan

SHELLCHECK = str(Path(sys.executable).parent / "shellcheck")
COMBINATIONS = [
    (target.name, launcher) for target in TARGETS.values() for launcher in target.launchers
]
MIXED = cluster(
    group("h", "H100-SXM5-80GB", cpu_vendor="Intel", cores=96),
    group("a", "A100-SXM4-80GB", gpus=4, cpu_vendor="AMD"),
)
HOSTILE = "$(touch owned)`touch owned`'\"; touch owned\ntouch owned\n../../owned {{ 1 }} |&"


@pytest.fixture
def stubs(tmp_path: Path) -> Stage:
    return stage(tmp_path / "stubs")


def planned(target: str, where: Cluster = MIXED, model: str = "llama-3-8b") -> Plan:
    # Past the validator, which lets no newline into a name.
    named: dict[str, object] = {"name": model}
    if target == "torchtitan":
        named["positions"] = find_preset("llama-3.1-8b").positions
    return make_plan(
        where,
        llama().model_copy(update=named),
        [12, 12, 8],
        data=4,
        target="deepspeed" if target == "deepspeed" else "megatron",
        overlap_param_gather=False,
    )


def run_all(launch: LaunchDirectory, stubs: Stage, root: Path) -> None:
    """Start every node as a user would, with settings that hold hostile text too."""
    folder = written(launch, root)
    script = root / "own $(touch owned)" / "run.py"
    script.parent.mkdir()
    script.touch()
    settings = {
        "MEGATRON_PATH": str(stubs.root / "megatron"),
        "FLAGSCALE_PATH": str(script.parent),
        "TRAINER": str(script),
        "HF_ASSETS_PATH": HOSTILE,
        "CHECKPOINT_DIR": HOSTILE,
    }
    for name in node_scripts(launch):
        result, _ = stubs.run(folder, name, HOSTILE, **settings)
        assert result.returncode == 0, result.stderr
    assert not list(root.rglob("owned"))
    assert sorted(path.name for path in folder.iterdir()) == sorted(launch.files)


@pytest.mark.parametrize(("target", "launcher"), COMBINATIONS)
def test_shellcheck_finds_nothing(target: str, launcher: str, tmp_path: Path) -> None:
    folder = written(render(planned(target), target=target, launcher=launcher), tmp_path)
    scripts = sorted(
        path.name for path in folder.iterdir() if path.read_text().startswith(("#!", "# shell"))
    )
    assert {"common.sh", "run_node_0.sh", "run_node_1.sh"} <= set(scripts)
    for script in scripts:
        subprocess.run(["bash", "-n", str(folder / script)], check=True)
    result = subprocess.run(
        [SHELLCHECK, "-x", *scripts], cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(("target", "launcher"), COMBINATIONS)
def test_hostile_names_reach_no_shell(
    target: str, launcher: str, stubs: Stage, tmp_path: Path
) -> None:
    plan = planned(target, model=HOSTILE)
    plan = plan.model_copy(update={"notes": (HOSTILE,)})
    run_all(render(plan, target=target, launcher=launcher), stubs, tmp_path)


@pytest.mark.parametrize(("target", "launcher"), COMBINATIONS)
@pytest.mark.parametrize("name", ["$(touch${IFS}owned)", "a'\"b;touch${IFS}owned", "../owned"])
def test_a_hostile_host_is_quoted_or_refused(
    target: str, launcher: str, name: str, stubs: Stage, tmp_path: Path
) -> None:
    plan = planned(target, cluster(group(name), group("n1", gpus=4)))
    try:
        launch = render(plan, target=target, launcher=launcher)
    except UnsupportedByTargetError as refused:
        said = refused.what
    else:
        run_all(launch, stubs, tmp_path)
        return
    assert launcher in ("slurm", "kubernetes", "flagscale")
    assert repr(name) in said
