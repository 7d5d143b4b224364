"""Every expected failure: the exit code of its kind, three parts on stderr, nothing on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hetcli.cli import app

PLAN = ["plan", "--model", "llama-2-7b", "--global-batch", "64", "--seq-len", "2048"]
ESTIMATE = ["estimate", *PLAN[1:], "--cluster", "A100-80GB:8"]


def run(*arguments: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def assert_three_parts(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert any(line.startswith("  why: ") for line in lines), result.stderr
    assert any(line.startswith("  try: ") for line in lines), result.stderr
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PLAN, "--cluster", "sample:dgx-a100-v10"], ["dgx-a100-v100"]),
        ([*PLAN, "--cluster", "A100-90GB:8"], ["A100-90GB", "A100"]),
        ([*PLAN, "--cluster", "missing.yaml"], ["missing.yaml", "no such file"]),
        (["plan", "--cluster", "A100:8", "--model", "lama-2-7b", "--gbs", "8"], ["llama-2-7b"]),
        (["plan", "--cluster", "A100:8", "--model", "llama-2-7b"], ["--global-batch"]),
        ([*ESTIMATE, "--tp", "3"], ["3", "32", "1, 2, 4"]),
        ([*ESTIMATE, "--pp", "4", "--stage-layers", "8,8,8,7"], ["31", "32"]),
        ([*ESTIMATE, "--memory-margin", "2"], ["GiB"]),
        (["gpus", "A100-90"], ["A100"]),
        (["models", "llama-2-8b"], ["llama-2-7b"]),
        (["export", "no-plan.json"], ["no-plan.json"]),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else None,
)
def test_usage_errors_say_what_works(arguments: list[str], words: list[str]) -> None:
    assert_three_parts(run(*arguments), 2, *words)


def test_a_negative_answer_is_exit_code_one_with_the_nearest_miss() -> None:
    result = run(
        "plan", "--cluster", "T4:4", "--model", "llama-2-13b", "--gbs", "64", "--seq-len", "2048"
    )
    assert_three_parts(result, 1, "fits", "GiB")


def test_a_batch_that_does_not_divide_is_never_changed_silently() -> None:
    assert_three_parts(run(*ESTIMATE, "--mbs", "3"), 1, "64", "48", "72")


def test_an_estimate_that_does_not_fit_is_printed_and_says_no() -> None:
    result = run(
        "estimate",
        *["--cluster", "T4:1", "--model", "llama-2-13b", "--gbs", "8", "--seq-len", "2048"],
    )
    assert result.exit_code == 1
    assert "does not fit" in result.stdout


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff\xfe",
        b"nodes: &a [*a]",
        b"schema_version: 1\nname: x\nnodes: -4\n",
        b"{}",
        b"",
        b"!!python/object/apply:os.system ['true']",
        b"name: .nan\n",
        b"- 1\n- 2\n",
    ],
)
def test_a_broken_file_is_a_usage_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(content)
    assert_three_parts(run(*PLAN, "--cluster", str(path)), 2, "cluster.yaml")
    assert_three_parts(run(*PLAN, "--cluster", "-", stdin=content), 2, "<stdin>")


def test_an_unknown_option_is_a_usage_error() -> None:
    assert run(*PLAN, "--cluster", "A100:8", "--frobnicate").exit_code == 2


def test_debug_brings_the_traceback_back() -> None:
    result = run(*PLAN, "--cluster", "missing.yaml", "--debug")
    assert result.exit_code == 1
    assert type(result.exception).__name__ == "SpecError"


def test_an_unwritable_output_is_an_environment_error(tmp_path: Path) -> None:
    result = run("profile", "--no-measure", "-o", str(tmp_path / "missing" / "profile.json"))
    assert result.exit_code == 3
    assert "cannot be written" in result.stderr
