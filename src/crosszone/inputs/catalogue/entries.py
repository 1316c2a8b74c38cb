"""Looking names up: built-in entries first, then the user's own under `$CROSSZONE_HOME/catalogue`.

Entries of the catalogue: what one is, and how a file of them is read.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from threading import RLock
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, Strict, ValidationInfo

from crosszone.errors import FileError, InputError, InvalidError, Notice, UnknownNameError
from crosszone.inputs.document import Document, read_document
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.model import Model
from crosszone.inputs.region import MeasuredPair, Region
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import (
    Flag,
    Name,
    NotNegative,
    Positive,
    Prose,
    Value,
    find_nearest_names,
    parse,
    refuse,
    refuse_as,
)

Kind: TypeAlias = Literal["gpus", "models", "regions"]
KINDS: tuple[Kind, ...] = ("gpus", "models", "regions")


class Published(Value):
    """Parameter counts as published, in 1e9."""

    total_b: Positive
    active_b: Positive | None = None


class ModelEntry(Value):
    """A model with where it comes from."""

    name: Name
    aliases: tuple[Name, ...] = ()
    family: Prose = ""
    publisher: Prose = ""
    year: Annotated[int, Strict(), Field(ge=1900, le=2100)] | None = None
    published: Published | None = None
    source: Name | None = None
    notes: Prose = ""
    stands_for_size: Flag = False
    model: Model


class FailureRate(Value):
    """How often a GPU kind interrupts a run."""

    failures_per_1000_gpu_days: NotNegative
    origin: Literal["measured", "derived", "assumed"]
    source: Name
    note: str = ""


Entry: TypeAlias = Gpu | ModelEntry | Region


def normalize_name(name: str) -> str:
    """A name as it is compared: lower case, spaces and underscores as hyphens."""
    return re.sub(r"[\s_]+", "-", name.strip().lower())


# Merges the fields of an entry into those of the entry it is `like`.
ApplyLike: TypeAlias = Callable[[Kind, dict[str, Any]], dict[str, Any]]


def read_entries(kind: Kind, document: Document, apply_like: ApplyLike) -> list[Entry]:
    """The entries of one catalogue file: a mapping of names to their fields."""
    if not isinstance(document.value, dict):
        raise FileError(Notice(code="catalogue_not_mapping", file=document.file, line=1))
    entries: list[Entry] = []
    for name, fields in document.value.items():
        if not isinstance(fields, dict):
            raise InvalidError(document.place_notice(Notice(code="catalogue_not_mapping", field=name, value=fields)))
        with document.place_errors():
            entries.append(_parse_entry(kind, name, fields, document, apply_like))
    return entries


def _parse_entry(kind: Kind, name: str, fields: dict[str, Any], document: Document, apply_like: ApplyLike) -> Entry:
    def complete(part: dict[str, Any], at: str) -> dict[str, Any]:
        try:
            return {**apply_like(kind, part), "name": name}
        except InputError as error:
            raise type(error)(*(replace(n, field=f"{at}.like") for n in error.notices)) from None

    if kind == "gpus":
        return parse(Gpu, complete(fields, name), document, at=(name,))
    if kind == "regions":
        return parse(Region, complete(fields, name), document, at=(name,))
    if "architecture" in fields:
        at: tuple[str, ...] = (name, "architecture")
        entry_fields = {key: value for key, value in fields.items() if key != "architecture"}
        architecture = fields["architecture"]
    else:  # both kinds of fields stand side by side; those that `ModelEntry` does not have are the architecture's
        at = (name,)
        entry_fields = {key: value for key, value in fields.items() if key in ModelEntry.model_fields}
        architecture = {key: value for key, value in fields.items() if key not in entry_fields}
    if not isinstance(architecture, dict):
        raise InvalidError(Notice(code="must_be_mapping", field=".".join(at), value=architecture))
    model = parse(Model, complete(architecture, ".".join(at)), document, at=at)
    return parse(ModelEntry, {**entry_fields, "name": name, "model": model}, document, at=(name,))


_DATA = files("crosszone.inputs.catalogue")
_FEWER_LAYERS = re.compile(r"(?P<base>.+?)(-(?P<short>\d+)l|-?\[(?P<long>\d+)-layers?\])$")


OWN_SOURCE = "own"  # Source id of a figure that the user gave
_FIELDS_WITHOUT_SOURCE = ("name", "aliases", "notes", "sources")


def find_home() -> Path:
    """The user's folder: `$CROSSZONE_HOME`, else `~/.crosszone`."""
    configured = os.environ.get("CROSSZONE_HOME")
    try:
        return Path(configured).expanduser() if configured else Path.home() / ".crosszone"
    except RuntimeError as error:
        raise InputError(
            Notice(code="home_unwritable", value=configured or "~", params={"reason": str(error)})
        ) from None


