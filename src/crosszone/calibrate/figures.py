"""Pictures of the accuracy report: what an iteration is made of, errors by component, predictions, stability.

    files = draw_figures(get_accuracy_report(folder, "en"), "en")
    files["predicted_measured.png"], files["predicted_measured.svg"]      # bytes
    make_figure("component_error", report, "zh")                                 # a matplotlib Figure

A picture that the report has nothing for is not made. Colours are those that colour-blind readers distinguish; equal
reports give equal bytes.
"""

from __future__ import annotations

import io
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from crosszone.extras import require_extra
from crosszone.text import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


# Fonts that have Chinese characters.
CHINESE = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Micro Hei", "SimHei", "PingFang SC")
# Okabe and Ito's, with a grey, and a darker yellow.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#000000", "#b8a800")
MARKERS = "osD^vPX*"
INK, FAINT = "#1f2430", "#d5d8de"
FORMATS = ("png", "svg")
DPI = 150


class FigureLabels:
    """Labels in the language of the picture; English where no font has its characters."""

    def __init__(self, language: str):
        self.chinese = find_chinese_font()
        self.language = "zh" if language == "zh" and self.chinese else "en"

    @property
    def fonts(self) -> list[str]:
        """Fonts in the order in which they are asked for a character; names of sources may be in any language."""
        fonts = ["DejaVu Sans", *([self.chinese] if self.chinese else [])]
        return fonts[::-1] if self.language == "zh" else fonts

    def __call__(self, key: str, **params: object) -> str:
        return label(key, self.language, **params)


@contextmanager
def apply_figure_style(labels: FigureLabels) -> Iterator[None]:
    """Settings of the drawing library while a picture is made and written."""
    require_extra("figures")
    set_matplotlib_folder()
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "font.family": labels.fonts,
        "text.parse_math": False,
        "font.size": 9,
        "axes.unicode_minus": False,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": FAINT,
        "grid.linewidth": 0.6,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "svg.hashsalt": "crosszone",
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def set_matplotlib_folder() -> None:
    """Give the drawing library a folder of its own for what it keeps."""
    os.environ.setdefault("MPLCONFIGDIR", os.path.join(tempfile.gettempdir(), f"crosszone-matplotlib-{os.getuid()}"))


def encode_figure(figure: Figure, kind: str) -> bytes:
    """A picture as the bytes of a file, the same each time."""
    out = io.BytesIO()
    figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else {})
    return out.getvalue()


def find_chinese_font() -> str | None:
    set_matplotlib_folder()
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in CHINESE if name in installed), None)


Report = Mapping[str, Any]
NEAR_PCT = (10, 20)  # Lines beside the diagonal of the scatter
WIDEST_ERROR_PCT = 100.0  # Errors of components are drawn up to this size; longer bars say their number
# Sources and jobs of a picture; of more, those beyond are one source, or left out, and the picture says so.
MOST_SOURCES, MOST_JOBS = 36, 24
LONGEST_NAME = 40
LUMA = (0.2126, 0.7152, 0.0722)  # How bright red, green and blue look


def draw_figures(report: Report, language: str, formats: Sequence[str] = FORMATS) -> dict[str, bytes]:
    """Name and bytes of every picture that the report has data for."""
    labels = FigureLabels(language)
    files: dict[str, bytes] = {}
    for name in FIGURES:
        figure = make_figure(name, report, language)
        if figure is not None:
            with apply_figure_style(labels):
                files |= {f"{name}.{kind}": encode_figure(figure, kind) for kind in formats}
    return files


def make_figure(name: str, report: Report, language: str) -> Figure | None:
    """One picture by its name, or None where there is nothing to draw."""
    labels = FigureLabels(language)
    with apply_figure_style(labels):
        return FIGURES[name](report, labels)


