"""The file formats by name, as `hetcli schema` lists them."""

from __future__ import annotations

from collections.abc import Mapping

from hetcli.spec.base import Document
from hetcli.spec.cluster import Cluster
from hetcli.spec.explanation import Explanation
from hetcli.spec.hardware import HardwareFile
from hetcli.spec.model.architecture import Model
from hetcli.spec.observation import Observation
from hetcli.spec.plan import Plan
from hetcli.spec.profile import Profile
from hetcli.spec.replan import Replan
from hetcli.spec.trial import Trial
from hetcli.spec.workload import Pretrain

__all__ = ["FORMATS"]

FORMATS: Mapping[str, type[Document]] = {
    "cluster": Cluster,
    "model": Model,
    "workload": Pretrain,
    "profile": Profile,
    "hardware": HardwareFile,
    "plan": Plan,
    "replan": Replan,
    "explanation": Explanation,
    "trial": Trial,
    "observation": Observation,
}
