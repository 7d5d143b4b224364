"""`hetcli profile` as a process on this machine: what it prints, writes and leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from hetcli.cli import app
from hetcli.spec.profile import Profile
from hetcli.spec.source import read_document

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "fixtures" / "nvml"


def environment(recording: str | None = None, **more: str) -> dict[str, str]:
    """This environment; with a recorded driver in the place of the real one."""
    path = [str(ROOT)] if recording is None else [str(RECORDINGS), str(ROOT)]
    made = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **more}
    if recording is not None:
        made["NVML_ANSWERS"] = str(RECORDINGS / f"{recording}.json")
    return made


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hetcli", "profile", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=env or environment(),
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Profile, float]:
    """One quick profile of this machine's processor."""
    path = tmp_path_factory.mktemp("quick") / "p.json"
    started = time.monotonic()
    done = run("--device", "cpu", "--quick", "-o", str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(path.read_text())
    return path, read_document(path, Profile), time.monotonic() - started


def test_a_quick_profile_of_the_processor_is_complete_within_a_minute(
    quick: tuple[Path, Profile, float],
) -> None:
    _, profile, seconds = quick
    assert seconds < 60
    assert profile.complete
    assert profile.missing == ()
    assert {row.dtype for row in profile.matmul} == {"fp32", "bf16"}
    assert profile.memory_bandwidth
    assert profile.layers
    assert profile.optimizer
    assert {row.operation for row in profile.links} == {"send_recv", "all_reduce"}
    assert all(row.verified for row in profile.links)
    assert profile.host.torch


def test_the_matmul_rate_is_that_of_an_independent_benchmark() -> None:
    # Both take turns in one process, and the best turn of each counts: other work on the machine
    # comes and goes, and must not hit only one of them; where it does, they take more turns.
    script = (
        "import torch\n"
        "from torch.utils.benchmark import Timer\n"
        "from hetcli.probe.compute import matmul\n"
        "from hetcli.probe.torch_device import Target\n"
        "m, n, k = 512, 512, 1024\n"
        "a, b, out = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)\n"
        "timer = Timer('torch.mm(a, b, out=out)', globals=dict(a=a, b=b, out=out, torch=torch),\n"
        "              num_threads=torch.get_num_threads())\n"
        "ours, theirs = [], []\n"
        "for turn in range(40):\n"
        "    row = matmul(Target(0, None), dtype='fp32', m=m, n=n, k=k, seconds=0.4)\n"
        "    ours.append(row.flop_per_s)\n"
        "    theirs.append(2 * m * n * k / timer.blocked_autorange(min_run_time=0.3).median)\n"
        "    if turn >= 7 and abs(max(ours) / max(theirs) - 1) < 0.05:\n"
        "        break\n"
        "print(max(ours), max(theirs))\n"
    )
    env = environment(OMP_WAIT_POLICY="PASSIVE")
    printed = subprocess.check_output([sys.executable, "-c", script], text=True, env=env)
    ours, theirs = map(float, printed.split())
    assert ours == pytest.approx(theirs, rel=0.10)


def test_a_plan_is_made_with_what_was_measured(
    quick: tuple[Path, Profile, float], tmp_path: Path
) -> None:
    cluster, hardware, plan = (tmp_path / name for name in ("c.yaml", "h.json", "plan.json"))
    walk = [
        ["profile", "merge", quick[0], "-o", cluster],
        ["fit", quick[0], "-o", hardware],
        ["plan", "--cluster", cluster, "--hardware", hardware, "--model", "gpt2",
         "--global-batch", "8", "--seq-len", "512", "-o", plan],
    ]  # fmt: skip
    for step in walk:
        done = CliRunner().invoke(app, [str(word) for word in step])
        assert done.exit_code == 0, done.output
    made = json.loads(plan.read_text())
    # The document of --hardware itself, so that the plan can be computed again without the file.
    assert made["inputs"]["cluster"]["hardware"] == json.loads(hardware.read_text())
    assert {rates["origin"] for rates in made["inputs"]["cluster"]["hardware"]["compute"]} == {
        "fitted"
    }
    assert {stage["origin"] for stage in made["predicted"]["stages"]} == {"fitted"}


def test_inventory_alone_measures_nothing(tmp_path: Path) -> None:
    done = run("--device", "cpu", "--no-measure", "-o", str(tmp_path / "p.json"))
    assert done.returncode == 0, done.stderr
    profile = read_document(tmp_path / "p.json", Profile)
    assert profile.devices
    assert (profile.matmul, profile.links) == ((), ())
    assert "only the inventory was asked for" in profile.notes


def test_a_recorded_driver_is_read_in_the_process(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    done = run("--no-measure", "-o", str(path), env=environment("display_card"))
    assert done.returncode == 0, done.stderr
    profile = read_document(path, Profile)
    assert [device.usable for device in profile.devices] == [True, True, True, False, True]
    assert "left out" in done.stdout
    assert "drives a display" in done.stdout


def test_both_cards_of_a_mixed_machine_are_planned_and_started(tmp_path: Path) -> None:
    # Case cuda-order-mixed (https://github.com/gpustack/gpustack/issues/1633): CUDA alone would
    # call the 4090 device 0.
    profile, cluster, plan, launch = (
        tmp_path / name for name in ("p.json", "cluster.yaml", "plan.json", "launch")
    )
    done = run(
        "--no-measure", "--name", "n0", "-o", str(profile), env=environment("mixed_3090_4090")
    )
    assert done.returncode == 0, done.stderr
    inputs = ["--cluster", cluster, "--model", "gpt2-xl", "--gbs", 16, "--no-compare"]
    for step in (
        ["profile", "merge", profile, "-o", cluster],
        ["plan", *inputs, "-o", plan],
        ["export", plan, "-o", launch],
    ):
        result = CliRunner().invoke(app, [str(word) for word in step])
        assert result.exit_code == 0, result.output
    stages = json.loads(plan.read_text())["stages"]
    planned = [device["index"] for stage in stages for device in stage["devices"]]
    assert sorted(planned) == [0, 1]
    (script,) = (path.read_text() for path in launch.glob("run_node_*.sh"))
    assert "NODE_NAME=n0\n" in script
    assert "CUDA_DEVICE_ORDER='PCI_BUS_ID'" in script or "CUDA_DEVICE_ORDER=PCI_BUS_ID" in script
    assert f"CUDA_VISIBLE_DEVICES='{','.join(map(str, planned))}'" in script


# Case no-driver (https://github.com/deepfakes/faceswap/issues/778, no library at all, and
# https://github.com/deepfakes/faceswap/pull/552, a driver that is not loaded): no traceback.
@pytest.mark.parametrize(
    ("init", "arguments", "says"),
    [
        ("LIBRARY_NOT_FOUND", ["--device", "gpu"], "no NVIDIA driver library"),
        ("DRIVER_NOT_LOADED", [], "not loaded"),
        ("LIB_RM_VERSION_MISMATCH", [], "different versions"),
    ],
)
def test_an_unusable_driver_is_three_lines_and_exit_code_3(
    tmp_path: Path, init: str, arguments: list[str], says: str
) -> None:
    recording = tmp_path / "driver.json"
    recording.write_text(json.dumps({"init": {"error": init}}))
    env = environment("gb10")
    env["NVML_ANSWERS"] = str(recording)
    done = run(*arguments, "-o", str(tmp_path / "p.json"), env=env)
    assert done.returncode == 3
    assert done.stdout == ""
    what, why, fix = done.stderr.splitlines()
    assert what.startswith("error: ")
    assert says in what
    assert why.startswith("  why: ")
    assert fix.startswith("  try: ")
    assert not (tmp_path / "p.json").exists()


def test_without_a_driver_everything_but_measuring_works(tmp_path: Path) -> None:
    # Case no-driver, its second half. Here torch cannot even be imported.
    recording = tmp_path / "driver.json"
    recording.write_text(json.dumps({"init": {"error": "LIBRARY_NOT_FOUND"}}))
    (tmp_path / "torch.py").write_text("raise ImportError('no torch on this machine')\n")
    env = environment("gb10")
    env["NVML_ANSWERS"] = str(recording)
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    plan = str(tmp_path / "plan.json")
    inputs = ["--cluster", "A100:8", "--model", "gpt2", "--gbs", "8", "--no-compare"]
    for words in (
        ["--version"],
        ["--help"],
        ["plan", *inputs, "-o", plan],
        ["export", plan, "-o", str(tmp_path / "launch")],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "hetcli", *words],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env=env,
        )
        assert done.returncode == 0, done.stderr
    assert list((tmp_path / "launch").iterdir())


def test_a_driver_that_dies_half_way_is_exit_code_3(tmp_path: Path) -> None:
    recorded = json.loads((RECORDINGS / "dgx_a100.json").read_text())
    recording = tmp_path / "driver.json"
    recording.write_text(json.dumps({**recorded, "dies_after": 1}))
    env = environment("dgx_a100")
    env["NVML_ANSWERS"] = str(recording)
    done = run(env=env)
    assert done.returncode == 3
    assert "stopped answering" in done.stderr
    assert "Traceback" not in done.stderr


def test_gpus_that_torch_cannot_use_are_missing_and_the_inventory_is_kept(tmp_path: Path) -> None:
    # A recorded driver and a torch without CUDA: every device fails, and says why once a step.
    path = tmp_path / "p.json"
    done = run("--quick", "-o", str(path), env=environment("mixed_3090_4090"))
    assert done.returncode == 3
    profile = read_document(path, Profile)
    assert len(profile.devices) == 2
    assert not profile.complete
    assert profile.missing
    assert "gave no result" in done.stderr


def children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A long profile that has measured something and has processes of its own."""
    path = tmp_path / "p.json"
    arguments = ["--device", "cpu", "--full", "-o", str(path)]
    with subprocess.Popen(
        [sys.executable, "-m", "hetcli", "profile", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if path.exists() and read_document(path, Profile).memory_bandwidth:
                break
            time.sleep(0.1)
        yield process, path
        process.kill()


def all_gone(processes: list[psutil.Process], within: float = 5.0) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=within)
    return not alive


def test_ctrl_c_ends_with_130_and_keeps_what_was_measured(
    running: tuple[subprocess.Popen[str], Path],
) -> None:
    process, path = running
    started = children(process.pid)
    assert started
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert all_gone(started)
    profile = read_document(path, Profile)
    assert profile.memory_bandwidth
    assert not profile.complete


def test_a_profiler_that_is_killed_leaves_no_process_behind(
    running: tuple[subprocess.Popen[str], Path],
) -> None:
    process, path = running
    started = children(process.pid)
    assert started
    process.kill()
    process.wait(timeout=20)
    assert all_gone(started)
    assert read_document(path, Profile).memory_bandwidth


def test_a_measuring_process_that_is_killed_costs_its_own_row(
    running: tuple[subprocess.Popen[str], Path],
) -> None:
    process, path = running
    (worker,) = children(process.pid)
    worker.kill()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        profile = read_document(path, Profile)
        if profile.missing and profile.matmul:
            break
        time.sleep(0.1)
    assert [each.why for each in profile.missing] == [
        "the measuring process was killed by signal 9: it said nothing"
    ]


def test_resuming_keeps_what_the_file_holds(quick: tuple[Path, Profile, float]) -> None:
    path, profile, _ = quick
    copy = path.with_name("again.json")
    text = profile.model_copy(update={"optimizer": ()}).model_dump_json()
    copy.write_text(text)
    done = run("--device", "cpu", "--quick", "--resume", "-o", str(copy))
    assert done.returncode == 0, done.stderr
    again = read_document(copy, Profile)
    assert again.matmul == profile.matmul
    assert again.links == profile.links
    assert again.optimizer
    assert again.optimizer != profile.optimizer


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--quick", "--full"], "opposites"),
        (["--resume"], "-o PATH"),
        (["--hosts", "a", "-o", "-"], "name a folder"),
        (["--hosts", "a", "--hostfile", "b"], "give one"),
        (["--hosts", "n[0-"], "bracket"),
        (["--model", "no-such-model"], "no-such-model"),
    ],
)
def test_contradictions_are_refused_before_anything_is_measured(
    arguments: list[str], says: str
) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""


def test_help_shows_the_options_of_the_bare_command_and_the_subcommands() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "--quick" in done.stdout
    assert "merge" in done.stdout
