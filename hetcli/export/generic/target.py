"""A plan for a user's own trainer: no framework's rule holds, so every plan can be exported."""

from __future__ import annotations

from typing import Final

from hetcli.export.generic.assignment import assignment_text, by_node
from hetcli.export.launch import LaunchFile
from hetcli.export.placement import Placement, placed
from hetcli.export.planned import Planned
from hetcli.export.program import Program

__all__ = ["DEFAULT_VERSION", "VERSIONS", "program"]

# The version of ranks.json, hetcli's own.
VERSIONS: Final = ("1.0",)
DEFAULT_VERSION: Final = "1.0"


def program(planned: Planned, version: str) -> tuple[Program, Placement]:
    """What every rank runs, and where: ranks count node by node."""
    del version
    plan = planned.plan
    placement = placed(by_node(plan), "node")
    assert placement is not None  # By construction every node is one block of ranks.
    return (
        Program(
            template="generic/program.sh.j2",
            files=(LaunchFile("ranks.json", assignment_text(plan)),),
            settings={"steps": planned.steps},
            user_variables=("TRAINER", "STEPS"),
            steps_before=(
                "Set `TRAINER` to your training script. It finds its rank (`RANK`) in the file "
                "that `HETCLI_RANKS` names: its stage, layers, micro-batches and positions among "
                "its replicas and tensor ranks; `HETCLI_PLAN` names the whole plan.",
            ),
            notes=planned.vendor_notes,
        ),
        placement,
    )
