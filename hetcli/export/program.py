"""What a target wants started: options with the plan fact that asks for each, files, variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetcli.export.launch import LaunchFile

__all__ = ["Argument", "ArgumentGroup", "Program", "Variable"]


@dataclass(frozen=True, slots=True)
class Argument:
    """One option of the training script, and the plan fact that asks for it."""

    option: str
    values: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class ArgumentGroup:
    """Options that belong together; `name` is the shell array that holds them."""

    name: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable, and the plan fact that asks for it."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class Program:
    """What every rank runs.

    `groups` are equal on all nodes, `node_groups` (by node rank) are not. `settings` fill the
    target's own shell template `template`. `user_variables` are the environment variables that the
    template reads from the user; `steps_before` (Markdown) say what to do before the start.
    """

    template: str
    groups: tuple[ArgumentGroup, ...] = ()
    node_groups: Mapping[int, tuple[ArgumentGroup, ...]] = field(default_factory=dict)
    variables: tuple[Variable, ...] = ()
    files: tuple[LaunchFile, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    user_variables: tuple[str, ...] = ()
    steps_before: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
