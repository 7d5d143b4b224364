"""Unlike cards in one machine: one launcher starts them where ranks allow, else one each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plans import cluster, group, llama, make_plan
from recording import node_scripts, stage, written

from hetcli.errors import UnsupportedByTargetError
from hetcli.export import LaunchDirectory, render
from hetcli.export.readback.check import check_directory


def groups(machines: str) -> list[dict[str, Any]]:
    """Machines with two RTX 3090 and two RTX 4090."""
    return [
        group(machines, "RTX-3090", gpus=4, use=[0, 1], cores=64),
        group(f"new-{machines}", "RTX-4090", gpus=4, use=[2, 3], cores=64, host=machines),
    ]


def started(launch: LaunchDirectory, tmp_path: Path) -> list[dict[str, Any]]:
    """What every script starts, by a torchrun that only records."""
    stubs, folder = stage(tmp_path / "stubs"), written(launch, tmp_path)
    seen = []
    for script in node_scripts(launch):
        result, [call] = stubs.run(folder, script)
        assert result.returncode == 0, result.stderr
        argument = call.argv.index
        seen.append(
            {
                "shown": call.env["CUDA_VISIBLE_DEVICES"],
                "order": call.env["CUDA_DEVICE_ORDER"],
                "threads": call.env["OMP_NUM_THREADS"],
                "processes": call.argv[argument("--nproc-per-node") + 1],
                "nodes": call.argv[argument("--nnodes") + 1],
            }
        )
    return seen


def matches(launch: LaunchDirectory, tmp_path: Path) -> bool:
    """Whether the scripts describe their plan.json, read back."""
    return not check_directory(written(launch, tmp_path)).differences


def hosts(launch: LaunchDirectory) -> list[str]:
    return [line.split()[0] for line in launch["hostfile"].splitlines() if line[0] != "#"]


@pytest.mark.parametrize("shown", ["0,1,2,3", "2,3,0,1"])
def test_one_machine_is_started_once_with_its_devices_in_rank_order(
    shown: str, tmp_path: Path
) -> None:
    old, new = groups("n0")
    where = cluster(old, new) if shown.startswith("0") else cluster(new, old)
    launch = render(make_plan(where, llama(), [16, 16], data=2))
    assert hosts(launch) == ["n0"]
    assert started(launch, tmp_path) == [
        {"shown": shown, "order": "PCI_BUS_ID", "threads": "16", "processes": "4", "nodes": "1"}
    ]
    names = "RTX-3090 and RTX-4090" if shown[0] == "0" else "RTX-4090 and RTX-3090"
    assert f"`{names}`" in launch["README.md"]
    assert matches(launch, tmp_path)


def test_the_preflight_expects_of_each_device_its_own_name() -> None:
    launch = render(make_plan(cluster(*groups("n0")), llama(), [16, 16], data=2))
    script = launch["run_node_0.sh"].splitlines()
    (words,) = (line for line in script if line.startswith("DEVICE_WORDS="))
    assert words == "DEVICE_WORDS=('rtx 3090' 'rtx 3090' 'rtx 4090' 'rtx 4090')"


@pytest.mark.parametrize("launcher", ["torchrun", "slurm", "kubernetes", "deepspeed"])
def test_replicas_that_stay_in_their_machine_start_once_a_machine(
    launcher: str, tmp_path: Path
) -> None:
    where = cluster(*groups("n0"), *groups("n1"))
    plan = make_plan(where, llama(), [16, 16], data=2, tensor=2, order="replicas")
    launch = render(plan, launcher=launcher)
    assert hosts(launch) == ["n0", "n1"]
    assert "--use-tp-pp-dp-mapping" in launch["common.sh"]
    assert matches(launch, tmp_path)


def test_stages_that_lie_apart_start_every_kind_by_itself(tmp_path: Path) -> None:
    # The older cards of both machines first, then the newer ones: no rank order of Megatron-LM
    # numbers these machine by machine.
    plan = make_plan(cluster(*groups("n[0-1]")), llama(), [8, 8, 8, 8], tensor=2)
    launch = render(plan)
    assert hosts(launch) == ["n0", "n1", "n0", "n1"]
    scripts = started(launch, tmp_path)
    assert [(each["shown"], each["processes"]) for each in scripts] == [
        ("0,1", "2"), ("0,1", "2"), ("2,3", "2"), ("2,3", "2"),
    ]  # fmt: skip
    assert {(each["threads"], each["nodes"]) for each in scripts} == {("16", "4")}
    assert matches(launch, tmp_path)
    for launcher in ("slurm", "kubernetes", "deepspeed"):
        with pytest.raises(UnsupportedByTargetError, match="of one machine apart") as caught:
            render(plan, launcher=launcher)
        assert "--launcher torchrun" in caught.value.fix


def test_ranks_that_count_by_node_count_by_machine(tmp_path: Path) -> None:
    plan = make_plan(cluster(*groups("n[0-1]")), llama(), [8, 8, 8, 8], tensor=2)
    launch = render(plan, target="generic")
    assert hosts(launch) == ["n0", "n1"]
    ranks = json.loads(launch["ranks.json"])["ranks"]
    assert [(rank["node"], rank["device"]) for rank in ranks] == [
        (machine, device) for machine in ("n0", "n1") for device in range(4)
    ]
    assert matches(launch, tmp_path)


def test_flagscale_gives_a_host_one_type() -> None:
    plan = make_plan(cluster(*groups("n0")), llama(), [16, 16], tensor=2, target="flagscale")
    with pytest.raises(UnsupportedByTargetError, match="unlike devices in one machine"):
        render(plan)
