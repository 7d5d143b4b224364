"""The scripts as a shell sees them: quoting, environment, preflight, start of all nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from plans import GIB, cluster, gpt, group, llama, make_plan
from recording import Stage, node_scripts, stage, written

from hetcli.errors import ConfigurationError
from hetcli.export import LaunchDirectory, render
from hetcli.spec.plan import Plan

ETHERNET = {"kind": "ethernet", "rate": "10Gbps"}


@pytest.fixture
def stubs(tmp_path: Path) -> Stage:
    return stage(tmp_path / "stubs")


def environment(launch: LaunchDirectory, stubs: Stage, tmp_path: Path) -> list[dict[str, str]]:
    """What each node's processes are started with."""
    folder = written(launch, tmp_path)
    seen = []
    for script in node_scripts(launch):
        result, calls = stubs.run(folder, script)
        assert result.returncode == 0, result.stderr
        seen.append(dict(calls[0].env))
    return seen


MIXED = cluster(
    group("h", "H100-SXM5-80GB", cpu_vendor="Intel", cores=96),
    group("a", "A100-SXM4-80GB", gpus=4, cpu_vendor="AMD"),
)


def test_no_line_of_a_readme_or_script_ends_in_a_blank(tmp_path: Path) -> None:
    del tmp_path
    launch = render(make_plan(MIXED, llama(), [12, 12, 8], data=4))
    for name in ("common.sh", "run_node_0.sh", "start_all.sh", "README.md"):
        lines = launch[name].splitlines()
        assert [line for line in lines if line != line.rstrip()] == [], name


def test_unequal_nodes_start_unequal_numbers_of_processes(stubs: Stage, tmp_path: Path) -> None:
    """Case launch-8-and-2: accelerate would start five on each node."""
    where = cluster(group("n0"), group("n1", gpus=2))
    plan = make_plan(where, llama(), [32], data=10)
    launch = render(plan)
    folder = written(launch, tmp_path)
    counts = []
    for script in node_scripts(launch):
        _, [call] = stubs.run(folder, script, TORCH_ELASTIC_WORKER_IDENTICAL="1")
        counts.append(call.argv[call.argv.index("--nproc-per-node") + 1])
        assert "TORCH_ELASTIC_WORKER_IDENTICAL" not in call.env
    assert counts == ["8", "2"]
    assert "TORCH_ELASTIC_WORKER_IDENTICAL=1" not in "".join(file.content for file in launch)


def test_intervals_that_megatron_needs_are_always_given(stubs: Stage, tmp_path: Path) -> None:
    """Without --eval-interval it divides by None, without --save-interval it asserts."""
    plan = make_plan(cluster(group("n0")), llama(), [32], data=8)
    folder = written(render(plan), tmp_path)
    _, [plain] = stubs.run(folder, "run_node_0.sh")
    assert {"--eval-interval", "--eval-iters"} < set(plain.argv)
    assert "--save" not in plain.argv
    _, [saving] = stubs.run(folder, "run_node_0.sh", CHECKPOINT_DIR="saved")
    assert {"--save", "--save-interval"} < set(saving.argv)
    assert "--async-save" not in saving.argv


def test_no_pipeline_option_without_a_pipeline() -> None:
    """Case pp1-no-first-last-flags: Megatron-LM issue 1778."""
    where = cluster(group("n0", "H100-SXM5-80GB"))
    script = render(make_plan(where, gpt(), [20], data=8, sequence=2048))["common.sh"]
    for option in ("first-pipeline", "last-pipeline", "pipeline-model-parallel-layout"):
        assert option not in script


def test_the_socket_interface_is_the_fastest_of_each_node(stubs: Stage, tmp_path: Path) -> None:
    """Case nccl-interface-per-node: names differ, and the slow one must not be used."""
    slow = {"kind": "ethernet", "rate": "1Gbps"}
    where = cluster(
        group(
            "n0",
            "RTX-3090",
            gpus=3,
            nics=[{**slow, "interface": "eno1"}, {**ETHERNET, "interface": "enp37s0f0"}],
        ),
        group(
            "n1",
            "RTX-3090",
            gpus=3,
            nics=[{**slow, "interface": "eth0"}, {**ETHERNET, "interface": "enp38s0"}],
        ),
    )
    plan = make_plan(where, llama(), [6, 6, 5, 5, 5, 5])
    first, second = environment(render(plan), stubs, tmp_path)
    assert first["NCCL_SOCKET_IFNAME"] == "=enp37s0f0"
    assert second["NCCL_SOCKET_IFNAME"] == "=enp38s0"
    assert first["GLOO_SOCKET_IFNAME"] == "enp37s0f0"
    assert first["NCCL_IB_DISABLE"] == second["NCCL_IB_DISABLE"] == "1"


