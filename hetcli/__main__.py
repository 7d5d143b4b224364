"""`python -m hetcli`."""

from __future__ import annotations

from hetcli.cli import main

if __name__ == "__main__":
    main()
