"""The Kubernetes manifest gives every pod the place that the profiler reads."""

from __future__ import annotations

import pytest
import yaml

from hetcli.probe.launched import placement
from hetcli.probe.manifest import kubernetes_manifest

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@pytest.mark.parametrize("image", ["registry.example/hetcli:1", "yes", "a: b # c"])
def test_every_pod_finds_its_place_and_the_first_one(image: str) -> None:
    service, job = yaml.safe_load_all(kubernetes_manifest(nodes=3, image=image, gpus=4))
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == image
    assert container["command"] == ["hetcli", "profile", "-o", "/shared/profiles"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    env = {each["name"]: each for each in container["env"]}
    assert env["RANK"]["valueFrom"] == {"fieldRef": {"fieldPath": INDEX}}
    values = {name: each["value"] for name, each in env.items() if name != "RANK"}
    assert all(isinstance(value, str) for value in values.values())
    places = [placement({**values, "RANK": str(index)}) for index in range(3)]
    assert [(place.node, place.nodes) for place in places if place] == [(0, 3), (1, 3), (2, 3)]
    # A pod of an indexed Job is called JOB-INDEX; the headless service gives it that name in DNS.
    assert values["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}


def test_without_gpus_nothing_is_asked_of_the_device_plugin() -> None:
    _, job = yaml.safe_load_all(kubernetes_manifest(nodes=2, image="hetcli"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {}
