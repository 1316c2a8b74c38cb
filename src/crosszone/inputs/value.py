"""The base of all inputs: frozen, keyword-only values that are checked at the border."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, Union, cast, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    Strict,
    StringConstraints,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from crosszone.errors import FileError, InputError, InvalidError, Notice, UnknownNameError, find_close_names
from crosszone.inputs.document import Document, FieldPath, format_field_path

MAX_COUNT = 1_000_000
MOST_NOTICES = 50  # Notices shown at once; with more mistakes the file is probably of another kind
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=1, le=MAX_COUNT)]
# As far below 1 as the largest number is above it: with smaller rates, times overflow.
LEAST_POSITIVE = 1e-18


def _check_not_tiny(number: float) -> float:
    if number < LEAST_POSITIVE:
        raise refuse("must_be_at_least", number, limit=LEAST_POSITIVE)
    return number


Positive = Annotated[float, Strict(), Field(gt=0, le=1e18), AfterValidator(_check_not_tiny)]
NotNegative = Annotated[float, Strict(), Field(ge=0, le=1e18)]


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise refuse("bad_name", text)
    return text


Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100), AfterValidator(_check_printable)
]

LONGEST_PLACE = 1000


def _check_file_name(text: str) -> str:
    if not 1 <= len(text) <= LONGEST_PLACE or not text.isprintable():
        raise refuse("bad_place", text[:100], limit=LONGEST_PLACE)
    return text


# A path on some machine, or a URI.
FilePlace = Annotated[str, StringConstraints(strip_whitespace=True), AfterValidator(_check_file_name)]

LONGEST_PROSE = 10_000


def _check_readable(text: str) -> str:
    if len(text) > LONGEST_PROSE:
        raise refuse("text_too_long", limit=LONGEST_PROSE)
    return text


Prose = Annotated[str, AfterValidator(_check_readable)]  # Text for people to read

V = TypeVar("V", bound="Value")


# pydantic does not export its metaclass; type checkers take no base class that is computed.
if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as _Metaclass
else:
    _Metaclass = type(BaseModel)


class _Checked(_Metaclass):
    """Makes `Cls(...)` raise our own errors, as `parse` does."""

    def __call__(cls, **fields: Any) -> Any:
        """Check the fields and make the value."""
        try:
            return super().__call__(**fields)
        except ValidationError as error:
            raise _build_input_error(cast(type[BaseModel], cls), error, None, ()) from None


class Value(BaseModel, metaclass=_Checked):
    """A value: equal when its fields are equal, with a short repr and a JSON form."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Only what was given and differs from the default."""
        for key, field in type(self).model_fields.items():
            value = getattr(self, key)
            if key in self.model_fields_set and value != field.default:
                yield key, value

    def to_plain(self) -> dict[str, Any]:
        """The fields that were given, as plain values: what a file holds."""
        return self.model_dump(mode="json", exclude_unset=True)

    def replace(self, **changes: Any) -> Self:
        """The same value with some fields changed, checked anew."""
        # not model_copy, which checks nothing; fields left at their default stay unset, and out of files
        return parse(type(self), {**{k: getattr(self, k) for k in self.model_fields_set}, **changes})


def parse(cls: type[V], value: Any, document: Document | None = None, *, at: FieldPath = (), **context: Any) -> V:
    """Check `value` as a `cls`; an `InputError` names each wrong field, its line, its limit and the remedy.

    `at` is the path of `value` inside the document; `context` reaches the validators (`info.context`).
    """
    if not isinstance(value, Mapping | BaseModel):
        notice = Notice(code="must_be_mapping", field=format_field_path(at), value=value)
        raise InvalidError(_place_notice(notice, at, document))
    try:
        return cls.model_validate(value, context=context)
    except ValidationError as error:
        raise _build_input_error(cls, error, document, at) from None


def _build_input_error(
    cls: type[BaseModel], error: ValidationError, document: Document | None, at: FieldPath
) -> InputError:
    """Convert pydantic's error to one of ours."""
    details = _drop_consequences(error.errors(include_url=False))
    paths = [(*at, *detail["loc"], *detail.get("ctx", {}).get("at", ())) for detail in details]
    placed = [
        _place_notice(_build_notice(cls, d, path), path, document) for d, path in zip(details, paths, strict=True)
    ]
    notices = _drop_misspelt(placed)
    return _select_error_class({notice.code for notice in notices})(*notices)