def draw_component_share(report: Report, labels: FigureLabels) -> Figure | None:
    """Stacked bars: two a job, measured and predicted."""
    bars = [
        (row, kind, row[f"{kind}_pct"])
        for row in report["shares"][:MOST_JOBS]
        for kind in ("measured", "predicted")
        if row[f"{kind}_pct"]
    ]
    if not bars:
        return None
    figure, axes = _make_axes(10, 1.6 + 0.32 * len(bars))
    at = [index + 0.35 * sum(kind == "measured" for _, kind, _ in bars[: index + 1]) for index in range(len(bars))]
    starts = [0.0] * len(bars)
    for number, part in enumerate(report["shares"][0]["names"]):
        widths = [row_pct[part] for _, _, row_pct in bars]
        colour = COLOURS[number]
        text_style: dict[str, Any] = {
            "ha": "center",
            "va": "center",
            "fontsize": 7,
            "color": _choose_text_colour(colour),
        }
        axes.barh(at, widths, left=starts, height=0.86, color=colour, label=labels(f"share_{part}"))
        for y, start, width in zip(at, starts, widths, strict=True):
            if width >= 4:
                axes.text(start + width / 2, y, f"{width:.0f}", **text_style)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_yticks(at, [f"{_format_job(row['job'])} {labels(f'kind_{kind}')}" for row, kind, _ in bars])
    axes.invert_yaxis()
    axes.set(
        xlim=(0, 100),
        xlabel=labels("figure_share_axis"),
        title=labels("figure_share_title") + _describe_left_out(report["shares"], labels),
    )
    _place_legend(figure, axes, columns=4)
    return figure


def draw_component_error(report: Report, labels: FigureLabels) -> Figure | None:
    """Bars of the signed error: one group a component, one bar a job."""
    table = report["components"]
    if not table or not table["jobs"]:
        return None
    rows, jobs = table["rows"], table["jobs"][:MOST_JOBS]
    figure, axes = _make_axes(11, 6)
    bar_width = 0.86 / len(jobs)
    for number, job in enumerate(jobs):
        at = [index - 0.43 + bar_width * (number + 0.5) for index in range(len(rows))]
        errors_pct = [row["errors_pct"][number] for row in rows]
        points = [(x, y) for x, y in zip(at, errors_pct, strict=True) if y is not None]
        colour = COLOURS[number % len(COLOURS)]
        hatch = "" if job["fastest"] else "////"
        heights = [max(-WIDEST_ERROR_PCT, min(WIDEST_ERROR_PCT, y)) for _, y in points]
        style: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}
        axes.bar([x for x, _ in points], heights, bar_width, label=_format_job(job), **style)
        for x, y in points:
            if abs(y) > WIDEST_ERROR_PCT:
                place, align = (WIDEST_ERROR_PCT, "bottom") if y > 0 else (-WIDEST_ERROR_PCT, "top")
                axes.text(x, place, f"{y:+.0f}", ha="center", va=align, fontsize=6.5)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks(range(len(rows)), [labels(f"component_{row['part']}") for row in rows], rotation=25, ha="right")
    axes.set(
        ylabel=labels("figure_error_axis"),
        title=labels("figure_error_title") + _describe_left_out(table["jobs"], labels),
    )
    axes.margins(x=0.01, y=0.06)
    axes.grid(axis="y")
    _place_legend(figure, axes, columns=3)
    return figure


