"""Jobs: the long work of the API, as workers do it. Each answers the JSON that the command line prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from crosszone.analyse.answer import answer as analyse
from crosszone.analyse.radar import build_radar
from crosszone.analyse.sweep import sweep
from crosszone.analyse.sweep_cells import SweepAxis
from crosszone.cost.profile import Profiles
from crosszone.deploy.deploy import build_bundle
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.scenario import Loaded, Scenario
from crosszone.plan.planner import plan_loaded
from crosszone.plan.problem import PlanCache
from crosszone.plan.search import Progress
from crosszone.views.report import render_report
from crosszone.web.answers import dump_json

IsCancelled = Callable[[], bool]
# Nodes of a cluster whose bundle is made here: each one has a script, and all are sent at once.
MOST_NODES = 10_000


def preload_data() -> None:
    """Read what every plan needs, before the first one is asked for."""
    catalogue()
    Profiles.load()


def plan_job(
    loaded: Loaded, options: dict[str, Any], language: str, *, progress: Progress, cancelled: IsCancelled
) -> bytes:
    """The plans of a scenario."""
    with loaded.document.place_errors():
        plans = plan_loaded(loaded, language, progress=progress, cancelled=cancelled, cache=get_plan_cache(), **options)
    return dump_json(plans)


def analyse_job(
    loaded: Loaded, options: dict[str, Any], language: str, *, progress: Progress, cancelled: IsCancelled
) -> bytes:
    """The parts of an analysis that were asked for."""
    with loaded.document.place_errors():
        analysed = analyse(loaded, language, progress=progress, cancelled=cancelled, **options)
    return dump_json(analysed.analysis.to_asked())


def sweep_job(
    loaded: Loaded,
    axes: tuple[SweepAxis, SweepAxis | None],
    options: dict[str, Any],
    language: str,
    *,
    progress: Progress,
    cancelled: IsCancelled,
) -> bytes:
    """A sweep."""
    with loaded.document.place_errors():
        result = sweep(loaded.scenario, *axes, progress=progress, cancelled=cancelled, language=language, **options)
    return dump_json(result)


def compare_families_job(
    scenario: Scenario,
    variants: Sequence[tuple[str, Scenario]],
    language: str,
    *,
    progress: Progress,
    cancelled: IsCancelled,
) -> bytes:
    """Alternatives compared with the best of each family, which are searched for."""
    return dump_json(build_radar(scenario, variants, language=language, progress=progress, cancelled=cancelled))


def render_report_job(
    loaded: Loaded, options: dict[str, Any], language: str, *, progress: Progress, cancelled: IsCancelled
) -> bytes:
    """A report: its form and its text."""
    with loaded.document.place_errors():
        text = render_report(loaded, language, progress=progress, cancelled=cancelled, **options)
    return dump_json({"format": options["form"], "text": text})


def build_bundle_job(
    loaded: Loaded, options: dict[str, Any], language: str, *, progress: Progress, cancelled: IsCancelled
) -> bytes:
    """The files that start a plan, with what each node runs."""
    nodes = sum(group.count for _, group in loaded.scenario.cluster.zone_groups)
    if nodes > MOST_NODES:
        params = {"limit": MOST_NODES}
        raise InvalidError(Notice(code="bundle_too_many_nodes", field="cluster", value=nodes, params=params))
    with loaded.document.place_errors():
        bundle = build_bundle(
            loaded, language, progress=progress, cancelled=cancelled, cache=get_plan_cache(), **options
        )
    return dump_json(bundle)


@cache
def get_plan_cache() -> PlanCache:
    """What the plans of this worker have in common: a slider changes one thing at a time."""
    return PlanCache(lasting=True)
