"""Large mixed clusters that no published planner takes on."""

from __future__ import annotations

from hetcli.spec.cluster import Cluster

__all__ = ["four_types", "three_types"]

# GPU type, GPUs a node, gigabits a second of its NIC, NICs.
TYPES = (
    ("H100-SXM5-80GB", 8, 400, 8),
    ("A100-SXM4-80GB", 8, 200, 8),
    ("H200-SXM-141GB", 8, 400, 8),
    ("A800-SXM4-80GB", 8, 200, 4),
)


def four_types(devices: int = 10_240) -> Cluster:
    """Four types in equal numbers, two of them in each of two regions, 100 Gb/s between these."""
    groups = [_group(at, devices // 4, "east" if at < 2 else "west") for at in range(4)]
    return Cluster.model_validate(
        {
            "name": f"four-type-{devices}",
            "nodes": tuple(groups),
            "links": ({"between": ("east", "west"), "rate": "100Gbps", "latency": "20ms"},),
        }
    )


def _group(at: int, devices: int, region: str) -> dict[str, object]:
    gpu, size, rate, count = TYPES[at]
    nodes = devices // size
    return {
        "name": f"t{at}-[000-{nodes - 1:03d}]",
        "gpu": gpu,
        "gpus": size,
        "region": region,
        "zone": f"{region}-1",
        "fabric": f"{region}-{at}",
        "nics": ({"kind": "infiniband", "rate": f"{rate}Gbps", "count": count},),
    }


def three_types(each: int = 256) -> Cluster:
    """As many A100-40, V100-16 and H100 in nodes of four, at one place."""
    nodes = each // 4
    return Cluster.model_validate(
        {
            "name": f"three-type-{3 * each}",
            "nodes": tuple(
                {
                    "name": f"{name}-[00-{nodes - 1:02d}]",
                    "gpu": gpu,
                    "gpus": 4,
                    "nics": ({"kind": "ethernet", "rate": "50Gbps"},),
                }
                for name, gpu in (
                    ("a", "A100-SXM4-40GB"),
                    ("v", "V100-SXM2-16GB"),
                    ("h", "H100-SXM5-80GB"),
                )
            ),
        }
    )
