from __future__ import annotations

import io
from pathlib import Path

import pytest

from hetcli.catalog.hardware import find_gpu, find_link
from hetcli.catalog.samples import open_sample, read_cluster, sample_names, sample_text
from hetcli.errors import SpecError, UnknownNameError, UsageError
from hetcli.spec.cluster import Cluster
from hetcli.spec.source import dump_yaml, parse_mapping, validate

# Devices a GPU type as the publications count them.
DEVICES = {
    "amp": {"V100-SXM2-16GB": 12, "T4": 4},
    "areal-hex": {"H800-PCIE-80GB": 8, "H20-96GB": 48},
    "dgx-a100-v100": {"A100-SXM4-80GB": 16, "V100-SXM2-32GB": 16},
    "dgx-h100": {"H100-SXM5-80GB": 64},
    "dt-fm-geo": {"V100-SXM2-16GB": 64},
    "flashflex": {"A800-PCIE-80GB": 3, "RTX-4090": 3, "RTX-3090": 2},
    "hethub": {"MI300X": 128, "accelerator-a": 640},
    "holmes": {"A100-SXM4-80GB": 16},
    "local-cpu": {"cpu": 4},
    "sailor-gcp": {"A100-SXM4-40GB": 128, "V100-SXM2-16GB": 384},
    "sailor-rtx": {"Titan-RTX": 16, "RTX-2080": 24, "RTX-3090": 16},
    "three-type-1024": {"A100-SXM4-80GB": 512, "H100-SXM5-80GB": 256, "V100-SXM2-32GB": 256},
    "zorse-a": {"H100-SXM5-80GB": 4, "A100-SXM4-80GB": 16},
    "zorse-b": {"A100-SXM4-40GB": 8, "A10G": 16, "V100-SXM2-16GB": 16, "T4": 24},
    "zorse-c": {"A10G": 16, "V100-SXM2-16GB": 16, "T4": 96},
    "zorse-one-node": {"L4": 2, "RTX-A6000": 1, "P40": 1},
}


def count(cluster: Cluster) -> dict[str, int]:
    devices: dict[str, int] = {}
    for group in cluster.nodes:
        gpu = group.gpu if isinstance(group.gpu, str) else group.gpu.name
        devices[gpu] = devices.get(gpu, 0) + group.node_count * len(group.devices)
    return devices


def test_all_samples_are_there() -> None:
    assert sample_names() == tuple(sorted(DEVICES))


@pytest.mark.parametrize("name", DEVICES)
def test_a_sample_has_the_published_devices_and_says_where_they_come_from(name: str) -> None:
    cluster = open_sample(name)
    assert cluster.name == name
    assert count(cluster) == DEVICES[name]
    assert cluster.description
    assert cluster.source
    assert sample_text(name).startswith("# ")


@pytest.mark.parametrize("name", DEVICES)
def test_the_catalogue_knows_the_gpus_and_links_of_a_sample(name: str) -> None:
    for group in open_sample(name).nodes:
        if isinstance(group.gpu, str):
            assert find_gpu(group.gpu).name == group.gpu
        if isinstance(group.intra_link, str):
            assert find_link(group.intra_link).scope == "device"
        for nic in group.nics:
            assert find_link(nic.kind).scope == "nic"


@pytest.mark.parametrize("name", DEVICES)
def test_any_two_nodes_of_a_sample_are_joined(name: str) -> None:
    cluster = open_sample(name)
    linked = {frozenset(link.between) for link in cluster.links}
    for one in cluster.nodes:
        for other in cluster.nodes:
            between = {
                frozenset((a, b))
                for kind in ("group", "fabric", "zone", "region")
                if (a := one.place(kind)) and (b := other.place(kind))
            }
            apart = one is not other or one.node_count > 1
            assert not apart or one.fabric_name == other.fabric_name or between & linked


@pytest.mark.parametrize("name", DEVICES)
def test_a_sample_is_read_back_from_what_is_written(name: str) -> None:
    cluster = open_sample(name)
    assert validate(*parse_mapping(dump_yaml(cluster), "c.yaml"), Cluster) == cluster


def test_published_links_and_prices() -> None:
    hex_ = open_sample("areal-hex")
    assert [group.price_per_hour for group in hex_.nodes] == [5.28, 1.85]
    assert [(link.between, link.rate) for link in hex_.links] == [
        (("h20", "h20"), 5e9),
        (("h800", "h20"), 1.5e9),
    ]
    gcp = open_sample("sailor-gcp")
    assert [group.price_per_hour for group in gcp.nodes] == [3.67, 2.86]
    assert {group.zone for group in gcp.nodes} == {"us-central1-a"}
    (link,) = open_sample("holmes").links
    assert (link.between, link.rate) == (("infiniband", "roce"), 1e9)
    assert open_sample("hethub").cross_vendor_backend is not None


def test_the_world_wide_sample_has_every_pair_of_its_eight_regions() -> None:
    cluster = open_sample("dt-fm-geo")
    regions = cluster.places("region")
    assert len(regions) == 8
    assert {frozenset(link.between) for link in cluster.links} == {
        frozenset((a, b)) for a in regions for b in regions
    }
    rates = {frozenset(link.between): (link.rate, link.latency) for link in cluster.links}
    # Slowest and fastest pair, and the inside, of the authors' table.
    assert rates[frozenset(("seoul", "ireland"))] == (0.335e9 / 8, 0.228)
    assert rates[frozenset(("virginia", "london"))] == (1.16e9 / 8, 0.076)
    assert rates[frozenset(("tokyo",))] == (2e9 / 8, 0.010)


def test_an_unknown_sample_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        open_sample("dgx-a100-v10")
    assert "dgx-a100-v100" in caught.value.fix
    with pytest.raises(UnknownNameError) as caught:
        read_cluster("sample:../../etc/passwd")
    assert "zorse-a" in caught.value.fix


def test_a_cluster_argument_is_a_sample_a_file_a_quick_cluster_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_cluster("sample:amp").name == "amp"
    assert read_cluster("A100:8+V100:8").device_count == 16
    Path("c.yaml").write_text(sample_text("holmes"))
    assert read_cluster("c.yaml").name == "holmes"
    Path("T4:8").write_text(sample_text("zorse-a"))
    assert read_cluster("T4:8").name == "zorse-a"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(sample_text("amp").encode())))
    assert read_cluster("-").name == "amp"


def test_an_argument_that_names_nothing_says_what_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError) as caught:
        read_cluster("holmes")
    assert caught.value.fix == "write sample:holmes"
    with pytest.raises(SpecError, match="no such file"):
        read_cluster("none.yaml")
    with pytest.raises(UsageError, match="holds no GPU"):
        read_cluster("A100:0")
