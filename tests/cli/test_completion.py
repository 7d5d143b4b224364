"""The shells that people use get a completion that knows the commands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def hetcli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = "import sys; sys.argv[0] = 'hetcli'; from hetcli.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed(shell: str) -> None:
    done = hetcli(_HETCLI_COMPLETE=f"source_{shell}")
    assert done.returncode == 0, done.stderr
    assert "_HETCLI_COMPLETE" in done.stdout


def test_commands_and_options_are_completed() -> None:
    words = {"_HETCLI_COMPLETE": "complete_bash", "COMP_WORDS": "hetcli re", "COMP_CWORD": "1"}
    assert "report" in hetcli(**words).stdout.split()
    words |= {"COMP_WORDS": "hetcli plan --tensor", "COMP_CWORD": "2"}
    assert "--tensor-parallel" in hetcli(**words).stdout.split()
