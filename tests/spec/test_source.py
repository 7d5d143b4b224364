from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.errors import OutputError, SpecError
from hetcli.spec import markup, source
from hetcli.spec.cluster import Cluster
from hetcli.spec.source import (
    dump_yaml,
    parse_mapping,
    read_document,
    read_mapping,
    read_text,
    validate,
    write_text_atomically,
)
from hetcli.spec.workload import Pretrain

GOOD = """\
schema_version: 1
name: lab
nodes:
  - name: a-[0-3]
    gpu: A100
    gpus: 8
    nics:
      - kind: infiniband
        rate: 200Gbps
links:
  - between: [infiniband, infiniband]
    rate: 20GB/s
"""


def refusal(text: str, label: str = "c.yaml", kind: type[Any] = Cluster) -> SpecError:
    with pytest.raises(SpecError) as caught:
        validate(*parse_mapping(text, label), kind)
    assert caught.value.what
    assert caught.value.why
    assert caught.value.fix
    return caught.value


def test_a_file_is_read_as_yaml_or_json(tmp_path: Path) -> None:
    yaml_file, json_file = tmp_path / "c.yaml", tmp_path / "c.json"
    yaml_file.write_text(GOOD)
    cluster = read_document(yaml_file, Cluster)
    json_file.write_text(cluster.model_dump_json())
    assert read_document(str(json_file), Cluster) == cluster
    assert cluster.nodes[0].node_names == ("a-0", "a-1", "a-2", "a-3")


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    assert read_document("-", Cluster).name == "lab"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"- 1\n")))
    with pytest.raises(SpecError, match=r"<stdin>:1: a list instead of a mapping"):
        read_mapping("-")
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(SpecError, match="<stdin>: unreadable"):
        read_mapping("-")


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert read_document(path, Cluster).name == "lab"


# --- Where something is wrong ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "what", "why", "fix"),
    [
        (
            "gpus: 8",
            "gpus: -4",
            "c.yaml:6: nodes[0].gpus: -4",
            "greater than 0",
            "whole number above 0",
        ),
        ("gpus: 8", "gpus: 8.0", "c.yaml:6: nodes[0].gpus: 8.0", "integer", "whole number"),
        ("gpus: 8", "gpus: '8'", "c.yaml:6: nodes[0].gpus: '8'", "integer", "whole number"),
        ("gpus: 8", "gpus: yes", "c.yaml:6: nodes[0].gpus: 'yes'", "integer", "whole number"),
        ("gpus: 8", "gpus: true", "c.yaml:6: nodes[0].gpus: true", "integer", "whole number"),
        ("gpus: 8", "gpus:", "c.yaml:6: nodes[0].gpus: null", "integer", "whole number"),
        (
            "    gpus: 8\n",
            "",
            "c.yaml:4: nodes[0].gpus: missing",
            "no default",
            "add gpus: a whole",
        ),
        ("gpus: 8", "gpuss: 8", "c.yaml:6: nodes[0].gpuss: 8", "no such key", "did you mean gpus?"),
        ("gpu: A100", "gpu: 100", "c.yaml:5: nodes[0].gpu: 100", "string", "text"),
        (
            "gpu: A100",
            "gpu: {name: x, memory: 8GiB}",
            "c.yaml:5: nodes[0].gpu.memory_rate: missing",
            "no default",
            "add memory_rate: a rate like 200Gbps or 25GB/s",
        ),
        (
            "kind: infiniband",
            "kind: infinband",
            "c.yaml:8: nodes[0].nics[0].kind: 'infinband'",
            "none of",
            "did you mean infiniband?",
        ),
        (
            "rate: 200Gbps",
            "rate: 200",
            "c.yaml:9: nodes[0].nics[0].rate: 200",
            "no rate with its unit",
            "200Gbps or 25GB/s",
        ),
        (
            "rate: 200Gbps",
            "rate: 200Gb",
            "c.yaml:9: nodes[0].nics[0].rate: '200Gb'",
            "not a rate",
            "200Gbps",
        ),
        (
            "[infiniband, infiniband]",
            "[a, infiniband]",
            "c.yaml:11: links[0].between[0]: 'a'",
            "called a",
            "infiniband",
        ),
        (
            "[infiniband, infiniband]",
            "[infiniband]",
            "c.yaml:11: links[0].between[1]: missing",
            "no default",
            "add",
        ),
        (
            "schema_version: 1",
            "schema_version: 2",
            "c.yaml:1: schema_version: 2",
            "reads schema_version 1",
            "schema_version: 1",
        ),
        ("links:", "linkz:", "c.yaml:10: linkz", "no such key", "did you mean links?"),
        ("name: lab", "name: ''", "c.yaml:2: name: ''", "at least 1 character", "text"),
        ("nodes:\n", "nodes: 5\nx:\n", "c.yaml:4: x", "no such key", "use one of cross_vendor"),
    ],
)
def test_a_wrong_value_is_named_with_line_reason_and_cure(
    old: str, new: str, what: str, why: str, fix: str
) -> None:
    assert old in GOOD
    error = refusal(GOOD.replace(old, new))
    assert error.what.startswith(what)
    assert why in error.why
    assert fix in error.fix


