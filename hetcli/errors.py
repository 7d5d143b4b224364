"""Every error that hetcli raises on purpose, and the exit code each ends the process with.

    HetcliError
    ├── UsageError                 2   the command line or an input file is wrong
    │   ├── SpecError                  a file does not say what its format asks for (file:line)
    │   ├── UnknownNameError           a GPU, model, link, sample or target that no catalogue holds
    │   ├── ModelError                 a model whose architecture or dimensions are impossible
    │   └── ConfigurationError         a requested parallel configuration that no framework can run
    ├── NegativeAnswer             1   the question was understood and the answer is no
    │   ├── InfeasibleError            no plan fits; carries the nearest miss
    │   └── UnsupportedByTargetError   the target framework cannot run this plan
    ├── EnvironmentFailure         3   the machine failed: no driver, no host, no time left
    │   └── OutputError                the result could not be written
    └── Interrupted              130   stopped by the user

An error has three parts: what is wrong, why it is wrong, and what would work. `hetcli.cli` prints
them; nothing else does.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "ConfigurationError",
    "EnvironmentFailure",
    "ExitCode",
    "HetcliError",
    "InfeasibleError",
    "Interrupted",
    "ModelError",
    "NegativeAnswer",
    "OutputError",
    "SpecError",
    "UnknownNameError",
    "UnsupportedByTargetError",
    "UsageError",
]


class ExitCode(IntEnum):
    """What the process tells its caller (the table of the README)."""

    YES = 0
    NO = 1
    USAGE = 2
    ENVIRONMENT = 3
    INTERRUPTED = 130


class HetcliError(Exception):
    """An expected failure.

    `what` names the thing and its value, `why` the rule it breaks, `fix` what would work.
    """

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what = what
        self.why = why
        self.fix = fix
        super().__init__("; ".join(part for part in (what, why, fix) if part))


class UsageError(HetcliError):
    """The command line or a file is wrong; nothing was computed."""

    exit_code = ExitCode.USAGE


class SpecError(UsageError):
    """A file does not follow its format; `what` starts with file:line."""


class UnknownNameError(UsageError):
    """A name that no catalogue holds; `fix` lists the nearest ones."""


class ModelError(UsageError):
    """A model architecture that hetcli does not know, or dimensions that cannot exist."""


class ConfigurationError(UsageError):
    """A requested parallel configuration that breaks a rule of arithmetic or of the framework."""


class NegativeAnswer(HetcliError):
    """The question was understood, and the answer is no."""

    exit_code = ExitCode.NO


class InfeasibleError(NegativeAnswer):
    """No configuration satisfies every limit; the nearest miss stands in `fix`."""


class UnsupportedByTargetError(NegativeAnswer):
    """The target framework cannot run this plan; `fix` names a command that plans within it."""


class EnvironmentFailure(HetcliError):
    """The machine failed, not the question; what was measured so far has been written."""

    exit_code = ExitCode.ENVIRONMENT


class OutputError(EnvironmentFailure):
    """A result could not be written."""


class Interrupted(HetcliError):
    """Stopped by the user."""

    exit_code = ExitCode.INTERRUPTED
