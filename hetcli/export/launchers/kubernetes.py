"""Kubernetes JobSet: one replicated job a run of equal nodes, a pod a node.

PyTorchJob, TrainJob and MPIJob have one number of processes for all nodes; a JobSet gives every
replicated job a template of its own. A pod's node rank is the first rank of its replicated job,
written into it, plus its job index there: nothing hangs on the order of replicated jobs.
Where all nodes are alike a PyTorchJob is written too, whose operator sets RANK to the pod's number.
Source: JobSet API v1alpha2 (config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml); Kubeflow's
training operator 1.9 (kubeflow.org_pytorchjobs.yaml and pkg/controller.v1/pytorch).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from hetcli.errors import UnsupportedByTargetError
from hetcli.export.launch import LaunchFile
from hetcli.export.launchers.launcher import Launcher
from hetcli.export.launchers.node_types import NodeType, node_types
from hetcli.export.placement import Placement
from hetcli.export.planned import Planned

__all__ = ["KUBERNETES", "jobset", "pytorchjob"]

NAME: Final = "hetcli"
FOLDER: Final = "/launch"
# To be replaced by the user's image.
IMAGE: Final = "training-image"
# The extended resources of the vendors' device plugins.
_RESOURCES: Final[Mapping[str, str]] = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "huawei": "huawei.com/Ascend910",
}
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def _check(target: str, planned: Planned, placement: Placement) -> None:
    del target, planned
    for host in placement.hosts:
        if not _LABEL.fullmatch(host.name):
            raise UnsupportedByTargetError(
                f"the kubernetes launcher cannot select the node {host.name!r}",
                why="the value of the label kubernetes.io/hostname has at most 63 letters, digits, "
                "dots, hyphens and underscores",
                fix="the name that kubectl get nodes shows, in the cluster file",
            )


def _settings(planned: Planned, placement: Placement) -> Mapping[str, object]:
    del planned
    return {"uneven": len({host.processes for host in placement.hosts}) > 1}


def jobset(types: Iterable[NodeType]) -> dict[str, Any]:
    """The JobSet. Its pods read the user's settings from the ConfigMap `hetcli-settings`."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": NAME},
        "spec": {
            # A node that fails ends the job: the others would wait for it.
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True, "subdomain": NAME},
            "replicatedJobs": [_replicated_job(kind) for kind in types],
        },
    }


def _replicated_job(kind: NodeType) -> dict[str, Any]:
    first = {"name": "FIRST_NODE_RANK", "value": str(kind.first_rank)}
    index = {
        "name": "JOB_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/job-index']"}},
    }
    master = {"name": "MASTER_ADDR", "value": f"{NAME}-nodes-0-0-0.{NAME}"}
    pod = _pod(kind, "node", "$((FIRST_NODE_RANK + JOB_INDEX))", [first, index, master])
    return {
        "name": f"nodes-{kind.number}",
        "replicas": len(kind.hosts),
        "template": {
            "spec": {
                "parallelism": 1,
                "completions": 1,
                "completionMode": "Indexed",  # It gives the pod its host name.
                "backoffLimit": 0,
                "template": {"spec": pod},
            }
        },
    }


def pytorchjob(kind: NodeType) -> dict[str, Any]:
    """The PyTorchJob of nodes that are all alike: the master is node 0, worker i node i + 1."""
    template = {"spec": _pod(kind, "pytorch", "$RANK", [])}
    replicas = {"Master": 1, "Worker": len(kind.hosts) - 1}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": NAME},
        "spec": {
            "nprocPerNode": str(kind.hosts[0].processes),
            "runPolicy": {"backoffLimit": 0},
            "pytorchReplicaSpecs": {
                role: {"replicas": count, "restartPolicy": "Never", "template": template}
                for role, count in replicas.items()
                if count
            },
        },
    }


def _pod(
    kind: NodeType, container: str, node_rank: str, environment: list[dict[str, Any]]
) -> dict[str, Any]:
    """A pod that runs the script of the node that the shell expression `node_rank` names."""
    limits = {_RESOURCES[kind.vendor]: kind.gpus} if kind.vendor in _RESOURCES else {}
    hosts = [host.name for host in kind.hosts]
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}
    return {
        "restartPolicy": "Never",
        # The plan's interfaces and rates are those of the host.
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [expression]}]
                }
            }
        },
        "containers": [
            {
                "name": container,
                "image": IMAGE,
                "workingDir": FOLDER,
                "command": ["bash", "-c", f"exec ./run_node_{node_rank}.sh"],
                "env": environment,
                "envFrom": [{"configMapRef": {"name": f"{NAME}-settings", "optional": True}}],
                "resources": {"limits": limits},
                "volumeMounts": [
                    {"name": "launch", "mountPath": FOLDER},
                    {"name": "memory", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "launch", "configMap": {"name": f"{NAME}-launch", "defaultMode": 0o755}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _files(planned: Planned, placement: Placement) -> tuple[LaunchFile, ...]:
    types = node_types(planned, placement)
    files = [LaunchFile("jobset.yaml", yaml.safe_dump(jobset(types), sort_keys=False))]
    if len(types) == 1 and len({host.devices for host in placement.hosts}) == 1:
        why = "# All nodes are alike: for Kubeflow's training operator, instead of jobset.yaml.\n"
        text = yaml.safe_dump(pytorchjob(types[0]), sort_keys=False)
        files.append(LaunchFile("pytorchjob.yaml", why + text))
    return tuple(files)


KUBERNETES = Launcher(
    "kubernetes",
    "launch/torchrun.sh.j2",
    "torchrun",
    _check,
    _settings,
    files=_files,
    start=(
        f"kubectl create configmap {NAME}-launch --from-file=.",
        f"kubectl create configmap {NAME}-settings --from-literal=NAME=VALUE",
        f"sed 's|{IMAGE}|YOUR_IMAGE|' jobset.yaml | kubectl apply -f -",
    ),
)
