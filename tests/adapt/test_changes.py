"""What happened to a cluster, in words and in its health."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trial"))

from running_plans import a100

from hetcli.adapt.changes import Changes, changed, read_changes
from hetcli.errors import UnknownNameError, UsageError
from hetcli.perf.configuration import DeviceId
from hetcli.perf.resolve import resolve


def test_changes_are_read_from_words() -> None:
    found = read_changes(fail=["a:2", "b"], slow=["c:0.5", "d:1:0.25"], add=["e=a"], remove=["f"])
    assert found == Changes(
        failed=(("a", (2,)), ("b", None), ("f", None)),
        slow=(("c", None, 0.5), ("d", (1,), 0.25)),
        added=(("e", "a"),),
    )


@pytest.mark.parametrize(
    "bad", [{"fail": ["a:x"]}, {"slow": ["a"]}, {"slow": ["a:1.5"]}, {"add": ["a="]}]
)
def test_words_that_say_no_change_are_refused(bad: dict[str, list[str]]) -> None:
    with pytest.raises(UsageError):
        read_changes(**bad)


def test_health_that_was_known_stays_and_new_health_wins() -> None:
    before = changed(a100(2), read_changes(slow=["n-0:2:0.5"]))
    after = changed(before, read_changes(fail=["n-0:2", "n-1:0"]))
    assert {(entry.node, entry.devices, entry.state) for entry in after.health} == {
        ("n-0", (2,), "down"),
        ("n-1", (0,), "down"),
    }
    assert DeviceId("n-0", 2) not in resolve(after).nodes[0].device_ids


def test_unknown_nodes_and_taken_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="no node is called x"):
        changed(a100(2), read_changes(fail=["x"]))
    with pytest.raises(UsageError, match="is there already"):
        changed(a100(2), read_changes(add=["n-0=n-1"]))
    with pytest.raises(UsageError, match="don't fit"):
        changed(a100(2), read_changes(fail=["n-0:99"]))
