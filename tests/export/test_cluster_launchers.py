"""Slurm jobs and Kubernetes JobSets: every node runs its own script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from plans import cluster, group, llama, make_plan
from recording import stage, written

from hetcli.errors import UnsupportedByTargetError
from hetcli.export import render
from hetcli.spec.plan import Plan

MIXED = cluster(group("h100-[0-1]", "H100-SXM5-80GB"), group("rtx-0", "RTX-4090", gpus=4))


def mixed() -> Plan:
    return make_plan(MIXED, llama(), [8, 8, 8, 5, 3], tensor=4)


def test_a_slurm_job_has_a_component_for_each_kind_of_node() -> None:
    text = render(mixed(), launcher="slurm")["job.sbatch"]
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if "#SBATCH" in line]
    first, second = " ".join(lines).split(" hetjob ")
    assert "--nodes=2 " in first
    assert "--nodelist=h100-0,h100-1" in first
    assert "--gres=gpu:h100:8" in first
    assert "--nodes=1 " in second
    assert "--nodelist=rtx-0" in second
    assert "--gres=gpu:4090:4" in second
    assert "srun --het-group=0,1 " in text
    alike = make_plan(cluster(group("n[0-1]")), llama(), [16, 16], tensor=8)
    assert "het" not in render(alike, launcher="slurm")["job.sbatch"].partition("set -euo")[2]


def test_a_slurm_task_runs_the_script_of_its_node(tmp_path: Path) -> None:
    folder = written(render(mixed(), launcher="slurm"), tmp_path)
    stubs = stage(tmp_path / "stubs")
    result, [call] = stubs.run(folder, "job.sbatch", "--check", SLURM_SUBMIT_DIR=str(folder))
    assert result.returncode == 0, result.stderr
    assert call.argv[-2:] == ["./run_task.sh", "--check"]
    ranks = {}
    for node in ("h100-0", "h100-1", "rtx-0"):
        result, [call] = stubs.run(folder, "run_task.sh", SLURMD_NODENAME=node)
        assert result.returncode == 0, result.stderr
        argv = call.argv
        ranks[node] = [argv[argv.index(f"--{n}") + 1] for n in ("node-rank", "nproc-per-node")]
    assert ranks == {"h100-0": ["0", "8"], "h100-1": ["1", "8"], "rtx-0": ["2", "4"]}
    result, calls = stubs.run(folder, "run_task.sh", SLURMD_NODENAME="other")
    assert (result.returncode, calls) == (1, [])
    assert "the plan has no node other" in result.stderr


def test_a_jobset_has_a_replicated_job_for_each_kind_of_node() -> None:
    manifest = yaml.safe_load(render(mixed(), launcher="kubernetes")["jobset.yaml"])
    seen = []
    for job in manifest["spec"]["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        [container] = pod["containers"]
        environment = {entry["name"]: entry.get("value") for entry in container["env"]}
        [term] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        seen.append(
            (
                job["replicas"],
                environment["FIRST_NODE_RANK"],
                container["resources"]["limits"],
                term["matchExpressions"][0]["values"],
            )
        )
        assert environment["MASTER_ADDR"] == "hetcli-nodes-0-0-0.hetcli"
    assert seen == [
        (2, "0", {"nvidia.com/gpu": 8}, ["h100-0", "h100-1"]),
        (1, "2", {"nvidia.com/gpu": 4}, ["rtx-0"]),
    ]


# Kinds of the fields that are written, out of the schemas of JobSet v1alpha2, PyTorchJob v1, batch
# and core. A name is the schema of a part below; a list has one kind for all its entries.
SCHEMAS: dict[str, dict[str, Any]] = {
    "JobSet": {"apiVersion": str, "kind": str, "metadata": "Metadata", "spec": "JobSetSpec"},
    "Metadata": {"name": str},
    "JobSetSpec": {
        "failurePolicy": "FailurePolicy",
        "network": "Network",
        "replicatedJobs": ["ReplicatedJob"],
    },
    "FailurePolicy": {"maxRestarts": int},
    "Network": {"enableDNSHostnames": bool, "subdomain": str},
    "ReplicatedJob": {"name": str, "replicas": int, "template": "JobTemplate"},
    "JobTemplate": {"spec": "JobSpec"},
    "JobSpec": {
        "parallelism": int,
        "completions": int,
        "completionMode": str,
        "backoffLimit": int,
        "template": "PodTemplate",
    },
    "PyTorchJob": {"apiVersion": str, "kind": str, "metadata": "Metadata", "spec": "PyTorchSpec"},
    "PyTorchSpec": {
        "nprocPerNode": str,
        "runPolicy": "RunPolicy",
        "pytorchReplicaSpecs": {"Master": "ReplicaSpec", "Worker": "ReplicaSpec"},
    },
    "RunPolicy": {"backoffLimit": int},
    "ReplicaSpec": {"replicas": int, "restartPolicy": str, "template": "PodTemplate"},
    "PodTemplate": {"spec": "PodSpec"},
    "PodSpec": {
        "restartPolicy": str,
        "hostNetwork": bool,
        "dnsPolicy": str,
        "affinity": dict,
        "containers": ["Container"],
        "volumes": ["Volume"],
    },
    "Container": {
        "name": str,
        "image": str,
        "workingDir": str,
        "command": [str],
        "env": ["Variable"],
        "envFrom": [dict],
        "resources": {"limits": dict},
        "volumeMounts": ["Mount"],
    },
    "Variable": {"name": str, "value": str, "valueFrom": dict},
    "Mount": {"name": str, "mountPath": str},
    "Volume": {"name": str, "configMap": dict, "emptyDir": dict},
}


def wrong(value: Any, kind: Any, where: str = "") -> list[str]:
    """Where a manifest has a field that the schema lacks, or one of another kind."""
    kind = SCHEMAS[kind] if isinstance(kind, str) else kind
    if isinstance(kind, type):
        return [] if type(value) is kind else [f"{where} is no {kind.__name__}"]
    if isinstance(kind, list):
        return [e for n, entry in enumerate(value) for e in wrong(entry, kind[0], f"{where}[{n}]")]
    unknown = [f"{where}.{name} is unknown" for name in value.keys() - kind.keys()]
    known = [name for name in value if name in kind]
    return unknown + [e for n in known for e in wrong(value[n], kind[n], f"{where}.{n}")]


def alike() -> Plan:
    return make_plan(cluster(group("n[0-2]", gpus=4)), llama(), [12, 10, 10], tensor=4)


@pytest.mark.parametrize("plan", [mixed(), alike()])
def test_a_jobset_follows_its_schema(plan: Plan) -> None:
    manifest = yaml.safe_load(render(plan, launcher="kubernetes")["jobset.yaml"])
    assert wrong(manifest, "JobSet") == []
    assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    # A pod's name, `hetcli-nodes-<i>-<j>-<k>-<five letters>`, is a label of DNS.
    assert all(len(job["name"]) < 40 for job in manifest["spec"]["replicatedJobs"])
    manifest["spec"]["replicatedJobs"][0]["replica"] = 1
    manifest["spec"]["network"]["subdomain"] = 5
    assert sorted(wrong(manifest, "JobSet")) == [
        ".spec.network.subdomain is no str",
        ".spec.replicatedJobs[0].replica is unknown",
    ]


def test_nodes_that_are_alike_get_a_pytorchjob_too(tmp_path: Path) -> None:
    launch = render(alike(), launcher="kubernetes")
    manifest = yaml.safe_load(launch["pytorchjob.yaml"])
    assert wrong(manifest, "PyTorchJob") == []
    spec = manifest["spec"]
    assert spec["nprocPerNode"] == "4"
    parts = spec["pytorchReplicaSpecs"]
    assert {role: part["replicas"] for role, part in parts.items()} == {"Master": 1, "Worker": 2}
    [container] = parts["Worker"]["template"]["spec"]["containers"]
    assert container["name"] == "pytorch"  # The operator looks for this one.
    folder = written(launch, tmp_path)
    (folder / "command").write_text(f"cd {folder}\n{container['command'][2]}\n")
    result, [call] = stage(tmp_path / "stubs").run(folder, "command", RANK="2", WORLD_SIZE="3")
    assert result.returncode == 0, result.stderr
    assert call.argv[call.argv.index("--node-rank") + 1] == "2"
    assert call.argv[call.argv.index("--nproc-per-node") + 1] == "4"


def test_nodes_that_differ_get_no_pytorchjob() -> None:
    assert "pytorchjob.yaml" not in render(mixed(), launcher="kubernetes").files


def test_a_pod_runs_the_script_of_its_rank(tmp_path: Path) -> None:
    launch = render(mixed(), launcher="kubernetes")
    folder = written(launch, tmp_path)
    manifest = yaml.safe_load(launch["jobset.yaml"])
    [container] = manifest["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"][
        "containers"
    ]
    (folder / "command").write_text(container["command"][2])
    stubs = stage(tmp_path / "stubs")
    (folder / "command").write_text(f"cd {folder}\n{container['command'][2]}\n")
    result, [call] = stubs.run(folder, "command", FIRST_NODE_RANK="2", JOB_INDEX="0")
    assert result.returncode == 0, result.stderr
    assert call.argv[call.argv.index("--node-rank") + 1] == "2"


@pytest.mark.parametrize("launcher", ["slurm", "kubernetes"])
def test_names_that_cannot_be_quoted_are_refused(launcher: str) -> None:
    plan = make_plan(cluster(group("a;rm", gpus=4)), llama(), [32], data=4)
    with pytest.raises(UnsupportedByTargetError, match="a;rm"):
        render(plan, launcher=launcher)
