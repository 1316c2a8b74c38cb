"""[S14] One micro-batch: its way, and how busy the GPUs are meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.errors import InvalidError
from crosszone.schedule.simulation import simulate
from crosszone.schedule.timeline import KINDS, NONE, build_micro_batch_view, build_timeline

LINK = {"send_forward_s": 2, "send_backward_s": 2, "latency_forward_s": 5, "latency_backward_s": 5}


def pipeline(**more):
    given_ = {"stages": 4, "micro_batches": 8, "forward_s": 1, "backward_s": 2} | more
    return build_timeline(simulate("1f1b", **given_))


def test_usage_of_the_first_micro_batch_by_hand():
    """[S14] Stage 0: forward 0..1, backward 10..12; between them it computes 3 s for others and waits 6 of 12 s."""
    first, second, _, last = build_micro_batch_view(pipeline(), 0)["stages"]
    assert (first["own_s"], first["other_s"], first["waiting_s"]) == (3, 3, 6)
    assert (first["usage"], first["own_share"]) == (0.5, 0.25)
    assert (second["start_s"], second["end_s"], second["usage"]) == (1, 10, pytest.approx(5 / 9))
    assert (last["own_s"], last["seconds"], last["usage"]) == (3, 3, 1)


def test_usage_of_the_whole_way_is_that_of_all_stages():
    """[S14] From 0 to 12 s the stages compute 6, 7, 8 and 9 s: 30 of 48."""
    found = build_micro_batch_view(pipeline(), 0)
    assert (found["start_s"], found["end_s"]) == (0, 12)
    assert found["usage"] == pytest.approx(30 / 48)


def test_the_way_shows_each_pass_and_each_message_with_its_wait():
    """Two stages over a link of 2 s and 5 s of latency, one micro-batch: 1, 2, 5 s on the way, 1 + 2, 2, 5 s back, 2."""
    timeline = pipeline(stages=2, micro_batches=1, **LINK)
    found = build_micro_batch_view(timeline, 0)
    spans = found["spans"]
    assert [KINDS[kind] for kind in spans["kind"]] == ["forward", "send", "forward", "backward", "send", "backward"]
    assert spans["start_s"] == [0, 1, 8, 9, 11, 18]
    assert spans["wait_s"] == [0, 0, 5, 0, 0, 5]
    assert [(one["messages"], one["busy_s"], one["share"]) for one in found["links"]] == [(1, 2, 0.1)] * 2
    assert found["seconds"] == 20
    assert found["usage"] == pytest.approx(3 / 20)


@pytest.mark.parametrize("number", [8, 10_000_000])
def test_a_micro_batch_that_is_not_there_is_refused_with_those_that_are(number):
    with pytest.raises(InvalidError) as caught:
        build_micro_batch_view(pipeline(), number)
    (notice,) = caught.value.notices
    assert (notice.code, notice.value, notice.params["limit"]) == ("micro_batch_unknown", number, 7)


def test_a_step_without_micro_batches_says_so():
    timeline = pipeline()
    with pytest.raises(InvalidError) as caught:
        build_micro_batch_view(replace(timeline, micro_batch=np.full_like(timeline.micro_batch, NONE)), 0)
    assert caught.value.notices[0].code == "micro_batch_none"


@given(st.integers(1, 5), st.integers(1, 10), st.integers(0, 3), st.integers(0, 9))
def test_own_others_and_waiting_fill_the_time_between(stages, micro_batches, send, number):
    """[S14]"""
    links = dict.fromkeys(LINK, send)
    timeline = pipeline(stages=stages, micro_batches=micro_batches, **links)
    found = build_micro_batch_view(timeline, number % micro_batches)
    assert len(found["stages"]) == stages
    for stage in found["stages"]:
        assert stage["own_s"] == pytest.approx(3)
        assert stage["own_s"] + stage["other_s"] + stage["waiting_s"] == pytest.approx(stage["seconds"])
        assert 0 < stage["own_share"] <= stage["usage"] <= 1
    assert 0 < found["usage"] <= 1
