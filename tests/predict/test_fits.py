"""[M12] Does it fit? Probabilities worked out by hand, verdicts that agree with them, and the memory of hosts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import scenario
from crosszone.cost.memory import read_memory_profiles
from crosszone.plan.planner import plan
from crosszone.predict.fits import (
    choose_verdict,
    compute_peak_factors,
    compute_safe_share,
    estimate_fits_probability,
    get_spread,
    read_fits_profile,
)
from crosszone.predict.prediction import Memory
from effort import examples
from predict.given import FSDP, one_zone, predicted

USABLE = read_fits_profile()["usable"]["value"]
DEEPSPEED = FSDP | {"framework": "deepspeed"}


def test_the_probability_is_a_logistic_one_of_the_ratio():
    """[M12] A peak of all that is usable: one half; 3^s times as much: odds of three to one against, one quarter."""
    spread = get_spread("nanotron")
    assert estimate_fits_probability(USABLE * 80, 80, "nanotron") == pytest.approx(0.5)
    assert estimate_fits_probability(USABLE * 80 * 3**spread, 80, "nanotron") == pytest.approx(0.25)
    assert estimate_fits_probability(USABLE * 80 / 9**spread, 80, "nanotron") == pytest.approx(0.9)


def test_eight_of_ten_peaks_lie_in_the_range():
    """[M12] Odds of nine to one at each end."""
    low, high = compute_peak_factors("internevo")
    chances = [estimate_fits_probability(80 * USABLE * factor, 80, "internevo") for factor in (low, high)]
    assert chances == pytest.approx([0.9, 0.1])


def test_a_stack_without_measured_peaks_is_less_sure():
    """The wider distribution calls more of what is near the limit tight, on both sides."""
    assert choose_verdict(estimate_fits_probability(70, 80, "nanotron")) == "yes"
    assert choose_verdict(estimate_fits_probability(70, 80, "fsdp")) == "tight"
    assert choose_verdict(estimate_fits_probability(85, 80, "nanotron")) == "no"
    assert choose_verdict(estimate_fits_probability(85, 80, "fsdp")) == "tight"


@pytest.mark.parametrize("stack", ["nanotron", "megatron-core", "fsdp"])
def test_a_safe_peak_is_one_with_the_verdict_yes(stack: str):
    """[M12] Up to the share u x 3^-s and no further."""
    share = compute_safe_share(stack)
    assert share == pytest.approx(USABLE / 3 ** get_spread(stack))
    verdicts = [choose_verdict(estimate_fits_probability(80 * x, 80, stack)) for x in (share * 0.999, share * 1.001)]
    assert verdicts == ["yes", "tight"]


@examples(60)
@given(
    st.floats(0.01, 1e5),
    st.floats(1, 1e4),
    st.floats(1.0, 10),
    st.sampled_from([*read_memory_profiles()["stacks"], "unknown"]),
)
def test_more_memory_needed_is_never_more_likely_to_fit(peak: float, limit: float, more: float, stack: str):
    less, chance = (estimate_fits_probability(gib, limit, stack) for gib in (peak * more, peak))
    assert 0.0 <= less <= chance <= 1.0


def test_every_spread_says_what_it_rests_on():
    profile = read_fits_profile()
    assert set(profile["stacks"]) <= set(read_memory_profiles()["stacks"])
    assert all(entry["source"] and entry["n"] > 0 for entry in profile["stacks"].values())
    assert all(0 < entry["value"] <= profile["spread"]["value"] for entry in profile["stacks"].values())


@examples(20)
@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([1, 2, 4, 8]))
def test_a_plan_fits_unless_the_verdict_is_no(micro_batch: int, tp: int):
    got = predicted({"tp": tp, "dp": 16 // tp, "micro_batch": micro_batch}, job=FSDP | {"global_batch": 512})
    memory = got.memory_gib
    assert memory.fits == (memory.verdict != "no")
    assert memory.verdict == choose_verdict(memory.fits_probability)
    codes = {notice["code"] for notice in got.warnings}
    assert ("may_not_fit" in codes, "does_not_fit" in codes) == (memory.verdict == "tight", memory.verdict == "no")


def test_a_prediction_stored_before_there_were_verdicts_is_still_read():
    memory = predicted({"tp": 8, "dp": 2}).memory_gib
    stored = memory.model_dump(exclude={"verdict", "fits_probability"})
    again = Memory.model_validate(stored)
    assert (again.verdict, again.fits_probability, again.peak) == ("yes", 1.0, memory.peak)


# ---- the memory of hosts


def offloaded(**node: Any):
    """Llama 2 70B on 16 GPUs: 14 of the 16 bytes of each of 69e9 parameters / 16, in one node's share of 8 GPUs."""
    cluster = one_zone(16, **node)
    return predicted({"dp": 16, "zero": 3, "offload": "optimizer"}, model="llama-2-70b", job=DEEPSPEED, cluster=cluster)


def find_notice(got: Any, code: str) -> dict[str, Any] | None:
    return next((notice for notice in got.warnings if notice["code"] == code), None)


def test_offload_beyond_the_hosts_memory_is_told_with_both_numbers():
    """[M8] (12 + 2) x 68,976,648,192 / 16 bytes a GPU, eight of them a node: 450 GiB."""
    got = offloaded(memory_gib=256)
    assert not got.memory_gib.fits and got.memory_gib.verdict == "no" and got.memory_gib.fits_probability == 0
    message = find_notice(got, "host_memory_exceeded")["message"]
    assert "450" in message and "256" in message
    assert find_notice(got, "host_memory_exceeded")["field"] == "cluster.zones[0].nodes[0].memory_gib"
    assert find_notice(offloaded(memory_gib=512), "host_memory_exceeded") is None


def test_the_usual_machines_memory_is_assumed_and_named():
    got = offloaded(gpu="h100-80gb-sxm")
    assert got.memory_gib.stages[0].host_limit == pytest.approx(2048 / 8)
    assert "2048" in find_notice(got, "host_memory_usual")["message"]


def test_hosts_whose_memory_is_not_known_are_warned_of():
    got = offloaded(gpu="l40s")
    assert got.memory_gib.stages[0].host_limit is None
    assert find_notice(got, "host_memory_unknown")["level"] == "warning"


@pytest.mark.parametrize("host_gib", [64, 300, 2000])
def test_no_plan_needs_more_of_a_host_than_it_has(host_gib: int):
    """The fastest plans of a model that fills the GPUs: offload as far as the hosts' memory goes."""
    cluster = one_zone(8, memory_gib=host_gib)
    plans = plan(scenario(model="llama-2-13b", job=DEEPSPEED, cluster=cluster)).plans
    for recommended in plans:
        memory = recommended.prediction.memory_gib
        assert memory.verdict != "no"
        assert all(stage.host * 8 <= host_gib for stage in memory.stages)