def _drop_consequences(details: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """The errors without those that only follow from another one."""

    def is_consequence(detail: ErrorDetails) -> bool:
        if detail["type"] == "default_factory_not_called":
            return True  # the default follows from a field that is itself wrong
        location = detail["loc"]  # a list is also called too short when its entries are wrong
        return detail["type"] == "too_short" and any(d["loc"][: len(location)] == location != d["loc"] for d in details)

    # cut first: `is_consequence` compares each with all others
    return [detail for detail in details[:MOST_NOTICES] if not is_consequence(detail)]


def _drop_misspelt(notices: list[Notice]) -> list[Notice]:
    """Drop the notice of a missing key where an unknown key is a misspelling of it."""
    misspelt = {
        notice.field.rpartition(".")[0] + "." + notice.params["nearest"][0]
        for notice in notices
        if notice.code == "unknown_key"
    }
    return [
        n
        for n in notices
        if n.code != "missing_key" or f"{n.field.rpartition('.')[0]}.{n.params['key']}" not in misspelt
    ]


NAME_FORM = {"type": "string", "description": "A catalogue name."}
LIKE_FORM = {
    "type": "object",
    "required": ["like"],
    "properties": {"like": {"type": "string"}},
    "description": "A catalogue entry with fields changed.",
}


class OtherForms:
    """Adds other forms of a field, which a validator resolves, to its JSON Schema."""

    def __init__(self, *forms: dict[str, Any]) -> None:
        self.forms = forms

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The field's own schema, or one of the other forms."""
        return {"anyOf": [handler(core), *self.forms]}


_GIVEN: Any = object()
Place = tuple[str | None, int | None]


def refuse(
    code: str, value: Any = _GIVEN, *, at: FieldPath = (), place: Place | None = None, **params: Any
) -> PydanticCustomError:
    """An error for a validator to raise: a code of `text/` with its parameters.

    `value` is what to show in place of what was validated, `at` the path below it that is wrong, `place` the file
    and line if they are not those of the document.
    """
    context = {"code": code, "value": value, "at": at, "place": place, "params": params}
    return PydanticCustomError("crosszone", "refused", context)


def refuse_as(notice: Notice) -> PydanticCustomError:
    """An error for a validator to raise: a notice about another file, with its place there if it has one."""
    place = (notice.file, notice.line) if notice.line is not None else None
    params = {"field": notice.field, **notice.params} if place else dict(notice.params)
    context = {"code": notice.code, "value": notice.value, "at": (), "place": place, "params": params}
    return PydanticCustomError("crosszone", "refused", context)


def find_nearest_names(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """The known names most similar to `name`, best first; where none is similar, the least different one alone."""
    known = list(candidates)
    return find_close_names(name, known, limit) or find_close_names(name, known, 1, min_similarity=0.0)


def _place_notice(notice: Notice, path: FieldPath, document: Document | None) -> Notice:
    return notice.with_place(document.file, document.find_line(path)) if document and notice.file is None else notice


def _select_error_class(codes: set[str]) -> type[InputError]:
    if codes == {"unknown_name"}:
        return UnknownNameError
    return FileError if codes and all(code.startswith("file_") for code in codes) else InvalidError


def _build_notice(cls: type[BaseModel], detail: ErrorDetails, path: FieldPath) -> Notice:
    """Convert one of pydantic's errors to a notice."""
    kind, value_given, context = detail["type"], detail["input"], detail.get("ctx", {})
    field = format_field_path(path)

    def build(code: str, **params: Any) -> Notice:
        return Notice(code=code, field=field, value=value_given, params=params)

    if kind == "crosszone":
        value = value_given if context["value"] is _GIVEN else context["value"]
        notice = Notice(code=context["code"], field=field, value=value, params=context["params"])
        return notice if context["place"] is None else notice.with_place(*context["place"])
    if kind == "extra_forbidden":
        key, known_keys = str(path[-1]), _list_keys_at(cls, detail["loc"][:-1])
        params = {
            "known": sorted(known_keys),
            "nearest": find_nearest_names(key, known_keys)[:1] or sorted(known_keys)[:8],
        }
        return Notice(code="unknown_key", field=field, value=key, params=params)
    if kind == "missing":
        return Notice(code="missing_key", field=field, params={"key": str(path[-1])})
    if kind in _LIMITS:
        key, code = _LIMITS[kind]
        return build(code, limit=context[key])
    if kind == "finite_number":
        return build("not_finite")
    if kind in ("literal_error", "enum"):
        # pydantic gives the choices as a sentence: "'a', 'b' or 'c'"
        allowed = [a.strip("' ") for a in context["expected"].replace(" or ", ",").split(",")]
        return build("not_one_of", allowed=allowed, nearest=find_nearest_names(str(value_given), allowed)[:1])
    if kind in ("too_short", "too_long"):
        bound = context["min_length"] if kind == "too_short" else context["max_length"]
        return Notice(code=kind, field=field, value=context["actual_length"], params={"limit": bound})
    if kind in ("string_too_short", "string_too_long", "string_pattern_mismatch"):
        return build("bad_name")
    return build(_WANTED.get(kind.split("_")[0], "not_valid"), value=_format_with_type(value_given))


def _format_with_type(value: Any) -> Any:
    """A value that has the wrong type, written so that its type shows."""
    if isinstance(value, str):
        return f'"{value[:50]}"'
    return repr(value) if isinstance(value, float) else value


_LIMITS = {
    "greater_than": ("gt", "must_be_more_than"),
    "greater_than_equal": ("ge", "must_be_at_least"),
    "less_than": ("lt", "must_be_less_than"),
    "less_than_equal": ("le", "must_be_at_most"),
}

_WANTED = {
    "int": "must_be_whole",
    "float": "must_be_number",
    "bool": "must_be_flag",
    "string": "must_be_text",
    "tuple": "must_be_list",
    "list": "must_be_list",
    "dict": "must_be_mapping",
    "model": "must_be_mapping",
    "mapping": "must_be_mapping",
}


def _list_keys_at(cls: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """The keys a mapping at `loc` may have."""
    model: type[BaseModel] | None = cls
    for step in loc:
        if model is not None and isinstance(step, str):  # a number is an entry of a list: of the same type
            field = model.model_fields.get(step)
            model = _find_first_model(field.annotation) if field else None
    return list(model.model_fields) if model else []


def _find_first_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (tuple, list, dict, Union, types.UnionType, Annotated):
        for argument in get_args(annotation):
            model = _find_first_model(argument)
            if model:
                return model
    return None