def test_the_first_of_several_mistakes_is_explained_and_the_others_are_listed() -> None:
    bad = GOOD.replace("gpus: 8", "gpus: 0").replace("infiniband\n", "carrier-pigeon\n", 1)
    error = refusal(bad.replace("name: lab\n", ""))
    assert error.what == (
        "c.yaml:1: name: missing (and 2 more: line 5: nodes[0].gpus, line 7: nodes[0].nics[0].kind)"
    )


def test_a_mistake_in_json_is_named_with_its_line_too() -> None:
    cluster = validate(*parse_mapping(GOOD, "c.yaml"), Cluster)
    text = cluster.model_dump_json(indent=2).replace('"gpus": 8', '"gpus": -8')
    line = text[: text.index('"gpus"')].count("\n") + 1
    assert refusal(text, "c.json").what.startswith(f"c.json:{line}: nodes[0].gpus: -8")
    tabs = text.replace("  ", "\t")
    assert refusal(tabs, "c.json").what.startswith(f"c.json:{line}: nodes[0].gpus: -8")


def test_escaped_characters_in_json_do_not_hide_the_line() -> None:
    text = '{"name": "a \\ud83d\\ude00",\n"\\ud83d\\ude00": 1,\n"nodes": []}'
    assert refusal(text, "c.json").what.startswith("c.json:2: '\U0001f600': 1 (and 1 more: line 3")


def test_a_workload_is_checked_by_the_same_rules() -> None:
    assert refusal("global_batch: 8\nsequence: 0\n", "w.yaml", Pretrain).what.startswith("w.yaml:2")


