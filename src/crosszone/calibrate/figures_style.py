"""How pictures of the accuracy report look: fonts, colours that colour-blind readers tell apart, and their bytes."""

from __future__ import annotations

import io
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from crosszone.text import label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHINESE = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Micro Hei", "SimHei", "PingFang SC")
"""Fonts that have Chinese characters."""
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#000000", "#b8a800")
"""Okabe and Ito's, with a grey, and a darker yellow."""
MARKERS = "osD^vPX*"
INK, FAINT = "#1f2430", "#d5d8de"
FORMATS = ("png", "svg")
DPI = 150


class Words:
    """Labels in the language of the picture; English where no font has its characters."""

    def __init__(self, language: str):
        self.chinese = _chinese_font()
        self.language = "zh" if language == "zh" and self.chinese else "en"

    @property
    def fonts(self) -> list[str]:
        """Fonts in the order in which they are asked for a character; names of sources may be in any language."""
        found = ["DejaVu Sans", *([self.chinese] if self.chinese else [])]
        return found[::-1] if self.language == "zh" else found

    def __call__(self, key: str, **params: object) -> str:
        return label(key, self.language, **params)


@contextmanager
def style(words: Words) -> Iterator[None]:
    """Settings of the drawing library while a picture is made and written."""
    prepare()
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "font.family": words.fonts,
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


def prepare() -> None:
    """Give the drawing library a folder of its own for what it keeps."""
    os.environ.setdefault("MPLCONFIGDIR", os.path.join(tempfile.gettempdir(), f"crosszone-matplotlib-{os.getuid()}"))


def content(figure: Figure, kind: str) -> bytes:
    """A picture as the bytes of a file, the same each time."""
    out = io.BytesIO()
    figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else {})
    return out.getvalue()


def _chinese_font() -> str | None:
    prepare()
    from matplotlib import font_manager

    known = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in CHINESE if name in known), None)
