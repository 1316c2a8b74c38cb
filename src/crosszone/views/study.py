"""Study: everything that a report says of a scenario, computed once by the functions that every surface calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from crosszone.analyse.communication import CommunicationReport, build_communication_report
from crosszone.analyse.suggest import Suggestions, find_suggestions
from crosszone.errors import InputError
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.rules import Case
from crosszone.inputs.scenario import Loaded, Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.summary import describe
from crosszone.plan.layouts import Crossing
from crosszone.plan.plan import NoticeDict, Plans, apply_plan
from crosszone.plan.planner import plan, select_best
from crosszone.plan.planner import plan_loaded as planned_answer
from crosszone.plan.reasons import explain_plan
from crosszone.plan.search import Progress
from crosszone.predict.answer import PredictionAnswer
from crosszone.predict.answer import answer as predicted_answer
from crosszone.predict.predictor import Predictor
from crosszone.text import DEFAULT_LANGUAGE


@dataclass(frozen=True, kw_only=True)
class Study:
    """A scenario with one strategy, what is known of it, and the plans that it competes with."""

    scenario: Scenario
    """With framework, strategy and placement filled in where they were left open."""
    described: dict[str, Any]
    """What follows from it before anything is predicted."""
    answer: PredictionAnswer
    traffic: CommunicationReport
    suggestions: Suggestions
    reasons: tuple[NoticeDict, ...]
    """Why it is so fast, or not faster."""
    chosen: bool
    """The strategy was chosen by the search, not given."""
    free: Plans | None
    """Plans with strategy and placement left open; None: none fits."""
    refused: tuple[NoticeDict, ...]
    """Why there are no such plans."""


def build_study(
    loaded: Loaded,
    language: str = DEFAULT_LANGUAGE,
    *,
    budget_s: float | None = None,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Study:
    """Study a scenario that was read from a file: the strategy it gives, else its best plan.

    `budget_s` ends the search for plans early.
    """
    options: dict[str, Any] = {"budget_s": budget_s, "progress": progress, "cancelled": cancelled}
    scenario = loaded.scenario
    free: Plans | None = None
    refused: tuple[NoticeDict, ...] = ()
    if scenario.strategy is None:
        with loaded.document.place_errors():
            free = planned_answer(loaded, language, **options)
        planned = loaded._replace(scenario=apply_plan(scenario, select_best(free)))
        prediction_answer = predicted_answer(planned, language)
    else:
        # before the search, for it says what is wrong with the file
        planned, prediction_answer = loaded, predicted_answer(loaded, language)
        try:
            # what could be had instead, which the report puts beside the given strategy
            free = plan(scenario.replace(strategy=None, placement=None), language=language, **options)
        except InputError as error:
            refused = tuple(notice.as_dict(language) for notice in error.notices)
    return Study(
        scenario=planned.scenario,
        described=describe(planned, language),
        answer=prediction_answer,
        traffic=build_communication_report(prediction_answer.predictor, prediction_answer.prediction),
        suggestions=find_suggestions(planned.scenario, base=prediction_answer.predictor, language=language),
        reasons=_list_reasons(prediction_answer, free, language),
        chosen=scenario.strategy is None,
        free=free,
        refused=refused,
    )


CHOSEN = ("reason_framework", "reason_layers", "reason_shares")  # Reasons that praise a choice of the search


def _list_reasons(prediction_answer: PredictionAnswer, free: Plans | None, language: str) -> tuple[NoticeDict, ...]:
    """The reasons of that plan where the search has it, else what holds for any strategy and how far it is behind."""
    predicted = _PredictedPlan(prediction_answer.predictor)
    for ranked in (*free.plans, *free.local_updates) if free is not None else ():
        identity = (ranked.framework, ranked.strategy, ranked.placement)
        if identity == (predicted.framework.name, predicted.strategy, predicted.predictor.placed.placement):
            return ranked.reasons
    best = select_best(free).prediction if free is not None else None
    # the plan is given: nobody chose it for its framework or layers
    left_out = CHOSEN if predicted.tp_together else (*CHOSEN, "reason_tp")
    reasons = (
        notice for notice in explain_plan(predicted, prediction_answer.prediction, best) if notice.code not in left_out
    )
    return tuple(notice.as_dict(language) for notice in reasons)


@dataclass(frozen=True)
class _PredictedPlan:
    """A predicted strategy with the fields of a plan that reasons are made from."""

    predictor: Predictor

    @property
    def problem(self) -> Case:
        return self.predictor.case

    @property
    def strategy(self) -> Strategy:
        return self.predictor.strategy

    @property
    def framework(self) -> Framework:
        return self.predictor.framework

    @property
    def zone_names(self) -> list[str]:
        """Zones in use, in rank order."""
        return list(dict.fromkeys(block.zone for block in self.predictor.placed.placement.blocks))

    @property
    def tp_together(self) -> bool:
        """Ranks of a tensor-parallel group share a node or a fast-link domain."""
        placed = self.predictor.placed
        return any(bool(np.all(where == where[..., :1])) for where in (placed.node, placed.domain))

    @property
    def crossing(self) -> Crossing:
        """What crosses zones: stages of one replica, replicas of one stage, or both."""
        zone = self.predictor.placed.zone[:, :, 0, 0]
        stages, replicas = bool(np.ptp(zone, axis=0).any()), bool(np.ptp(zone, axis=1).any())
        if stages and replicas:
            return "both"
        return "pp" if stages else "dp" if replicas else "none"
