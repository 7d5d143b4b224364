from __future__ import annotations

import os
from pathlib import Path

import pytest

from hetcli.errors import OutputError, UsageError
from hetcli.export import LaunchDirectory, LaunchFile, write_directory


def launch(*files: LaunchFile) -> LaunchDirectory:
    return LaunchDirectory(
        target="megatron",
        target_version="0.19",
        launcher="torchrun",
        files={file.name: file for file in files},
        command="./start_all.sh",
    )


PLAN = LaunchFile("plan.json", "{}\n")
SCRIPT = LaunchFile("run_node_0.sh", "#!/bin/sh\n", executable=True)


def test_files_are_written_with_their_modes(tmp_path: Path) -> None:
    folder = write_directory(launch(PLAN, SCRIPT), tmp_path / "new" / "launch")
    assert (folder / "plan.json").read_text() == "{}\n"
    assert os.access(folder / "run_node_0.sh", os.X_OK)
    assert not os.access(folder / "plan.json", os.X_OK)
    assert [path.name for path in folder.parent.iterdir()] == ["launch"]


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("mine")
    with pytest.raises(UsageError, match=r"plan\.json") as error:
        write_directory(launch(PLAN, SCRIPT), tmp_path)
    assert "--force" in error.value.fix
    assert (tmp_path / "plan.json").read_text() == "mine"
    assert not (tmp_path / "run_node_0.sh").exists()


def test_force_replaces_and_removes_scripts_of_nodes_that_are_gone(tmp_path: Path) -> None:
    write_directory(launch(PLAN, SCRIPT, LaunchFile("run_node_1.sh", "")), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    write_directory(launch(LaunchFile("plan.json", "new"), SCRIPT), tmp_path, force=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["notes.txt", "plan.json", "run_node_0.sh"]
    assert (tmp_path / "plan.json").read_text() == "new"


def test_a_stale_node_script_counts_as_something_to_lose(tmp_path: Path) -> None:
    (tmp_path / "run_node_7.sh").write_text("")
    with pytest.raises(UsageError, match=r"run_node_7\.sh"):
        write_directory(launch(PLAN), tmp_path)


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    folder = tmp_path / "launch"
    folder.mkdir()
    (folder / "plan.json").symlink_to(outside)
    write_directory(launch(PLAN), folder, force=True)
    assert outside.read_text() == "untouched"
    assert not (folder / "plan.json").is_symlink()


def test_a_file_in_the_way_is_bad_usage(tmp_path: Path) -> None:
    (tmp_path / "launch").write_text("")
    with pytest.raises(UsageError, match="not a directory"):
        write_directory(launch(PLAN), tmp_path / "launch")


def test_a_disk_that_refuses_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        write_directory(launch(PLAN), tmp_path / "file" / "launch")


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "", ".hidden", "-x", "a b", "a\nb"])
def test_a_name_that_could_leave_the_directory_is_impossible(name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        LaunchFile(name, "")
