"""Pipeline layout of Megatron-LM: which layers each stage holds, as `--pipeline-model-parallel-layout` spells it.

    layout_of([3, 2, 2, 1])      # "Et*3|(t*2|)*2,tL"

E is the embedding, t a layer, L the loss; stages are split by |, in pipeline order (with interleaving the first chunk
of every stage comes first). Read in Megatron-LM d98e8a64, megatron/core/transformer/pipeline_parallel_layer_layout.py:
`x*3` repeats a letter and `(...)*3` a group, groups first; commas mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

FLAG = "--pipeline-model-parallel-layout"


def layout_of(layers: Sequence[int]) -> str:
    """The layout of chunks that hold so many layers each; equal neighbours are written once."""
    if len(layers) == 1:
        return f"E{_run(layers[0])}L"
    inner = [(count, len(list(same))) for count, same in groupby(layers[1:-1])]
    parts = [f"E{_run(layers[0])}|"]
    for count, times in inner:
        parts.append(f"({_run(count)}|)*{times}" if times > 1 else f"{_run(count)}|")
    text = "".join(part if part.endswith("|") else f"{part}," for part in parts)
    return f"{text}{_run(layers[-1])}L"


def chunks_of(layout: str) -> list[str]:
    """The letters of each chunk of a layout, as Megatron-LM unrolls it: `["Ettt", "tt", "tt", "tL"]`."""
    text = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def dealt_evenly(layers: Sequence[int]) -> bool:
    """Every chunk holds as many layers, which needs no layout."""
    return len(set(layers)) == 1


def _run(count: int) -> str:
    return "t" * count if count < 2 else f"t*{count}"
