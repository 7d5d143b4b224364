"""How good plans are: against brute force, and against their own bounds on the sample clusters."""

from __future__ import annotations

import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests" / "search"))

from brute_force import brute_force, size, small_problem

from hetcli.catalog.inputs import read_model
from hetcli.catalog.samples import read_cluster, sample_names
from hetcli.errors import HetcliError
from hetcli.search import PlanOptions, plan
from hetcli.search.grid import Grid
from hetcli.spec.workload import Pretrain

__all__ = ["exhaustive", "sample_gaps"]

# Candidates that a problem may have to be looked at whole: some seconds.
MOST_CANDIDATES = 1000
MODELS = ("gpt2-xl", "llama-2-7b", "llama-2-13b", "mixtral-8x7b", "llama-3-70b")


def exhaustive(number: int) -> dict[str, int]:
    """Compare with brute force on so many generated clusters, and print what differs."""
    seed = same = below = fits = done = 0
    while done < number:
        problem = small_problem(random.Random(seed))
        seed += 1
        if size(problem, MOST_CANDIDATES) > MOST_CANDIDATES:
            continue
        done += 1
        best, layout, _ = brute_force(problem)
        found = Grid(problem).run()
        value = found.plans[0].value if found.plans else float("inf")
        equal = value == best or abs(value / best - 1) < 1e-12
        same += equal
        below += found.bound <= best * (1 + 1e-12)
        fits += layout is not None
        if not equal:
            print(f"seed {seed - 1}: found {value}, best {best}")
        if done % 20 == 0 or done == number:
            print(
                f"{done} clusters, a plan fits on {fits}: {same} equal the optimum, "
                f"{below} bounds hold",
                flush=True,
            )
    return {"clusters": done, "fits": fits, "equal": same, "bounds": below}


def sample_gaps() -> dict[str, float]:
    """Print the gap and the time of every sample cluster with every model, and the median gap."""
    gaps = []
    for name in sample_names():
        for model in MODELS:
            start = time.process_time()
            try:
                found = plan(
                    cluster=read_cluster(f"sample:{name}"),
                    model=read_model(model),
                    workload=Pretrain(global_batch=256, sequence=1024),
                    options=PlanOptions(compare=False),
                )
            except HetcliError as error:
                print(f"{name:16s} {model:14s} {time.process_time() - start:6.2f} s  {error.what}")
                continue
            gap = found.certificate.gap
            assert gap is not None
            gaps.append(gap)
            seconds = time.process_time() - start
            print(f"{name:16s} {model:14s} {seconds:6.2f} s  gap {gap:.2%}", flush=True)
    print(f"median gap {statistics.median(gaps):.2%}, largest {max(gaps):.2%}")
    return {
        "plans": len(gaps),
        "models": len(MODELS),
        "median_gap": statistics.median(gaps),
        "largest_gap": max(gaps),
    }
