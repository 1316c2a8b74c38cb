"""The H200 profile: `python benchmarks/h200.py` scores it and updates RESULTS.md.

Kernels were timed by `crosszone calibrate kernels`, whole steps by `hf_steps.py`; stacks were fitted to the rows of
measured/fit, and the rows of measured/check, other models and shapes, only score them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crosszone.calibrate.accuracy import ScoredRow, score_runs, summarize_errors
from crosszone.cost.operator_profile import load_operator_profile
from crosszone.cost.profile import Profiles
from results import write_section

MEASURED = Path(__file__).resolve().parent / "measured"
GPU = "h200-141gb-sxm"
COLUMNS = {
    "mean %": "mape_pct",
    "median %": "median_ape_pct",
    "within 10 %": "within_10_pct",
    "in band %": "band_coverage_pct",
    "memory, mean %": "memory_mape_pct",
    "memory, lowest %": "memory_lowest_pct",
}


def describe_stack(row: ScoredRow) -> str:
    """What a row is of."""
    return {"hf-eager": "Hugging Face, eager", "hf-compile": "Hugging Face, compiled"}.get(
        row.stack or "", "the shipped trainer"
    )


def format_line(name: str, scores: dict[str, Any]) -> str:
    """One line of the table of steps."""
    return f"| {name} | {scores['scored']} | {' | '.join(f'{scores[key]:.1f}' for key in COLUMNS.values())} |"


def main() -> None:
    """Both tables."""
    lines = [
        "`python benchmarks/h200.py`: one H200, torch 2.11. Rows fitted to, and rows of other models and shapes.",
        "",
        f"| whole steps | rows | {' | '.join(COLUMNS)} |",
        "|---" * (2 + len(COLUMNS)) + "|",
    ]
    worst: list[ScoredRow] = []
    for part, title in (("fit", "fitted to"), ("check", "**not fitted to**")):
        rows = [
            row
            for path in sorted((MEASURED / part).glob("h200_*.csv"))
            for row in score_runs(path, Profiles.load_shipped()).rows
        ]
        worst = [row for row in rows if row.stack in ("hf-eager", "hf-compile")]
        lines.append(format_line(f"{title}: Hugging Face, all", summarize_errors(worst)))
        for name in dict.fromkeys(map(describe_stack, rows)):
            lines.append(
                format_line(f"{title}: {name}", summarize_errors([row for row in rows if describe_stack(row) == name]))
            )
    lines += ["", "| row not fitted to | stack | measured s | predicted s | error % |", "|---|---|---|---|---|"]
    for row in sorted(worst, key=lambda row: -abs(row.error_pct or 0.0)):
        lines.append(
            f"| {row.id} | {row.stack} | {row.measured_s:.4f} | {row.predicted_s:.4f} | {row.error_pct:+.1f} |"
        )
    profile = load_operator_profile(GPU)
    if profile is not None:
        lines += ["", f"Operators: {profile.samples} samples; {profile.source}", ""]
        lines += ["| operator | samples | held-out samples, mean % | unseen sizes, mean % |", "|---|---|---|---|"]
        for family, errors_of_family in profile.summarize().items():
            errors = f"{errors_of_family['error_pct']:.1f} | {errors_of_family['unseen_pct']:.1f}"
            lines.append(f"| {family} | {errors_of_family['samples']:.0f} | {errors} |")
    write_section("H200 profile", "\n".join(lines))


if __name__ == "__main__":
    main()
