from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.errors import UsageError
from hetcli.spec.base import Origin
from hetcli.spec.quick import is_quick_cluster, parse_quick_cluster


def shape(argument: str) -> list[tuple[str, str, int, tuple[str, ...]]]:
    return [
        (group.name, str(group.gpu), group.gpus, group.node_names)
        for group in parse_quick_cluster(argument).nodes
    ]


def test_counts_become_nodes_of_eight() -> None:
    assert shape("A100:8+V100:8") == [
        ("a100-0", "A100", 8, ("a100-0",)),
        ("v100-0", "V100", 8, ("v100-0",)),
    ]
    assert shape("RTX 4090:2") == [("rtx-4090-0", "RTX 4090", 2, ("rtx-4090-0",))]
    assert shape("A100:20") == [
        ("a100-[0-1]", "A100", 8, ("a100-0", "a100-1")),
        ("a100-2", "A100", 4, ("a100-2",)),
    ]


def test_a_shape_is_gpus_times_nodes() -> None:
    assert shape("H100:4x3") == [("h100-[0-2]", "H100", 4, ("h100-0", "h100-1", "h100-2"))]
    assert shape(" H100 : 16 x 1 ") == [("h100-0", "H100", 16, ("h100-0",))]


def test_a_gpu_named_twice_gets_new_nodes() -> None:
    assert [names for *_, names in shape("A100:8+T4:1+A100:4x2")] == [
        ("a100-0",),
        ("t4-0",),
        ("a100-1", "a100-2"),
    ]


def test_what_is_assumed_is_said() -> None:
    cluster = parse_quick_cluster("A100:8+V100:8")
    assert cluster.name == "A100:8+V100:8"
    assert "Assumed" in cluster.description
    assert "100 Gb/s Ethernet" in cluster.description
    for group in cluster.nodes:
        (nic,) = group.nics
        assert (nic.kind, nic.rate, nic.origin) == ("ethernet", 12.5e9, Origin.ASSUMED)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("A100", "no GPU with a count"),
        ("A100:", "no GPU with a count"),
        (":8", "no GPU with a count"),
        ("A100:8+", "no GPU with a count"),
        ("A100:eight", "no GPU with a count"),
        ("A100:-8", "no GPU with a count"),
        ("A100:8x", "no GPU with a count"),
        ("A100:8x2x2", "no GPU with a count"),
        ("A100:0", "holds no GPU"),
        ("A100:8x0", "holds no GPU"),
        ("A100:999999999", "hosts"),
        ("A100:8x999999", "hosts"),
        ("A100:2000000x1", "less than or equal to 1000000"),
        ("A100:100000x100", "devices"),
        ("A" * 300 + ":8", "at most 200 characters"),
        ("A\x1b[31m:8", "no GPU with a count"),
        ("", "no GPU with a count"),
    ],
)
def test_what_is_no_quick_cluster_is_refused_with_an_example(argument: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_quick_cluster(argument)
    assert reason in caught.value.why
    assert "A100:8+V100:8" in caught.value.fix
    assert caught.value.what.isprintable()


@pytest.mark.parametrize(
    ("argument", "quick"),
    [
        ("A100:8", True),
        ("A100:8+V100:8x2", True),
        ("RTX 4090:2", True),
        ("A100:8x", True),
        ("cluster.yaml", False),
        ("-", False),
        ("sample:dgx-h100", False),
        ("./a:8", False),
        ("C:\\8", False),
        ("host:/x", False),
    ],
)
def test_a_quick_cluster_is_told_from_a_path(argument: str, quick: bool) -> None:
    assert is_quick_cluster(argument) is quick


@given(st.text(max_size=40) | st.from_regex(r"[A-Z0-9 :+x\-]{0,20}", fullmatch=True))
def test_any_text_is_a_cluster_or_a_usage_error(text: str) -> None:
    try:
        cluster = parse_quick_cluster(text)
    except UsageError as error:
        parts = [error.what, error.why, error.fix]
    else:
        assert is_quick_cluster(text.strip())
        assert cluster.device_count > 0
        return
    assert all(parts)
