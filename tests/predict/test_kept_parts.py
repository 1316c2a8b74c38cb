"""Computed parts are kept by name: what follows from links is dropped together when these change, the rest stays."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT
from crosszone.analyse.explain import explain
from crosszone.inputs.links import Band
from crosszone.predict.parts import cached_part, select_parts
from crosszone.predict.placed_strategy import Crossings
from crosszone.predict.predict import build_prediction
from effort import examples
from predict.given import predictors


class Count:
    def __init__(self) -> None:
        self.parts: dict[str, int] = {}
        self.made = 0

    @cached_part
    def once(self) -> int:
        """Computed once."""
        self.made += 1
        return self.made


def test_a_part_is_computed_once_until_it_is_dropped():
    counted = Count()
    assert (counted.once, counted.once, counted.parts) == (1, 1, {"once": 1})
    counted.parts = select_parts(counted.parts, without=("once",))
    assert counted.once == 2
    assert Count.once.__doc__ == "Computed once."


@examples(60)
@given(predictors(), st.sampled_from([0.1, 1.0, 25.0]), st.sampled_from([1.0, 80.0]))
def test_a_prediction_over_other_links_is_that_of_a_new_predictor(p, gbps, rtt_ms):
    explain(p, build_prediction(p), "step_time_s")
    links = {
        pair: replace(link, gbps=gbps, gbps_back=gbps, rtt_ms=Band(rtt_ms, rtt_ms, 1.5 * rtt_ms))
        for pair, link in p.placed.links.items()
    }
    known = Crossings(p.placed.cluster, links, p.placed.transport)
    placed = p.placed.with_links(p.placed.cluster, links, known)
    moved = p.with_links("moved", placed, ())
    new = replace(p, name="moved", placed=replace(p.placed, links=links, shared_crossings=known), notices=())
    assert build_prediction(moved) == build_prediction(new)
    assert p.memory == moved.memory
    told = [explain(one, build_prediction(one), "step_time_s") for one in (moved, new)]
    assert told[0] == told[1]


def test_nobody_edits_what_python_keeps_of_an_object():
    edits = re.compile(r"__dict__(\[[^]]*\] = |\.(pop|update|setdefault))|del .*__dict__")
    files = [*(ROOT / "src" / "crosszone").rglob("*.py")]
    assert [path for path in files if edits.search(path.read_text(encoding="utf-8"))] == []
    assert len(files) > 100