def draw_predicted_measured(report: Report, labels: FigureLabels) -> Figure | None:
    """Every run that counts, on logarithmic axes, by source; lines at 10 and 20 %."""
    runs = [run for run in report["runs"] if run["counts"]]
    if not runs:
        return None
    figure, axes = _make_axes(9.5, 7)
    by_source: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        is_listed = run["source"] in by_source or len(by_source) < MOST_SOURCES
        by_source.setdefault(run["source"] if is_listed else labels("figure_other_sources"), []).append(run)
    for number, (source, source_runs) in enumerate(by_source.items()):
        axes.plot(
            [run["measured_s"] for run in source_runs],
            [run["predicted_s"] for run in source_runs],
            MARKERS[number // len(COLOURS) % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            markersize=4,
            markeredgewidth=0,
            alpha=0.75,
            label=f"{_shorten_name(source)} ({len(source_runs)})",
        )
    times = [run[key] for run in runs for key in ("measured_s", "predicted_s")]
    ends = (min(times) / 1.3, max(times) * 1.3)
    axes.plot(ends, ends, color=INK, linewidth=1, label="_equal")
    for near, dash in zip(NEAR_PCT, ("--", ":"), strict=True):
        for factor in (1 + near / 100, 1 - near / 100):
            name = f"±{near} %" if factor > 1 else f"_{near}"
            axes.plot(ends, [factor * end for end in ends], dash, color=INK, linewidth=0.8, label=name)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel=labels("figure_measured_axis"), ylabel=labels("figure_predicted_axis"))
    _format_plain_numbers(axes.xaxis, axes.yaxis)
    axes.set_title(labels("figure_scatter_title", count=len(runs)))
    axes.grid(which="major")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def draw_iteration_stability(report: Report, labels: FigureLabels) -> Figure | None:
    """Steady iterations of every job over its fastest one."""
    rows = report["stability"][:MOST_JOBS]
    if not rows:
        return None
    figure, axes = _make_axes(9.5, 1.8 + 0.5 * len(rows))
    for number, row in enumerate(rows):
        low = row["min_s"]
        over = [100 * (seconds / low - 1) for seconds in row["seconds"]]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(over, [number] * len(over), "o", color=colour, markersize=5, markeredgewidth=0, alpha=0.55)
        axes.plot([row["mean_to_min_pct"]], [number], "|", color=INK, markersize=18, markeredgewidth=2)
        axes.text(1.01, number, f"{row['mean_to_min_pct']:.1f} %", transform=axes.get_yaxis_transform(), va="center")
    names = [
        f"{_shorten_name(row['cluster'])} {_shorten_name(row['name'])}\n"
        f"{_shorten_name(row['id'])} · {row['min_s']:.3g} s"
        for row in rows
    ]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(-0.05, None)
    _format_plain_numbers(axes.xaxis)
    axes.set(
        xlabel=labels("figure_stability_axis"),
        title=labels("figure_stability_title") + _describe_left_out(report["stability"], labels),
    )
    axes.grid(axis="x")
    return figure


# Pictures by name.
FIGURES: Mapping[str, Callable[[Report, FigureLabels], Figure | None]] = {
    "component_share": draw_component_share,
    "component_error": draw_component_error,
    "predicted_measured": draw_predicted_measured,
    "iteration_stability": draw_iteration_stability,
}
NAMES = tuple(f"{name}.{kind}" for name in FIGURES for kind in FORMATS)  # Files that `draw_figures` may make


def _make_axes(wide: float, high: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, min(high, 40)), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _place_legend(figure: Figure, axes: Axes, columns: int) -> None:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=columns)


def _format_plain_numbers(*axes: Axis) -> None:
    """Ticks as 0.1, 1, 10 instead of powers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _choose_text_colour(colour: str) -> str:
    """White or ink, whichever is read on a colour."""
    bright = sum(weight * int(colour[at : at + 2], 16) for weight, at in zip(LUMA, (1, 3, 5), strict=True))
    return INK if bright > 140 else "white"


def _describe_left_out(jobs: Sequence[object], labels: FigureLabels) -> str:
    """What a title adds where not all jobs are drawn."""
    return " " + labels("figure_first_jobs", shown=MOST_JOBS, count=len(jobs)) if len(jobs) > MOST_JOBS else ""


def _shorten_name(text: str) -> str:
    """A name on one line, not too long."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= LONGEST_NAME else plain[: LONGEST_NAME - 1] + "…"


def _format_job(job: Mapping[str, Any]) -> str:
    return f"{_shorten_name(job['cluster'])} {_shorten_name(job['name'])} ({_shorten_name(job['id'])})"
