"""[K1] to [K8] Jobs timed part by part: reading, each part, the step they make, and the score."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from component_rows import ROW
from crosszone.calibrate.component_table import component_table, shares
from crosszone.calibrate.components import ComponentScores, repeat_floor_pct, score_components
from crosszone.calibrate.components_links import cluster_profile, groups, kernels, run_links
from crosszone.calibrate.components_pipeline import rendezvous_ends_s, stage_order
from crosszone.calibrate.components_predict import mask_bytes, predict_components, replica_wait_s
from crosszone.calibrate.components_read import ComponentRun, is_components, read_components
from crosszone.cost.profile import Profiles
from crosszone.errors import FileError, InputError
from crosszone.schedule.simulation import simulate
from effort import examples

ALONE = {
    "cluster": "",
    "gpus_per_node": "1",
    "gpus": "1",
    "mp": "1",
    "pp": "1",
    "dp": "1",
    "global_batch": "",
    "layers_first": "44",
}


@cache
def profiles() -> Profiles:
    return Profiles.load()


def written(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "components.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows({**ROW, **row} for row in rows)
    return path


@pytest.fixture
def one(tmp_path: Path):
    def read(**cells: str) -> ComponentRun:
        runs, skipped = read_components(written(tmp_path, cells))
        assert not skipped
        return runs[0]

    return read


# --- reading


def test_a_row_is_read_as_it_stands(one):
    run = one()
    case = run.case
    assert (case.strategy.tp, case.strategy.pp, case.strategy.dp) == (4, 4, 8)
    assert case.strategy.layers_per_stage == (11, 12, 12, 9)
    assert (case.job.global_batch, case.strategy.micro_batches(case.job.global_batch)) == (512, 16)
    assert (case.model.embedding_rows, case.model.parallel_residual) == (50688, True)
    assert case.cluster.zones[0].nodes[0].count == 32
    assert run.step_s == 17.0
    assert run.parts_s["layer_fwd", "middle"] == pytest.approx(0.012)


def test_the_update_is_the_raw_one_not_the_replaced_one(one):
    assert one().parts_s["update", "first"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        ({"iter_best_s": ""}, "not_measured"),
        ({"iter_best_s": "-1"}, "not_a_number"),
        ({"iter_best_s": "nan"}, "not_a_number"),
        ({"mp": "four"}, "not_a_number"),
        ({"mp": ""}, "missing"),
        ({"gpus": "127"}, "degrees_clash"),
        ({"mp": "3", "gpus": "96"}, "degrees_clash"),
        ({"layers_first": "12"}, "layers_clash"),
        ({"global_batch": "500"}, "batch_clash"),
        ({"n_micro": "", "global_batch": ""}, "no_batch"),
        ({"vocab": "", "vocab_padded": ""}, "no_architecture"),
        ({"gpu": "abacus"}, "unknown_gpu"),
        ({"partition_activations": "maybe"}, "not_a_flag"),
        ({"activation": "tanh"}, "unknown_value"),
        ({"hidden": "0"}, "not_a_number"),
        ({"hidden": "999999999999"}, "out_of_range"),
        ({"n_micro": "1000000", "global_batch": ""}, "too_long"),
    ],
)
def test_a_row_that_cannot_be_scored_is_skipped_with_the_reason(tmp_path, cells, code):
    runs, skipped = read_components(written(tmp_path, cells, {}))
    assert [s.code for s in skipped] == [code]
    assert skipped[0].reason.endswith(".")
    assert len(runs) == 1


def test_only_so_many_rows_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("crosszone.calibrate.components_read.MOST_ROWS", 2)
    runs, skipped = read_components(written(tmp_path, {}, {}, {}, {}))
    assert (len(runs), [s.code for s in skipped]) == (2, ["too_many_rows"])


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("id,gpu\n1,a100\n", encoding="utf-8")
    with pytest.raises(InputError):
        read_components(path)
    with pytest.raises(FileError):
        read_components(tmp_path / "absent.csv")


def test_the_kind_of_a_file_is_told_by_its_columns():
    assert is_components(ROW)
    assert not is_components(["id", "gpu", "gpus", "framework", "step_time_s"])


@pytest.mark.slow
@examples(60)
@given(
    st.dictionaries(
        st.sampled_from(list(ROW)),
        st.one_of(
            st.text(max_size=12),
            st.integers(-5, 10**9).map(str),
            st.floats().map(str),
            st.sampled_from(["", "1", "2", "8"]),
        ),
        max_size=4,
    )
)
def test_rubbish_is_skipped_or_scored_but_never_crashes(tmp_path_factory, cells):
    clean = {key: text.encode("utf-8", "replace").decode("utf-8") for key, text in cells.items()}
    runs, skipped = read_components(written(tmp_path_factory.mktemp("rubbish"), clean))
    scores = score_components(runs, profiles(), skipped)
    json.dumps(scores.as_dict(), allow_nan=False)
    told = [component_table(scores, "en").as_dict(), *(one.as_dict() for one in shares(scores, "en"))]
    json.dumps(told, allow_nan=False)
    assert scores.summary["rows"] == len(runs) + len(skipped)


# --- links


def test_groups_lie_where_the_rank_order_puts_them():
    """[K1] Tensor ranks innermost, then replicas, then stages; 4 GPUs a node, then 1."""
    assert groups(4, 8, 4).tensor == (1, 4)
    assert groups(4, 8, 4).replicas == (8, 1)
    assert groups(8, 4, 4).tensor == (2, 4)
    assert (groups(2, 2, 4).replicas, groups(2, 2, 4).stages) == ((1, 2), (2, 1))
    assert groups(1, 2, 4).stages == (1, 2)
    assert (groups(4, 8, 1).tensor, groups(4, 8, 1).replicas) == ((4, 1), (8, 1))


def test_links_of_a_known_cluster_are_the_measured_ones(one):
    """[K1] Two nodes of four reach 4.65 GB/s over sockets, one replica a node 1.2 GB/s."""
    group = one().case.cluster.zones[0].nodes[0]
    links = run_links("perlmutter", group, 8, 4)
    assert links.measured
    assert links.tensor.bytes_per_s == pytest.approx(4.65e9, rel=0.02)
    assert links.replicas.bytes_per_s == pytest.approx(1.2e9, rel=0.02)
    assert not run_links("elsewhere", group, 8, 4).measured


def test_a_ring_over_more_nodes_than_measured_takes_the_nearest_topology(one):
    group = one().case.cluster.zones[0].nodes[0]
    links = run_links("perlmutter", group, 4, 16)
    assert not links.measured
    assert links.replicas == run_links("perlmutter", group, 4, 8).replicas


def test_one_rank_costs_nothing_on_any_link(one):
    found = predict_components(one(**ALONE), profiles())
    assert (found.mp_allreduce, found.p2p_send, found.replica_wait) == (0, 0, 0)
    assert found.dp_allreduce.tolist() == found.dp_allgather.tolist() == [0]


# --- the pipeline


def test_two_stages_and_two_micro_batches_by_hand():
    """[K6] Forward 1 s, backward 2 s, messages 0.5 s.

    a0 1-1.5; the second stage is busy until 4.5, so a1 4.5-5 and g0 5-5.5; it ends its last backward at 8.5, g1 8.5-9;
    the first stage's last backward 9-11.
    """
    assert rendezvous_ends_s([1, 1], [2, 2], 2, 0.5, 0.5) == [11, 9]


@given(st.integers(1, 7), st.integers(1, 12))
def test_equal_stages_without_messages_take_m_plus_p_minus_1_turns(p, m):
    """[K6] As every 1F1B: (m + p - 1) (F + B)."""
    assert max(rendezvous_ends_s([1.0] * p, [2.0] * p, m, 0.0, 0.0)) == pytest.approx((m + p - 1) * 3.0)


@given(st.data(), st.integers(1, 6), st.integers(1, 9))
def test_holding_both_ends_is_never_faster_than_blocking_the_sender(data, p, m):
    """[K6] And with free messages it is the same."""
    times = st.lists(st.floats(0.1, 3.0), min_size=p, max_size=p)
    forward, backward = data.draw(times), data.draw(times)
    send, back = data.draw(st.floats(0.0, 1.0)), data.draw(st.floats(0.0, 1.0))

    def simulated(there: float, home: float) -> float:
        found = simulate(
            "1f1b",
            stages=p,
            micro_batches=m,
            forward_s=[[f] for f in forward],
            backward_s=[[b] for b in backward],
            send_forward_s=there,
            send_backward_s=home,
            blocking=True,
        )
        return float(found.makespan_s)

    assert max(rendezvous_ends_s(forward, backward, m, send, back)) >= simulated(send, back) - 1e-9
    assert max(rendezvous_ends_s(forward, backward, m, 0.0, 0.0)) == pytest.approx(simulated(0.0, 0.0))


@given(st.integers(1, 8), st.integers(1, 12))
def test_every_message_has_its_other_end(p, m):
    """[K6] Each stage does m passes each way; what one sends, its neighbour takes."""
    counts = [Counter(kind for kind, _ in stage_order(stage, p, m)) for stage in range(p)]
    for stage, count in enumerate(counts):
        assert count[0] == count[1] == m
        assert count[2] == count[3] == (m if stage < p - 1 else 0)
        assert count[4] == count[5] == (m if stage > 0 else 0)


# --- the parts


def test_the_attention_mask_travels_with_the_activations(one):
    """[K4] 2048 x 2048 x 2 bytes; with 8192 x 6144 x 2 / 4 of activations, over 3.162 GB/s: 10.61 ms."""
    assert mask_bytes(2048) == 8_388_608
    assert predict_components(one(), profiles()).p2p_send == pytest.approx((25_165_824 + 8_388_608) / 3.162e9)


def test_replicas_wait_for_the_slowest_of_them():
    """[K3] 1 % of 10 s, times sqrt(2 ln 8) = 2.039; a single one waits for nobody."""
    assert replica_wait_s(10.0, 8, 0.01) == pytest.approx(0.2039, rel=1e-3)
    assert replica_wait_s(10.0, 1, 0.01) == 0


def test_cut_activations_are_gathered_before_they_are_recomputed(one):
    """[K5] 8192 x 6144 x 2 bytes over four GPUs of a node: 3 steps of 8.7 us + 25.2 MB / 220.1 GB/s."""
    plain, cut = (predict_components(one(partition_activations=flag), profiles()) for flag in ("False", "True"))
    assert cut.layer_bwd - plain.layer_bwd == pytest.approx(3 * (8.7e-6 + 25_165_824 / 220.1e9))
    assert cut.layer_fwd == plain.layer_fwd


def test_norms_written_out_cost_passes_over_the_residual_stream_and_launches(one):
    """[K5] [K7] Forward 11.9 passes of 100.7 MB at 0.85 x 2039 GB/s = 691 us, and 9 kernels more."""
    fused, plain = (predict_components(one(norm=norm), profiles()) for norm in ("layernorm", "rmsnorm"))
    known = cluster_profile("perlmutter")
    launches = 9e-6 * known.constants["host_forward_us_per_kernel"]
    assert plain.layer_fwd - fused.layer_fwd == pytest.approx(11.9 * 100_663_296 / (0.85 * 2039e9) + launches)


def test_gradients_are_summed_in_full_and_weights_gathered_once(one):
    """[K2] ZeRO 1 of this stack: a ring all-reduce of 2 bytes a parameter, then an all-gather, so half the time."""
    found = predict_components(one(), profiles())
    assert found.dp_allgather.tolist() == pytest.approx((found.dp_allreduce / 2).tolist())
    layers = 11 * (12 * 6144**2 + 2 * 2 * 6144)
    parameters = (layers + 50688 * 6144) / 4
    by_hand = 14 * (1110e-6 + 2 * parameters / 8 / 1.191e9)
    assert found.dp_allreduce[0] == pytest.approx(by_hand, rel=1e-3)


def test_the_step_is_pipeline_then_gradients_then_update(one):
    """[K2] One GPU: m (forward + backward) + update. Eight replicas: never less than the sum of the first stage's parts."""
    alone = predict_components(one(**ALONE), profiles())
    assert alone.step == pytest.approx(16 * (alone.stage_fwd[0] + alone.stage_bwd[0]) + alone.update[0])
    found = predict_components(one(), profiles())
    assert found.step == pytest.approx(
        found.pipeline + found.dp_allreduce[0] + found.replica_wait + found.update.max(), rel=0.02
    )
    assert found.step >= found.pipeline + found.replica_wait + found.dp_allreduce[0] + found.update.max() - 1e-9


