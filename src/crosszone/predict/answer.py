"""Answer: the prediction of a scenario file with every notice on it, the same for every surface."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from crosszone.errors import Level
from crosszone.inputs.scenario import Loaded, list_scenario_notices
from crosszone.inputs.summary import list_dp_notices, shorten_notices
from crosszone.predict.assumptions import describe_assumptions, list_assumptions
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor
from crosszone.text import DEFAULT_LANGUAGE

LEVELS: tuple[Level, ...] = ("error", "warning", "note")


class PredictionAnswer(NamedTuple):
    """A prediction, and the predictor that can also draw its timeline."""

    predictor: Predictor
    prediction: Prediction


def answer(loaded: Loaded, language: str = DEFAULT_LANGUAGE, *, computed: Predictor | None = None) -> PredictionAnswer:
    """Predict a scenario that was read from a file: notices have their lines, and tell what was assumed on the way.

    `computed`: what `build_predictor_from` gave for it, where that is there already.

    An assumed bandwidth changes the numbers as much as a typed one, so what `scenario check` says is said here too.
    """
    scenario, document = loaded.scenario, loaded.document
    computed = computed or build_predictor_from(loaded)
    notices = [
        *list_dp_notices(scenario, computed.strategy),
        *computed.notices,
        *loaded.notices,
        *list_scenario_notices(scenario),
    ]
    complete = replace(computed, notices=tuple(shorten_notices(list(map(document.place_notice, notices)))))
    prediction = build_prediction(complete, language)
    assumptions = list_assumptions(complete)
    basis = prediction.basis.model_copy(update={"assumptions": assumptions})
    described = describe_assumptions(complete, assumptions, language)
    prediction = prediction.model_copy(update={"basis": basis, "assumptions": described})
    worst_first = sorted(prediction.warnings, key=lambda notice: LEVELS.index(notice["level"]))
    return PredictionAnswer(complete, prediction.model_copy(update={"warnings": tuple(worst_first)}))


def build_predictor_from(loaded: Loaded) -> Predictor:
    """Everything that can be computed of a scenario that was read from a file; errors have their lines."""
    with loaded.document.place_errors():
        return build_predictor(loaded.scenario)
