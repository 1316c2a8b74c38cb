"""Export a saved result as a workbook: with live formulas where today's prediction is the same, else as numbers.

    data, keeps_formulas = export_result(result)
    read_workbook(data, "result.xlsx").figures         # those of the result

A workbook of numbers also holds the result's timeline, which `sheet/reading.py` reads back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crosszone.analyse.outcome import Figures
from crosszone.calibrate.sheet.book import Book, Heading, SheetLine, UserText, build_line
from crosszone.calibrate.sheet.reading import LANES, SPANS, STEPS, TIMELINE, VALUES_ONLY
from crosszone.calibrate.sheet.workbook import FIGURES, OUTPUT, build_predictor_workbook
from crosszone.errors import InputError
from crosszone.inputs.document import parse_document
from crosszone.inputs.scenario import Loaded, parse_scenario
from crosszone.inputs.value import Value, parse
from crosszone.predict.answer import build_predictor_from
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor
from crosszone.schedule.trace import Trace, read_trace
from crosszone.text import DEFAULT_LANGUAGE

MOST_SPANS = 50_000  # Spans of a timeline that a workbook holds


def build_values_workbook(name: str, figures: Mapping[str, Any], trace: Trace | None, language: str) -> bytes:
    """Figures and, where there is one, the timeline of a result."""
    values = parse(Figures, dict(figures), at=("figures",))
    book = Book(language)
    lines: list[SheetLine | Heading] = [
        Heading(key="values_only"),
        build_line(VALUES_ONLY, "yes"),
        build_line("scenario_name", UserText(name)),
        build_line("out_iteration_s", values.step_time_s, "s", "V3"),
    ]
    for figure, cell in FIGURES.items():
        value = getattr(values, figure)
        lines += [build_line(cell, value)] if value is not None else []
    lines += [build_line("framework", UserText(values.framework))] if values.framework else []
    lines += [build_line(f"part_{part}", seconds, "s") for part, seconds in values.breakdown_s.items()]
    book.write_lines(OUTPUT, lines)
    if trace is not None and 0 < len(trace.spans) <= MOST_SPANS:
        for prefix, fields, rows in (
            ("lanes", LANES, trace.lanes),
            ("steps", STEPS, trace.steps),
            ("spans", SPANS, trace.spans),
        ):
            if rows:
                book.write_table(TIMELINE, prefix, {key: [getattr(row, key) for row in rows] for key in fields})
    return book.save()


# Share by which today's prediction may differ from the saved one for its formulas to be those of the result.
STEP_TOLERANCE = 1e-9


def export_result(
    result: Mapping[str, Any] | Value, loaded: Loaded | None = None, language: str = DEFAULT_LANGUAGE
) -> tuple[bytes, bool]:
    """The workbook of a saved result (`store.Result`, or its fields), and whether it holds formulas.

    `loaded`: the scenario done the way of the result, where the caller has read it; else it is read from the result.
    """
    fields = result.model_dump() if isinstance(result, Value) else dict(result)
    document, name = fields["document"], str(fields["name"])
    if fields["kind"] != "predicted":
        return build_values_workbook(name, _select_figures(document), _read_result_trace(fields), language), False
    prediction = Prediction.model_validate(document, strict=False)
    predictor = _build_predictor(fields, loaded)
    figures = collect_prediction_figures(prediction)
    if predictor is None:
        return build_values_workbook(name, figures, None, language), False
    if (
        abs(float(predictor.step_time.expected) - prediction.step_time_s.expected)
        <= STEP_TOLERANCE * prediction.step_time_s.expected
    ):
        return build_predictor_workbook(predictor, language), True
    return build_values_workbook(name, figures, _draw_timeline(predictor), language), False


def collect_prediction_figures(prediction: Prediction) -> dict[str, Any]:
    """What `outcome.Figures` keeps of a prediction."""
    run = prediction.run
    return {
        "step_time_s": prediction.step_time_s.expected,
        "tokens_per_s": prediction.tokens_per_s.expected,
        "mfu": prediction.mfu.expected,
        "memory_gib": prediction.memory_gib.peak.expected,
        "gpus": prediction.gpus,
        "framework": prediction.framework,
        "days": run.days and run.days.expected,
        "usd": run.usd and run.usd.expected,
        "kwh": run.kwh and run.kwh.expected,
        "breakdown_s": dict(prediction.breakdown_s),
    }


def _build_predictor(fields: Mapping[str, Any], loaded: Loaded | None) -> Predictor | None:
    """The prediction of today; None where its scenario is not kept or cannot be read any more."""
    try:
        if loaded is None and fields.get("scenario"):
            loaded = _load_result_scenario(fields["scenario"], fields.get("way"))
        return None if loaded is None else build_predictor_from(loaded)
    except InputError:
        return None


def _load_result_scenario(text: str, strategy_fields: Mapping[str, Any] | None) -> Loaded:
    """The scenario of a result, done its way."""
    document = parse_document(text, "<text>")
    if strategy_fields is None or not isinstance(document.value, dict):
        return parse_scenario(text)
    value = dict(document.value)
    for key in ("strategy", "placement"):
        value.pop(key, None)
    if strategy_fields.get("framework"):
        value["job"] = {**value.get("job", {}), "framework": strategy_fields["framework"]}
    for key in ("strategy", "placement"):
        if strategy_fields.get(key):
            value[key] = strategy_fields[key]
    return parse_scenario(json.dumps(value))


def _draw_timeline(predictor: Predictor) -> Trace | None:
    try:
        return predictor.timeline().to_trace(predictor.name, framework=predictor.framework.name)
    except InputError:  # longer than a timeline draws
        return None


def _select_figures(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: document[key] for key in Figures.model_fields if document.get(key) is not None}


def _read_result_trace(fields: Mapping[str, Any]) -> Trace | None:
    document = (fields.get("timeline") or {}).get("trace")
    if document is None:
        return None
    try:
        return read_trace(document if isinstance(document, str) else json.dumps(document))
    except InputError:  # rows of a trace that reading it row by row leaves out
        return None
