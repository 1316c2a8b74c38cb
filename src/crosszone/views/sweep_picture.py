"""A sweep as a picture: the heat map with the line on which the best choice flips."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

from crosszone.extras import require_extra
from crosszone.views.answer_text import AnswerText
from crosszone.views.sweep import LETTERS, label_crossing

if TYPE_CHECKING:
    from crosszone.analyse.sweep import Sweep
    from crosszone.analyse.sweep_cells import SweepAxis

# Fonts that have Chinese characters.
CHINESE = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Micro Hei", "SimHei", "PingFang SC")
LUMA = (0.2126, 0.7152, 0.0722)  # How bright red, green and blue look
TICKS = 6  # Numbers beside the scale of colours


def draw_sweep(sweep: Sweep, language: str) -> bytes:
    """The picture as the bytes of a PNG file; in English where no font has the characters of another language."""
    require_extra("figures")
    # Matplotlib writes its font cache into the home folder, which a service may not have
    os.environ.setdefault("MPLCONFIGDIR", os.path.join(tempfile.gettempdir(), f"crosszone-matplotlib-{os.getuid()}"))
    import io

    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    font = _find_chinese_font() if language == "zh" else None
    text = AnswerText("zh" if font else "en")
    with mpl.rc_context({"font.family": [font or "DejaVu Sans"], "axes.unicode_minus": False}):
        figure = Figure(figsize=(9, 6), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure.add_subplot(), figure, sweep, text)
        content = io.BytesIO()
        figure.savefig(content, format="png")
    return content.getvalue()


def _name_crossing(kind: str, text: AnswerText) -> str:
    return f"{LETTERS[kind]} {label_crossing(kind, text)}"


def _find_chinese_font() -> str | None:
    from matplotlib import font_manager

    names = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in CHINESE if name in names), None)


def _draw(axes: Any, figure: Any, sweep: Sweep, text: AnswerText) -> None:
    import numpy as np
    from matplotlib.colors import LogNorm

    steps = np.array([cell.step_time_s.expected if cell.step_time_s else np.nan for cell in sweep.cells])
    if sweep.y is None:
        places = _list_places(sweep.x)
        axes.plot(places, steps, marker="o", color="#2563eb")
        for place, cell, step in zip(places, sweep.cells, steps, strict=True):
            axes.annotate(LETTERS[cell.kind], (place, step), textcoords="offset points", xytext=(0, 6), ha="center")
        for flip in sweep.flips:
            axes.axvline((flip.start[0] + flip.end[0]) / 2, color="#dc2626", linewidth=1.2, linestyle="--")
        axes.set_ylabel(text.label("what_if_step"))
        _scale(axes, "x", sweep.x)
    else:
        across, along = _list_places(sweep.x), _list_places(sweep.y)
        grid = steps.reshape(len(along), len(across))
        low, high = float(np.nanmin(steps)), float(np.nanmax(steps))
        norm = LogNorm(low, max(high, low * (1 + 1e-9)))
        picture = axes.pcolormesh(
            _compute_edges(sweep.x), _compute_edges(sweep.y), grid, cmap="turbo", norm=norm, alpha=0.9
        )
        for row, y in enumerate(along):
            for column, x in enumerate(across):
                kind = sweep.cell(column, row).kind
                shade = picture.cmap(picture.norm(grid[row, column]))
                # letters must be readable on yellow and on dark blue alike
                light = sum(w * part for w, part in zip(LUMA, shade, strict=False)) > 0.5
                ink = "#111827" if light else "#f9fafb"
                axes.text(x, y, LETTERS[kind], ha="center", va="center", fontsize=7, color=ink)
        for flip in sweep.flips:
            axes.plot([flip.start[0], flip.end[0]], [flip.start[1], flip.end[1]], color="#111827", linewidth=2)
        bar = figure.colorbar(picture, ax=axes, label=text.label("what_if_step"))
        bar.set_ticks(np.geomspace(low, max(high, low * (1 + 1e-9)), TICKS).tolist())
        bar.minorticks_off()
        _format_ticks(bar.ax.yaxis)
        axes.set_ylabel(sweep.y.field)
        _scale(axes, "x", sweep.x)
        _scale(axes, "y", sweep.y)
    axes.set_xlabel(sweep.x.field)
    kinds = list(dict.fromkeys(cell.kind for cell in sweep.cells))
    axes.set_title(
        f"{_strip_markup(sweep.name, text.language)}\n" + ", ".join(_name_crossing(kind, text) for kind in kinds),
        fontsize=9,
    )


def _strip_markup(name: str, language: str) -> str:
    """The name without what the font cannot draw, and without signs that start a formula."""
    # a dollar sign starts a formula in Matplotlib, and an unpaired one is an error
    safe = name.replace("$", "")
    return safe if language == "zh" else safe.encode("ascii", "replace").decode()


def _list_places(axis: SweepAxis) -> list[float]:
    """Where the values stand: at their number, or one after the other where they are words."""
    return list(axis.numbers or map(float, range(len(axis.values))))


def _compute_edges(axis: SweepAxis) -> list[float]:
    """Borders between the cells, half-way on the axis's scale."""
    import numpy as np

    places = np.array(_list_places(axis))
    logs = axis.numbers is not None and axis.scale == "log"
    places = np.log(places) if logs else places
    if len(places) == 1:
        edges = np.array([places[0] - 0.5, places[0] + 0.5])
    else:
        middle = (places[1:] + places[:-1]) / 2
        edges = np.concatenate([[2 * places[0] - middle[0]], middle, [2 * places[-1] - middle[-1]]])
    borders: list[float] = (np.exp(edges) if logs else edges).tolist()
    return borders


def _format_ticks(axis: Any) -> None:
    """Ticks as one reads them, not as powers of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axis.set_minor_formatter(NullFormatter())


def _scale(axes: Any, which: str, axis: SweepAxis) -> None:
    if axis.numbers is not None and axis.scale == "log":
        getattr(axes, f"set_{which}scale")("log")
        _format_ticks(getattr(axes, f"{which}axis"))
    if axis.numbers is None:
        getattr(axes, f"set_{which}ticks")(range(len(axis.values)), [str(value) for value in axis.values])
