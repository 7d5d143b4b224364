"""What the README shows is what the tool prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_quoted_outputs_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "refresh.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}; run python docs/refresh.py"


def test_every_command_of_the_table_exists() -> None:
    from hetcli.cli import app

    known = {command.name for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    rows = [
        line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `")
    ]
    named = {
        cell.strip().strip("`").removeprefix("hetcli ").split()[0]
        for row in rows
        for cell in row.split("|")[1].split(",")
    }
    assert named == known
