"""What every restriction costs: the same search with other cards, even layers or more freedom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetcli.search.best import best_plan
from hetcli.search.document import alternative
from hetcli.search.families import Problem
from hetcli.search.found import Scored
from hetcli.search.pools import Pool
from hetcli.spec.plan import Comparison, Comparisons

__all__ = ["compare", "worth_comparing"]

# Up to so many devices the searches take no longer than a user waits for anyway.
SMALL = 64


def worth_comparing(problem: Problem) -> bool:
    """Whether to compare: as asked for, else on a small cluster of several types."""
    if problem.options.compare is not None:
        return problem.options.compare
    return problem.hardware.device_count <= SMALL and len(_types(problem.pools)) > 1


def compare(problem: Problem, best: Scored) -> Comparisons:
    """The best plans under other restrictions beside `best`, the best one of `problem`."""
    types = _types(problem.pools)
    used = {pool.device_type.gpu.name for pool, _ in best.layout.runs}
    entries = [_alone(problem, gpu, types) for gpu in types] if len(types) > 1 else []
    alone = list(entries)
    for gpu in types:
        if gpu not in used:
            asked = (*problem.options.must_use, gpu)
            entries.append(_entry(problem, Comparison(kind="with-type", gpu=gpu), must_use=asked))
    entries.append(_entry(problem, Comparison(kind="uniform-layers"), uniform_layers=True))
    return _summary(problem, best, entries, alone)


def _types(pools: Sequence[Pool]) -> dict[str, int]:
    """Devices of each type, in the order of the cluster."""
    counts: dict[str, int] = {}
    for pool in pools:
        name = pool.device_type.gpu.name
        counts[name] = counts.get(name, 0) + pool.device_count
    return counts


def _alone(problem: Problem, gpu: str, types: dict[str, int]) -> Comparison:
    """The best plan on the cards of one type only."""
    others = tuple((other, 0) for other in types if other != gpu)
    quotas = (*problem.options.quotas, *others)
    return _entry(problem, Comparison(kind="single-type", gpu=gpu), quotas=quotas)


def _entry(problem: Problem, empty: Comparison, **changes: Any) -> Comparison:
    best = best_plan(problem, **changes)
    if best is None:
        return empty.model_copy(update={"reason": "nothing fits"})
    short = alternative(1, best.configuration, best.prediction)
    return empty.model_copy(
        update={
            "mapping": short.mapping,
            "layers": short.layers,
            "devices": len(best.configuration.devices),
            "step_time_s": short.step_time_s,
            "tokens_per_s": short.tokens_per_s,
            "cost_per_step": short.cost_per_step,
        }
    )


def _summary(
    problem: Problem, best: Scored, entries: Sequence[Comparison], alone: Sequence[Comparison]
) -> Comparisons:
    """The entries, and the shares where every type runs alone."""
    speeds = [each.tokens_per_s for each in alone]
    rates = [speed for speed in speeds if speed is not None]
    if not alone or len(rates) < len(speeds):
        missing = ", ".join(each.gpu or "" for each in alone if each.tokens_per_s is None)
        return Comparisons(
            entries=tuple(entries),
            theoretical_tokens_per_s=None,
            share_of_theoretical=None,
            hetero_speedup_ratio=None,
            reason=f"no plan on {missing} alone" if missing else "one type of device only",
        )
    counts = _types(problem.pools)
    bound = sum(
        counts[each.gpu or ""] * rate / each.devices
        for each, rate in zip(alone, rates, strict=True)
    )
    speed = best.prediction.tokens_per_s
    return Comparisons(
        entries=tuple(entries),
        theoretical_tokens_per_s=bound,
        share_of_theoretical=speed / bound,
        hetero_speedup_ratio=speed / sum(rates),
    )
