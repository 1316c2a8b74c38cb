"""Registering: keep environments that came from elsewhere.

    added, changed = registered(store.environments, slurm_nodes())

An environment that is known gets the fields that were read; its others, and what a probe found, stay.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from crosszone.inputs.environment import Environment
from crosszone.store.registered import Environments

_NOT_OF_AN_ID = re.compile(r"[^A-Za-z0-9_-]+")


def registered(kept: Environments, found: Mapping[str, Environment]) -> tuple[list[str], list[str]]:
    """Register what was found; ids that are new, and ids that were known."""
    known = {entry.id: entry.value for entry in kept.all()}
    added: list[str] = []
    changed: list[str] = []
    for name, one in found.items():
        id = id_of(name, taken=[*added, *changed])
        if id in known:
            kept.change(id, known[id].replace(**one.to_plain()))
            changed.append(id)
        else:
            kept.add(one, id=id)
            added.append(id)
    return added, changed


def id_of(name: str, *, taken: list[str]) -> str:
    """A name as an id, the same at every import: other programs allow characters that no id has."""
    plain = _NOT_OF_AN_ID.sub("-", name).strip("-_")[:64]
    return plain if plain and plain not in taken else f"env-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
