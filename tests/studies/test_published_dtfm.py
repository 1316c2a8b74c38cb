"""The DT-FM runs over five networks, and single transfers over shaped links."""

from __future__ import annotations

import csv
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from published.dtfm import (
    BY_PIPELINE,
    BY_STAGE,
    Rate,
    build_fleet,
    build_predictor,
    draw_placement,
    list_placements,
    place_ranks,
    predict_dtfm,
    predict_step_s,
    predict_transfer_s,
    predict_transfers,
    read_rates,
)

from crosszone.cost.profile import Profiles

EFFICIENCY = 1448 / 1500
RATES = {
    frozenset(("Ohio", "Virginia")): Rate(delay_ms=11, gbps=1.12),
    frozenset(("Oregon", "Virginia")): Rate(delay_ms=67, gbps=0.79),
    frozenset(("Oregon", "Ohio")): Rate(delay_ms=49, gbps=1.10),
    frozenset(("Oregon", "California")): Rate(delay_ms=12, gbps=1.25),
    frozenset(("Virginia", "California")): Rate(delay_ms=59, gbps=1.05),
    frozenset(("California", "Ohio")): Rate(delay_ms=52, gbps=1.02),
}


def row(**changes):
    common = {
        "id": "dtfm-1",
        "setting": "case 3: two universities",
        "zones": "Ohio;Virginia",
        "gpus": "64",
        "intra_zone_gbps": "5",
        "layers": "24",
        "hidden": "2048",
        "seq_len": "2048",
        "micro_batch": "1",
        "global_batch": "1024",
        "dp": "8",
        "tp": "1",
        "pp": "8",
        "method": "DT-FM with scheduler",
        "value": "18.87",
        "unit": "s",
    }
    return common | changes


FOUR = {"setting": "case 4: regional, 4 regions", "zones": "Virginia;Oregon;California;Ohio", "intra_zone_gbps": "2"}


@pytest.fixture(scope="module")
def profiles():
    return Profiles.load()


@cache
def iterations(rows: tuple[tuple[tuple[str, str], ...], ...], links: Path):
    """The predictions of all rows, made once."""
    return predict_dtfm([dict(row) for row in rows], links)


def predicted(rows, data):
    return iterations(tuple(tuple(row.items()) for row in rows), data / "region_links_dtfm.csv")


@pytest.fixture
def published(data):
    with (data / "cross_zone_runs.csv").open(encoding="utf-8") as file:
        rows = [{key: cell or "" for key, cell in one.items()} for one in csv.DictReader(file)]
    return {name: [one for one in rows if one["id"].startswith(name + "-")] for name in ("dtfm", "tc-micro")}


def test_every_instance_over_regions_has_its_own_link_to_every_other():
    """[A25] 64 zones, 2016 links: 11 ms and 1.12 Gbit/s between Ohio and Virginia, 1 ms and 5 Gbit/s inside each."""
    machines = build_fleet(row(), RATES)
    assert len(machines.cluster.zones) == 64 and len(machines.crossings.links) == 64 * 63 // 2
    far, late = machines.crossings.get_boundary(0, 63, 1)
    near, soon = machines.crossings.get_boundary(0, 31, 1)
    assert (far[1], near[1]) == pytest.approx((1.12e9 / 8 * EFFICIENCY, 5e9 / 8 * EFFICIENCY), rel=1e-3)
    assert (late[1], soon[1]) == pytest.approx((0.01105, 0.00105))
    assert machines.crossings.get_boundary(0, 63, 8)[0][1] == far[1]


def test_the_regional_case_has_a_rate_of_its_own_for_one_pair():
    """[A25] Virginia - Oregon: 1.15 Gbit/s in place of 0.79; 10 ms inside a region."""
    machines = build_fleet(row(**FOUR), RATES)
    rate, late = machines.crossings.get_boundary(0, 16, 1)
    assert rate[1] == pytest.approx(1.15e9 / 8 * EFFICIENCY, rel=1e-3)
    assert (late[1], machines.crossings.get_boundary(0, 15, 1)[1][1]) == pytest.approx((0.06705, 0.01005))


def test_a_data_centre_is_one_zone_of_its_instances():
    """[A26] Four single GPUs stand before each instance of four; an instance has 10 Gbit/s."""
    zones = "one AWS region, 8 x p3.8xlarge + 32 x p3.2xlarge"
    machines = build_fleet(row(zones=zones, intra_zone_gbps="100 within an instance / 10 across"), {})
    assert [(g.count, g.gpus, g.nic_gbps_node) for g in machines.cluster.zones[0].nodes] == [(8, 4, 10), (32, 1, 10)]
    assert [(group, gpu) for _, group, gpu in machines.gpus[:10]] == [
        *((1, gpu) for gpu in range(4)),
        *((0, gpu) for gpu in range(4)),
        (1, 4),
        (1, 5),
    ]
    assert len(set(machines.gpus)) == 64