def test_without_a_named_interface_loopback_and_containers_are_left_out(
    stubs: Stage, tmp_path: Path
) -> None:
    plan = make_plan(cluster(group("n[0-1]", gpus=1)), llama(), [16, 16])
    for seen in environment(render(plan), stubs, tmp_path):
        assert seen["NCCL_SOCKET_IFNAME"] == "^lo,docker"


def test_mixed_generations_pin_the_algorithm_and_say_why(stubs: Stage, tmp_path: Path) -> None:
    """Case nccl-mixed-hosts-hang: pinning both is what a reporter confirmed in NCCL issue 1110."""
    launch = render(make_plan(MIXED, llama(), [12, 12, 8], data=4))
    for seen in environment(launch, stubs, tmp_path):
        assert (seen["NCCL_ALGO"], seen["NCCL_PROTO"]) == ("Ring", "Simple")
    assert "GPU generations 8.0, 9.0 and CPU vendors AMD, Intel" in launch["run_node_0.sh"]


def test_equal_nodes_pin_nothing(stubs: Stage, tmp_path: Path) -> None:
    plan = make_plan(cluster(group("n[0-1]")), llama(), [16, 16], tensor=8)
    for seen in environment(render(plan), stubs, tmp_path):
        assert "NCCL_ALGO" not in seen


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("infiniband", "infiniband"), {"NCCL_IB_DISABLE": "0"}),
        (("roce", "roce"), {"NCCL_IB_DISABLE": "0"}),
        (("infiniband", "roce"), {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}),
        (("infiniband", "ethernet"), {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}),
        (("ethernet", "ethernet"), {"NCCL_IB_DISABLE": "1"}),
        (("efa", "efa"), {"FI_PROVIDER": "efa"}),
        (("slingshot", "slingshot"), {"FI_PROVIDER": "cxi"}),
    ],
)
def test_all_ranks_share_one_network(
    kinds: tuple[str, str], expected: dict[str, str], stubs: Stage, tmp_path: Path
) -> None:
    one, two = ([{"kind": kind, "rate": "100Gbps"}] for kind in kinds)
    links = [{"between": ["n0", "n1"], "rate": "100Gbps"}]
    where = cluster(group("n0", nics=one), group("n1", nics=two), links=links)
    plan = make_plan(where, llama(), [16, 16], tensor=8)
    names = {"NCCL_IB_DISABLE", "NCCL_NET", "FI_PROVIDER"}
    for seen in environment(render(plan), stubs, tmp_path):
        assert {name: seen[name] for name in names & seen.keys()} == expected


def test_visible_devices_are_the_planned_ones_by_bus_order(stubs: Stage, tmp_path: Path) -> None:
    """Cases exclude-display-gpu and cuda-order-mixed."""
    where = cluster(group("n0", gpus=5, use=[0, 1, 2, 4]))
    [seen] = environment(render(make_plan(where, llama(), [32], data=4)), stubs, tmp_path)
    assert seen["CUDA_VISIBLE_DEVICES"] == "0,1,2,4"
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_threads_share_the_cores(stubs: Stage, tmp_path: Path) -> None:
    first, second = environment(
        render(make_plan(MIXED, llama(), [12, 12, 8], data=4)), stubs, tmp_path
    )
    assert first["OMP_NUM_THREADS"] == "12"
    assert second["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    "name", ["$(touch owned)", "`touch owned`; rm -rf *", "a'b\"c", "../../owned", "{{ 1 }}|`"]
)
def test_hostile_model_and_interface_names_reach_no_shell(
    name: str, stubs: Stage, tmp_path: Path
) -> None:
    nic = {**ETHERNET, "interface": name}
    where = cluster(group("n0", nics=[nic]), group("n1", nics=[nic]), name=name)
    plan = make_plan(where, llama(name=name), [16, 16], tensor=8)
    plan = plan.model_copy(update={"notes": (f"{name}\ntouch owned\n",)})
    launch = render(plan)
    for seen in environment(launch, stubs, tmp_path):
        assert seen["GLOO_SOCKET_IFNAME"] == name
    assert not list(tmp_path.rglob("owned"))
    for script in (tmp_path / "launch").glob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)


