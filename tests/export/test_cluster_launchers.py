"""Slurm jobs and Kubernetes JobSets: every node runs its own script."""

from __future__ import annotations

from pathlib import Path

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


# Fields of the API, of those that this repository writes (JobSet v1alpha2, batch/v1, core/v1).
FIELDS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"coordinator", "failurePolicy", "managedBy", "network", "replicatedJobs"}
    | {"startupPolicy", "successPolicy", "suspend", "ttlSecondsAfterFinished"},
    "spec.failurePolicy": {"maxRestarts", "restartStrategy", "rules"},
    "spec.network": {"enableDNSHostnames", "publishNotReadyAddresses", "subdomain"},
    "spec.replicatedJobs": {"dependsOn", "groupName", "name", "replicas", "template"},
    "spec.replicatedJobs.template": {"metadata", "spec"},
    "spec.replicatedJobs.template.spec": {"activeDeadlineSeconds", "backoffLimit"}
    | {"completionMode", "completions", "parallelism", "suspend", "template"},
}


def test_a_jobset_has_no_field_that_the_api_lacks() -> None:
    manifest = yaml.safe_load(render(mixed(), launcher="kubernetes")["jobset.yaml"])
    assert manifest["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    for path, fields in FIELDS.items():
        found = [manifest]
        for step in path.split(".") if path else ():
            deeper = [entry[step] for entry in found]
            found = [e for d in deeper for e in (d if isinstance(d, list) else [d])]
        for entry in found:
            assert entry.keys() <= fields, path


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
