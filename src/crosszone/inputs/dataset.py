"""Dataset: what is trained on, in versions; and the model that is trained."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from pydantic import Field, Strict, StringConstraints, model_validator

from crosszone.inputs.value import FilePlace, Name, Prose, Value, refuse

Sha256 = Annotated[str, StringConstraints(pattern=re.compile(r"^[0-9a-f]{64}$"))]
Bytes = Annotated[int, Strict(), Field(ge=0, le=2**62)]


class DatasetVersion(Value):
    """One state of a dataset, which does not change any more."""

    id: Name
    """What a task asks for it by."""
    path: FilePlace | None = None
    """A token file (.bin), a text file, or a folder of them; null: synthetic data."""
    tokenizer: FilePlace | None = None
    """tokenizer.json, for text."""
    bytes: Bytes | None = None
    """Size; null: not looked at yet."""
    sha256: Sha256 | None = None
    """Checksum of the file, or of the names and checksums of a folder's files; null: not looked at yet."""


class Dataset(Value):
    """A dataset with its versions."""

    name: Name
    """What to call it."""
    about: Prose = ""
    """What it holds."""
    versions: Annotated[tuple[DatasetVersion, ...], Field(min_length=1, max_length=1000)]
    """Its versions, oldest first."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        ids = [version.id for version in self.versions]
        for index, id in enumerate(ids):
            if id in ids[:index]:
                raise refuse("version_twice", id, at=("versions", index, "id"))
        return self

    def find_version(self, id: str) -> DatasetVersion | None:
        """The version of an id, or None."""
        return next((version for version in self.versions if version.id == id), None)


class TrainingModel(Value):
    """A model that tasks train."""

    name: Name
    """What to call it."""
    model: Name | dict[str, Any]
    """As a scenario gives it: a catalogue name, or its fields."""
    weights: FilePlace | None = None
    """Folder of weights to begin with, on the machines that train; null: from scratch."""
    bytes: Bytes | None = None
    """Size of the weights; null: not looked at yet."""
    sha256: Sha256 | None = None
    """Checksum of the weights; null: not looked at yet."""
