"""Whatever a file holds, the answer is a record or an error of three parts; never a traceback."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from hetcli.catalog.inputs import read_cluster, read_model, read_workload
from hetcli.catalog.presets import find_preset
from hetcli.errors import SpecError, UsageError
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import Model
from hetcli.spec.source import parse_mapping, validate
from hetcli.spec.workload import Pretrain

CLUSTER: dict[str, Any] = {
    "schema_version": 1,
    "name": "lab",
    "description": "two kinds",
    "nodes": [
        {
            "name": "a-[0-1]",
            "count": 2,
            "gpu": "A100-SXM4-80GB",
            "gpus": 8,
            "use": [0, 1, 2],
            "intra_link": "nvlink3",
            "nics": [{"kind": "infiniband", "rate": "200Gbps", "count": 8, "interface": "ib0"}],
            "memory": "1TB",
            "cores": 128,
            "price_per_hour": 3.67,
            "zone": "z1",
            "region": "r1",
        },
        {
            "name": "b-0",
            "gpu": {"name": "x", "memory": "32GiB", "memory_rate": "1TB/s", "fp16_tflops": 50},
            "gpus": 4,
            "intra_link": {"kind": "ring", "rate": "30GB/s", "latency": "5us"},
            "nics": [{"kind": "roce", "rate": "100Gbps", "origin": "assumed"}],
            "zone": "z2",
            "region": "r1",
        },
    ],
    "links": [{"between": ["z1", "z2"], "rate": "1GB/s", "egress_per_gb": 0.01}],
    "pairs": [{"nodes": ["a-0", "b-0"], "rate": "2GB/s", "latency": "20us"}],
    "health": [{"node": "a-1", "devices": [3], "state": "slow", "slowdown": 1.4}],
    "cross_vendor_backend": {"name": "gloo", "rate": "1GB/s"},
}
WORKLOAD: dict[str, Any] = {
    "schema_version": 1,
    "kind": "pretrain",
    "global_batch": 512,
    "sequence": 4096,
    "precision": "bf16",
    "optimizer": "adam",
    "attention": "flash",
    "memory_margin": "1GiB",
    "objective": "cost",
    "tokens": 10**9,
    "mean_time_between_failures_s": 1e5,
}
MODEL: dict[str, Any] = find_preset("mixtral-8x7b").model_dump(mode="json", exclude_none=True)
CONFIG: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
DOCUMENTS: dict[str, tuple[dict[str, Any], Callable[[str], object]]] = {
    "cluster": (CLUSTER, read_cluster),
    "workload": (
        WORKLOAD,
        lambda path: read_workload(path, model=find_preset("llama-3-8b"), flags={}),
    ),
    "model": (MODEL, read_model),
    "config": (CONFIG, read_model),
}
# Stands for a number of 5000 digits, which Python itself does not write.
LONG = "@LONG@"
HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    2**62,
    2**63,
    -(10**30),
    LONG,
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    " ",
    "x" * 100_000,
    "-8",
    "1e999GB",
    "80",
    "NaN",
    "$(touch owned); `id` && rm -rf ~ | tee '\"",
    "<script>alert(1)</script>&amp;",
    "../../../etc/passwd",
    "a\nb\r\x00\x1b[2J",
    "\u202eevil\u2066",
    "n[1-",
    "n[0-99999999999]",
    "{{ 7 * 7 }} {% raw %} %(x)s {0}",
    "😀é漢",
    [],
    {},
    [[[[]]]],
    {"": {"": ""}},
    {"__class__": "x", "name": {"name": []}},
    list(range(1000)),
]


PIECES = [
    *(b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\x1f\x8b", b"\xe2\x80\xae", b"\t", b"9" * 5000),
    *(
        b"*x",
        b"&x ",
        b"&x [*x]",
        b"!!python/name:os.system ",
        b"<<: *x\n",
        b"\n---\n",
        b"%YAML 9.9\n",
    ),
    *(b": ", b"- ", b"? ", b"|\n", b"[" * 2000, b"{", b"}", b"'", b'"', b"#", b"\\"),
]


def places(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    inner = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in inner:
        yield from places(value, (*place, key))


def mutate(data: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The document with one to three things wrong."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        *above, last = rng.choice(list(places(data)))
        parent: Any = data
        for key in above:
            parent = parent[key]
        match rng.randrange(6):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, dict):
                parent[rng.choice(("nam", "gpus ", "\x1b", "__init__", "x" * 300))] = parent.pop(
                    last
                )
            case 2:
                parent[last] = [parent[last]]
            case 3:
                parent[last] = {"value": parent[last]}
            case _:
                parent[last] = copy.deepcopy(rng.choice(HOSTILE))
        if not data:
            break
    return data


def damage(text: bytes, rng: random.Random) -> bytes:
    """The text cut off, with a line repeated, or with something put in."""
    at = rng.randrange(len(text) + 1)
    match rng.randrange(4):
        case 0:
            return text[:at]
        case 1:
            lines = text.splitlines(keepends=True)
            return b"".join(lines[: at % len(lines) + 1] + lines[at % len(lines) :])
        case _:
            return text[:at] + rng.choice(PIECES) + text[at:]


def spellings(data: dict[str, Any], rng: random.Random) -> tuple[str, bytes]:
    """The document as JSON or YAML, sometimes damaged: a file suffix and the bytes."""
    if rng.randrange(2):
        suffix, text = ".json", json.dumps(data, indent=rng.choice((None, 1, "\t")))
    else:
        suffix, text = ".yaml", yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    for spelled in (f'"{LONG}"', f"'{LONG}'"):
        text = text.replace(spelled, "9" * 5000)
    raw = text.encode()
    return suffix, damage(raw, rng) if rng.randrange(4) == 0 else raw


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_documents_are_right_before_they_are_spoilt(name: str, tmp_path: Path) -> None:
    data, read = DOCUMENTS[name]
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(data))
    assert read(str(path)) is not None


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_thousand_malformed_documents_give_errors_of_three_parts(
    name: str, tmp_path: Path
) -> None:
    data, read = DOCUMENTS[name]
    rng = random.Random(name)
    refused = 0
    for _ in range(400):
        suffix, raw = spellings(mutate(data, rng), rng)
        path = tmp_path / f"{name}{suffix}"
        path.write_bytes(raw)
        try:
            read(str(path))
        except UsageError as error:
            refused += 1
            parts = (error.what, error.why, error.fix)
            assert all(parts), raw
            # Nothing that a file holds may move the cursor or fill the screen.
            assert all(part.isprintable() and len(part) < 5000 for part in parts), raw
    # The others are harmless: a name replaced by another, an optional key left out.
    assert refused >= 250


def leaves(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for inner in places(data, place):
        value: Any = data
        for key in inner:
            value = value[key]
        if not isinstance(value, dict | list):
            yield inner


@pytest.mark.parametrize(
    ("kind", "data"), [(Cluster, CLUSTER), (Pretrain, WORKLOAD), (Model, MODEL)]
)
def test_every_bad_value_names_its_line(kind: type[BaseModel], data: dict[str, Any]) -> None:
    for place in leaves(data):
        spoilt = copy.deepcopy(data)
        parent: Any = spoilt
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = "@HERE@"
        text = yaml.safe_dump(spoilt, sort_keys=False)
        line = text[: text.index("@HERE@")].count("\n") + 1
        # No value of any format is a list in a list.
        with pytest.raises(SpecError) as caught:
            validate(*parse_mapping(text.replace("'@HERE@'", "[[]]"), "f.yaml"), kind)
        assert caught.value.what.startswith(f"f.yaml:{line}: "), (place, caught.value.what)


@given(raw=st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_refused(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(raw)
    with pytest.raises(UsageError):
        read_cluster(str(path))


@given(
    text=st.text("abn: -[]{}&*!|>'\"#%@`,?\n\t01", max_size=120),
    suffix=st.sampled_from([".yaml", ".json"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_of_yaml_characters_is_refused(text: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"c{suffix}"
    path.write_text(text)
    with pytest.raises(UsageError):
        read_cluster(str(path))