@pytest.mark.parametrize(
    ("text", "what", "why"),
    [
        ("", "c.yaml:1: the file is empty", "nothing to read"),
        ("# only this\n", "c.yaml:1: the file is empty", "nothing to read"),
        ("---\n", "c.yaml:2: nothing instead of a mapping", "mapping"),
        ("- a\n- b\n", "c.yaml:1: a list instead of a mapping", "mapping"),
        ("just words\n", "c.yaml:1: a single value instead of a mapping", "mapping"),
        ("name: a\nname: b\n", "c.yaml:2: the key 'name' stands twice", "only one"),
        ("name: a\n1: b\n", "c.yaml:2: the key 1", "keys are text"),
        ("name: a\nnull: b\n", "c.yaml:2: the key null", "keys are text"),
        ("name: a\n? [x, y]\n: b\n", "c.yaml:2: the key is a list", "keys are text"),
        ("name: a\nx: !!python/object/apply:os.system [ls]\n", "c.yaml:2: the tag", "plain data"),
        ("name: a\nx: !!int '5'\n", "c.yaml:2: the tag", "plain data"),
        ("name: a\nx: .nan\n", "c.yaml:2: .nan", "finite"),
        ("name: a\nx: -.inf\n", "c.yaml:2: -.inf", "finite"),
        ("name: a\nx: 1e999\n", "c.yaml:2: 1e999", "finite"),
        ("name: a\nx: 9223372036854775808\n", "c.yaml:2: a whole number of 19 digits", "64 bits"),
        ("name: a\nx: " + "9" * 5000 + "\n", "c.yaml:2: a whole number of 5000 digits", "64 bits"),
        ("name: a\nx: &x [*x]\n", "c.yaml:2: *x stands inside its own anchor", "without end"),
        ("name: a\nx: &x {y: {z: *x}}\n", "c.yaml:2: *x stands inside", "without end"),
        ("name: a\nx: *y\n", "c.yaml:2: *y", "no anchor"),
        ("name: a\n---\nname: b\n", "c.yaml:2: a second document begins", "one document"),
        ("name: a\nx: [" + "\n[" * 500, "c.yaml:", "nested"),
        ("name: a\nx: " + "[" * 100_000, "c.yaml:2: nested", "nested"),
        ("name: [a\n", "c.yaml:2: ", "syntax"),
        ("name: a\n\tx: b\n", "c.yaml:2: ", "syntax"),
        ("name: a\nx: 'b\n", "c.yaml:", "syntax"),
        ("name: a\x07\n", "c.yaml: ", "no text"),
    ],
)  # fmt: skip
def test_yaml_that_is_no_plain_data_is_refused(text: str, what: str, why: str) -> None:
    error = refusal(text)
    assert error.what.startswith(what)
    assert why in error.why


@pytest.mark.parametrize(
    ("text", "what", "why"),
    [
        ('{"name": "a",\n "name": "b"}', "c.json:2: the key 'name' stands twice", "only one"),
        ('{"name":\n NaN}', "c.json:2: NaN", "finite"),
        ('{"name":\n -Infinity}', "c.json:2: -Infinity", "finite"),
        ('{"name":\n 1e999}', "c.json:2: 1e999", "finite"),
        ('{"name":\n 99999999999999999999}', "c.json:2: a whole number of 20 digits", "64 bits"),
        ('{"name":\n' + "7" * 5000 + "}", "c.json:2: a whole number of 5000 digits", "64 bits"),
        ('{"name": "a",\n}', "c.json:", "syntax of JSON"),
        ('{"name": "\\ud800"}', "c.json: half of a surrogate", "no character"),
        ('{"a":' * 100_000, "c.json: nested", "nested"),
        ('{"a":' * 400 + "1" + "}" * 400, "c.json:1", "recursion"),
        ("[1, 2]", "c.json:1: a list instead of a mapping", "mapping"),
        ("", "c.json:1: ", "syntax of JSON"),
    ],
)  # fmt: skip
def test_json_that_is_no_plain_data_is_refused(text: str, what: str, why: str) -> None:
    error = refusal(text, "c.json")
    assert error.what.startswith(what)
    assert why in error.why


def test_flow_style_yaml_need_not_be_json() -> None:
    assert parse_mapping("{a: 1, b: x}", "<stdin>")[0] == {"a": 1, "b": "x"}


def test_aliases_are_read_unless_they_multiply() -> None:
    data, _ = parse_mapping("a: &x {b: [1, 2]}\nc: *x\nd: [*x, *x]\n", "c.yaml")
    assert data == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}, "d": [{"b": [1, 2]}] * 2}
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "grows beyond" in refusal("\n".join(lines)).what
    text = "x: &x " + "y" * 1_000_000 + "\nz: [" + ", ".join(["*x"] * 100) + "]\n"
    assert "grows beyond" in refusal(text).what


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("1_000", "1_000"),
        ("1e5", 1e5),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("0x1f", 31),
        ("0o17", 15),
        ("007", 7),
        ("~", None),
        ("True", True),
        ("'true'", "true"),
        ("<<", "<<"),
    ],
)
def test_plain_scalars_follow_the_core_schema(text: str, value: object) -> None:
    read = markup.parse_yaml(f"a: {text}", "c.yaml")[0]["a"]
    assert read == value
    assert type(read) is type(value)


