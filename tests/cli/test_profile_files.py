"""`profile merge`, `show` and `import`, and `fit`: files in, files out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from hetcli.cli import app
from hetcli.spec.cluster import Cluster
from hetcli.spec.hardware import HardwareFile
from hetcli.spec.profile import Profile
from hetcli.spec.source import read_document

FOREIGN = Path(__file__).parents[1] / "probe" / "foreign"
LOG = FOREIGN / "nccl_two_nodes.log"


def run(*arguments: object, **more: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **more)


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    folder = tmp_path / "profiles"
    done = run("profile", "import", LOG, "-o", folder)
    assert done.exit_code == 0, done.output
    return folder


def test_import_writes_a_file_for_each_node(imported: Path) -> None:
    assert sorted(path.name for path in imported.iterdir()) == [
        "ztan-mig-235z.json",
        "ztan-mig-gq73.json",
    ]
    profile = read_document(imported / "ztan-mig-235z.json", Profile)
    assert profile.source == "nccl-tests"


def test_import_reads_standard_input_and_prints_json() -> None:
    text = (FOREIGN / "npu_smi_two_chips.txt").read_text()
    done = run("profile", "import", "-", "--json", "--name", "npu0", input=text)
    assert done.exit_code == 0, done.output
    assert [device["power_draw_w"] for device in json.loads(done.stdout)["devices"]] == [
        178.8,
        None,
    ]


def test_import_of_a_topology_matrix_has_null_where_nothing_is_printed(tmp_path: Path) -> None:
    # Case topo-dgx-a100 (https://github.com/NVIDIA/DCGM/issues/149).
    matrix = tmp_path / "topo.txt"
    text = (FOREIGN / "topo_dgx_a100.txt").read_text()
    matrix.write_text(text.replace("16-31,144-159   1 ", "N/A             N/A "))
    document = json.loads(run("profile", "import", matrix, "--json").stdout)
    assert [device["numa_node"] for device in document["devices"]] == [3, 3, None]
    assert "no NUMA affinity is printed for it" in document["devices"][2]["notes"]
    assert len(document["nics"]) == 2
    assert {link["bytes_per_s"] for link in document["device_links"]} == {300e9}


def test_import_of_something_else_is_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("shopping list")
    done = run("profile", "import", path)
    assert done.exit_code == 2
    assert "no format that is known" in done.stderr
    assert done.stdout == ""


def test_a_node_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = LOG.read_text().replace("ztan-mig-gq73", "../../evil").replace("ztan-mig-235z", "..")
    log.write_text(text)
    folder = tmp_path / "deep" / "profiles"
    done = run("profile", "import", log, "-o", folder)
    assert done.exit_code == 0, done.output
    assert len(list(folder.iterdir())) == 2
    assert list(tmp_path.rglob("*evil*")) == [folder / "_.._evil.json"]


def test_merge_makes_a_cluster_file_that_plans_can_use(imported: Path, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    done = run("profile", "merge", imported, "-o", path, "--name", "lab")
    assert done.exit_code == 0, done.output
    cluster = read_document(path, Cluster)
    assert cluster.name == "lab"
    assert cluster.node_count == 2
    assert {group.gpu for group in cluster.nodes} == {"H100-SXM5-80GB"}
    (pair,) = cluster.pairs
    assert pair.rate == pytest.approx(340e9, rel=0.1)


def test_merge_without_output_prints_yaml_and_nothing_else(imported: Path, tmp_path: Path) -> None:
    done = run("profile", "merge", imported)
    path = tmp_path / "printed.yaml"
    path.write_text(done.stdout)
    assert read_document(path, Cluster).node_count == 2


def test_merge_as_json_has_cluster_and_findings(imported: Path) -> None:
    document = json.loads(run("profile", "merge", imported, "--json").stdout)
    assert document["schema_version"] == 1
    assert document["cluster"]["name"] == "measured"
    assert document["findings"] == []


def test_findings_are_warnings_and_the_answer_is_still_yes(imported: Path) -> None:
    path = imported / "ztan-mig-gq73.json"
    data = json.loads(path.read_text())
    for device in data["devices"]:
        device["name"], device["compute_capability"] = "Tesla V100-SXM2-32GB", "7.0"
    path.write_text(json.dumps(data))
    other = imported / "ztan-mig-235z.json"
    data = json.loads(other.read_text())
    for device in data["devices"]:
        device["compute_capability"] = "9.0"
    other.write_text(json.dumps(data))
    done = run("profile", "merge", imported, "--json")
    assert done.exit_code == 0
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["kind"] == "mixed"
    assert "compute capabilities 7.0 and 9.0" in done.stderr
    assert "NCCL_ALGO=Ring NCCL_PROTO=Simple" in done.stderr


def test_show_prints_what_a_profile_holds(imported: Path) -> None:
    done = run("profile", "show", imported)
    assert done.exit_code == 0
    assert "ztan-mig-235z" in done.stdout
    assert "NVIDIA H100 80GB HBM3" in done.stdout
    assert "all_reduce" in done.stdout
    document = json.loads(run("profile", "show", imported, "--json").stdout)
    assert [each["node"] for each in document["profiles"]] == ["ztan-mig-235z", "ztan-mig-gq73"]


def test_fit_writes_curves_with_residuals(imported: Path, tmp_path: Path) -> None:
    path = tmp_path / "hardware.json"
    done = run("fit", imported, "-o", path)
    assert done.exit_code == 0, done.output
    (link,) = read_document(path, HardwareFile).links
    assert link.between == ("ztan-mig-235z", "ztan-mig-gq73")
    assert link.residual is not None
    assert "residual" in done.stdout


@pytest.mark.parametrize("command", [["profile", "merge"], ["profile", "show"], ["fit"]])
def test_an_empty_folder_and_a_missing_file_are_exit_code_2(
    command: list[str], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run(*command, empty)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no profile in" in done.stderr
    assert run(*command, tmp_path / "absent.json").exit_code == 2


def test_a_profile_that_is_none_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"schema_version": 1,\n "node": 3}')
    done = run("profile", "show", path)
    assert done.exit_code == 2
    assert "p.json" in done.stderr


def test_a_manifest_is_written_and_nothing_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    words = ["profile", "--manifest", "kubernetes", "--nodes", 3, "--image", "lab/hetcli:1"]
    printed = run(*words)
    assert printed.exit_code == 0, printed.output
    assert run(*words, "-o", path).exit_code == 0
    assert path.read_text() == printed.stdout
    service, job = yaml.safe_load_all(printed.stdout)
    assert (service["kind"], job["kind"], job["spec"]["completions"]) == ("Service", "Job", 3)
    refused = run("profile", "--manifest", "kubernetes")
    assert refused.exit_code == 2
    assert "--image" in refused.stderr
    assert run("profile", "--nodes", 3).exit_code == 2