class Catalogue:
    """Entries by kind and name; each kind is read when it is first needed."""

    def __init__(self, user_folder: Path | None) -> None:
        self.own = user_folder
        """Folder of the user's entries; None: built-in ones alone."""
        self._tables: dict[Kind, _Table] = {}
        self._complete: set[Kind] = set()
        # reentrant: while a kind is read, an entry that is `like` another asks for the same kind again
        self._reading = RLock()

    def names(self, kind: Kind) -> list[str]:
        """All names of a kind."""
        return list(self._get_table(kind).entries)

    def entries(self, kind: Kind) -> list[Entry]:
        """All entries of a kind, built-in ones first."""
        return list(self._get_table(kind).entries.values())

    def entry(self, kind: Kind, name: str) -> Entry:
        """The entry of a name or alias; `UnknownNameError` names the nearest ones."""
        match = self.find(kind, name)
        skipped = self._get_table(kind).skipped.get(normalize_name(name))
        if match is None and skipped:
            raise InvalidError(*skipped)
        if match is None:
            raise UnknownNameError(
                Notice(code="unknown_name", value=name, params=self._build_unknown_params(kind, name))
            )
        return match

    def find_name(self, kind: Kind, name: str) -> str | None:
        """The name of the entry that has this name or alias, or None."""
        return self._get_table(kind).spellings.get(normalize_name(name))

    def list_skipped(self) -> list[Notice]:
        """What is wrong with those of the user's files that were left out, as warnings."""
        warnings = (
            notice for table in self._tables.values() for notices in table.skipped.values() for notice in notices
        )
        # a notice is listed under every name that its file would have defined
        return [replace(notice, level="warning") for notice in {id(notice): notice for notice in warnings}.values()]

    def find(self, kind: Kind, name: str) -> Entry | None:
        """The entry of a name or alias, or None."""
        table = self._get_table(kind)
        spelling = normalize_name(name)
        match = table.entries.get(table.spellings.get(spelling, ""))
        if match is None and kind == "models":
            match = self._find_with_fewer_layers(spelling)
        return match

    def is_own(self, kind: Kind, name: str) -> bool:
        """The entry is the user's, not built in."""
        return name in self._get_table(kind).user_files

    def find_own_file(self, kind: Kind, name: str) -> Path:
        """The file that holds one of the user's entries."""
        return self._get_table(kind).user_files[name]

    def gpu(self, name: str) -> Gpu:
        """A GPU kind by name."""
        gpu = self.entry("gpus", name)
        assert isinstance(gpu, Gpu)
        return gpu

    def model(self, name: str) -> Model:
        """A model's architecture by name."""
        entry = self.entry("models", name)
        assert isinstance(entry, ModelEntry)
        return entry.model

    def region(self, name: str) -> Region:
        """A region by name."""
        region = self.entry("regions", name)
        assert isinstance(region, Region)
        return region

    def resolve(self, kind: Kind, value: Any) -> Any:
        """An entry as a scenario may give it: by name, or by fields (with `like`: merged into those of that entry)."""
        if isinstance(value, str):
            entry = self.find(kind, value)
            if entry is None:
                raise self._build_not_found_error(kind, value)
            return entry.model if isinstance(entry, ModelEntry) else entry
        if isinstance(value, Mapping):
            return self._merge_like(kind, value) if isinstance(value.get("like"), str) else value
        if not isinstance(value, Gpu | Model | Region):
            raise refuse("must_be_entry", kind=kind)
        return value

    def _merge_like(self, kind: Kind, value: Mapping[str, Any]) -> dict[str, Any]:
        """Fields merged into those of the entry they are `like`; figures that change get the user as their source."""
        base = self.resolve(kind, value["like"])
        overrides = {key: inner for key, inner in value.items() if key != "like"}
        fields = {key: inner for key, inner in base.to_plain().items() if key not in ("name", "aliases", "notes")}
        for key, inner in overrides.items():
            nested = isinstance(inner, Mapping) and isinstance(fields.get(key), Mapping)
            fields[key] = {**fields[key], **inner} if nested else inner
        if kind == "gpus":
            sources = {
                key: OWN_SOURCE for key in overrides if key in Gpu.model_fields and key not in _FIELDS_WITHOUT_SOURCE
            }
            fields["sources"] = {**base.sources, **sources, **(overrides.get("sources") or {})}
        if kind == "regions":
            changed = {"carbon_g_per_kwh": "carbon_source", "egress_usd_per_gb": "egress_source", "lat": "source"}
            fields |= {source: OWN_SOURCE for key, source in changed.items() if key in overrides}
        changes = ", ".join(
            f"{key} {_format_change(inner)}" for key, inner in overrides.items() if key not in ("name", "notes")
        )
        # 100: no longer than `value.Name` takes
        return {"name": f"{base.name} with {changes}"[:100].strip() if changes else base.name} | fields

    def _build_not_found_error(self, kind: Kind, name: str) -> Exception:
        """The reason why a name cannot be resolved: its file is wrong, the model is not supported, or it is unknown."""
        skipped = self._get_table(kind).skipped.get(normalize_name(name))
        if skipped:
            return refuse_as(skipped[0])
        reason = self.unsupported.get(normalize_name(name)) if kind == "models" else None
        if reason:
            return refuse("unsupported_model", name, reason=reason)
        return refuse("unknown_name", name, **self._build_unknown_params(kind, name))

    def format_reference(self, kind: Kind, value: Gpu | Model | Region) -> Any:
        """The form of an entry in a file: its name if it is built in, else all its fields."""
        built_in = None if self.is_own(kind, value.name) else self.find(kind, value.name)
        entry = built_in.model if isinstance(built_in, ModelEntry) else built_in
        return value.name if entry == value else value.to_plain()

    def find_measured_pair(self, first: str, second: str) -> MeasuredPair | None:
        """The published measurement between two regions, turned so that it starts at `first`."""
        pair = self._pairs.get((first, second))
        if pair is not None:
            return pair
        back = self._pairs.get((second, first))
        if back is None:
            return None
        # a round trip is the same from both ends, a rate is not
        turned = {"gbps": back.gbps_back, "gbps_back": back.gbps} if back.gbps_back is not None else {}
        return back.replace(between=(first, second), **turned)

    def list_measured_pairs(self) -> list[MeasuredPair]:
        """All published measurements between regions."""
        return list(self._pairs.values())

    @cached_property
    def sources(self) -> dict[str, dict[str, Any]]:
        """Citations by id."""
        return {key: cited for document in _read_built_in("sources") for key, cited in document.value.items()}

    @cached_property
    def unsupported(self) -> dict[str, str]:
        """Names of published runs whose architecture cannot be described, with the reason."""
        return {
            normalize_name(name): reason
            for name, reason in _read_built_in_file("unsupported-models.yaml").value.items()
        }

    @cached_property
    def failures(self) -> dict[str, FailureRate]:
        """Failure rates by GPU kind, and `default`."""
        document = _read_built_in_file("failures.yaml")
        return {name: parse(FailureRate, rate, document, at=(name,)) for name, rate in document.value.items()}

    def find_failure_rate(self, gpu: Gpu) -> FailureRate:
        """The failure rate of a GPU kind: its own, else the default one."""
        return self.failures.get(gpu.name, self.failures["default"])

    def find_for_size(self, size_b: float) -> ModelEntry:
        """The well-known dense decoder (`stands_for_size`) nearest in ratio to `size_b` (1e9 parameters)."""
        candidates = [
            e for e in self.entries("models") if isinstance(e, ModelEntry) and e.stands_for_size and e.published
        ]
        # by the logarithm: 3.5B and 14B are equally far from 7B
        return min(candidates, key=lambda e: abs(math.log(e.published.total_b / size_b)) if e.published else math.inf)

    def apply_like(self, kind: Kind, fields: dict[str, Any]) -> dict[str, Any]:
        """Fields merged into those of the entry they are `like`, if they name one."""
        if not isinstance(fields.get("like"), str):
            return fields
        self.entry(kind, fields["like"])
        resolved: dict[str, Any] = self.resolve(kind, fields)
        return resolved

    def _get_table(self, kind: Kind) -> _Table:
        if kind not in self._complete:
            with self._reading:  # another thread waits until all is read; entries like others see what is read so far
                if kind not in self._tables:
                    self._read(kind)
                    self._complete.add(kind)
        return self._tables[kind]

    @cached_property
    def _pairs(self) -> dict[tuple[str, str], MeasuredPair]:
        pairs = {}
        for document in _read_built_in("links"):
            for index, entry in enumerate(document.value):
                pair = parse(MeasuredPair, entry, document, at=(index,))
                pairs[pair.between] = pair
        return pairs

    def _read(self, kind: Kind) -> None:
        if self.own is None:
            table = self._tables[kind] = _Table()  # there while entries are read: they may be like others
            for document in _read_built_in(kind):
                table.add(read_entries(kind, document, self.apply_like), document)
            return
        table = self._tables[kind] = _load_built_in_catalogue()._get_table(kind).copy()
        for path in list_own_files(self.own, kind):
            # the names in a file that cannot be parsed are unknown: its entry is looked up by the name of the file
            names = [path.stem]
            try:
                document = read_document(path)
                names += list(document.value) if isinstance(document.value, dict) else []
                entries = read_entries(kind, document, self.apply_like)
                table.add(entries, document)
            except InputError as error:  # one bad file of the user's must not stop everything else
                table.skipped.update({normalize_name(name): error.notices for name in names})
            else:
                table.user_files.update({entry.name: path for entry in entries})

    def _find_with_fewer_layers(self, name: str) -> ModelEntry | None:
        match = _FEWER_LAYERS.fullmatch(name)
        # published runs with fewer layers than the model has; all else is as in the model itself
        base = self.find("models", match["base"]) if match else None
        if match is None or not isinstance(base, ModelEntry):
            return None
        layers = int(match["short"] or match["long"])
        if not 1 <= layers <= base.model.layers or base.model.pattern is not None:
            return None
        # a few layers are run to measure layers: without what follows the model's last one
        model = base.model.replace(layers=layers, name=name, mtp_layers=0)
        return base.replace(name=name, aliases=(), published=None, stands_for_size=False, model=model)

    def _build_unknown_params(self, kind: Kind, name: str) -> dict[str, Any]:
        table = self._get_table(kind)
        close = [table.spellings[n] for n in find_nearest_names(normalize_name(name), table.spellings, limit=6)]
        return {"kind": kind, "nearest": list(dict.fromkeys(close))[:3]}