def test_a_stage_is_its_layers_and_what_its_end_adds(one):
    """[K2] A middle stage holds layers only; the first adds an embedding, the last a head."""
    found = predict_components(one(), profiles())
    assert found.stage_fwd[1] == pytest.approx(12 * found.layer_fwd)
    assert found.stage_bwd[1] == pytest.approx(12 * found.layer_bwd)
    assert found.stage_fwd[0] > 11 * found.layer_fwd
    assert found.stage_bwd[3] > 9 * found.layer_bwd


# --- the score


def test_two_jobs_of_one_set_up_leave_a_floor():
    """[K8] 4 and 5 s: predicting 4 errs by 0 and 20 %, 5 by 25 and 0 %; the mean is 10 % at best."""
    assert repeat_floor_pct([[4.0, 5.0]]) == pytest.approx(10.0)
    assert repeat_floor_pct([[4.0], [7.0]]) == 0


def test_parts_are_compared_with_the_measured_statistic(tmp_path):
    """Layers with the median stage, sends with the least: later ones wait for the receiver."""
    runs, skipped = read_components(written(tmp_path, {}))
    (row,) = score_components(runs, profiles(), skipped).as_dict()["rows"]
    measured = {one["part"]: one["measured_s"] for one in row["components"]}
    assert measured["layer_fwd"] == pytest.approx(0.012)
    assert measured["p2p_send"] == pytest.approx(0.010)
    assert "dp_allreduce" not in measured
    assert row["error_pct"] == pytest.approx(100 * (row["predicted_s"] / 17.0 - 1))


