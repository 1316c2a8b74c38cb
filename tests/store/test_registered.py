"""Environments, datasets, models and measured links are kept as they were given."""

from __future__ import annotations

import pytest

from crosszone.errors import InvalidError, UnknownNameError
from crosszone.inputs.dataset import Dataset, TrainingModel
from crosszone.inputs.environment import Environment, MeasuredLink, build_pair_id, build_selection, choose_master

SEED = [
    Environment(name="pytorch-dev-env", zone="北京可用区A", gpu="A100", gpus=2, cpus=16, memory_gb=128.0),
    Environment(name="llm-training-env", zone="深圳可用区C", gpu="A100", gpus=4, cpus=32, memory_gb=256.0),
    Environment(name="nlp-research-lab", zone="上海可用区A", gpu="A100", gpus=8, cpus=64, memory_gb=512.0),
]


def test_three_environments_have_together_what_they_have():
    summary = build_selection(SEED)
    assert (summary.nodes, summary.gpus, summary.cpus, summary.memory_gb) == (3, 14, 112, 896)
    assert summary.gpu_kinds == ("A100",)
    assert summary.zones == ("北京可用区A", "深圳可用区C", "上海可用区A")
    assert summary.distributed
    assert not build_selection(SEED[:1]).distributed
    assert build_selection([]).nodes == 0
    assert build_selection([*SEED, Environment(name="new", zone="x")]).cpus is None


def test_the_master_is_the_first_until_another_is_chosen_and_never_one_that_is_not_selected():
    assert choose_master(["a", "b"], None) == "a"
    assert choose_master(["a", "b"], "b") == "b"
    assert choose_master(["a", "c"], "b") == "a"
    assert choose_master([], "b") is None


def test_entries_are_kept_changed_and_forgotten(store):
    for number, environment in enumerate(SEED):
        store.environments.add(environment, id=f"env-00{number + 1}")
    free = store.environments.add(SEED[0])
    assert [entry.id for entry in store.environments.all()] == ["env-001", "env-002", "env-003", free.id]
    assert store.environments.get("env-002").value == SEED[1]
    changed = store.environments.change("env-002", SEED[1].replace(status="stopped"))
    assert (changed.value.status, changed.value.gpus) == ("stopped", 4)
    store.environments.remove("env-002")
    with pytest.raises(UnknownNameError):
        store.environments.get("env-002")
    assert store.environments.page(limit=1).total == 3


@pytest.mark.parametrize("id", ["", "-x", "a/b", "x" * 65, "é", "a b", "a\n"])
def test_an_id_that_cannot_be_one_is_refused(store, id):
    with pytest.raises(InvalidError) as refused:
        store.environments.add(SEED[0], id=id)
    assert refused.value.notices[0].code == "registered_id"


def test_an_id_is_given_once(store):
    store.environments.add(SEED[0], id="env-001")
    with pytest.raises(InvalidError) as refused:
        store.environments.add(SEED[1], id="env-001")
    assert refused.value.notices[0].code == "registered_twice"
    assert store.environments.put("env-001", SEED[1]).value == SEED[1]
    assert store.environments.put("env-002", SEED[2]).value == SEED[2]


def test_datasets_and_models(store):
    data = Dataset(name="corpus", versions=({"id": "v1", "path": "/data/a.bin"}, {"id": "v2", "path": "s3://b/c"}))
    dataset = store.datasets.add(data, id="dataset-001").value
    assert dataset.find_version("v2").path == "s3://b/c"
    assert dataset.find_version("v3") is None
    with pytest.raises(InvalidError) as refused:
        Dataset(name="twice", versions=({"id": "v1"}, {"id": "v1"}))
    assert refused.value.notices[0].code == "version_twice"
    with pytest.raises(InvalidError):
        Dataset(name="torn", versions=({"id": "v1", "sha256": "no"},))
    model = TrainingModel(name="own", model={"layers": 2, "hidden": 64}, weights="/w")
    assert store.training_models.add(model).value == model


def test_a_pair_of_environments_has_one_link_in_either_order(store):
    link = MeasuredLink(first="a", second="b", rtt_ms=20.0, rtt_ms_least=19.0, rtt_ms_most=30.0, gbps=0.1, measured=1e9)
    store.measured_links.put(link.id, link)
    store.measured_links.put(build_pair_id("b", "a"), link.replace(gbps=0.2))
    assert [entry.value.gbps for entry in store.measured_links.all()] == [0.2]
