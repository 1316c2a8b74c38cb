"""Registry: registered environments sifted and sorted, and forgotten when no task needs them.

sifted(store.environments.all(), {"zone": ["beijing-a"], "gpu": ["cpu"]}, sort="uptime", descending=True)
forget(store, ["env-1", "env-2"])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.environment import Environment
from crosszone.inputs.gpu import CPU
from crosszone.store import Store
from crosszone.store.registered import Entry

Sort = Literal["name", "gpus", "uptime"]
_KEYS: Mapping[Sort, Callable[[Environment], Any]] = {
    "name": lambda one: one.name.casefold(),
    "gpus": lambda one: one.gpus,
    "uptime": lambda one: None if one.since is None else -one.since,
}


def sifted(
    entries: Sequence[Entry[Environment]],
    wanted: Mapping[str, Collection[str]],
    *,
    sort: Sort | None = None,
    descending: bool = False,
) -> list[Entry[Environment]]:
    """Those whose fields are among the wanted ones (nothing wanted: any), in an order.

    Small letters or capitals, it is the same; `cpu` as GPU kind: those without. Equal ones stay as they were
    registered, and those of which the order is not known come last.
    """
    found = [
        entry
        for entry in entries
        if all(not words or _is_among(entry.value, field, words) for field, words in wanted.items())
    ]
    if sort is None:
        return found[::-1] if descending else found
    key = _KEYS[sort]
    known = [entry for entry in found if key(entry.value) is not None]
    unknown = [entry for entry in found if key(entry.value) is None]
    return [*sorted(known, key=lambda entry: key(entry.value), reverse=descending), *unknown]


def forget(store: Store, ids: Sequence[str]) -> None:
    """Forget environments and the links measured between them; none of them while a task runs in one."""
    for id in ids:
        store.environments.get(id)
        for task in store.tasks.live():
            if id in task.request.get("distributedConfig", {}).get("nodeIds", ()):
                params = {"task": task.id, "name": task.name}
                raise InvalidError(Notice(code="environment_in_use", field="id", value=id, params=params))
    for id in ids:
        store.environments.remove(id)
    for link in store.measured_links.all():
        if link.value.first in ids or link.value.second in ids:
            store.measured_links.remove(link.id)


def _is_among(one: Environment, field: str, words: Collection[str]) -> bool:
    held = CPU if field == "gpu" and not one.gpus else getattr(one, field)
    return held is not None and held.lower() in {word.lower() for word in words}