# YAML has no escape for the two halves of a larger character, as JSON has.
words = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=8)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(words, plain, max_size=4))
def test_json_is_the_same_data_by_both_readers(data: dict[str, Any]) -> None:
    text = json.dumps(data)
    assert markup.parse_json(text, "c.json") == data
    assert parse_mapping(text, "c.json")[0] == data
    assert markup.parse_yaml(json.dumps(data, indent=1), "c.yaml")[0] == data


# --- What is no readable file ----------------------------------------------------------------


def test_a_file_that_cannot_be_read_is_an_error_of_the_user(tmp_path: Path) -> None:
    for path, what in (
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "a folder"),
        (tmp_path / "none" / "c.yaml", "no such file"),
        ("a\0b", "unreadable"),
        ("x" * 5000, "unreadable"),
        ("", "no such file"),
    ):
        with pytest.raises(SpecError, match=what) as caught:
            read_text(path)
        assert caught.value.why
        assert caught.value.fix


def test_the_name_of_a_file_cannot_write_to_the_terminal() -> None:
    with pytest.raises(SpecError) as caught:
        read_text("\x1b[31mred\n")
    assert caught.value.what.isprintable()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission_is_an_error_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD)
    path.chmod(0)
    with pytest.raises(SpecError, match="Permission denied"):
        read_text(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"name: a\nx: \xff\n", "c.yaml:2: byte 0xff at offset 11"),
        (b"\x7fELF\x02\x01\x01\0", "c.yaml:1: a zero byte"),
        ("name: a\n".encode("utf-16"), "c.yaml:1: byte 0xff"),
        (b"\x1f\x8b\x08", "c.yaml:1: byte 0x8b"),
    ],
)
def test_a_binary_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_bytes(content)
    with pytest.raises(SpecError) as caught:
        read_document("c.yaml", Cluster)
    assert caught.value.what.startswith(what)


def test_a_huge_file_is_refused_without_reading_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_BYTES", 2**20)
    path = tmp_path / "c.yaml"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(SpecError, match="larger than 1 MiB"):
        read_text(path)


# --- Writing ---------------------------------------------------------------------------------


def test_a_file_is_written_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_text_atomically(path, "é\n")
    write_text_atomically(str(path), "new\n")
    assert path.read_text() == "new\n"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_new_files_follow_the_umask_and_old_ones_keep_their_mode(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        new, old = tmp_path / "new", tmp_path / "old"
        old.write_text("")
        old.chmod(0o755)
        write_text_atomically(new, "x")
        write_text_atomically(old, "x")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(new.stat().st_mode) == 0o640
    assert stat.S_IMODE(old.stat().st_mode) == 0o755


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("")
    link.symlink_to(real)
    write_text_atomically(link, "x")
    assert link.is_symlink()
    assert real.read_text() == "x"
    write_text_atomically("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_file_that_cannot_be_written_is_a_failure_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("kept")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, text in (
        (tmp_path, "x"),
        (tmp_path / "none" / "f", "x"),
        (tmp_path / "old" / "f", "x"),
        (tmp_path / "old", "\ud800"),
        (f"{tmp_path}/a\0b", "x"),
        (loop, "x"),
    ):
        with pytest.raises(OutputError) as caught:
            write_text_atomically(path, text)
        assert caught.value.why
        assert caught.value.fix
    assert (tmp_path / "old").read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["loop", "old"]


def test_dumped_yaml_says_what_is_not_default() -> None:
    dumped = dump_yaml(validate(*parse_mapping(GOOD, "c.yaml"), Cluster))
    assert (
        dumped
        == """\
schema_version: 1
name: lab
nodes:
- name: a-[0-3]
  gpu: A100
  gpus: 8
  nics:
  - kind: infiniband
    rate: 25GB/s
links:
- between:
  - infiniband
  - infiniband
  rate: 20GB/s
"""
    )
