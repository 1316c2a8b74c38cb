"""Marginal value: what one more node, zone, 10 Gbit/s or the next GPU kind brings, and what a zone is worth.

answer = compare_marginal(crosszone.load_scenario("examples/three-cities.yaml"))
answer.variants[0].advice["message"]          # the best return first
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, get_args

from crosszone.analyse.bill import build_bill, format_usd
from crosszone.analyse.cluster_changes import (
    CHANGE_KINDS,
    COUNT_PINS,
    Change,
    ChangeKind,
    drop_count_pins,
    drop_planned_fields,
    list_changes,
    list_pinned_fields,
)
from crosszone.cost.profile import Profiles
from crosszone.errors import InputError, Notice
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value
from crosszone.plan.comparison import estimate_win_probability
from crosszone.plan.plan import NoticeDict, Plan, apply_plan
from crosszone.plan.planner import plan
from crosszone.plan.search import Progress
from crosszone.predict.predict import build_predictor
from crosszone.predict.prediction import Prediction
from crosszone.predict.run import get_usd_per_gpu_hour

Verdict = Literal["saves", "cheaper", "buys", "faster", "nothing", "worse", "refused"]
ORDER: tuple[Verdict, ...] = get_args(Verdict)
SAME = 1e-3  # Share of a step or a price below which two are the same: less than answers show


class Worth(Value):
    """A cluster with the best plan on it: how fast, and for how much."""

    plan: str
    """The plan in short."""
    zones: tuple[str, ...]
    """Zones it uses."""
    gpus: int
    """GPUs it uses."""
    gpus_held: int
    """GPUs of the cluster, idle ones too."""
    step_s: float
    """Expected step, s."""
    tokens_per_s: float
    """Expected tokens/s."""
    days: float | None
    """Of the whole run; null: its length is not known."""
    usd_per_hour: float | None
    """All GPUs of the cluster, for idle ones are paid for too, and egress that has a price; null: a GPU has none."""
    usd_per_hour_in_use: float | None
    """The same of the GPUs that the plan uses."""
    usd_per_million_tokens: float | None
    """`usd_per_hour` over the tokens of an hour of the run."""
    unpriced: tuple[str, ...]
    """Links whose traffic has no price and is in no sum."""


class Variant(Value):
    """One change of the cluster, and what it brings over what it is compared with."""

    kind: ChangeKind
    """What changes."""
    target: str
    """Zone, node group or link that changes."""
    change: NoticeDict
    """The change as a sentence."""
    freed: bool
    """Planned, and compared, without the pins that fix the number of GPUs."""
    worth: Worth | None
    """The best plan with the change; null: there is none."""
    refusal: tuple[NoticeDict, ...]
    """Why there is none."""
    step_pct: float | None
    """Change of the step, %; below zero: faster."""
    tokens_pct: float | None
    """Change of tokens/s, %."""
    tokens_pct_as_pinned: float | None
    """The same over the scenario with everything that is pinned; null: that is what it is compared with."""
    chance_faster: float | None
    """Chance that it really is faster; null: the step is the same."""
    price_known: bool
    """What the change itself costs is in the sums; false for links, whose rent nobody publishes."""
    usd_per_hour_more: float | None
    """What it costs an hour on top; below zero: what it saves."""
    usd_per_day_more: float | None
    """The same for a day."""
    usd_per_million_tokens_pct: float | None
    """Change of the price of a token, %."""
    days_saved: float | None
    """Of the whole run."""
    tokens_per_s_per_usd_hour: float | None
    """Tokens/s gained for each $ an hour added; null: nothing gained, nothing added, or a price is not known."""
    worth_usd_per_hour: float | None
    """What the change may cost an hour before a token becomes dearer than it is now; the rent alone, where that is not
    known and the egress is."""
    verdict: Verdict
    """saves: no slower for less; cheaper: slower, and a token costs less; buys: faster for more; faster: at a price not
    known; nothing: as before; worse: slower, and a token costs more; refused."""
    advice: NoticeDict
    """What to do, as a sentence."""


class Marginal(Value):
    """Every variant, best return first."""

    name: str
    """Name of the scenario."""
    base: Worth
    """The scenario as it is, with everything that is pinned."""
    freed: Worth | None
    """The same without the pins that fix the number of GPUs; null: there are none."""
    variants: tuple[Variant, ...]
    """Savings first, then by tokens/s gained for each $ an hour added."""
    seconds: float
    """Time it took."""
    notes: tuple[NoticeDict, ...]
    """What a reader should know."""


@dataclass(frozen=True)
class _Planned:
    """A scenario with its best plan."""

    worth: Worth
    prediction: Prediction


def compare_marginal(
    scenario: Scenario,
    *,
    kinds: Collection[ChangeKind] = CHANGE_KINDS,
    local_updates: bool = False,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    language: str = "en",
    profiles: Profiles | None = None,
) -> Marginal:
    """The best plan of the scenario and of every change to its cluster, sorted by return. [A16]

    Changes: a node more in each group; a copy of each zone, linked like the best and the median link there is;
    10 Gbit/s more on each link, on all, and on each uplink; the next faster GPU kind; each zone dropped. `IllegalError`
    where the scenario itself cannot be planned.
    """
    began = monotonic()
    loaded = profiles or Profiles.load()
    plan_options: dict[str, Any] = {"local_updates": local_updates, "cancelled": cancelled, "profiles": loaded}
    base = _plan_best(drop_planned_fields(scenario), **plan_options)
    unpinned = drop_count_pins(scenario)
    unpinned_base = base if unpinned is None else _plan_best(unpinned, **plan_options)
    tried = [candidate for candidate in list_changes(scenario) if candidate.kind in kinds]
    variants = []
    if unpinned is not None and "unpin" in kinds:
        pins = [name for name in COUNT_PINS if name in list_pinned_fields(scenario)]
        notice = Notice(code="marginal_unpin", level="note", field="strategy", params={"fields": pins})
        unpin = Change(kind="unpin", target="strategy", notice=notice, make=lambda: scenario.cluster, gpus_change=False)
        variants.append(_build_variant(unpin, base, unpinned_base, language))
    for number, change in enumerate(tried):
        if progress is not None:
            progress("variants", number, len(tried))
        # another number of GPUs can only be used where none is pinned, so both sides are planned without those pins
        is_unpinned = change.gpus_change and unpinned is not None
        start, before = (
            (unpinned, unpinned_base) if is_unpinned and unpinned is not None else (drop_planned_fields(scenario), base)
        )
        try:
            after: _Planned | InputError = _plan_best(start.replace(cluster=change.make()), **plan_options)
        except InputError as error:
            after = error
        variants.append(_build_variant(change, before, after, language, pinned=base if is_unpinned else None))
    if progress is not None:
        progress("variants", len(tried), len(tried))
    return Marginal(
        name=scenario.name,
        base=base.worth,
        freed=None if unpinned is None else unpinned_base.worth,
        variants=tuple(sorted(variants, key=_rank)),
        seconds=monotonic() - began,
        notes=tuple(notice.as_dict(language) for notice in _list_notes(scenario, base, variants)),
    )


def _plan_best(scenario: Scenario, *, profiles: Profiles, **plan_options: Any) -> _Planned:
    """The scenario with its best plan, a synchronous one unless local updates may win."""
    answer = plan(scenario, top=1, profiles=profiles, **plan_options)
    best = min((*answer.plans, *answer.local_updates), key=lambda candidate: candidate.prediction.step_time_s.expected)
    return _Planned(compute_worth(scenario, best, profiles), best.prediction)


def compute_worth(scenario: Scenario, best: Plan, profiles: Profiles | None = None) -> Worth:
    """Speed and price of a plan on its cluster, idle GPUs paid for. [A16]"""
    cost, prediction = build_bill(build_predictor(apply_plan(scenario, best), profiles=profiles)), best.prediction
    prices = [(get_usd_per_gpu_hour(group), group.total_gpus) for _, group in scenario.cluster.zone_groups]
    egress = cost.usd_egress_known_per_step * cost.steps_per_hour
    paid = None
    if all(price is not None for price, _ in prices):
        paid = sum((price or 0.0) * count for price, count in prices) + egress
    tokens = cost.steps_per_hour * scenario.job.tokens_per_step
    return Worth(
        plan=best.short,
        zones=best.zones,
        gpus=prediction.gpus,
        gpus_held=scenario.cluster.gpus,
        step_s=prediction.step_time_s.expected,
        tokens_per_s=prediction.tokens_per_s.expected,
        days=None if prediction.run.days is None else prediction.run.days.expected,
        usd_per_hour=paid,
        usd_per_hour_in_use=None if prediction.run.usd_per_hour is None else prediction.run.usd_per_hour + egress,
        usd_per_million_tokens=None if paid is None else paid / tokens * 1e6,
        unpriced=cost.unpriced,
    )


def _build_variant(
    change: Change, before: _Planned, after: _Planned | InputError, language: str, *, pinned: _Planned | None = None
) -> Variant:
    """What a change brings over what it is compared with. [A16]"""
    fields: dict[str, Any] = {
        "kind": change.kind,
        "target": change.target,
        "change": change.notice.as_dict(language),
        "freed": pinned is not None,
        "price_known": change.price_known,
    }
    if isinstance(after, InputError):
        advice = Notice(code="marginal_refused", level="note", field="cluster")
        if change.kind == "drop":
            advice = Notice(code="marginal_drop_needed", level="note", field="cluster", params={"zone": change.target})
        # all other figures are null, whatever fields are added
        nothing = [name for name in Variant.model_fields if name not in fields and name not in ("refusal", "verdict")]
        notices = tuple(notice.as_dict(language) for notice in after.notices)
        empty = dict.fromkeys(nothing, None)
        return Variant(
            **fields | empty | {"refusal": notices, "verdict": "refused", "advice": advice.as_dict(language)}
        )
    gain = _Gain(change, before.worth, after.worth, None if pinned is None else pinned.worth)
    return Variant(
        **fields,
        worth=gain.new,
        refusal=(),
        step_pct=100.0 * (gain.new.step_s / gain.old.step_s - 1.0),
        tokens_pct=100.0 * gain.share,
        tokens_pct_as_pinned=None if gain.as_pinned is None else 100.0 * gain.as_pinned,
        chance_faster=None if gain.is_same_speed else estimate_win_probability(after.prediction, before.prediction),
        usd_per_hour_more=gain.added_usd,
        usd_per_day_more=None if gain.added_usd is None else 24.0 * gain.added_usd,
        usd_per_million_tokens_pct=None if gain.token_price_change is None else 100.0 * gain.token_price_change,
        days_saved=None if gain.old.days is None or gain.new.days is None else gain.old.days - gain.new.days,
        tokens_per_s_per_usd_hour=gain.tokens_per_usd,
        worth_usd_per_hour=gain.affordable_usd,
        verdict=gain.verdict,
        advice=gain.advice.as_dict(language),
    )


@dataclass(frozen=True)
class _Gain:
    """What a change brings, as shares and $ an hour. [A16]"""

    change: Change
    old: Worth
    new: Worth
    pinned: Worth | None

    @property
    def share(self) -> float:
        """Tokens/s gained, over those before."""
        return self.new.tokens_per_s / self.old.tokens_per_s - 1.0

    @property
    def is_same_speed(self) -> bool:
        """The step is as long as before."""
        return abs(self.share) < SAME

    @property
    def as_pinned(self) -> float | None:
        """Tokens/s gained over the plan with everything that is pinned."""
        return None if self.pinned is None else self.new.tokens_per_s / self.pinned.tokens_per_s - 1.0

    @property
    def added_usd(self) -> float | None:
        """$ an hour added."""
        if self.old.usd_per_hour is None or self.new.usd_per_hour is None:
            return None
        return self.new.usd_per_hour - self.old.usd_per_hour

    @property
    def is_same_price(self) -> bool:
        """The cluster costs as much as before."""
        return abs(self.added_usd or 0.0) <= SAME * (self.old.usd_per_hour or 0.0)

    @property
    def token_price_change(self) -> float | None:
        """Change of the price of a token, over that before; None where there is none."""
        old, new = self.old.usd_per_million_tokens, self.new.usd_per_million_tokens
        return None if new is None or not old else new / old - 1.0

    @property
    def affordable_usd(self) -> float | None:
        """$ an hour that it may cost before a token becomes dearer."""
        if self.added_usd is None or self.old.usd_per_hour is None:
            return None
        # of a link the added cost is its egress alone: what is left may be spent on its rent
        return self.share * self.old.usd_per_hour - (0.0 if self.change.price_known else self.added_usd)

    @property
    def tokens_per_usd(self) -> float | None:
        """Tokens/s gained for each $ an hour added."""
        if not self.change.price_known or self.added_usd is None or self.added_usd <= 0.0 or self.share < SAME:
            return None
        return (self.new.tokens_per_s - self.old.tokens_per_s) / self.added_usd

    @property
    def verdict(self) -> Verdict:
        """Whether the change is worth it."""
        faster, slower = self.share >= SAME, self.share <= -SAME
        if self.added_usd is None or self.token_price_change is None or (faster and not self.change.price_known):
            return "faster" if faster else "worse" if slower else "nothing"
        if slower:
            return "cheaper" if self.token_price_change < -SAME else "worse"
        if self.is_same_price:
            return "saves" if faster else "nothing"
        if self.added_usd < 0:
            return "saves"
        return "buys" if faster else "worse"

    @property
    def advice(self) -> Notice:
        """What to do, with the figures."""
        params = {
            "zone": self.change.target,
            "percent": round(100.0 * abs(self.share), 1),
            "usd": "" if self.added_usd is None else format_usd(abs(24.0 * self.added_usd)),
            "worth": "" if self.affordable_usd is None else format_usd(max(24.0 * self.affordable_usd, 0.0)),
            "token_percent": "" if self.token_price_change is None else round(100.0 * abs(self.token_price_change), 1),
        }
        code = self._describe_drop() if self.change.kind == "drop" else self._describe_change()
        if code == "marginal_drop_slows" and self.as_pinned is not None:
            params["percent"] = round(100.0 * self.as_pinned, 1)
        return Notice(code=code, level="note", field="cluster", params=params)

    def _describe_drop(self) -> str:
        used = self.pinned is not None and self.change.target in self.pinned.zones
        if self.verdict in ("saves", "faster", "nothing"):
            if not self.is_same_speed or (used and (self.as_pinned or 0.0) >= SAME):
                return "marginal_drop_slows"
            return "marginal_drop_free" if self.verdict == "saves" else "marginal_drop_unused"
        if self.verdict == "cheaper":
            return "marginal_drop_cheaper"
        return "marginal_drop_slower" if self.added_usd is None else "marginal_drop_keep"

    def _describe_change(self) -> str:
        match self.verdict:
            case "saves":
                if self.is_same_speed:
                    return "marginal_same_for_less"
                return "marginal_faster_as_dear" if self.is_same_price else "marginal_saves"
            case "cheaper":
                return "marginal_cheaper"
            case "buys":
                return "marginal_buys"
            case "faster":
                if self.affordable_usd is None:
                    return "marginal_faster"
                return "marginal_worth" if self.affordable_usd > 0 else "marginal_egress_eats"
            case "worse":
                return "marginal_idle" if self.is_same_speed else "marginal_worse"
        return "marginal_nothing"


def _rank(variant: Variant) -> tuple[float, ...]:
    """Savings first, then what buys most for a $, then what gains at a price not known."""
    more = variant.usd_per_hour_more or 0.0
    by = {
        "saves": (more, -(variant.tokens_pct or 0.0)),
        "cheaper": (variant.usd_per_million_tokens_pct or 0.0, 0.0),
        "buys": (-(variant.tokens_per_s_per_usd_hour or 0.0), 0.0),
        "faster": (-(variant.tokens_pct or 0.0), 0.0),
        "worse": (-(variant.tokens_pct or 0.0), more),
    }
    return (float(ORDER.index(variant.verdict)), *by.get(variant.verdict, (0.0, 0.0)))


def _list_notes(scenario: Scenario, base: _Planned, variants: Sequence[Variant]) -> Iterator[Notice]:
    """What a reader of the table should know."""
    pins = sorted(list_pinned_fields(scenario) & set(COUNT_PINS))
    if pins and any(variant.freed for variant in variants):
        yield Notice(code="marginal_freed", level="note", field="strategy", params={"fields": pins})
    if base.worth.usd_per_hour is None:
        yield Notice(code="marginal_unpriced", level="warning", field="cluster.zones")
    elif base.worth.gpus < base.worth.gpus_held:
        idle = base.worth.gpus_held - base.worth.gpus
        yield Notice(code="marginal_held", level="note", field="cluster.zones", params={"idle": idle})
    links = sorted({link for variant in variants if variant.worth is not None for link in variant.worth.unpriced})
    if links:
        yield Notice(code="egress_price_unknown", level="warning", field="cluster.links", params={"pairs": links})
    if any(not variant.price_known for variant in variants):
        yield Notice(code="marginal_lines_unpriced", level="note", field="cluster.links")
