"""Plans to report on: alike GPUs, two kinds of them, a thousand, and names that attack."""

from __future__ import annotations

import pytest
from report_plans import attacking_cluster, estimated, make_report, planned

from hetcli.catalog.inputs import read_cluster
from hetcli.report.forms import Report


@pytest.fixture(scope="session")
def alike() -> Report:
    return make_report(planned("sample:dgx-h100", "llama-3-70b", 512))


@pytest.fixture(scope="session")
def mixed() -> Report:
    return make_report(planned("sample:dgx-a100-v100", "llama-3-8b", 256, virtual_stages=1))


@pytest.fixture(scope="session")
def interleaved() -> Report:
    """Messages travel beside the computation, and from the last stage to the first."""
    return make_report(planned("sample:dgx-a100-v100", "llama-3-8b", 256, virtual_stages=2))


@pytest.fixture(scope="session")
def thousand() -> Report:
    """All 1,024 devices of the sample, by a configuration that needs no search."""
    cluster = read_cluster("sample:three-type-1024")
    request = {"tensor_parallel": 4, "pipeline_parallel": 4, "stage_layers": "16,16,44,4"}
    return make_report(estimated(cluster, "llama-3-70b", 2048, zero_stage=1, **request))


@pytest.fixture(scope="session")
def hostile() -> Report:
    return make_report(
        planned(attacking_cluster(), "qwen2.5-1.5b", 64, tensor_parallel=1, pipeline_parallel=2)
    )
