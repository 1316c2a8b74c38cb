"""The architecture of a measured run: its columns first, then the catalogue entry of its name, then inference."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from crosszone.calibrate.runs_rules import RowError
from crosszone.inputs.catalogue import Catalogue, ModelEntry
from crosszone.inputs.catalogue.entries import normal
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters

STATED = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab")
EXPERTS = ("n_experts", "top_k")
NEEDED = ("layers", "hidden", "heads", "ffn_hidden", "vocab")
"""What makes an architecture; key/value heads are as many as heads where they are not stated."""

GPT_STYLE: Mapping[str, Any] = {
    "activation": "gelu",
    "positions": "learned",
    "norm": "layernorm",
    "bias": ("qkv", "out", "mlp"),
}
LLAMA_STYLE: Mapping[str, Any] = {"activation": "swiglu", "positions": "rotary", "norm": "rmsnorm", "bias": ()}
STYLES = tuple({**style, "tied_embeddings": tied} for style in (GPT_STYLE, LLAMA_STYLE) for tied in (True, False))
_REMEMBERED = 4096


class Architectures:
    """Models of rows; equal columns are built once."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.build = lru_cache(maxsize=_REMEMBERED)(self._build)

    def _build(
        self,
        name: str,
        columns: tuple[int | None, ...],
        params_b: float | None,
        seq_len: int,
        text: tuple[tuple[str, Any], ...],
        vocab_multiple: int | None,
        vocab_default: int | None,
    ) -> tuple[Model, tuple[str, ...]]:
        """The model, and what was assumed of it.

        columns:        STATED and EXPERTS, None where empty
        text:           fields that the notes state; those that are columns too correct the column
        vocab_multiple: the embedding table is padded to a multiple of this
        """
        given = {key: value for key, value in zip((*STATED, *EXPERTS), columns, strict=True) if value is not None}
        given |= {key: value for key, value in text if key in given}
        said = {key: value for key, value in text if key not in (*STATED, *EXPERTS)}
        first_dense = said.pop("first_dense", None)
        assumed: list[str] = []
        if "vocab" not in given and vocab_default:
            given["vocab"] = vocab_default
            assumed.append(f"vocab: {vocab_default} (stack default)")
        base = self._entry(name)
        if base:
            fields = _on_entry(base, given, params_b, seq_len, said, assumed)
        else:
            fields = _inferred(given, params_b, said, seq_len, assumed)
        if first_dense is not None and fields.get("moe"):
            fields["moe"] = {**fields["moe"], "first_dense": first_dense}
        return _finished(fields, name, seq_len, vocab_multiple), tuple(assumed)

    def _entry(self, name: str) -> Model | None:
        found = self._catalogue.find("models", name) if name else None
        if isinstance(found, ModelEntry):
            return found.model
        reason = self._catalogue.unsupported.get(normal(name))
        if reason:
            raise RowError("no_architecture", f"The architecture of {name} is not known or not a transformer. {reason}")
        return None


