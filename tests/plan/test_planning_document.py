"""docs/planning.md tells the policies that there are, with their limits."""

from __future__ import annotations

import re

from conftest import ROOT
from crosszone.plan import options

TEXT = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(policy_\w+)` \| (.*) \|$", TEXT, re.MULTILINE))


def test_every_policy_stands_in_the_table_and_no_other():
    assert [(code, row.split(" | ")[0]) for code, row in ROWS.items()] == [
        (policy.code, policy.degree) for policy in options.POLICIES
    ]


def test_the_limits_in_the_table_are_those_of_the_program():
    limits = {
        "policy_cp_tokens": [options.MIN_TOKENS_PER_RANK],
        "policy_micro_batch": [options.MAX_MICRO_BATCH],
        "policy_stages": [options.SMALL_CLUSTER_GPUS, options.MAX_STAGES],
        "policy_folded_across": [options.SMALL_CLUSTER_GPUS],
    }
    found = {code: [int(number) for number in re.findall(r"\d+", row)] for code, row in ROWS.items()}
    assert {code: numbers for code, numbers in found.items() if numbers} == limits
