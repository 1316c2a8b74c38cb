"""Catalogue entries for programs and for the page: all figures, what follows from them, and their sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from crosszone.inputs.catalogue.entries import Entry, Kind, ModelEntry, catalogue
from crosszone.inputs.gpu import Gpu

USUAL_LENGTH = 4096  # Sequence length for the operations per token of a model that states none

_UNSOURCED = ("aliases", "own", "architecture", "vendor", "form", "pcie_gb_per_s", "link_gb_per_s")
_NOT_FIGURES = {"name", "aliases", "own", "notes", "model", "sources", "source", "carbon_source", "egress_source",
                "parameters", "forward_flops_per_token", "stands_for_size"}  # fmt: skip


def describe_entry(kind: Kind, entry: Entry) -> dict[str, Any]:
    """An entry for programs: all fields, defaults included, and what follows from them."""
    fields: dict[str, Any] = entry.model_dump(mode="json")
    fields["own"] = catalogue().is_own(kind, entry.name)
    if isinstance(entry, Gpu):
        rate = catalogue().find_failure_rate(entry)
        fields["pcie_gb_per_s"] = round(entry.pcie.gb_per_s, 3)
        fields["link_gb_per_s"] = entry.link.gb_per_s if entry.link else None
        fields["failure_rate"] = rate.model_dump(mode="json")
    if isinstance(entry, ModelEntry):
        from crosszone.inputs.summary import describe_model

        described = describe_model(entry.model, entry.model.max_seq_len or USUAL_LENGTH)
        fields["parameters"] = described["parameters"]
        fields["forward_flops_per_token"] = described["forward_flops_per_token"]
    return fields


def list_figures(kind: Kind, entry: Entry) -> list[dict[str, Any]]:
    """The figures of an entry, nested ones as `link.domain`, each with the id of its source."""
    fields = describe_entry(kind, entry)
    rate = fields.pop("failure_rate", None)
    if isinstance(entry, ModelEntry) and entry.model.mla:
        fields["model"].pop("head_dim")  # latent attention has head widths of its own
    rows = [
        {"figure": figure, "value": value, "source": find_source(entry, figure.partition(".")[0])}
        for figure, value in _flatten(fields | fields.get("model", {}))
        if figure not in _NOT_FIGURES and not _is_empty(value)
    ]
    if rate:
        figure = "failures_per_1000_gpu_days"
        rows.append({"figure": figure, "value": rate[figure], "source": rate["source"], "origin": rate["origin"]})
    return rows


def _is_empty(value: Any) -> bool:
    """Whether a value is no figure: not given, or 0 for a part that does not exist; a price or degree of 0 is one."""
    # fields that count or switch are int or bool and say with 0 that a part is not there; prices and degrees are float
    return value in (None, "", []) or (value == 0 and not isinstance(value, float))


def find_source(entry: Any, figure: str) -> str | None:
    """Id of the source of one figure of an entry; None where it needs none or none is known."""
    if isinstance(entry, Gpu):
        return None if figure in _UNSOURCED else entry.find_source(figure)
    if figure in ("carbon_g_per_kwh", "egress_usd_per_gb"):
        source: str | None = getattr(entry, figure.partition("_")[0] + "_source")
        return source
    cited = figure in ("lat", "lon", "published")
    if isinstance(entry, ModelEntry):  # what was given has the source; a default follows from what was given
        cited = cited or figure in entry.model.model_fields_set
    return getattr(entry, "source", None) if cited else None


def _flatten(fields: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in fields.items():
        if before + key in _NOT_FIGURES:
            continue
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{before}{key}.")
        else:
            yield before + key, value
