"""Answer: the parts of an analysis of a scenario file that were asked for, the same for every surface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from crosszone.analyse.bill import Bill, Trade, build_bill, list_trades
from crosszone.analyse.communication import CommunicationReport, build_communication_report
from crosszone.analyse.drill import Drill, run_drill
from crosszone.analyse.marginal import Marginal, compare_marginal
from crosszone.analyse.rating import Rating, build_rating
from crosszone.analyse.suggest import Suggestions, find_suggestions
from crosszone.inputs.scenario import Loaded
from crosszone.inputs.value import Value
from crosszone.plan.plan import apply_plan
from crosszone.plan.planner import plan, select_best
from crosszone.plan.search import Progress
from crosszone.predict.answer import PredictionAnswer
from crosszone.predict.answer import answer as predicted
from crosszone.predict.prediction import Prediction
from crosszone.text import DEFAULT_LANGUAGE

Part = Literal["traffic", "suggestions", "bill", "rating", "front", "drill", "marginal"]
PARTS: tuple[Part, ...] = get_args(Part)
QUICK = PARTS[:4]  # Parts that need no planning


class Analysis(Value):
    """A prediction and what was asked about it; null: that part was not asked for."""

    prediction: Prediction
    """What is analysed."""
    traffic: CommunicationReport | None = None
    """Where the bytes of a step go."""
    suggestions: Suggestions | None = None
    """What would help."""
    bill: Bill | None = None
    """What it costs."""
    rating: Rating | None = None
    """How sure it is."""
    front: tuple[Trade, ...] | None = None
    """What more money a day buys."""
    drill: Drill | None = None
    """What the loss of a zone costs."""
    marginal: Marginal | None = None
    """What one more of something is worth."""

    def to_asked(self) -> dict[str, Any]:
        """As JSON has it, only with what was asked for."""
        document = self.model_dump(mode="json")
        return {name: document[name] for name in type(self).model_fields if name in self.model_fields_set}


class Analysed(NamedTuple):
    """An analysis, and the predictor behind it."""

    answer: PredictionAnswer
    analysis: Analysis


def answer(
    loaded: Loaded,
    language: str = DEFAULT_LANGUAGE,
    *,
    parts: Sequence[Part] = QUICK,
    plans: bool = False,
    zone_failures_per_year: float = 0.0,
    checkpoint_zone: str | None = None,
    base: PredictionAnswer | None = None,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Analysed:
    """Analyse a scenario that was read from a file; without a strategy, its best plan.

    `plans`: suggest others too; `base`: the prediction of the scenario's own strategy, where it is there already.
    """
    read = loaded.scenario
    watched: dict[str, Any] = {"progress": progress, "cancelled": cancelled}
    planned = loaded if read.strategy is not None else fill_best_plan(loaded, watched)
    predicted_answer = base or predicted(planned, language)
    predictor = predicted_answer.predictor
    work: dict[Part, Callable[[], Any]] = {
        "traffic": lambda: build_communication_report(predictor, predicted_answer.prediction),
        "suggestions": lambda: find_suggestions(
            planned.scenario, base=predictor, plans=plans, language=language, **watched
        ),
        "bill": lambda: build_bill(predictor, language=language),
        "rating": lambda: build_rating(predictor, language=language),
        "front": lambda: list_trades(
            read, plan(read, top=1, front=True, local_updates=False, **watched).front, language=language
        ),
        "drill": lambda: run_drill(
            read,
            zone_failures_per_year=zone_failures_per_year,
            checkpoint_zone=checkpoint_zone,
            language=language,
            **watched,
        ),
        "marginal": lambda: compare_marginal(read, language=language, **watched),
    }
    parts_asked = {part: work[part]() for part in PARTS if part in parts}
    return Analysed(predicted_answer, Analysis(prediction=predicted_answer.prediction, **parts_asked))


def fill_best_plan(loaded: Loaded, plan_options: dict[str, Any]) -> Loaded:
    """The scenario with its best plan filled in; errors have their lines."""
    with loaded.document.place_errors():
        best = select_best(plan(loaded.scenario, top=1, **plan_options))
    return loaded._replace(scenario=apply_plan(loaded.scenario, best))
