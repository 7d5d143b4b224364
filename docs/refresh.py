"""Rewrite the outputs that README.md and docs/ quote: what they show is what the tool prints.

A block to refresh looks like this, where the command runs in the project's root:

    <!-- output: hetcli gpus T4 -->
    ```text
    ...
    ```

`python docs/refresh.py` rewrites the blocks; `--check` only says whether they are up to date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- output: (?P<command>.+?) -->\n```text\n)(?P<text>.*?)(```)", re.DOTALL)


def output_of(command: str) -> str:
    """What the command prints to stdout, without trailing blanks."""
    # The interpreter's own folder first, so that the installed hetcli of this environment runs.
    script = f'export PATH="{Path(sys.executable).parent}:$PATH"; {command}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.rstrip().splitlines())


def refreshed(text: str) -> str:
    """The document with every quoted output made anew."""
    return BLOCK.sub(
        lambda found: found[1] + output_of(found["command"]) + found[4],
        text,
    )


def main() -> int:
    """Refresh, or check; 1 when a document was stale in a check."""
    check = "--check" in sys.argv[1:]
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        old = path.read_text(encoding="utf-8")
        new = refreshed(old)
        if new != old:
            stale.append(path)
            if not check:
                path.write_text(new, encoding="utf-8")
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'stale' if check else 'refreshed'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