@dataclass(frozen=True)
class _Table:
    """The entries of one kind, every spelling of their names, and the files of the user's own ones."""

    entries: dict[str, Entry] = field(default_factory=dict)
    spellings: dict[str, str] = field(default_factory=dict)
    user_files: dict[str, Path] = field(default_factory=dict)
    skipped: dict[str, Sequence[Notice]] = field(default_factory=dict)
    """What is wrong with those of the user's files that were left out, by the names they would have defined."""

    def copy(self) -> _Table:
        """The same entries, to add others to."""
        return _Table(dict(self.entries), dict(self.spellings), dict(self.user_files), dict(self.skipped))

    def add(self, entries: Sequence[Entry], document: Document) -> None:
        """Add the entries of one file, all or none."""
        spelled: dict[str, str] = {}
        for entry in entries:
            for spelling in map(normalize_name, (entry.name, *entry.aliases)):
                owner = self.spellings.get(spelling) or spelled.get(spelling)
                if owner:
                    notice = Notice(code="name_taken", field=entry.name, value=spelling, params={"taken": owner})
                    raise InvalidError(document.place_notice(notice))
                spelled[spelling] = entry.name
        self.entries.update({entry.name: entry for entry in entries})
        self.spellings.update(spelled)


def list_own_files(folder: Path, kind: Kind) -> list[Path]:
    """The user's files of a kind, in order of name."""
    try:
        return sorted((folder / kind).glob("*.y*ml"))
    except OSError as error:
        params = {"reason": error.strerror or str(error)}
        raise InputError(Notice(code="home_unreadable", value=str(folder), params=params)) from None


