"""site.yml killed right after every task that changed something, and after a sample of the others.

    make kill-sweep [BED=fast|lab] [CASES=N] [ARGS='-k TEXT --sample 30 --seed SEED']

For each: a node in the state in which the task's phase begins, a run whose processes all get SIGKILL once the task has
reported, then a run that must converge: exit code 0, no fewer checks passed than in an undisturbed run, and (fast
bed) a node that looks like one that was never interrupted. What is done is written to .lab/kill-sweep and is not done
again as long as the sources are the same; the tasks and the sample are kept there too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time

import beds
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import made_of
from ansible_collections.gpufabric.rdma.tests.tools.lab_nodes import CHECKOUT

HOME = CHECKOUT / ".lab/kill-sweep"
MOST_SHOWN = 12


def cases(phases: dict[str, list[dict]], size: int, seed: str) -> list[dict]:
    """Each task that changed something in its phase, then a sample of the other results, a place once."""
    rows = [{"phase": phase, **step} for phase, steps in phases.items() for step in steps]
    # A later phase begins with what an earlier one has done already, which is no change there.
    changed = [row for row in rows if row["kind"] == "changed"]
    taken = {row["place"] for row in changed}
    others = {row["place"]: row for row in rows if row["place"] not in taken}
    sample = random.Random(seed).sample(sorted(others), min(size, len(others)))
    return [
        {"phase": row["phase"], "place": row["place"], "task": row["task"], "kind": kind}
        for kind, some in (("changed", changed), ("sample", [others[place] for place in sample]))
        for row in some
    ]


def undisturbed(bed) -> dict:
    """What runs without an interruption report, phase by phase, and how the node looks after them."""
    found, last = {}, None
    bed.fresh(next(iter(bed.phases)))
    for phase, until in bed.phases.items():
        if last:
            bed.keep(phase)
        last = bed.start(until)
        if last.code != (beds.KILLED if until else 0):
            sys.exit(f"undisturbed run, phase {phase}: wanted exit code 0; seen {last.code}\n{last.last()}")
        found[phase] = last.steps
        print(f"{last.seconds:7.1f} s  undisturbed, phase {phase}: {len(last.steps)} results", flush=True)
    return {"phases": found, "passed": last.passed, "look": sorted(bed.look())}


def judge(bed, case: dict, wanted: dict) -> dict:
    """The case, with what became of it."""
    begun = time.monotonic()
    bed.fresh(case["phase"])
    killed = bed.start(case["place"])
    ended = {"killed after": round(killed.seconds, 1)}
    if killed.code != beds.KILLED:
        return {**case, **ended, "next": f"not killed: exit code {killed.code}", "said": killed.last(), "seconds": 0.0}
    after = bed.start()
    differs = sorted(bed.look() ^ set(wanted["look"])) if after.code == 0 else []
    if after.code:
        verdict = f"exit code {after.code}"
    elif after.passed < wanted["passed"]:  # what the killed run has installed is checked as well
        verdict = f"{after.passed} checks passed, not {wanted['passed']}"
        differs = after.not_verified()
    elif differs:
        verdict = f"{len(differs)} differences"
    else:
        verdict = "converged"
    said = after.last() if after.code else "\n".join(differs)
    return {**case, **ended, "next": verdict, "said": said, "seconds": round(time.monotonic() - begun, 1)}


def table(done: list[dict]) -> str:
    header = ("TASK", "PLACE", "KIND", "PHASE", "NEXT RUN", "SECONDS")
    keys = ("task", "place", "kind", "phase", "next")
    return core_text.table(header, [(*(row[key] for key in keys), f"{row['seconds']:.0f}") for row in done])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("bed", choices=beds.BEDS)
    parser.add_argument("--cases", type=int, help="at most so many more")
    parser.add_argument(
        "-k", dest="text", default="", help="only those whose phase, place, task and kind hold each word"
    )
    parser.add_argument("--sample", type=int, default=30, help="how many of the tasks that changed nothing")
    parser.add_argument("--seed", default=str(time.time_ns()), help="of the sample")
    given = parser.parse_args()
    bed = beds.BEDS[given.bed]()
    sources = made_of()
    HOME.mkdir(parents=True, exist_ok=True)
    plan, results = HOME / f"{bed.name}-plan.json", HOME / f"{bed.name}.jsonl"
    known = json.loads(plan.read_text()) if plan.exists() else {}
    if known.get("sources") != sources:
        results.unlink(missing_ok=True)
        wanted = undisturbed(bed)
        known = {
            "sources": sources,
            "seed": given.seed,
            **wanted,
            "cases": cases(wanted["phases"], given.sample, given.seed),
        }
        plan.write_text(json.dumps(known, indent=1))
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    over = {(row["phase"], row["place"]) for row in done}
    todo = [case for case in known["cases"] if (case["phase"], case["place"]) not in over]
    todo = [case for case in todo if all(word in " ".join(case.values()) for word in given.text.split())][: given.cases]
    print(f"{len(known['cases'])} cases, {len(done)} done before, {len(todo)} now; seed of the sample {known['seed']}")
    for case in todo:
        row = judge(bed, case, known)
        done.append(row)
        with results.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        print(
            f"{row['seconds']:7.1f} s  {row['next']:<12}  {row['kind']:<7}  {row['task']}  {row['place']}", flush=True
        )
        for line in row["said"].splitlines()[-MOST_SHOWN:]:
            print(f"           {line}")
    bed.close()
    bad = [row for row in done if row["next"] != "converged"]
    print(f"\n{table(done)}\n")
    counts = f"{len(done)} of {len(known['cases'])} cases, {len(done) - len(bad)} converged, {len(bad)} not"
    print(f"bed {bed.name}: {counts}; seed {known['seed']}, load {os.getloadavg()[0]:.0f}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
