"""Random scenarios of every kind, and the plans that the planner finds for each framework."""

from __future__ import annotations

import random
from typing import Any

from crosszone.errors import InputError
from crosszone.inputs.scenario import Scenario, load_scenario
from crosszone.plan.plan import apply_plan
from crosszone.plan.planner import plan

FRAMEWORKS = ("ddp", "fsdp", "deepspeed", "megatron", "horovod")
MODELS = ("gpt-2-medium", "llama-2-7b", "llama-2-13b", "llama-3-8b", "mixtral-8x7b", "llama-2-70b")
KINDS = ("a100-80gb-sxm", "h100-80gb-sxm", "a100-40gb-sxm")
ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"communication": {"flows": 8}},
    {"communication": {"flows": 16, "congestion": "bbr", "algorithm": "ring"}},
    {"recompute": "full"},
    {"micro_batch": 2},
)
"""Options that every framework has, asked for beside what the planner finds."""


def random_scenario(seed: int, framework: str) -> Scenario:
    """One to four zones of unequal nodes with an address and an interface for each."""
    draw = random.Random(seed)
    zones = []
    for number in range(draw.choice([1, 2, 2, 3, 4])):
        groups = []
        for group in range(draw.choice([1, 1, 2])):
            count, gpus = draw.choice([1, 2, 2, 4]), draw.choice([2, 4, 8, 8])
            at = f"10.{number}.{group}"
            same = framework == "horovod"  # which takes one name for all nodes
            hosts = [
                {
                    "name": f"n{number}-{group}-{node}",
                    "address": f"{at}.{node + 1}",
                    "interface": "eth0" if same else f"eth{node}",
                }
                for node in range(count)
            ]
            kind = KINDS[number % 2] if draw.random() < 0.3 else KINDS[0]
            groups.append({"count": count, "gpus": gpus, "gpu": kind, "nic_gbps": 200, "hosts": hosts})
        zones.append({"name": f"zone-{number}", "nodes": groups})
    strategy = draw.choice(ASKED)
    return load_scenario(
        {
            "name": f"random {seed}",
            "model": MODELS[0] if framework in ("ddp", "horovod") else draw.choice(MODELS),
            "job": {"seq_len": 1024, "global_batch": draw.choice([64, 96, 240, 512]), "framework": framework},
            "cluster": {
                "zones": zones,
                "default_link": {"gbps": draw.choice([1, 10, 100]), "rtt_ms": draw.choice([2, 30])},
            },
            **({"strategy": strategy} if strategy else {}),
        }
    )


def random_plans(framework: str, count: int, *, top: int = 6) -> list[Scenario]:
    """So many different plans of a framework, as scenarios with everything filled in; local updates among them."""
    found: list[Scenario] = []
    seed = 0
    while len(found) < count:
        seed += 1
        scenario = random_scenario(seed, framework)
        try:
            plans = plan(scenario, top=top)
        except InputError:
            continue  # nothing fits there
        found += [apply_plan(scenario, one) for one in (*plans.plans, *plans.local_updates[:1])]
    return found[:count]
