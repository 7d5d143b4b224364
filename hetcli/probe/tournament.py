"""Who measures with whom, so that all pairs of N nodes take N rounds and not N squared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["group_sizes", "rounds"]

Player = TypeVar("Player")


def rounds(players: Sequence[Player]) -> tuple[tuple[tuple[Player, Player], ...], ...]:
    """A round-robin tournament: every pair once, nobody twice in a round.

    The circle method: one player stays, the others rotate by one place a round. N - 1 rounds for an
    even number of players, N for an odd one (one rests in each).
    """
    circle: list[Player | None] = list(players)
    if len(circle) < 2:
        return ()
    if len(circle) % 2:
        circle.append(None)
    made = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        made.append(
            tuple((one, other) for one, other in facing if one is not None and other is not None)
        )
        circle.insert(1, circle.pop())
    return tuple(made)


def group_sizes(most: int) -> tuple[int, ...]:
    """2, 4, 8 and so on, and `most` itself; nothing below 2."""
    sizes = {most, *(2**power for power in range(1, most.bit_length()))}
    return tuple(sorted(size for size in sizes if 2 <= size <= most))