HOSTILE_HOSTS = [
    "$(touch${IFS}owned)",
    "a;touch${IFS}owned",
    "-oProxyCommand=touch",
    "a'\"b",
    "`x`",
]


@pytest.mark.parametrize("name", HOSTILE_HOSTS)
def test_hostile_host_names_reach_no_shell(name: str, stubs: Stage, tmp_path: Path) -> None:
    plan = make_plan(cluster(group(name), group("n1")), llama(), [16, 16], tensor=8)
    launch = render(plan)
    folder = written(launch, tmp_path)
    _, [call] = stubs.run(folder, "run_node_0.sh")
    assert call.env["MASTER_ADDR"] == name
    result, calls = stubs.run(folder, "start_all.sh", "--check")
    assert result.returncode == 0, result.stderr
    asked = {call.argv[call.argv.index("--") + 1] for call in calls}
    assert asked == {name, "n1"}
    assert not list(tmp_path.rglob("owned"))


def test_a_host_name_with_a_blank_is_refused() -> None:
    plan = make_plan(cluster(group("my host"), group("n1")), llama(), [16, 16], tensor=8)
    with pytest.raises(ConfigurationError, match="'my host' cannot be a host name"):
        render(plan)


def ready(**more: Any) -> Plan:
    where = cluster(group("n0", "A100-SXM4-80GB", gpus=2, **more))
    return make_plan(where, llama(), [32], data=2, peak=60 * GIB)


AS_PLANNED = ("NVIDIA A100-SXM4-80GB, 80994", "NVIDIA A100-SXM4-80GB, 80994")


def checked(
    stubs: Stage, tmp_path: Path, plan: Plan, rows: Sequence[str] = AS_PLANNED, **settings: str
) -> tuple[int, str]:
    folder = written(render(plan), tmp_path)
    settings = {"PREFLIGHT": "on", "SMI_ANSWER": stubs.smi(*rows), **settings}
    result, calls = stubs.run(folder, "run_node_0.sh", **settings)
    assert bool(calls) == (result.returncode == 0)
    return result.returncode, result.stderr


def test_preflight_lets_a_node_pass_that_is_as_planned(stubs: Stage, tmp_path: Path) -> None:
    code, said = checked(stubs, tmp_path, ready())
    assert (code, said.splitlines()[-1]) == (0, "preflight on n0: ready")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["NVIDIA A100-SXM4-80GB, 80994"], "the plan is for 2 GPUs in this node, 1 are here"),
        (
            ["NVIDIA A100-SXM4-80GB, 80994", "Tesla V100-SXM2-32GB, 80994"],
            "GPU 1 is a Tesla V100-SXM2-32GB, the plan is for a GPU named a100",
        ),
        (
            ["NVIDIA A100-SXM4-80GB, 80994", "NVIDIA A100-SXM4-80GB, 62463"],
            "GPU 1 has 62463 MiB free, peak and margin need 62464 MiB",
        ),
    ],
)
def test_preflight_stops_on_other_devices(
    rows: list[str], message: str, stubs: Stage, tmp_path: Path
) -> None:
    code, said = checked(stubs, tmp_path, ready(), rows)
    assert code == 1
    assert message in said


def test_a_device_without_a_free_memory_reading_passes(stubs: Stage, tmp_path: Path) -> None:
    rows = ["NVIDIA A100-SXM4-80GB, [N/A]"] * 2
    code, said = checked(stubs, tmp_path, ready(), rows)
    assert code == 0, said


def test_preflight_stops_where_the_driver_does_not_answer(stubs: Stage, tmp_path: Path) -> None:
    code, said = checked(stubs, tmp_path, ready(), SMI_ANSWER="/nonexistent")
    assert code == 1
    assert "the devices cannot be listed" in said


