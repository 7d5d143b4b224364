"""What frameworks print is read, every iteration of it and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.adapt.logs import Log, read_log

LOGS = Path(__file__).parent / "logs"
GIB = 2**30
MIB = 2**20


def log(name: str) -> Log:
    found = read_log((LOGS / f"{name}.log").read_text().splitlines())
    assert found is not None
    return found


def numbers(found: Log) -> list[int]:
    return [row.number for row in found.iterations]


def test_megatron_with_throughput_and_memory() -> None:
    found = log("megatron")
    assert found.format == "megatron"
    assert numbers(found) == [2, 3, 4]
    assert [row.seconds for row in found.iterations] == pytest.approx([5.6301, 5.4106, 5.3641])
    first = found.iterations[0]
    assert first.flop_per_s == pytest.approx(231.9e12)
    assert (first.global_batch, first.loss, first.line) == (128, pytest.approx(2.02153), 4)
    assert found.memory_bytes == pytest.approx(54250.98583984375 * MIB)


def test_megatron_of_2021_and_a_fork() -> None:
    assert numbers(log("megatron_old")) == [30]
    assert log("megatron_old").iterations[0].seconds == pytest.approx(0.1234)
    assert [row.seconds for row in log("megatron_llm").iterations] == pytest.approx(
        [86.5452, 87.8716, 89.4748]
    )


def test_megatron_deepspeed_in_seconds() -> None:
    found = read_log(
        [
            " iteration      812/  159576 | consumed samples:       12992 | consumed tokens:  "
            "26607616 | elapsed time per iteration (s): 11.77 | learning rate: 3.599E-06 | global "
            "batch size:    16 | lm loss: 6.9E+00 | loss scale: 4096.0 | samples per second: 1.360 "
            "| TFLOPs: 10.19 |"
        ]
    )
    assert found is not None
    [row] = found.iterations
    assert row.seconds == pytest.approx(11.77)
    assert row.samples_per_s == pytest.approx(1.36)
    assert row.flop_per_s == pytest.approx(10.19e12)


def test_deepspeed_old_and_new() -> None:
    old = log("deepspeed_old")
    assert (old.format, numbers(old)) == ("deepspeed", [40, 50])
    assert old.iterations[0].samples_per_s == pytest.approx(83.486, abs=1e-3)
    assert old.memory_bytes == pytest.approx(9.02 * GIB)
    new = log("deepspeed")
    assert numbers(new) == [17, 18, 21]
    assert new.iterations[0].samples_per_s == pytest.approx(159.6289, abs=1e-3)
    assert new.memory_bytes == pytest.approx(2.62 * GIB)


def test_deepspeed_pipeline_engine() -> None:
    found = read_log(["steps: 20 loss: 4.3990 iter time (s): 0.451 samples/sec: 8.869"])
    assert found is not None
    [row] = found.iterations
    assert (row.number, row.loss) == (20, 4.399)
    assert row.seconds == pytest.approx(0.451)


def test_of_two_formats_in_one_log_the_one_with_times_is_taken() -> None:
    found = log("neox")
    assert (found.format, numbers(found)) == ("megatron", [34])
    [row] = found.iterations
    assert row.seconds == pytest.approx(4.1031)
    assert row.flop_per_s == pytest.approx(112.9e12)
    assert row.loss == pytest.approx(11.18665)
    assert found.memory_bytes == pytest.approx(63.31 * GIB)


def test_torchtitan_prints_a_step_once_a_rank() -> None:
    found = log("torchtitan")
    assert (found.format, numbers(found)) == ("torchtitan", [4, 5, 14])
    assert [row.tokens_per_s for row in found.iterations] == [10050, 10007, 7282]
    assert found.memory_bytes == pytest.approx(66.91 * GIB)


def test_nemo() -> None:
    found = log("nemo")
    assert (found.format, numbers(found)) == ("nemo", [120, 121])
    assert found.iterations[1].seconds == pytest.approx(0.03163)
    assert found.iterations[1].global_batch == 1


def test_iterations_without_a_time_are_nothing_to_read() -> None:
    assert read_log((LOGS / "nemo_untimed.log").read_text().splitlines()) is None


def test_every_iteration_of_the_published_logs_is_read_and_no_other_line() -> None:
    words = {
        "megatron": "elapsed time per iteration",
        "deepspeed": "SamplesPerSec",
        "torchtitan": " tps: ",
        "nemo": "train_step_timing in s",
    }
    for file in LOGS.glob("*.log"):
        lines = file.read_text().splitlines()
        found = read_log(lines)
        if found is None:
            continue
        wanted = {number for number, line in enumerate(lines, 1) if words[found.format] in line}
        read = {row.line for row in found.iterations}
        assert read <= wanted, file
        # Only further ranks' copies of a step are left out.
        assert len(wanted) - len(read) == (2 if found.format == "torchtitan" else 0), file


def test_prefixes_and_colours_do_not_matter() -> None:
    line = (LOGS / "megatron.log").read_text().splitlines()[3]
    for dressed in (f"[default7]:{line}", f"12: {line}", f"\x1b[32m{line}\x1b[0m", f"{line}\r"):
        found = read_log([dressed])
        assert found is not None
        assert found.iterations[0].seconds == pytest.approx(5.6301)


def test_timers_of_every_rank() -> None:
    found = read_log(
        [
            " iteration        1/     100 | elapsed time per iteration (ms): 100.0 |",
            "times across ranks (ms):",
            "  forward-compute:",
            "     rank  0: 40.25",
            "     rank  1: 60.50",
            "  backward-compute:",
            "     rank  0: 80.00",
            " iteration        2/     100 | elapsed time per iteration (ms): 101.0 |",
            "     rank  1: 99.00",
        ]
    )
    assert found is not None
    assert found.timers == {
        ("forward-compute", 0): (0.04025,),
        ("forward-compute", 1): (0.0605,),
        ("backward-compute", 0): (0.08,),
    }


@given(st.lists(st.text(max_size=80)))
def test_any_other_text_is_no_log(lines: list[str]) -> None:
    assert read_log(lines) is None


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=200))
def test_words_of_a_format_in_another_order_are_no_iteration(text: str) -> None:
    assert read_log([f"elapsed time per iteration (ms): {text} iteration 1/ 2"]) is None
