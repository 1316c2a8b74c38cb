"""Scenarios of the server: those that come over HTTP, and the examples that can be opened.

A scenario of a request is read like a file, but it may only name files beside the opened one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, cast

from crosszone.analyse.fields import change_fields
from crosszone.errors import FileError, InputError, InvalidError, Notice
from crosszone.inputs.document import Document, dump_yaml, format_field_path, parse_document, read_text
from crosszone.inputs.edit_text import edit_yaml
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.scenario import Loaded, read_scenario, upgrade_fields
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.summary import describe
from crosszone.inputs.value import find_nearest_names
from crosszone.predict.answer import PredictionAnswer, answer, build_predictor_from
from crosszone.predict.predictor import Predictor
from crosszone.web.body import ChangeBody, ScenarioBody, StrategyOverride
from crosszone.web.refusals import refuse

Outcome = TypeVar("Outcome")
TEXT = "<text>"  # The `file` of notices about the text of a request

_DEFAULTS = Strategy().model_dump(mode="json")
# Options that framework and release decide where they are not given: those of a plan are given even at their default.
_USUAL_OPTIONS = ("sequence_parallel", "recompute")
_OVERLAPS = ("gradients", "parameters", "tensor")
_FILE_FIELDS = (("model", "hf_config"), ("cluster", "file"))


@dataclass(frozen=True)
class ScenarioReader:
    """Reads scenarios of requests; `base` is the folder that files they name must lie in."""

    base: Path

    def read(self, body: ScenarioBody, pins: Mapping[str, Any] | None = None) -> Loaded:
        """The scenario of a request with the override it asks for; `pins` replace parts of its strategy."""
        return self.load(self.parse(body), body.way, pins)

    def parse(self, body: ScenarioBody) -> Document:
        """The document of a request, as it was sent."""
        if body.text is None:
            return Document(dict(body.scenario or {}), self._file)
        try:
            return parse_document(body.text, self._file)
        except InputError as error:
            raise self._rename_error(error) from None

    def load(
        self, document: Document, override: StrategyOverride | None, pins: Mapping[str, Any] | None = None
    ) -> Loaded:
        """The scenario of a document with an override, if any; `pins` replace parts of its strategy."""
        try:
            for path in _FILE_FIELDS:
                self._check_reference(document, path)
            if override is not None:
                document = replace(document, value=_apply_override(document.value, override))
            if pins:
                document = replace(document, value=_apply_pins(document.value, pins))
            loaded = read_scenario(document)
        except InputError as error:
            raise self._rename_error(error) from None
        placed = Document(document.value, TEXT, document.lines)
        return Loaded(loaded.scenario, [self._rename_text(notice) for notice in loaded.notices], placed)

    def apply_changes(self, body: ChangeBody) -> dict[str, Any]:
        """The scenario of a request with fields at some paths set, as it would be written; read before it is answered.

        Fields inside a file that the scenario names are changed in a copy.
        """
        loaded = self.read(body)
        fields, _ = upgrade_fields(loaded.document)
        for section, key in _FILE_FIELDS:
            has_file = isinstance(fields.get(section), Mapping) and key in fields[section]
            if has_file and any(path.startswith(f"{section}.") for path in body.changes):
                fields = {**fields, section: loaded.scenario.to_fields()[section]}
        fields = change_fields(fields, body.changes)
        for path in (path for path, value in body.changes.items() if value is None):
            fields = _remove_field(fields, path.split("."))
        self.read(ScenarioBody(scenario=fields))
        text = dump_yaml(fields) if body.text is None else edit_yaml(body.text, fields)
        return {"fields": fields, "yaml": text}

    def format_text(self, body: ScenarioBody) -> str:
        """The scenario of a request as text: as it was written, unless a strategy is put over it."""
        if body.way is not None:
            return dump_yaml(dict(self.read(body).document.value))
        return body.text if body.text is not None else dump_yaml(body.scenario)

    @property
    def _file(self) -> str:
        return str(self.base / TEXT)

    def _check_reference(self, document: Document, path: tuple[str, str]) -> None:
        outer = document.value.get(path[0]) if isinstance(document.value, Mapping) else None
        path_text = outer.get(path[1]) if isinstance(outer, Mapping) else None
        if not isinstance(path_text, str):
            return
        base = self.base.resolve()
        try:
            inside = (base / path_text).resolve().is_relative_to(base)
        except (OSError, ValueError, RuntimeError):
            inside = False
        if not inside:
            notice = Notice(code="file_outside", field=format_field_path(path), value=path_text)
            raise InvalidError(notice.with_place(document.file, document.find_line(path)))

    def _rename_error(self, error: InputError) -> InputError:
        """The same error with the text of the request called `<text>`."""
        return type(error)(*(self._rename_text(notice) for notice in error.notices))

    def _rename_text(self, notice: Notice) -> Notice:
        return notice.with_place(TEXT, notice.line) if notice.file == self._file else notice


class RequestScenario:
    """The scenario of a request, parsed, read and predicted once however much is asked about it.

    Errors are kept too, so that each part that needs what failed is refused with the same message.
    """

    def __init__(
        self, reader: ScenarioReader, body: ScenarioBody, language: str, *, original: RequestScenario | None = None
    ) -> None:
        self.language = language
        self._reader = reader
        self._body = body
        self._outcomes: dict[str, Any] = {}
        self._original = original or self  # All variants share its document and its table of variants
        self._variants = {_format_key(body.way): self}

    @property
    def document(self) -> Document:
        """As it was sent."""
        return self._original._compute_once("document", lambda: self._reader.parse(self._body))

    @property
    def loaded(self) -> Loaded:
        """As it was read, with the override that the request asks for."""
        return self._compute_once("loaded", lambda: self._reader.load(self.document, self._body.way))

    @property
    def predictor(self) -> Predictor:
        """Everything that can be computed of it."""
        if "predicted" in self._outcomes:
            return self.predicted.predictor
        return self._compute_once("predictor", lambda: build_predictor_from(self.loaded))

    @property
    def predicted(self) -> PredictionAnswer:
        """Its prediction."""
        return self._compute_once("predicted", lambda: answer(self.loaded, self.language, computed=self.predictor))

    @property
    def as_written(self) -> RequestScenario:
        """The same without an override: as the scenario says itself."""
        return self.with_override(None)

    def with_override(self, override: StrategyOverride | None) -> RequestScenario:
        """The same with another override."""
        variants, key = self._original._variants, _format_key(override)
        if key not in variants:
            body = self._body.model_copy(update={"way": override})
            variants[key] = RequestScenario(self._reader, body, self.language, original=self._original)
        return variants[key]

    def _compute_once(self, name: str, compute: Callable[[], Outcome]) -> Outcome:
        if name not in self._outcomes:
            try:
                self._outcomes[name] = compute()
            except InputError as error:
                self._outcomes[name] = error
        outcome = self._outcomes[name]
        if isinstance(outcome, InputError):
            raise outcome
        return cast(Outcome, outcome)


def _format_key(override: StrategyOverride | None) -> str:
    return "" if override is None else override.model_dump_json()


def describe_loaded(loaded: Loaded, language: str) -> dict[str, Any]:
    """What follows from a scenario before anything is predicted, with its fields and its text."""
    fields, _ = upgrade_fields(loaded.document)
    return {**describe(loaded, language), "fields": fields, "yaml": dump_yaml(fields)}


def _apply_override(value: Any, override: StrategyOverride) -> Any:
    """The fields of a scenario with an override put over them; the reader refuses what is no mapping."""
    if not isinstance(value, Mapping):
        return value
    job = value.get("job")
    if override.framework is not None and isinstance(job, Mapping):
        job = {**job, "framework": override.framework}
    fields = {key: inner for key, inner in value.items() if key not in ("strategy", "placement")}
    placed = {} if override.placement is None else {"placement": override.placement}
    framework = job.get("framework") if isinstance(job, Mapping) else None
    usual = _select_usual_options(override.strategy, framework)
    strategy = _merge_fields(_drop_defaults(override.strategy, _DEFAULTS), usual)
    return {**fields, "job": job, "strategy": strategy, **placed}


def _select_usual_options(strategy: Mapping[str, Any], framework: Any) -> dict[str, Any]:
    """Options of an override that framework and release would fill in otherwise, where no rule can refuse them."""
    options = {key: strategy[key] for key in _USUAL_OPTIONS if key in strategy}
    communication = strategy.get("communication")
    able = load_frameworks().get(framework) if isinstance(framework, str) else None
    if able is None or not isinstance(communication, Mapping):
        return options
    # with nothing sharded there is no gather, and frameworks refuse to hide one
    pointless = () if strategy.get("zero") else ("parameters",)
    overlaps = {
        f"overlap_{exchange}": communication[f"overlap_{exchange}"]
        for exchange in _OVERLAPS
        if exchange in able.overlap and exchange not in pointless and f"overlap_{exchange}" in communication
    }
    return {**options, "communication": overlaps} if overlaps else options


def _merge_fields(fields: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Fields with others put over them, mappings inside too."""
    inner = {
        key: _merge_fields(fields[key], value)
        for key, value in others.items()
        if isinstance(value, Mapping) and isinstance(fields.get(key), Mapping)
    }
    return {**fields, **others, **inner}