def _on_entry(
    base: Model, given: dict[str, int], params_b: float | None, seq_len: int, said: dict[str, Any], assumed: list[str]
) -> dict[str, Any]:
    """The fields of a catalogue entry with the row's columns on top."""
    missing = [key for key in NEEDED if key not in given]
    other = [key for key in ("layers", "hidden", "heads") if given.get(key, getattr(base, key)) != getattr(base, key)]
    if other and set(missing) - {"vocab", "ffn_hidden"}:
        clash = f"{other[0]} is {given[other[0]]}, of the catalogue's {base.name} {getattr(base, other[0])}"
        raise RowError("no_architecture", f"The architecture is not known: {', '.join(missing)} missing, and {clash}.")
    if missing:
        assumed.append(f"{', '.join(missing)}: as {base.name} of the catalogue")
    fields = {key: getattr(base, key) for key in base.model_fields_set if key != "name"}
    if "hidden" in other or "heads" in other:  # another model of the same name
        fields.pop("head_dim", None)
        fields.pop("window", None)
        if "kv_heads" not in given and base.kv_heads == base.heads:
            fields.pop("kv_heads", None)
    if "hidden" in other:
        fields.pop("embedding_width", None)
    if "vocab" in given:
        fields.pop("vocab_padded_to", None)
    fields |= {key: given[key] for key in STATED if key in given and key != "ffn_hidden"}
    if base.moe or "n_experts" in given:
        moe: dict[str, Any] = base.moe.to_plain() if base.moe else {"ffn_hidden": base.ffn_hidden}
        columns = {"experts": "n_experts", "top_k": "top_k", "ffn_hidden": "ffn_hidden"}
        moe |= {key: given[column] for key, column in columns.items() if column in given}
        fields["moe"] = moe | {"first_dense": min(moe.get("first_dense", 0), fields["layers"] - 1)}
    else:
        fields["ffn_hidden"] = given.get("ffn_hidden", base.ffn_hidden)
    fields |= said
    if not params_b:
        return fields
    choices = [fields]
    if fields.get("embedding_width", fields["hidden"]) != fields["hidden"]:  # other frameworks may not project
        choices.append({key: value for key, value in fields.items() if key != "embedding_width"})
    if other and "tied_embeddings" not in said:
        choices.append({**fields, "tied_embeddings": not base.tied_embeddings})
    return _nearest(choices, params_b, seq_len)


def _inferred(
    given: dict[str, int], params_b: float | None, said: dict[str, Any], seq_len: int, assumed: list[str]
) -> dict[str, Any]:
    """Fields of a model no catalogue knows: the MLP and tying whose parameter count is nearest to the stated one."""
    missing = [key for key in NEEDED if key not in given]
    if missing == ["ffn_hidden"] and "n_experts" not in given:
        given["ffn_hidden"] = 4 * given["hidden"]
        assumed.append("ffn_hidden: 4 x hidden")
    elif missing:
        raise RowError("no_architecture", f"The architecture is not known: {', '.join(missing)} missing.")
    fields: dict[str, Any] = {key: given[key] for key in STATED if key in given}
    sparse = "n_experts" in given
    if sparse:
        if "top_k" not in given:
            raise RowError("no_architecture", "The architecture is not known: top_k missing.")
        fields["moe"] = {"experts": given["n_experts"], "top_k": given["top_k"], "ffn_hidden": given["ffn_hidden"]}
    if params_b:
        chosen = _nearest([{**fields, **style, **said} for style in STYLES], params_b, seq_len)
    else:
        gpt = given["ffn_hidden"] == 4 * given["hidden"] and not sparse
        chosen = {**fields, **(GPT_STYLE if gpt else LLAMA_STYLE), "tied_embeddings": gpt, **said}
    kind = "gated" if chosen["activation"] == "swiglu" else "two-matrix"
    tie = "tied" if chosen["tied_embeddings"] else "untied"
    assumed.append(f"MLP: {kind}, embeddings: {tie} ({'nearest to params_b' if params_b else 'by the shape'})")
    return chosen


def _nearest(choices: list[dict[str, Any]], params_b: float, seq_len: int) -> dict[str, Any]:
    """The fields whose parameter count is nearest to `params_b` (1e9)."""

    def off(fields: dict[str, Any]) -> float:
        return abs(parameters(_finished(fields, "", seq_len, None)).total / 1e9 - params_b)

    return min(choices, key=off)


def _finished(fields: dict[str, Any], name: str, seq_len: int, vocab_multiple: int | None) -> Model:
    if fields.get("positions") == "learned":
        fields = {**fields, "max_seq_len": seq_len}  # published runs size the table by their sequence
    if "head_dim" not in fields and not fields.get("mla") and fields["hidden"] % fields["heads"]:
        fields = {**fields, "head_dim": max(1, round(fields["hidden"] / fields["heads"]))}
    if vocab_multiple:
        padded = -(-fields["vocab"] // vocab_multiple) * vocab_multiple
        fields = {**fields, "vocab_padded_to": padded if padded > fields["vocab"] else None}
    printable = "".join(c for c in name if c.isprintable())[:100].strip()
    return Model(**{**fields, "name": printable or "custom"})
