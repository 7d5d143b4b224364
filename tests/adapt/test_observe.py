"""A run beside its plan: what came true, what drifted, who is slow."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trial"))
from tiny import cluster, configuration, devices, model, plan, stage

from hetcli.adapt.correct import corrected
from hetcli.adapt.logs import Log, read_log
from hetcli.adapt.observe import observe
from hetcli.cli import app
from hetcli.errors import ConfigurationError, SpecError
from hetcli.spec.base import Origin
from hetcli.spec.hardware import ComputeRates, HardwareFile
from hetcli.spec.observation import Correction, Observation
from hetcli.spec.plan import Plan


def planned() -> Plan:
    stages = [
        stage([(0, 2)], [(devices(0, 1), 4), (devices(1, 1), 4)]),
        stage([(2, 2)], [(devices(2, 1), 4), (devices(3, 1), 4)]),
    ]
    return plan(configuration(stages, batch=8), model(), cluster(devices=4))


def megatron(seconds: list[float], timers: dict[str, list[float]] | None = None) -> Log:
    lines = [
        f" iteration {number:8d}/ 1000 | consumed samples: 8 | elapsed time per iteration (ms): "
        f"{value * 1e3:.4f} | global batch size: 8 | lm loss: 4.0E+00 |"
        for number, value in enumerate(seconds, start=1)
    ]
    if timers:
        lines.append("times across ranks (ms):")
        for name, values in timers.items():
            lines.append(f"  {name}:")
            lines += [
                f"     rank {rank:2d}: {value * 1e3:.6f}" for rank, value in enumerate(values)
            ]
    found = read_log(lines)
    assert found is not None
    return found


def deepspeed(samples_per_s: float) -> Log:
    head = "[2023-01-01 00:00:00,000] [INFO] [timer.py:199:stop]"
    found = read_log(
        f"{head} epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=1.0, "
        f"CurrSamplesPerSec={samples_per_s}, MemAllocated=1.0GB, MaxMemAllocated=2.0GB"
        for n in range(1, 30)
    )
    assert found is not None
    return found


def test_warm_up_is_left_out_and_slow_iterations_are_named() -> None:
    log = megatron([9.0] * 5 + [1.0] * 20 + [4.0] + [1.0] * 4)
    seen = observe([("train.log", log)], None, tolerance=0.1)
    [described] = seen.logs
    assert (described.iterations, described.skipped) == (30, 5)
    assert described.step_time_s == pytest.approx(1.0)
    assert described.slow_iterations == (26,)
    assert seen.step_time_s.predicted is None
    assert not seen.drift


def test_a_run_as_planned_does_not_drift() -> None:
    given = planned()
    log = megatron([given.predicted.step_time_s * 1.02] * 20)
    seen = observe([("train.log", log)], given, tolerance=0.05)
    assert not seen.drift
    assert seen.step_time_s.error == pytest.approx(1 / 1.02 - 1, rel=0.01)
    tokens = given.inputs.workload.global_batch * given.inputs.workload.sequence
    assert seen.tokens_per_s.measured == pytest.approx(
        tokens / (given.predicted.step_time_s * 1.02), rel=0.01
    )


def test_a_slower_run_drifts_and_corrects_what_computes() -> None:
    given = planned()
    parts = given.predicted.breakdown_s
    scaling = parts["compute"] + parts["pipeline_bubble"]
    log = megatron([given.predicted.step_time_s + 0.4 * scaling] * 20)
    seen = observe([("train.log", log)], given, tolerance=0.05)
    assert seen.drift
    [correction] = seen.corrections
    assert correction.device == "made-up"
    assert correction.factor == pytest.approx(1.4, rel=0.01)
    assert correction.origin is Origin.MEASURED


def test_rates_become_times_through_the_batch_of_the_plan() -> None:
    given = planned()
    seen = observe([("ds.log", deepspeed(16.0))], given, tolerance=0.5)
    assert seen.step_time_s.measured == pytest.approx(8 / 16.0)
    assert seen.peak_memory_bytes.measured == pytest.approx(2 * 2**30)


def test_rates_without_a_plan_are_refused_with_what_helps() -> None:
    with pytest.raises(SpecError, match="no iteration time") as caught:
        observe([("ds.log", deepspeed(16.0))], None, tolerance=0.1)
    assert "--plan" in caught.value.fix


def test_the_slow_rank_of_a_stage_is_named_not_the_slower_stage() -> None:
    given = planned()
    forward = [each.forward_s * 4 for each in given.predicted.stages for _ in range(2)]
    forward[3] *= 1.6
    backward = [each.backward_s * 4 for each in given.predicted.stages for _ in range(2)]
    log = megatron(
        [given.predicted.step_time_s] * 20,
        {"forward-compute": forward, "backward-compute": backward},
    )
    [slow] = observe([("train.log", log)], given, tolerance=0.5).slow_ranks
    assert (slow.rank, slow.stage, slow.timer) == (3, 1, "forward-compute")
    assert slow.slowness == pytest.approx(1.6, rel=0.01)


def test_timers_give_the_factor_of_each_device_type() -> None:
    given = planned()
    forward = [each.forward_s * 4 * 1.2 for each in given.predicted.stages for _ in range(2)]
    log = megatron([given.predicted.step_time_s * 3] * 20, {"forward-compute": forward})
    [correction] = observe([("train.log", log)], given, tolerance=0.5).corrections
    assert correction.factor == pytest.approx(1.2, rel=0.01)


def rates(device: str) -> ComputeRates:
    return ComputeRates(
        device=device,
        dtype="fp32",
        flop_per_s=1e12,
        left_s=1e-12,
        right_s=0.0,
        output_s=0.0,
        launch_s=1e-6,
        origin=Origin.FITTED,
        rows=12,
        residual=0.02,
        versus_shipped=1.1,
        source="profile",
    )


def observed(device: str, factor: float) -> Observation:
    seen = observe([("train.log", megatron([1.0] * 20))], None, tolerance=0.1)
    correction = Correction(device=device, factor=factor, origin=Origin.MEASURED, rows=20)
    return seen.model_copy(update={"corrections": (correction,)})


def test_corrections_are_written_into_the_rates_they_belong_to() -> None:
    hardware = HardwareFile(
        name="mine", hetcli_version="0", compute=(rates("made-up"), rates("other"))
    )
    slow, other = corrected(hardware, observed("made-up", 1.25)).compute
    assert slow.flop_per_s == pytest.approx(0.8e12)
    assert slow.launch_s == pytest.approx(1.25e-6)
    assert slow.origin is Origin.MEASURED
    assert slow.versus_shipped == pytest.approx(1.375)
    assert other == rates("other")


def test_corrections_of_devices_that_the_hardware_lacks_are_refused() -> None:
    hardware = HardwareFile(name="mine", hetcli_version="0", compute=(rates("other"),))
    with pytest.raises(ConfigurationError, match="nothing to correct in mine"):
        corrected(hardware, observed("made-up", 1.25))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["observe", *arguments])


def test_the_command_says_drift_with_its_exit_code(tmp_path: Path) -> None:
    given = planned()
    (tmp_path / "plan.json").write_text(given.model_dump_json())
    line = " iteration {:8d}/ 1000 | elapsed time per iteration (ms): {:.4f} |\n"
    for name, factor in (("good", 1.01), ("bad", 2.0)):
        text = "".join(
            line.format(number, given.predicted.step_time_s * 1e3 * factor)
            for number in range(1, 30)
        )
        (tmp_path / f"{name}.log").write_text(text)
    planned_ = ["--plan", str(tmp_path / "plan.json")]
    good = run(str(tmp_path / "good.log"), *planned_, "--json")
    assert good.exit_code == 0
    assert json.loads(good.stdout)["drift"] is False
    bad = run(str(tmp_path / "bad.log"), *planned_)
    assert bad.exit_code == 1
    assert "drifted" in bad.stdout


def test_a_file_that_is_no_log_is_bad_usage(tmp_path: Path) -> None:
    (tmp_path / "no.log").write_bytes(b"\xff\x00 nothing\n" * 10)
    assert run(str(tmp_path / "no.log")).exit_code == 2
    assert run(str(tmp_path / "missing.log")).exit_code == 2