def _format_change(value: Any) -> str:
    return " ".join(f"{key} {inner}" for key, inner in value.items()) if isinstance(value, Mapping) else str(value)


@cache
def _read_built_in(folder: str) -> tuple[Document, ...]:
    file_names = sorted(f.name for f in _DATA.joinpath(folder).iterdir() if f.name.endswith(".yaml"))
    return tuple(_read_built_in_file(f"{folder}/{name}") for name in file_names)


def _read_built_in_file(path: str) -> Document:
    return read_shipped("crosszone.inputs.catalogue", path)


@cache
def _load_built_in_catalogue() -> Catalogue:
    """Validated once for all catalogues: these differ in the user's entries only, which change while a server runs."""
    return Catalogue(user_folder=None)


@lru_cache(maxsize=8)
def _load_catalogue(user_folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> Catalogue:
    del stamp  # part of the key: a changed file makes a new catalogue
    return Catalogue(user_folder)


def _read_stamp(path: Path) -> tuple[str, int, int]:
    try:
        stat = path.stat()
    except OSError:  # it went away meanwhile, or is a link to nowhere
        return str(path), 0, 0
    return str(path), stat.st_mtime_ns, stat.st_size


def catalogue() -> Catalogue:
    """The catalogue with the user's own entries as they are now."""
    user_folder = find_home() / "catalogue"
    return _load_catalogue(
        user_folder, tuple(_read_stamp(path) for kind in KINDS for path in list_own_files(user_folder, kind))
    )


def get_catalogue(info: ValidationInfo | None) -> Catalogue:
    """The catalogue a validator should use: that of its context, else the user's."""
    context = info.context if info is not None else None
    supplied = context.get("catalogue") if isinstance(context, dict) else None
    return supplied if isinstance(supplied, Catalogue) else catalogue()
