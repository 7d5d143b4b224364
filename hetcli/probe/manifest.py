"""The Kubernetes manifest that profiles nodes: a headless Service and an indexed Job, a pod a node.

Source: Job API batch/v1, completionMode Indexed: pod i has the host name NAME-i, and its index in
the annotation batch.kubernetes.io/job-completion-index.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

__all__ = ["kubernetes_manifest"]

NAME: Final = "hetcli-profile"
# To be created by the user: a volume that all nodes can write.
CLAIM: Final = "profiles"
FOLDER: Final = "/shared"
# torch.distributed's usual port; the profiler takes the next one.
PORT: Final = 29500


def kubernetes_manifest(*, nodes: int, image: str, gpus: int = 0) -> str:
    """YAML for `kubectl apply`: `nodes` pods of `image` on as many nodes, `gpus` for each."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        # The others look up node 0 while all of them still start.
        "spec": {
            "clusterIP": "None",
            "selector": {"job-name": NAME},
            "publishNotReadyAddresses": True,
        },
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": NAME},
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "backoffLimit": 0,
            "template": {"spec": _pod(nodes, image, gpus)},
        },
    }
    return yaml.safe_dump_all([service, job], sort_keys=False)


def _pod(nodes: int, image: str, gpus: int) -> dict[str, Any]:
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return {
        "restartPolicy": "Never",
        "subdomain": NAME,
        # The links and the names to find are those of the host.
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": {"matchLabels": {"job-name": NAME}},
                        "topologyKey": "kubernetes.io/hostname",
                    }
                ]
            }
        },
        "containers": [
            {
                "name": "profile",
                "image": image,
                "command": ["hetcli", "profile", "-o", f"{FOLDER}/profiles"],
                "env": [
                    {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}},
                    {"name": "WORLD_SIZE", "value": str(nodes)},
                    {"name": "MASTER_ADDR", "value": f"{NAME}-0.{NAME}"},
                    {"name": "MASTER_PORT", "value": str(PORT)},
                ],
                "resources": {"limits": {"nvidia.com/gpu": gpus} if gpus else {}},
                "volumeMounts": [
                    {"name": "shared", "mountPath": FOLDER},
                    {"name": "memory", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
