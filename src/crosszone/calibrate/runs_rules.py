"""What the text of a measured run says (stack, facts, release, sharding, precision), by the rules of runs.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeAlias

from crosszone.inputs.shipped import read_shipped

Row: TypeAlias = Mapping[str, str]
Fact: TypeAlias = bool | int | str

TEXT_COLUMNS = ("source", "model", "gpu", "precision", "framework", "zero_stage_or_fsdp", "notes")
"""Columns that rules look at: never the id, nor what was measured."""
_PATTERNS = frozenset({*TEXT_COLUMNS, "any", "text"})
_REMEMBERED = 4096
LONGEST_TEXT = 4000
"""Characters of a cell that are looked at."""


class RowError(Exception):
    """A row that cannot be scored: a code and a plain sentence."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a row of a stack leaves unsaid, and why it may be assumed; the fields are explained in runs.yaml."""

    framework: str
    recompute: str
    zero: int
    precision: str
    overlap: tuple[bool, bool, bool]
    why: str
    micro_batch: int = 1
    micro_batches: str | None = None
    interleave: tuple[int, ...] = (1,)
    interleaved: int | None = None
    sequence_parallel: bool = False
    vocab: int | None = None
    vocab_multiple: int | None = None
    nic_gbps_per_gpu: float | None = None
    gradient_dtype: str | None = None
    slots_when_uneven: bool = False


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How a published rate of operations is to be read."""

    column: str
    count_masked: bool
    why: str
    peak_tflops: float | None = None
    """The column is a percentage of this; None: it is TFLOP/s."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """Everything the text of a row says."""

    stack: str
    defaults: Defaults
    facts: Mapping[str, Fact]
    architecture: tuple[tuple[str, Any], ...]
    corrected: tuple[str, ...]
    """Columns that are known to be other than stated, with the reason."""
    release: float | None
    zero: int | None
    precision: str | None
    optimizer: str
    rate: Rate | None


def told(row: Row) -> Told:
    """What the text columns of a row say."""
    return _told(tuple(row.get(column, "")[:LONGEST_TEXT] for column in TEXT_COLUMNS))


def nic_default(gpu: str) -> tuple[float, str]:
    """Network rate of one GPU, Gbit/s, for a GPU kind whose row does not state it, and why."""
    rule = next(rule for rule in _rules()["nics"] if rule["gpu"].search(gpu))
    return float(rule["gbps"]), str(rule["why"])


@cache
def stack_names() -> tuple[str, ...]:
    """Every stack a row can be of."""
    return tuple(_rules()["defaults"])


@cache
def _rules() -> dict[str, Any]:
    """The rules with their patterns compiled."""
    rules: dict[str, Any] = read_shipped("crosszone.calibrate", "runs.yaml").value
    for name, group in rules.items():
        if isinstance(group, list):
            rules[name] = [_compiled(rule) for rule in group]
    return rules


def _compiled(rule: Any) -> Any:
    if isinstance(rule, str):
        return re.compile(rule, re.IGNORECASE)
    return {key: re.compile(value, re.IGNORECASE) if key in _PATTERNS else value for key, value in rule.items()}


@cache
def _defaults(stack: str) -> Defaults:
    fields = dict(_rules()["defaults"][stack])
    chunks = fields.get("interleave", 1)
    fields["interleave"] = tuple(chunks) if isinstance(chunks, list) else (chunks,)
    return Defaults(**{**fields, "overlap": tuple(fields["overlap"])})


@lru_cache(maxsize=_REMEMBERED)
def _told(texts: tuple[str, ...]) -> Told:
    row = dict(zip(TEXT_COLUMNS, texts, strict=True))
    stack: str = _first("stacks", row)["stack"]
    architecture = [rule for rule in _rules()["architecture"] if _match(rule, row)]
    rate = _first("rates", row)
    return Told(
        stack=stack,
        defaults=_defaults(stack),
        facts=_facts(row),
        architecture=tuple((key, value) for rule in architecture for key, value in rule["set"].items()),
        corrected=tuple(
            f"{key}: {value} ({rule['why']})"
            for rule in architecture
            if "why" in rule
            for key, value in rule["set"].items()
        ),
        release=_release(row["source"]),
        zero=_first("sharding", {"text": row["zero_stage_or_fsdp"]}).get("zero"),
        precision=_first("precisions", {"text": row["precision"]}).get("is"),
        optimizer=_first("optimizers", row)["optimizer"],
        rate=Rate(**{key: value for key, value in rate.items() if key not in _PATTERNS}) if rate else None,
    )


def _match(rule: Mapping[str, Any], row: Row) -> bool:
    """Every column that the rule names matches (`any`: all of them together)."""
    for key, pattern in rule.items():
        if key in _PATTERNS and not pattern.search(" ".join(row.values()) if key == "any" else row[key]):
            return False
    return True


def _first(group: str, row: Row) -> dict[str, Any]:
    return next((rule for rule in _rules()[group] if _match(rule, row)), {})


def _facts(row: Row) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for rule in _rules()["facts"]:
        if rule["fact"] not in facts and _match(rule, row):
            facts[rule["fact"]] = _counted(rule, row) if rule.get("number") else rule["value"]
    return facts


def _counted(rule: Mapping[str, Any], row: Row) -> int:
    """The number that the first group of the rule's pattern holds."""
    column = next(key for key in rule if key in _PATTERNS)
    found = rule[column].search(row[column])
    return int(next(group for group in found.groups() if group)[:9])


def _release(source: str) -> float | None:
    for pattern in _rules()["releases"]:
        match = pattern.search(source)
        if match:
            return int(match["year"]) + int(match["month"]) / 12
    return None
