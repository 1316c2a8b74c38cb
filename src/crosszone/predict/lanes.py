"""The timeline of a predicted step: the simulated pipeline, then gradients, update and what is left of the step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from crosszone.errors import InvalidError, Notice
from crosszone.predict.placed_strategy import EXPECTED
from crosszone.schedule.orders import SPLITS_WEIGHT_GRAD
from crosszone.schedule.timeline import Timeline, build_timeline
from crosszone.schedule.trace import MAX_SPANS, Lane
from crosszone.text import DEFAULT_LANGUAGE, label

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor


def build_step_timeline(p: Predictor, language: str = DEFAULT_LANGUAGE) -> Timeline:
    """Lanes of stages, links, gradient exchange and updates; the last span ends with the step. [S10]"""
    step, s = p.step, p.strategy
    passes = 3 if s.pipeline_schedule in SPLITS_WEIGHT_GRAD else 2
    micro_batches = p.row_micro_batches
    spans = (passes + 2) * s.pp * s.interleave * micro_batches  # a message after each pass but that for weights
    if spans > MAX_SPANS:
        params = {"limit": MAX_SPANS, "micro_batches": micro_batches}
        raise InvalidError(Notice(code="trace_too_long", value=spans, field="strategy", params=params))
    row = p.row
    t = step.times
    at = p.placed.zone[:, p.placed.replica_classes[0][p.slowest], 0, 0]
    zones = tuple(p.placed.cluster.zones[int(zone)].name for zone in at)
    names = tuple(label("lane_stage", language, stage=stage, zone=zone) for stage, zone in enumerate(zones))
    run = step.pipelines.alone(row)
    timeline = build_timeline(run, names)
    timeline = replace(timeline, lanes=tuple(_shorten_link_name(lane, zones, language) for lane in timeline.lanes))
    ready = run.gradients_ready_s.reshape(s.pp, -1).max(axis=-1)
    reduce, gather, update = (np.broadcast_to(x, t.forward.shape)[row] for x in (t.reduce, t.gather, t.update))
    reduced = float(step.reduced_s[row])
    for stage, zone in enumerate(zones):
        called = label("lane_replicas", language, stage=stage, zone=zone)
        lane = Lane(id=f"replicas-{stage}", name=called, group="gradients")
        if reduce[stage] > 0:
            timeline = timeline.with_spans(lane, "gradients", float(ready[stage]), float(ready[stage] + reduce[stage]))
        compute = timeline.lanes[stage]
        end = reduced + float(update[stage])
        timeline = timeline.with_spans(compute, "optimizer", reduced, end)
        if gather[stage] > 0:
            timeline = timeline.with_spans(lane, "parameters", end, end + float(gather[stage]))
    done = reduced + float(step.update_s[row])
    host_lane = Lane(id="host", name=label("lane_host", language), group="host")
    return timeline.with_spans(host_lane, "other", done, float(p.step_s[EXPECTED]))


def _shorten_link_name(lane: Lane, zones: tuple[str, ...], language: str) -> Lane:
    """A link by the numbers and zones of its stages: their names in full would not fit beside a lane."""
    if lane.group != "links":
        return lane
    sender, taker = (int(stage) for stage in lane.id.split("-")[1:])
    between = zones[sender] if zones[sender] == zones[taker] else f"{zones[sender]} > {zones[taker]}"
    return lane.replace(name=label("lane_link", language, sender=sender, taker=taker, zones=between))
