"""What `hetcli export` says of the directory that it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from hetcli.export import LaunchDirectory

__all__ = ["launch_document", "launch_files", "launch_view"]
