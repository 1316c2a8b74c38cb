"""Fields of a scenario by path."""

from __future__ import annotations

import pytest

from builders import fields, scenario, zone
from crosszone.analyse.fields import change_fields, change_scenario, read_change, read_changes
from crosszone.errors import InputError

CLUSTER = {
    "zones": [zone("a"), zone("b"), zone("c")],
    "links": [{"between": ["a", "b"], "gbps": 10, "rtt_ms": 25}],
    "default_link": {"gbps": 1, "rtt_ms": 40},
}
STRATEGY = {"tp": 8, "dp": 3}
JOB = {"seq_len": 4096, "global_batch": 48}


def three():
    return scenario(cluster=CLUSTER, strategy=STRATEGY, job=JOB)


def test_a_path_leads_through_keys_lists_and_names():
    found = change_scenario(
        three(),
        {
            "job.global_batch": 96,
            "cluster.links[0].gbps": 40,
            "cluster.zones[b].nodes[0].count": 2,
            "strategy.communication.flows": 4,
            "strategy.local_update.steps": 50,
        },
    )
    assert found.job.global_batch == 96
    assert found.cluster.links[0].gbps == 40 and found.cluster.links[0].rtt_ms == 25
    assert [one.gpus for one in found.cluster.zones] == [8, 16, 8]
    assert found.strategy.communication.flows == 4
    assert found.strategy.local_update.steps == 50
    assert three() == scenario(cluster=CLUSTER, strategy=STRATEGY, job=JOB)  # what was given stays as it was


def test_two_zones_name_the_link_between_them_in_either_order():
    found = change_scenario(three(), {"cluster.links[b,a].rtt_ms": 30, "cluster.links[c, a].gbps": 5})
    assert [(link.between, link.gbps, link.rtt_ms) for link in found.cluster.links] == [
        (("a", "b"), 10, 30),
        (("c", "a"), 5, None),
    ]


def test_a_link_with_two_rates_is_changed_in_the_direction_it_is_named():
    links = [{"between": ["a", "b"], "gbps": 10, "gbps_back": 2, "rtt_ms": 25}]
    base = scenario(cluster=CLUSTER | {"links": links}, job=JOB)
    there, back = (change_scenario(base, {f"cluster.links[{way}].gbps": 40}) for way in ("a,b", "b,a"))
    assert (there.cluster.links[0].gbps, there.cluster.links[0].gbps_back) == (40, 2)
    assert (back.cluster.links[0].gbps, back.cluster.links[0].gbps_back) == (10, 40)


def test_a_star_is_all_entries_and_all_pairs_of_zones():
    found = change_scenario(three(), {"cluster.links[*].gbps": 7, "cluster.zones[*].nodes[*].count": 3})
    assert sorted((link.between, link.gbps) for link in found.cluster.links) == [
        (("a", "b"), 7),
        (("a", "c"), 7),
        (("b", "c"), 7),
    ]
    assert found.cluster.gpus == 72


def test_a_field_of_a_named_model_or_gpu_changes_a_copy_of_it():
    found = change_scenario(three(), {"model.layers": 16, "cluster.zones[0].nodes[0].gpu.memory_gib": 40})
    assert found.model.layers == 16 and found.model.hidden == three().model.hidden
    assert [one.nodes[0].gpu.memory_gib for one in found.cluster.zones] == [40, 80, 80]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("job..seq_len", "path_malformed"),
        ("cluster.links[0", "path_malformed"),
        ("cluster.links[9].gbps", "path_no_entry"),
        ("cluster.links[a,x].gbps", "path_no_link"),
        ("cluster.links[a].gbps", "path_no_link"),
        ("cluster.zones[x].name", "path_no_entry"),
        ("job[0]", "path_no_list"),
        ("job.seq_len.more", "path_no_mapping"),
        ("job.globl_batch", "unknown_key"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_with_its_place(path, code):
    with pytest.raises(InputError) as error:
        change_scenario(three(), {path: 1})
    assert error.value.notices[0].code == code
    assert error.value.notices[0].message("zh") and error.value.notices[0].hint("zh")


def test_a_value_that_cannot_be_is_refused_as_in_a_file():
    with pytest.raises(InputError, match=r"job\.global_batch"):
        change_scenario(three(), {"job.global_batch": 0})


def test_changes_are_read_from_text():
    assert read_change("job.global_batch = 2048") == ("job.global_batch", 2048)
    assert read_change("strategy.layers_per_stage=[20, 12]") == ("strategy.layers_per_stage", [20, 12])
    assert read_change("strategy.local_update=null") == ("strategy.local_update", None)
    for text in ("job.global_batch", "=3", "job.seq_len="):
        with pytest.raises(InputError):
            read_change(text)
    with pytest.raises(InputError, match="twice"):
        read_changes(["job.seq_len=1", "job.seq_len=2"])


def test_plain_values_are_changed_without_being_checked():
    assert change_fields(fields(), {"strategy.tp": 2})["strategy"] == {"tp": 2}
