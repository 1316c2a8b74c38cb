"""Parts: what is computed of a value once, kept in a dictionary that can be seen, handed on and dropped by name.

class Placed:
parts: dict[str, Any]

@cached_part
def ring(self) -> tuple[int, ...]: ...

# all but what follows from links
replace(placed, links=links, parts=select_parts(placed.parts, without=("ring",)))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class cached_part(Generic[T]):
    """A property that is computed once and kept in `parts` under its name."""

    def __init__(self, build: Callable[[Any], T]) -> None:
        self.build, self.__doc__ = build, build.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, cls: type) -> Self: ...

    @overload
    def __get__(self, owner: Any, cls: type) -> T: ...

    def __get__(self, owner: Any, cls: type) -> Self | T:
        try:
            return owner.parts[self.name]  # type: ignore[no-any-return]
        except KeyError:
            value = owner.parts[self.name] = self.build(owner)
            return value
        except AttributeError:
            if owner is None:  # asked of the class
                return self
            raise


def select_parts(parts: Mapping[str, Any], *, without: Collection[str]) -> dict[str, Any]:
    """The parts that stay valid when what the others follow from is changed."""
    return {name: value for name, value in parts.items() if name not in without}
