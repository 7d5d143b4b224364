"""Every problem of the benchmark, with what it has to reach and what peers publish."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hetcli.catalog.inputs import read_model
from hetcli.catalog.samples import read_cluster
from hetcli.errors import HetcliError
from hetcli.search import PlanOptions, plan
from hetcli.spec.cluster import Cluster
from hetcli.spec.workload import Pretrain
from peers.large import four_types, three_types
from peers.sailor import Place, SailorData, Score, search

__all__ = ["Row", "Solved", "rows"]

ZONES = ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-west1-b")


@dataclass(frozen=True, slots=True)
class Solved:
    """Seconds of the search, the processor's and the clock's, the gap, and what came out."""

    processor_s: float
    seconds: float
    gap: float | None
    found: str
    # What came out over what was to be reached, at least 1 when it is; None where only time counts.
    reached: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One problem; `target_s` is what the search may take."""

    name: str
    solve: Callable[[], Solved]
    target_s: float
    peers: str


def rows(data: Path | None) -> list[Row]:
    """All problems; those of Sailor need the folder with its profiles and links."""
    found = []
    if data is not None:
        sailor = SailorData(data)
        for a100, v100, target, rate, peers in (
            (32, 96, 0.1, 0.201, "Sailor 1.7 s 0.170 it/s"),
            (80, 240, 0.3, 0.403, "Sailor 4.7 s 0.361 it/s"),
            (128, 384, 0.5, 0.562, "Sailor 9.8 s 0.523 it/s, Metis 0.429, FlashFlex 181 s 0.300"),
            (256, 768, 1.0, 0.85, "Sailor 67.9 s 0.806 it/s"),
        ):
            counts = {(ZONES[0], "A100-40"): a100, (ZONES[0], "V100-16"): v100}
            found.append(
                Row(
                    f"{a100} A100 + {v100} V100",
                    partial(_fastest, sailor, counts, rate),
                    target,
                    peers,
                )
            )
        five = {(zone, "A100-40"): 128 for zone in ZONES}
        found.append(
            Row(
                "five zones x 128 A100",
                partial(_fastest, sailor, five, 1.020),
                0.5,
                "Sailor 0.9 s 1.020 it/s, DT-FM 109 s 0.112",
            )
        )
        two = {(zone, gpu): 128 for zone in ZONES[:2] for gpu in ("A100-40", "V100-16")}
        peers = "Sailor 22 s $0.278, Metis $0.599"
        found.append(
            Row("two zones, cheapest >= 0.2 it/s", partial(_cheapest, sailor, two), 1, peers)
        )
        peers = "Sailor 22 s 0.663 it/s, Metis 0.388"
        found.append(
            Row(
                "two zones, fastest <= $1.2",
                partial(_fastest, sailor, two, 0.663, most_dollars=1.2),
                1,
                peers,
            )
        )
    many = partial(read_cluster, "sample:three-type-1024")
    return [
        *found,
        _planned("3 types x 256, GPT-2 XL", three_types, "gpt2-xl", 1024, 1024, 1, "Sailor 4900 s"),
        _planned("3 types, 1024, Llama-3-70B", many, "llama-3-70b", 1024, 4096, 2, "none can"),
        _planned("3 types, 1024, Mixtral-8x22B", many, "mixtral-8x22b", 1024, 4096, 2, "none can"),
        _planned(
            "4 types, 10240, Llama-3.1-405B",
            four_types,
            "llama-3.1-405b",
            2048,
            8192,
            15,
            "none can",
        ),
    ]


def _fastest(
    data: SailorData, counts: dict[Place, int], rate: float, most_dollars: float | None = None
) -> Solved:
    solved, scores = _sailor(data, counts, "throughput", None, most_dollars)
    if not scores:
        return solved
    score = min(scores, key=lambda each: each[0].seconds)
    text = f"{score[0].steps_per_s:.3f} it/s ({score[1].steps_per_s:.3f} with copies)"
    if most_dollars is not None:
        text += f" ${score[0].dollars:.3f}"
    return _with(solved, text, score[0].steps_per_s / rate)


def _cheapest(data: SailorData, counts: dict[Place, int]) -> Solved:
    solved, scores = _sailor(data, counts, "cost", 0.2, None)
    if not scores:
        return solved
    score = min((each[0] for each in scores), key=lambda each: each.dollars)
    text = f"${score.dollars:.3f} {score.steps_per_s:.3f} it/s"
    return _with(solved, text, 0.278 / score.dollars)


def _sailor(
    data: SailorData,
    counts: dict[Place, int],
    objective: str,
    min_steps_per_s: float | None,
    most_dollars: float | None,
) -> tuple[Solved, list[tuple[Score, Score]]]:
    """The search, and by both readings the scores of its plans that keep the limits."""
    clock, processor = time.perf_counter(), time.process_time()
    found = search(
        data,
        counts,
        objective=objective,
        min_steps_per_s=min_steps_per_s,
        max_cost_per_step=most_dollars,
    )
    processor, clock = time.process_time() - processor, time.perf_counter() - clock
    best = found.plans[0].value if found.plans else None
    gap = best / found.bound - 1 if best else None
    scores = [
        (one, data.score(each.layout, copies=True) or one)
        for each in found.plans
        if (one := data.score(each.layout))
    ]
    kept = [
        pair
        for pair in scores
        if (most_dollars is None or pair[0].dollars <= most_dollars)
        and (min_steps_per_s is None or pair[0].steps_per_s >= min_steps_per_s)
    ]
    return Solved(processor, clock, gap, "nothing that its formulas allow", 0.0), kept


def _with(solved: Solved, text: str, reached: float) -> Solved:
    return Solved(solved.processor_s, solved.seconds, solved.gap, text, reached)


def _planned(
    name: str,
    cluster: Callable[[], Cluster],
    model: str,
    batch: int,
    sequence: int,
    target_s: float,
    peers: str,
) -> Row:
    def solve() -> Solved:
        where, what = cluster(), read_model(model)
        workload = Pretrain(global_batch=batch, sequence=sequence)
        clock, processor = time.perf_counter(), time.process_time()
        try:
            found = plan(
                cluster=where, model=what, workload=workload, options=PlanOptions(compare=False)
            )
        except HetcliError as error:
            return Solved(
                time.process_time() - processor, time.perf_counter() - clock, None, str(error)
            )
        processor, clock = time.process_time() - processor, time.perf_counter() - clock
        degrees = found.parallelism
        text = (
            f"{found.predicted.step_time_s:.3f} s a step, tp{degrees.tensor_parallel} "
            f"pp{len(found.stages)} dp{degrees.data_parallel}"
        )
        return Solved(processor, clock, found.certificate.gap, text)

    return Row(name, solve, target_s, peers)