# Options that the usual software of a GPU decides where they are left out: a plan's choice has to be said.
OPTIONS_OF_RELEASE = ("overlap_gradients", "overlap_parameters", "sequence_parallel", "recompute")


def _drop_defaults(strategy: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a strategy that are not at their default, which is no choice that a rule could refuse."""
    inner = {
        key: _drop_defaults(value, defaults[key])
        for key, value in strategy.items()
        if isinstance(value, Mapping) and isinstance(defaults.get(key), Mapping)
    }
    merged = {**strategy, **inner}
    return {k: v for k, v in merged.items() if k not in defaults or v != defaults[k] or k in OPTIONS_OF_RELEASE}


def _remove_field(value: Any, steps: list[str]) -> Any:
    """The fields without the one at the end of the steps, nor what only held that."""
    if not isinstance(value, Mapping) or steps[0] not in value:
        return value
    fields = {key: inner for key, inner in value.items() if key != steps[0]}
    inner = _remove_field(value[steps[0]], steps[1:]) if len(steps) > 1 else None
    return {**value, steps[0]: inner} if inner else fields


def _apply_pins(value: Any, pins: Mapping[str, Any]) -> Any:
    strategy = value.get("strategy") if isinstance(value, Mapping) else ()
    if not isinstance(strategy, Mapping | None):
        return value  # the reader refuses it
    return {**value, "strategy": {**(strategy or {}), **pins}}


DEFAULT_EXAMPLE = "three-cities"


def find_examples_folder() -> Path:
    """The repository's `examples/` when run from a checkout, else the copy inside the package."""
    package = Path(str(files("crosszone")))
    checkout = package.parents[1]
    if (checkout / "pyproject.toml").is_file() and (checkout / "examples").is_dir():
        return checkout / "examples"
    return package / "examples"


@dataclass(frozen=True)
class ExampleLibrary:
    """The scenarios the page can open, by name; the opened file goes by its file name, examples have no suffix."""

    opened: Path | None = None

    @property
    def base(self) -> Path:
        """The folder that files named inside a scenario must lie in."""
        return self.opened.parent if self.opened else find_examples_folder()

    @property
    def default(self) -> str:
        """The one to open first."""
        return self.opened.name if self.opened else DEFAULT_EXAMPLE

    def list_paths(self) -> dict[str, Path]:
        """All of them: the opened file, then the examples in order of name."""
        opened = {self.opened.name: self.opened} if self.opened else {}
        return opened | {path.stem: path for path in sorted(find_examples_folder().glob("*.yaml"))}

    def list(self) -> list[dict[str, Any]]:
        """Names and titles for a chooser."""
        return [
            {"name": name, "title": _read_title(path) or name, "opened": path == self.opened}
            for name, path in self.list_paths().items()
        ]

    def read_text(self, name: str) -> str:
        """The text of one scenario; 404 names the nearest ones."""
        paths = self.list_paths()
        if name not in paths:
            close = find_nearest_names(name, paths) or list(paths)[:3]
            raise refuse(404, "example_unknown", value=name, nearest=", ".join(close))
        return read_text(paths[name])


def _read_title(path: Path) -> str:
    try:
        value = parse_document(read_text(path), path.name).value
    except FileError:
        return ""
    return str(value.get("name", "")) if isinstance(value, Mapping) else ""
