from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.errors import SpecError
from hetcli.spec.base import Origin
from hetcli.spec.hostfile import Host, cluster_from_hostfile, read_hostfile


@pytest.fixture
def hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("hostfile")


def test_hosts_are_read_in_order(hostfile: Path) -> None:
    hostfile.write_text(
        "# nodes\nworker-0 slots=8\n\n worker-1\tslots=8 max_slots=16 # new\nold slots=4\n"
    )
    assert read_hostfile(hostfile) == (Host("worker-0", 8), Host("worker-1", 8), Host("old", 4))


def test_neighbours_with_equal_slots_become_one_group(hostfile: Path) -> None:
    hostfile.write_text("".join(f"n{i:02d} slots={8 if i < 10 else 4}\n" for i in range(12)))
    cluster = cluster_from_hostfile(hostfile, gpu="A100")
    assert [(g.name, g.gpus, g.gpu) for g in cluster.nodes] == [
        ("n[00-09]", 8, "A100"),
        ("n[10-11]", 4, "A100"),
    ]
    assert cluster.nodes[0].nics[0].origin is Origin.ASSUMED
    assert "Assumed" in cluster.description


def test_a_misspelt_line_is_quoted_with_its_number_and_the_right_word(hostfile: Path) -> None:
    # https://github.com/deepspeedai/DeepSpeed/issues/3669
    hostfile.write_text("x.x.x.x slots=8\nx.x.x.y lots=8\n")
    with pytest.raises(SpecError) as caught:
        read_hostfile(hostfile)
    assert caught.value.what == "hostfile:2: 'lots=8'"
    assert caught.value.fix == "write slots=8"


@pytest.mark.parametrize(
    ("text", "what", "why"),
    [
        ("a slots=8\nb slots=8\na slots=4\n", "hostfile:3: 'a' stands in line 1", "one node"),
        ("a\n", "hostfile:1: 'a' without devices", "slots=N"),
        ("a slots=0\n", "hostfile:1: 'a' without devices", "slots=N"),
        ("a slots=-8\n", "hostfile:1: 'slots=-8'", "slots=N"),
        ("a slots=8 b\n", "hostfile:1: 'b'", "slots=N"),
        ("a slots=99999999\n", "hostfile:1: 'slots=99999999'", "slots=N"),
        ("a[1-2] slots=8\n", "hostfile:1: 'a[1-2]'", "separate host names"),
        ("a\x1b[1m slots=8\n", "hostfile:1: 'a\\x1b[1m'", "control"),
        ("# none\n\n", "hostfile: no host", "comment"),
        ("", "hostfile: no host", "comment"),
    ],
)
def test_a_bad_hostfile_is_refused_with_its_line(
    hostfile: Path, text: str, what: str, why: str
) -> None:
    hostfile.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_hostfile(hostfile)
    assert caught.value.what.startswith(what)
    assert why in caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("gpu", ["", "x" * 300, "a\nb"])
def test_an_impossible_gpu_name_is_refused(hostfile: Path, gpu: str) -> None:
    hostfile.write_text("a slots=8\n")
    with pytest.raises(SpecError, match="1 hosts with devices"):
        cluster_from_hostfile(hostfile, gpu=gpu)


@given(st.text(max_size=80) | st.text("ab =slot81#\n", max_size=80))
def test_any_text_is_a_hostfile_or_an_error_with_three_parts(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "hostfile"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        hosts = read_hostfile(path)
    except SpecError as error:
        parts = [error.what, error.why, error.fix]
    else:
        cluster = cluster_from_hostfile(path, gpu="A100")
        assert list(cluster.group_of) == [host.name for host in hosts]
        return
    assert all(parts)
