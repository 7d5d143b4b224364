"""Host-name ranges as cluster tools write them: `a100-[00-15],v100-[0-3,7]`.

A pattern is a comma-separated list of names in which any number of brackets hold numbers and
ranges of numbers. Leading zeros of a range's first number are kept. A host name may hold anything
that can be printed, except the three characters of the notation itself.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_HOSTS", "check_host", "count_hosts", "expand_hosts", "fold_hosts"]

# More hosts than any cluster has; a typing error must not fill the memory.
MAX_HOSTS: Final = 100_000

_TOKEN: Final = re.compile(r"\[(?P<numbers>[^\[\]]*)\]|(?P<comma>,)|(?P<text>[^\[\],]+)")
_NUMBERS: Final = re.compile(r"(?P<first>[0-9]{1,18})(?:-(?P<last>[0-9]{1,18}))?")
_NUMBERED: Final = re.compile(r"(?P<prefix>.*?)(?P<number>[0-9]{1,18})(?P<suffix>[^0-9]*)")
_LEGAL: Final = "write names like a100-[00-15] or n[1-3,7]"


@dataclass(frozen=True, slots=True)
class _Range:
    """Numbers from `first` to `last`, padded with zeros to `width` digits."""

    first: int
    last: int
    width: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __iter__(self) -> Iterator[str]:
        return (f"{number:0{self.width}d}" for number in range(self.first, self.last + 1))


_Segment = tuple[_Range, ...] | str


def check_host(name: str) -> str:
    """The name itself. Raises ValueError when it is empty or cannot be printed on one line."""
    if not name:
        raise ValueError("a host name is empty; name the host")
    if not name.isprintable():
        raise ValueError(f"{_shown(name)} holds control or invisible characters; remove them")
    if name != name.strip():
        raise ValueError(f"{_shown(name)} starts or ends with a space; remove it")
    return name


def count_hosts(pattern: str) -> int:
    """How many names the pattern stands for, without making them. Raises ValueError."""
    check_host(pattern)
    count = sum(
        math.prod(1 if isinstance(part, str) else sum(map(len, part)) for part in name)
        for name in _parse(pattern)
    )
    if count > MAX_HOSTS:
        raise ValueError(f"{_shown(pattern)} is too many hosts; at most {MAX_HOSTS} are read")
    return count


def expand_hosts(pattern: str) -> tuple[str, ...]:
    """The names that the pattern stands for, in its order.

    Raises ValueError when the pattern is malformed, names a host twice or more than `MAX_HOSTS`.
    """
    count_hosts(pattern)
    names = tuple(
        check_host("".join(parts))
        for name in _parse(pattern)
        for parts in itertools.product(
            *((part,) if isinstance(part, str) else itertools.chain(*part) for part in name)
        )
    )
    if len(set(names)) < len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise ValueError(f"{_shown(pattern)} names {_shown(twice)} twice; name every host once")
    return names


def fold_hosts(names: Iterable[str]) -> str:
    """A pattern that `expand_hosts` turns back into these (distinct) names in this order.

    Raises ValueError for a name that cannot stand in a pattern.
    """
    folded: list[str] = []
    for (prefix, suffix), run in itertools.groupby(map(_split, names), key=lambda item: item[::2]):
        ranges = list(_ranges([number for _, number, _ in run]))
        plain = len(ranges) == 1 and "-" not in ranges[0]
        numbers = ranges[0] if plain else f"[{','.join(ranges)}]"
        folded.append(f"{prefix}{numbers}{suffix}")
    return ",".join(folded)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."


def _parse(pattern: str) -> list[list[_Segment]]:
    """The names of the pattern, each a list of literal texts and number ranges."""
    names: list[list[_Segment]] = [[]]
    position = 0
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:
            raise ValueError(f"{_shown(pattern)} has a bracket without a partner; {_LEGAL}")
        if token["comma"]:
            names.append([])
        elif token["text"]:
            text = token["text"]
            # Spaces around a comma separate; inside a name they are part of it.
            text = text if names[-1] else text.lstrip()
            ends = pattern[token.end() : token.end() + 1] in ("", ",")
            text = text.rstrip() if ends else text
            if text:
                names[-1].append(text)
        else:
            names[-1].append(_numbers(token["numbers"], pattern))
        position = token.end()
    if not all(names):
        raise ValueError(f"{_shown(pattern)} has an empty name at a comma; {_LEGAL}")
    return names


def _numbers(text: str, pattern: str) -> tuple[_Range, ...]:
    ranges = []
    for item in text.split(","):
        found = _NUMBERS.fullmatch(item.strip())
        if found is None:
            raise ValueError(f"{_shown(item)} in {_shown(pattern)} is no number range; {_LEGAL}")
        first, last = found["first"], found["last"] or found["first"]
        padded = _is_padded(first) or _is_padded(last)
        if int(first) > int(last) or (padded and len(last) != len(first)):
            raise ValueError(
                f"the range {_shown(item)} runs backwards or mixes widths; "
                "write both ends with the same number of digits, the smaller one first"
            )
        ranges.append(_Range(int(first), int(last), len(first) if padded else 1))
    return tuple(ranges)


def _is_padded(number: str) -> bool:
    return len(number) > 1 and number.startswith("0")


def _split(name: str) -> tuple[str, str, str]:
    """Prefix, last number and suffix of a name; without a number the prefix is all of it."""
    check_host(name)
    if any(character in name for character in "[],"):
        raise ValueError(f"{_shown(name)} holds one of [ ] , which separate host names; rename it")
    found = _NUMBERED.fullmatch(name)
    return (found["prefix"], found["number"], found["suffix"]) if found else (name, "", "")


def _ranges(numbers: list[str]) -> Iterator[str]:
    """Runs of numbers that follow each other as `first-last`, the others alone."""
    start = 0
    for end in range(1, len(numbers) + 1):
        if end < len(numbers) and _follows(numbers[start], numbers[end - 1], numbers[end]):
            continue
        yield numbers[start] if end - start == 1 else f"{numbers[start]}-{numbers[end - 1]}"
        start = end


def _follows(first: str, previous: str, number: str) -> bool:
    """Whether `number` comes right behind `previous` in a range that began with `first`."""
    if not number or not previous:
        return False
    expected = int(previous) + 1
    if _is_padded(first):
        return number == f"{expected:0{len(first)}d}" and len(number) == len(first)
    return number == str(expected)
