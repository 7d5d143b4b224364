from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.spec.hosts import MAX_HOSTS, check_host, count_hosts, expand_hosts, fold_hosts


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("login", ("login",)),
        ("a100-[00-03]", ("a100-00", "a100-01", "a100-02", "a100-03")),
        ("n[1-3,7]", ("n1", "n2", "n3", "n7")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("n[09-11]", ("n09", "n10", "n11")),
        ("n[0-2]", ("n0", "n1", "n2")),
        ("r[1-2]n[1-2].ib", ("r1n1.ib", "r1n2.ib", "r2n1.ib", "r2n2.ib")),
        ("a[1-2], b7 ,c", ("a1", "a2", "b7", "c")),
        ("10.0.0.[8-9]", ("10.0.0.8", "10.0.0.9")),
        ("$(rm -rf) '[1-2]", ("$(rm -rf) '1", "$(rm -rf) '2")),
    ],
)
def test_a_pattern_stands_for_its_names_in_order(pattern: str, names: tuple[str, ...]) -> None:
    assert expand_hosts(pattern) == names
    assert count_hosts(pattern) == len(names)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("", "empty"),
        ("a[1-3", "without a partner"),
        ("a1-3]", "without a partner"),
        ("a[[1]]", "without a partner"),
        ("a[]", "no number range"),
        ("a[x-z]", "no number range"),
        ("a[1-]", "no number range"),
        ("a[-1]", "no number range"),
        ("a[1,,2]", "no number range"),
        ("a[3-1]", "backwards"),
        ("a[08-011]", "mixes widths"),
        ("a[00-100]", "mixes widths"),
        ("a,,b", "empty name"),
        ("a,", "empty name"),
        (",", "empty name"),
        ("n[1-3,2]", "'n2' twice"),
        ("a1,a[1-2]", "'a1' twice"),
        ("a\nb", "control or invisible"),
        ("a\x1b[31m", "control or invisible"),
        ("a\u202eb", "control or invisible"),
        (" a", "space"),
        ("n[1-100001]", "at most 100000"),
        ("n[0-999999999999999999]", "at most 100000"),
        ("n[0-999][0-999][0-999][0-999][0-999]", "at most 100000"),
    ],
)
def test_a_malformed_pattern_is_refused_with_its_reason(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("'", ".")) as caught:
        expand_hosts(pattern)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_the_largest_pattern_is_read_and_refusing_a_larger_one_takes_no_time() -> None:
    assert len(expand_hosts(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS
    start = time.perf_counter()
    with pytest.raises(ValueError, match="at most"):
        expand_hosts("n" + "[0-99999]" * 1000)
    assert time.perf_counter() - start < 1


def test_folding_keeps_the_width_and_the_order() -> None:
    assert fold_hosts(["a08", "a09", "a10", "a11"]) == "a[08-11]"
    assert fold_hosts(["a8", "a9", "a10"]) == "a[8-10]"
    assert fold_hosts(["a2", "a1"]) == "a[2,1]"
    assert fold_hosts(["a1", "a2", "a4", "b.ib", "c1x"]) == "a[1-2,4],b.ib,c1x"
    assert fold_hosts(["a98", "a99", "a100"]) == "a[98-100]"
    assert fold_hosts(["a098", "a099", "a100", "a0101"]) == "a[098-100,0101]"
    assert fold_hosts([]) == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a[1]", "separate"), ("a,b", "separate"), ("", "empty"), ("a\tb", "control")],
)
def test_a_name_that_no_pattern_can_hold_is_not_folded(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fold_hosts(["fine", name])


def _is_host(name: str) -> bool:
    try:
        check_host(name)
    except ValueError:
        return False
    return not set(name) & set("[],")


numbered = st.builds(
    "{}{}{}".format,
    st.sampled_from(["n", "", "a-", "r1n"]),
    st.one_of(st.integers(0, 120).map(str), st.integers(0, 120).map("{:02d}".format)),
    st.sampled_from(["", ".ib", "-x"]),
)
hosts = st.one_of(numbered, st.text(max_size=12)).filter(_is_host)


@given(st.lists(hosts, unique=True, min_size=1, max_size=40))
def test_expanding_undoes_folding(names: list[str]) -> None:
    assert expand_hosts(fold_hosts(names)) == tuple(names)


@given(st.lists(st.integers(0, 300), unique=True, min_size=1), st.integers(1, 4))
def test_expanding_undoes_folding_of_numbered_hosts(numbers: list[int], width: int) -> None:
    names = [f"n{number:0{width}d}" for number in numbers]
    assert expand_hosts(fold_hosts(names)) == tuple(names)


@given(st.text(max_size=60))
def test_any_text_is_a_pattern_or_a_value_error(text: str) -> None:
    try:
        names = expand_hosts(text)
    except ValueError:
        return
    assert len(names) == count_hosts(text) > 0
    assert all(name.isprintable() for name in names)