def test_the_fastest_of_equal_set_ups_is_marked(tmp_path):
    runs, skipped = read_components(written(tmp_path, {}, {"run_id": "two", "iter_best_s": "18"}))
    scores = score_components(runs, profiles(), skipped)
    assert [scored.fastest for scored in scores.runs] == [True, False]
    assert scores.summary["setups"] == 1
    assert scores.summary["floor_pct"] == pytest.approx(100 * (1 / 18) / 2)


def test_nothing_to_score_is_told_without_numbers():
    summary = score_components([], profiles()).summary
    assert (summary["scored"], summary["mape_pct"], summary["floor_pct"]) == (0, None, None)


def test_a_cluster_nobody_measured_is_scored_with_the_catalogue_s_links(one):
    run = replace(one(), cluster="elsewhere")
    found = predict_components(run, profiles())
    assert math.isfinite(found.step)
    assert (
        found.step < predict_components(one(), profiles()).step
    )  # a NIC of its catalogue entry is no socket of 1.2 GB/s


# --- against the measured jobs


@pytest.fixture
def scores(data: Path) -> ComponentScores:
    runs, skipped = read_components(data / "gpumodeling25" / "runs.csv")
    return score_components(runs, profiles(), skipped)


def test_steps_of_quiet_jobs_are_met_within_four_percent(scores):
    """The fastest job of each set-up, fastest iteration: mean absolute error."""
    assert (scores.summary["scored"], scores.summary["setups"]) == (9, 6)
    assert scores.summary["setups_mape_pct"] <= 4
    for cluster in scores.by_source:
        assert cluster["setups_mape_pct"] <= 4