def test_preflight_stops_on_a_missing_interface(stubs: Stage, tmp_path: Path) -> None:
    nic = {**ETHERNET, "interface": "nope0"}
    where = cluster(group("n0", gpus=1, nics=[nic]), group("n1", gpus=1, nics=[nic]))
    plan = make_plan(where, llama(), [16, 16])
    code, said = checked(stubs, tmp_path, plan, AS_PLANNED[:1])
    assert code == 1
    assert "the network interface nope0 does not exist" in said


def test_preflight_stops_on_another_release(tmp_path: Path) -> None:
    old = stage(tmp_path / "stubs", version="0.12.1")
    code, said = checked(old, tmp_path, ready())
    assert code == 1
    assert "Megatron core 0.12.1 is installed; the options are written for 0.19" in said


def test_preflight_stops_on_a_missing_file(stubs: Stage, tmp_path: Path) -> None:
    folder = written(render(ready()), tmp_path)
    (folder / "plan.json").unlink()
    result, calls = stubs.run(folder, "run_node_0.sh", PREFLIGHT="on")
    assert result.returncode == 1
    assert "plan.json is missing" in result.stderr
    assert calls == []


def test_check_alone_starts_nothing(stubs: Stage, tmp_path: Path) -> None:
    folder = written(render(ready()), tmp_path)
    settings = {"PREFLIGHT": "on", "SMI_ANSWER": stubs.smi(*AS_PLANNED)}
    result, calls = stubs.run(folder, "run_node_0.sh", "--check", **settings)
    assert (result.returncode, calls) == (0, [])


def test_a_missing_megatron_is_named(stubs: Stage, tmp_path: Path) -> None:
    folder = written(render(ready()), tmp_path)
    result, calls = stubs.run(folder, "run_node_0.sh", MEGATRON_PATH="")
    assert result.returncode == 1
    assert "MEGATRON_PATH: set it to a checkout of Megatron-LM" in result.stderr
    assert calls == []


def test_start_all_checks_every_node_before_it_starts_one(stubs: Stage, tmp_path: Path) -> None:
    launch = render(make_plan(cluster(group("n[0-2]", gpus=1)), llama(), [11, 11, 10]))
    folder = written(launch, tmp_path)
    result, calls = stubs.run(folder, "start_all.sh", "--exit-interval", "5", LR="1e-4; touch x")
    assert result.returncode == 0, result.stderr
    checks, starts = calls[:3], calls[3:]
    assert sorted(call.argv[-2] for call in checks) == ["n0", "n1", "n2"]
    assert all(call.argv[-1].rstrip().endswith("--check") for call in checks)
    assert sorted(call.argv[-2] for call in starts) == ["n0", "n1", "n2"]
    for call in starts:
        assert "--exit-interval 5" in call.argv[-1]
        assert r"LR=1e-4\;\ touch\ x" in call.argv[-1]


def test_start_all_starts_nothing_when_a_check_fails(stubs: Stage, tmp_path: Path) -> None:
    launch = render(make_plan(cluster(group("n[0-1]", gpus=1)), llama(), [16, 16]))
    ssh = stubs.root / "bin" / "ssh"
    ssh.write_text(ssh.read_text() + "sys.exit(1)\n")
    result, calls = stubs.run(written(launch, tmp_path), "start_all.sh")
    assert result.returncode == 1
    assert all("--check" in call.argv[-1] for call in calls)


def test_a_hostfile_of_another_length_is_noticed(stubs: Stage, tmp_path: Path) -> None:
    folder = written(render(ready()), tmp_path)
    (folder / "hostfile").write_text("a slots=2\nb slots=2\n")
    result, calls = stubs.run(folder, "start_all.sh")
    assert result.returncode == 1
    assert "the hostfile names 2 hosts, the plan has 1" in result.stderr
    assert calls == []


def test_tokens_decide_the_number_of_steps() -> None:
    where = cluster(group("n0", gpus=2))
    plan = make_plan(where, llama(), [32], data=2, tokens=4096 * 16 * 250 + 1)
    assert '--train-iters "${TRAIN_ITERS:-251}"' in render(plan)["common.sh"]


def test_the_plan_travels_with_the_directory() -> None:
    plan = ready()
    assert Plan.model_validate_json(render(plan)["plan.json"]) == plan


def test_the_same_plan_gives_the_same_directory() -> None:
    assert render(ready()) == render(ready())
