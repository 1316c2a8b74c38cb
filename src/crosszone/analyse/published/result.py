"""Result: one published figure beside its prediction."""

from __future__ import annotations

from crosszone.inputs.value import Value


class Result(Value):
    """One published figure, and what is predicted of it; null with a reason where nothing can be."""

    id: str
    """Row of the file it comes from."""
    family: str
    """Publication it belongs to: streaming-diloco, intellect-1, dtfm, headline."""
    case: str
    """Setting: model, network, method, target."""
    unit: str
    """Of both figures."""
    published: float
    """What the source states."""
    predicted: float | None
    """What the models here say."""
    reason: str = ""
    """Why nothing is predicted."""

    @property
    def error_pct(self) -> float | None:
        """Prediction over the published figure, less one, %."""
        return None if self.predicted is None else 100.0 * (self.predicted / self.published - 1.0)
