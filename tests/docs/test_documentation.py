"""The documentation is true: its commands run, its options exist, its links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^>]*) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A fenced block; `note` is the comment above it."""

    note: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [
        Block(found["note"] or "", found["language"], found["text"])
        for found in BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def is_run_here(block: Block) -> bool:
    # .ci/run runs the blocks that are called "command: ...".
    return not block.note.startswith(("command: ", "not run: ", "output: "))


def commands_of(text: str) -> list[list[str]]:
    """The calls of hetcli in a shell block, as words."""
    joined = text.replace("\\\n", " ")
    words = (shlex.split(line, comments=True) for line in joined.splitlines())
    found = []
    for line in words:
        if "hetcli" in line:
            call = line[line.index("hetcli") + 1 :]
            ends = [call.index(sign) for sign in (">", "|", "&&") if sign in call]
            found.append(call[: min(ends, default=len(call))])
    return [call for call in found if call]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with what the pages say a reader has: a model's config.json."""
    (tmp_path / "path" / "to").mkdir(parents=True)
    preset = ROOT / "hetcli" / "catalog" / "models" / "llama-3-8b.json"
    shutil.copy(preset, tmp_path / "path" / "to" / "config.json")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_of_a_page_run_in_order(page: Path, folder: Path) -> None:
    python = Path(sys.executable)
    environment = {
        **os.environ,
        "PATH": f"{_hetcli(folder)}:{python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    for block in blocks(page):
        if block.language == "yaml" and (name := re.match(r"# ([\w-]+\.yaml)", block.text)):
            (folder / name[1]).write_text(block.text, encoding="utf-8")
        if block.language not in ("sh", "python") or not is_run_here(block):
            continue
        interpreter = ["bash", "-euo", "pipefail", "-c"]
        if block.language == "python":
            interpreter = [str(python), "-W", "error", "-c"]
        done = subprocess.run(
            [*interpreter, block.text],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        expected = re.fullmatch(r"exit: (\d+)", block.note)
        wanted = int(expected[1]) if expected else 0
        assert done.returncode == wanted, f"{block.text}\n{done.stdout}\n{done.stderr}"


def _hetcli(folder: Path) -> Path:
    """A folder with a `hetcli` that is this checkout's."""
    programs = folder / ".programs"
    programs.mkdir()
    script = programs / "hetcli"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hetcli "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return programs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_that_cannot_run_name_options_that_exist(page: Path) -> None:
    import typer

    from hetcli.cli import app

    root = typer.main.get_command(app)
    assert _command_of(root, ["plan", "--tp"])[1] == ["--tp"]
    for block in blocks(page):
        if block.language != "sh" or is_run_here(block):
            continue
        assert len(block.note) > len("not run: "), "say why a block is not run"
        for call in commands_of(block.text):
            command, words = _command_of(root, call)
            known = _options_of(command)
            used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            assert used <= known, f"{page.name}: {used - known} in {call}"


def _command_of(root: Any, call: list[str]) -> tuple[Any, list[str]]:
    """The command that a call names, and the words behind it."""
    command = root
    while call and call[0] in getattr(command, "commands", {}):
        command, call = command.commands[call[0]], call[1:]
    return command, call


def _options_of(command: Any) -> set[str]:
    """All spellings; those of a group are also its commands', of which one may be the default."""
    found = {"-h", "--help"}
    for each in (command, *getattr(command, "commands", {}).values()):
        found |= {name for option in each.params for name in (*option.opts, *option.secondary_opts)}
    return found


def test_manual_is_that_of_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "manual.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}; run python docs/manual.py"


def test_man_page_is_read_without_a_complaint() -> None:
    if shutil.which("man") is None or shutil.which("groff") is None:
        pytest.skip("man and groff are not installed")
    done = subprocess.run(
        ["man", "--warnings", "-l", str(ROOT / "docs" / "hetcli.1")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "MANPAGER": "cat", "LC_ALL": "C.UTF-8", "MANWIDTH": "200"},
    )
    assert done.stderr == ""
    assert "hetcli report" in done.stdout


def test_site_builds_without_a_broken_link_or_anchor(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        # The theme announces its maker's plans on standard error otherwise.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "how-to" / "index.html").exists()


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^):#]+)(?:#([^)]+))?\)", text)
    assert targets
    for path, anchor in targets:
        assert (ROOT / path).exists(), path
        assert not anchor or anchor in anchors_of(ROOT / path), f"{path}#{anchor}"


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub and mkdocs give to headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}
