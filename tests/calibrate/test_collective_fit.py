"""Latency and rate of links from timed collectives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.calibrate.collective_fit import (
    OPS,
    CollectiveSample,
    LinkFit,
    Topology,
    estimate_collective_s,
    fit_links,
    measure_concurrency,
)
from crosszone.cost.collectives import Ring, all_gather, all_reduce
from crosszone.cost.tiers import Tier
from effort import examples

SIZES = tuple(4096 * 4**power for power in range(9))


def topology(op="all_reduce", *, ranks=4, groups=1, scope="node") -> Topology:
    return Topology(op=op, scope=scope, nodes=1, gpus_per_node=ranks, ranks=ranks, groups=groups)


def samples(where: Topology, link: Tier, noise=0.0, sizes=SIZES, copies=1) -> list[CollectiveSample]:
    random = np.random.default_rng(7)
    return [
        CollectiveSample(
            where=where,
            size_bytes=size,
            time_s=float(estimate_collective_s(where.op, size, where.ranks, link))
            * float(np.exp(noise * random.normal())),
        )
        for size in sizes
        for _ in range(copies)
    ]


def only(rows) -> LinkFit:
    fits, few = fit_links(rows)
    assert not few
    (fit,) = fits
    return fit


@pytest.mark.parametrize("op", OPS)
def test_a_known_latency_and_rate_are_found_again(op):
    """[K10]"""
    fit = only(samples(topology(op, ranks=2 if op == "send_recv" else 4), Tier(25e9, 30e-6)))
    assert fit.latency_s == pytest.approx(30e-6, rel=1e-6)
    assert fit.bytes_per_s == pytest.approx(25e9, rel=1e-6)
    assert fit.error_pct < 1e-4 and fit.random_pct < 1e-4 and fit.unseen_pct < 1e-4
    assert fit.latency_known and fit.rate_known


def test_two_messages_give_the_line_through_them():
    """[K10] 1 MB in 2 ms and 9 MB in 10 ms: 1 ms and 1 GB/s."""
    where = topology("send_recv", ranks=2)
    fit = only(
        [
            CollectiveSample(where=where, size_bytes=1e6, time_s=2e-3),
            CollectiveSample(where=where, size_bytes=9e6, time_s=10e-3),
        ]
    )
    assert (fit.latency_s, fit.bytes_per_s) == (pytest.approx(1e-3), pytest.approx(1e9))
    assert fit.random_pct is None and fit.unseen_pct is None


def test_bytes_are_what_a_rank_passes_in():
    """[K10] An all-gather of shares ends with n times as much; an all-reduce keeps its size."""
    link = Tier(1e9, 1e-5)
    assert estimate_collective_s("all_gather", 1e6, 4, link) == all_gather(4e6, Ring(ranks=4.0, link=link)).seconds
    assert estimate_collective_s("all_reduce", 1e6, 4, link) == all_reduce(1e6, Ring(ranks=4.0, link=link)).seconds


def test_noise_of_ten_percent_moves_the_rate_by_a_few():
    fit = only(samples(topology(), Tier(25e9, 30e-6), noise=0.1, copies=20))
    assert fit.bytes_per_s == pytest.approx(25e9, rel=0.05)
    assert fit.latency_s == pytest.approx(30e-6, rel=0.05)
    assert 5 < fit.error_pct < 12 and 5 < fit.random_pct < 12
    assert abs(fit.latency_s - 30e-6) < 4 * fit.latency_error_s


def test_a_few_wild_rows_hardly_move_the_fit():
    rows = samples(topology(), Tier(25e9, 30e-6), copies=10)
    rows += [CollectiveSample(where=topology(), size_bytes=size, time_s=1.0) for size in SIZES[::2]]
    fit = only(rows)
    assert fit.bytes_per_s == pytest.approx(25e9, rel=0.01)
    assert fit.latency_s == pytest.approx(30e-6, rel=0.01)


def test_what_sizes_do_not_show_is_not_told_as_known():
    small = only(samples(topology(), Tier(25e9, 30e-6), sizes=(4096, 8192, 16384)))
    assert small.latency_known and not small.rate_known
    large = only(samples(topology(), Tier(1e9, 1e-6), sizes=(2**26, 2**27, 2**28)))
    assert large.rate_known and not large.latency_known


def test_a_bend_in_the_times_shows_at_sizes_held_out():
    rows = samples(topology(), Tier(25e9, 5e-6), sizes=SIZES[:4]) + samples(
        topology(), Tier(25e9, 500e-6), sizes=SIZES[4:]
    )
    fit = only(rows)
    assert fit.unseen_pct > 5


def test_one_size_is_not_fitted_but_told():
    fits, few = fit_links(samples(topology(), Tier(25e9, 30e-6), sizes=(4096,), copies=5))
    assert not fits and few == [topology()]


def test_groups_at_once_are_compared_with_one_alone():
    """[K11] 2 against 1 ms, 30 against 10, 8 against 4: twice as long."""
    alone, both = topology(), topology(groups=2)
    times = {4096: (1e-3, 2e-3), 8192: (10e-3, 30e-3), 16384: (4e-3, 8e-3)}
    rows = [CollectiveSample(where=alone, size_bytes=size, time_s=one) for size, (one, _) in times.items()]
    rows += [CollectiveSample(where=both, size_bytes=size, time_s=two) for size, (_, two) in times.items()]
    (found,) = measure_concurrency([*rows, CollectiveSample(where=both, size_bytes=1.0, time_s=9.0)])
    assert (found.factor, found.low, found.high, found.sizes) == (2.0, pytest.approx(2), pytest.approx(3), 3)
    assert found.where.groups == 2
    assert measure_concurrency(rows[:3]) == []


times = st.lists(
    st.tuples(st.floats(1, 1e10), st.floats(1e-7, 1e3)), min_size=2, max_size=30, unique_by=lambda pair: pair[0]
)


@examples(60)
@given(
    op=st.sampled_from(OPS), ranks=st.integers(2, 64), measured=times, one=st.floats(1, 1e11), more=st.floats(1, 1e3)
)
def test_more_bytes_are_never_faster_in_a_fit(op, ranks, measured, one, more):
    """[K10] Whatever was measured."""
    where = topology(op, ranks=ranks)
    fit = only([CollectiveSample(where=where, size_bytes=size, time_s=time) for size, time in measured])
    assert fit.latency_s >= 0 and (fit.bytes_per_s is None or fit.bytes_per_s > 0)
    assert 0 <= fit.predict_s(one) <= fit.predict_s(one * more)
    assert np.isfinite(fit.error_pct)