def test_congested_jobs_add_little_beyond_what_no_prediction_avoids(scores):
    """[K8] Three set-ups ran twice: 4.29 and 6.39, 6.76 and 7.25, 7.13 and 7.56 s; (32.8 + 6.7 + 5.7) / 9 = 5.0 %."""
    assert scores.summary["floor_pct"] == pytest.approx(5.03, abs=0.01)
    assert scores.summary["mape_pct"] <= scores.summary["floor_pct"] + 4


@pytest.mark.parametrize(
    ("part", "limit_pct"),
    [
        ("layer_fwd", 6),
        ("layer_bwd", 6),
        ("mp_allreduce", 6),
        ("dp_allgather", 6),
        ("stage_fwd_middle", 5),
        ("stage_bwd_middle", 5),
    ],
)
def test_parts_are_met_within_a_few_percent(scores, part, limit_pct):
    (found,) = [row for row in scores.by_part if row["part"] == part]
    assert found["jobs"] == 9
    assert found["mape_pct"] <= limit_pct


def test_kernels_of_a_layer_are_as_many_as_were_seen(data):
    """[K7] Counted in six jobs: plain, norms written out, fused attention."""
    with (data / "gpumodeling25" / "layer_kernels.csv").open(encoding="utf-8", newline="") as file:
        seen = Counter((row["run_id"], row["pass"]) for row in csv.DictReader(file))
    with (data / "gpumodeling25" / "runs.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["run_id"]: row for row in csv.DictReader(file)}
    ways = {"fwd": "forward", "bwd_with_recompute": "backward"}
    for (run_id, direction), count in seen.items():
        row = rows[run_id]
        assert kernels(ways[direction], row["norm"] == "rmsnorm", row["attention"] == "flash") == count
