"""Bodies of requests that read a file: one that was handed in before, or a short text within the request itself."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from crosszone.web.body import ScenarioBody
from crosszone.web.saved import MOST_NAME

_FILE = Field(default=None, max_length=100, description="Id of a file that was handed in (/calibrate/files).")
_CONTENT = Field(default=None, max_length=4_000_000, description="Or the text of the file itself.")
_NAME = Field(default=None, max_length=MOST_NAME, description="What the file is called; none: as it was handed in.")
Iteration = Field(default="best", max_length=20, description="Which one: first, last, best, or its number.")


class FileBody(BaseModel):
    """A file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    file: str | None = _FILE
    content: str | None = _CONTENT
    name: str | None = _NAME

    @model_validator(mode="after")
    def _source(self) -> Self:
        if (self.file is None) == (self.content is None):
            raise ValueError("file, content")
        return self


class SamplesBody(FileBody):
    """Kernels that were measured, and on which GPU."""

    correction: bool = Field(
        default=False, description="Also fit small corrections to the forms: slower, and only its errors are told."
    )
    gpu: str | None = Field(
        default=None, max_length=100, description="Catalogue name of the GPU; none: the one that the file names."
    )


class RunFileBody(ScenarioBody):
    """A file of a run, and the scenario it is of where that is known."""

    file: str | None = _FILE
    content: str | None = _CONTENT
    name: str | None = _NAME

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.file is None) == (self.content is None):
            raise ValueError("file, content")
        if self.text is not None and self.scenario is not None:
            raise ValueError("text, scenario")
        if self.way is not None and not self.known:
            raise ValueError("text, scenario")
        return self

    @property
    def known(self) -> bool:
        """There is a scenario."""
        return self.text is not None or self.scenario is not None


class LogBody(RunFileBody):
    """A log, and the scenario it is of."""

    @model_validator(mode="after")
    def _needed(self) -> Self:
        if not self.known:
            raise ValueError("text, scenario")
        return self


class TraceFileBody(RunFileBody):
    """A trace, which of its iterations to look at, and optionally the scenario it is compared with."""

    iteration: str = Iteration


class ImportBody(TraceFileBody):
    """A file to keep as a result."""

    what: Literal["trace", "sheet"] = Field(default="trace", description="What kind of file it is.")
    note: str = Field(default="", max_length=20_000, description="What to remember of it.")


def source_of(body: FileBody | RunFileBody) -> dict[str, Any]:
    """What of a body names the file."""
    return {"file": body.file, "content": body.content, "name": body.name}