def test_random_ranks_are_those_of_the_authors():
    """[A26] Seed 2022: GPUs 0 to 7 take ranks 0, 2, 32, 33, 4, 10, 7 and 45 (the authors' script lists them)."""
    machines = build_fleet(row(), RATES)
    found = draw_placement(machines.gpus, BY_PIPELINE, 2022).locate_ranks(machines.cluster)["zone"].tolist()
    assert [found.index(zone) for zone in range(8)] == [0, 2, 32, 33, 4, 10, 7, 45]
    assert sorted(found) == list(range(64))


def test_a_scheduler_may_keep_pipelines_inside_regions_or_lead_them_through_two_or_all():
    """[A26] Of four regions with 16 instances each: stages of the first pipeline in 1, 2 or 4 of them, as many in each;
    the ring of four can be cut into pairs in two ways, and into a line in four.
    """
    machines = build_fleet(row(**FOUR), RATES)
    found = list(list_placements(machines, 8))
    regions = [one.locate_ranks(machines.cluster)["zone"].reshape(8, 8)[0] // 16 for one in found]
    counts = [np.unique(one, return_counts=True)[1].tolist() for one in regions]
    assert counts == [[8], [4, 4], [4, 4], [2, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2, 2]]
    assert regions[1].tolist() != regions[2].tolist()
    assert all(sorted(one.locate_ranks(machines.cluster)["zone"]) == list(range(64)) for one in found)


def test_rings_go_in_rank_order_and_side_by_side(profiles):
    """[A25] Eight replicas in Ohio and Virginia by turns of four: two crossings of 1.12 Gbit/s; eight stages at once."""
    machines = build_fleet(row(), RATES)
    site = build_predictor(row(), machines, place_ranks(machines.gpus, BY_PIPELINE), profiles, 512).placed
    assert site.ring == tuple(range(0, 64, 8)) and site.zone_ranks == 8
    link = site.crossings.get_ring_link(site.ring, site.zone_ranks)
    assert link.bytes_per_s[1] == pytest.approx(8 * 1.12e9 / 8 * EFFICIENCY, rel=1e-3)
    assert link.latency_s[1] == pytest.approx((2 * 0.01105 + 6 * 0.00105) / 8)


def test_gpipe_runs_a_large_batch_in_rounds(profiles):
    """[A28] 4096 samples are eight rounds of 64 micro-batches, 1024 two: the difference is six pipelines."""
    machines = build_fleet(row(), RATES)
    placement = place_ranks(machines.gpus, BY_PIPELINE)
    few, many = (predict_step_s(row(global_batch=batch), machines, placement, profiles) for batch in ("1024", "4096"))
    span = build_predictor(row(), machines, placement, profiles, 512).step.pipelines.span_s.max()
    assert many - few == pytest.approx(6 * span)


def test_a_stage_waits_for_a_blocking_exchange_with_its_neighbours(profiles):
    """[X8] Megatron-LM from Ohio to Virginia: a micro-batch more costs the stage before the border its passes, 8.4 MB at
    1.12 Gbit/s and 11 ms forward, 8.4 MB at 5 Gbit/s and 1 ms back.
    """
    machines = build_fleet(row(), RATES)
    run = build_predictor(row(method="Megatron PP8"), machines, place_ranks(machines.gpus, BY_STAGE), profiles, 1024)
    step = run.step
    bits = 8 * 2 * 2048 * 2048
    message = bits / EFFICIENCY / 1.12e9 + bits / EFFICIENCY / 5e9 + 2 * run.profile[0].coefficients.p2p_message_s
    passes = step.times.cost.forward_s[0, 3] + step.times.cost.backward_s[0, 3]
    assert step.times.forward[0, 3] + step.times.backward[0, 3] == pytest.approx(
        passes + message + 0.01105 + 0.00105, rel=1e-3
    )
    assert step.times.latency[0, 3] == pytest.approx(0.0)


def test_gpipe_waits_until_its_message_is_out(profiles):
    """[X8] DT-FM's first stage in the same place: 8.4 MB at 5 Gbit/s add to its forward pass, 1 ms delays the next."""
    machines = build_fleet(row(), RATES)
    times = build_predictor(row(), machines, place_ranks(machines.gpus, BY_PIPELINE), profiles, 512).step.times
    message = 8 * 2 * 2048 * 2048 / EFFICIENCY / 5e9
    assert times.forward[0, 0] - times.cost.forward_s[0, 0] == pytest.approx(message, rel=0.06)
    assert times.latency[0, 0] == pytest.approx(0.00105)


def test_what_no_such_run_had_is_not_predicted(tmp_path):
    """[A27] An unknown method and 64 instances over three regions."""
    path = tmp_path / "links.csv"
    path.write_text("region_a,region_b,ping_ms,bandwidth_gbps_used\nOhio,Virginia,11,1.12\n", encoding="utf-8")
    three = row(zones="Ohio;Virginia;Oregon")
    found = predict_dtfm([row(method="Other"), three, row()], path)
    assert [one.reason for one in found] == ["published_unmodelled", "published_unmodelled", ""]
    assert found[0].predicted is None and found[2].predicted > 0
    assert read_rates(path) == {frozenset(("Ohio", "Virginia")): Rate(delay_ms=11, gbps=1.12)}


@pytest.mark.slow
def test_half_the_iterations_are_predicted_within_15_percent(published, data):
    """[A27] Over all rows, and over those of every network but the first."""
    results = predicted(published["dtfm"], data)
    errors = np.array([abs(one.error_pct) for one in results])
    others = np.array(["case 1:" not in one.case for one in results])
    assert len(errors) == 123
    assert np.median(errors) <= 12 and np.median(errors[others]) <= 12


@pytest.mark.slow
def test_methods_come_in_the_published_order(published, data):
    """[A27] All but the pairs with a known cause: eight stages of Megatron-LM over shared NICs (networks 1 and 2), and its
    default order against DT-FM's random one over regions, predicted within 10 % of each other.
    """
    rows = published["dtfm"]
    results = predicted(rows, data)
    groups: dict[tuple[str, ...], list] = {}
    for one, result in zip(rows, results, strict=True):
        groups.setdefault((one["setting"][:6], one["layers"], one["global_batch"]), []).append((one["method"], result))
    pairs = wrong = 0
    for (case, *_), members in groups.items():
        for (a, first), (b, second) in combinations(sorted(members, key=lambda one: one[1].published), 2):
            pairs += 1
            if first.predicted < second.predicted:
                continue
            wrong += 1
            if case in ("case 1", "case 2"):
                assert b.startswith("Megatron PP8") and not a.startswith("Megatron PP8")
            else:
                assert {a, b} == {"Megatron PP8 default placement", "DT-FM random placement"}
                assert second.predicted > 0.9 * first.predicted
    assert pairs == 201 and wrong <= 20


@pytest.mark.slow
def test_the_scheduler_beats_chance_and_megatron_over_every_network(published, data):
    """[A27] DT-FM with scheduler is the fastest of all, as published: on all 30 combinations."""
    rows = published["dtfm"]
    results = predicted(rows, data)
    best: dict[tuple[str, ...], tuple[float, str]] = {}
    for one, result in zip(rows, results, strict=True):
        key = (one["setting"], one["layers"], one["global_batch"])
        best[key] = min(best.get(key, (np.inf, "")), (result.predicted, one["method"]))
    assert len(best) == 30 and {method for _, method in best.values()} == {"DT-FM with scheduler"}


def test_transfers_follow_from_rate_and_delay():
    """[A29] 2^27 bytes at 2 Gbit/s: 556 ms; a ring over four ranks moves 1.5 times as much in 6 steps of 5.05 ms; one
    connection of Gloo has 5 Gbit/s of 10, and with 20 ms a round trip 3 MiB in flight.
    """
    size = 2.0**27
    wire = size * 8 / (2e9 * EFFICIENCY)
    assert predict_transfer_s("p2p", "nccl", size, 2, 0.0, 2.0) == pytest.approx(wire + 50e-6, rel=1e-3)
    assert predict_transfer_s("all-reduce", "nccl", size, 4, 0.01, 2.0) == pytest.approx(
        1.5 * wire + 6 * 0.00505, rel=1e-3
    )
    assert predict_transfer_s("p2p", "gloo", size, 2, 0.0, 10.0) == pytest.approx(size * 8 / 5e9 + 50e-6, rel=1e-3)
    slow = size / (0.75 * 2**22 / 0.02)
    assert predict_transfer_s("p2p", "gloo", size, 2, 0.02, 10.0) == pytest.approx(slow + 0.01005, rel=1e-3)


def test_half_the_transfers_are_predicted_within_5_percent(published):
    """[A29]"""
    results = predict_transfers(published["tc-micro"])
    errors = np.array([abs(one.error_pct) for one in results])
    assert len(errors) == 60 and np.median(errors) <= 5 and (errors <= 30).sum() >= 59
