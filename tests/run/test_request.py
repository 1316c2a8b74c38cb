"""A task is refused for the first thing a form would ask for, in both languages; the platform's own example too."""

from __future__ import annotations

import pytest

from crosszone.errors import InputError, InvalidError
from crosszone.inputs.dataset import Dataset
from crosszone.inputs.environment import Environment
from crosszone.inputs.value import parse
from crosszone.run.request import RegisteredEntries, TaskRequest, check_request, describe_created
from crosszone.run.work import preview_task

KNOWN = RegisteredEntries(
    environments={
        f"env-00{number}": Environment(name=f"e{number}", zone=zone, gpu="a100-80gb-sxm", gpus=gpus)
        for number, zone, gpus in ((1, "a", 2), (3, "c", 4), (5, "b", 8))
    },
    datasets={"dataset-001": Dataset(name="d", versions=({"id": "version-001"},))},
    models={},
)
EXAMPLE = {
    "taskName": "gpt3-pretraining",
    "datasetId": "dataset-001",
    "datasetVersionId": "version-001",
    "modelId": "gpt3-175b",
    "launchMode": "existing",
    "distributedConfig": {
        "enabled": True,
        "nodeIds": ["env-001", "env-003", "env-005"],
        "masterNode": "env-001",
        "framework": "deepspeed",
    },
}


def refusal(**changes):
    where = EXAMPLE["distributedConfig"] | changes.pop("where", {})
    with pytest.raises(InputError) as refused:
        check_request(parse(TaskRequest, EXAMPLE | {"distributedConfig": where} | changes), KNOWN)
    (notice,) = refused.value.notices
    return notice


def test_the_example_is_taken_and_answered_as_the_platform_does():
    checked = check_request(parse(TaskRequest, EXAMPLE), KNOWN)
    preview = describe_created(checked, "task-1", "initializing", "训练任务创建成功")
    assert preview == {
        "code": 200,
        "message": "训练任务创建成功",
        "data": {
            "taskId": "task-1",
            "status": "initializing",
            "distributedInfo": {"nodeCount": 3, "totalGpus": 14, "masterNode": "env-001", "framework": "deepspeed"},
        },
    }


def test_the_examples_own_strategy_is_refused_for_it_needs_64_ranks():
    split = {"dataParallel": 2, "pipelineParallel": 4, "tensorParallel": 8}
    notice = refusal(where={"strategy": split})
    assert notice.code == "task_strategy_product"
    assert "64" in notice.message("en")
    assert "14" in notice.message("zh")
    fitting = {"dataParallel": 14}
    where = EXAMPLE["distributedConfig"] | {"strategy": fitting}
    assert check_request(parse(TaskRequest, EXAMPLE | {"distributedConfig": where}), KNOWN).ranks == 14


ORDER = [
    ("task_name_missing", {"taskName": "  "}, "请输入任务名称"),
    ("task_dataset_missing", {"datasetVersionId": ""}, "请选择数据集"),
    ("task_environment_missing", {"where": {"nodeIds": []}}, "请至少选择一个开发环境"),
    ("task_master_invalid", {"where": {"masterNode": "env-009"}}, "请选择有效的主节点"),
    ("task_framework_missing", {"where": {"framework": ""}}, "请选择分布式框架"),
]


@pytest.mark.parametrize(("code", "wrong", "words"), ORDER)
def test_what_is_missing_is_said_in_both_languages(code, wrong, words):
    notice = refusal(**wrong)
    assert notice.code == code
    assert notice.message("zh").startswith(words)
    assert notice.hint("en")


def test_the_first_thing_wrong_is_told_first():
    for first in range(len(ORDER)):
        wrong: dict = {"where": {}}
        for _, changes, _ in ORDER[first:]:
            wrong["where"] |= changes.get("where", {})
            wrong |= {key: value for key, value in changes.items() if key != "where"}
        assert refusal(**wrong).code == ORDER[first][0]


def test_one_environment_needs_neither_master_nor_framework():
    where = {"nodeIds": ["env-003"]}
    checked = check_request(parse(TaskRequest, EXAMPLE | {"distributedConfig": where}), KNOWN)
    assert (checked.master, checked.framework, checked.selection.distributed) == ("env-003", None, False)


def test_the_master_comes_first():
    where = EXAMPLE["distributedConfig"] | {"masterNode": "env-005"}
    checked = check_request(parse(TaskRequest, EXAMPLE | {"distributedConfig": where}), KNOWN)
    assert list(checked.environments) == ["env-005", "env-001", "env-003"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"datasetId": "dataset-404"},
        {"datasetVersionId": "version-404"},
        {"where": {"nodeIds": ["env-001", "env-404"], "masterNode": "env-001"}},
        {"where": {"framework": "mpi"}},
    ],
)
def test_what_is_not_there_is_named(wrong):
    notice = refusal(**wrong)
    assert notice.value in notice.message("en")
    assert notice.value in notice.message("zh")


@pytest.mark.parametrize("name", ["pytorch-ddp", "pytorch-fsdp", "deepspeed", "horovod", "megatron-lm"])
def test_the_platforms_names_of_frameworks_are_understood(name):
    where = EXAMPLE["distributedConfig"] | {"framework": name}
    assert check_request(parse(TaskRequest, EXAMPLE | {"distributedConfig": where}), KNOWN).framework in name


def test_unknown_fields_and_bad_types_are_refused():
    for wrong in ({"taskname": "x"}, {"taskName": 3}, {"launchMode": "later"}, {"distributedConfig": {"nodeIds": "x"}}):
        with pytest.raises(InvalidError):
            parse(TaskRequest, EXAMPLE | wrong)


# --- nodes that a scheduler is asked for ------------------------------------------------------------------------------

SOURCES = RegisteredEntries(
    environments={
        "ssh-a": Environment(name="s", zone="a", gpu="a100-80gb-sxm", gpus=8),
        "slurm-a": Environment(
            name="pa", zone="a", runner="slurm", partition="pa", gpu="a100-80gb-sxm", gpus=8, address="n1"
        ),
        "slurm-b": Environment(name="pb", zone="b", runner="slurm", partition="pb", gpu="h100-80gb-sxm", gpus=4),
        "k8s-b": Environment(name="k", zone="b", runner="kubernetes", gpu="h200-141gb-sxm", gpus=8),
    },
    datasets=KNOWN.datasets,
    models={},
)
NEW = EXAMPLE | {
    "launchMode": "new",
    "distributedConfig": {"framework": "pytorch-ddp"},
    "allocation": [
        {"zone": "a", "gpu": "a100-80gb-sxm", "nodes": 2, "gpus_per_node": 4},
        {"zone": "b", "gpu": "h100-80gb-sxm", "nodes": 1},
    ],
}


def test_nodes_are_asked_for_by_zone_and_gpu_kind():
    checked = check_request(parse(TaskRequest, NEW), SOURCES)
    assert list(checked.environments) == ["slurm-a.0", "slurm-a.1", "slurm-b.0"]
    assert [environment.partition for environment in checked.environments.values()] == ["pa", "pa", "pb"]
    assert (checked.ranks, checked.selection.zones, checked.master) == (12, ("a", "b"), "slurm-a.0")
    assert all(environment.address is None for environment in checked.environments.values())
    assert describe_created(checked, "t", "initializing", "m")["data"]["distributedInfo"]["totalGpus"] == 12


def test_a_form_that_asks_for_nodes_is_told_what_it_would_get():
    preview = preview_task(parse(TaskRequest, NEW), SOURCES, [], "en")
    assert (preview.selection.nodes, preview.selection.gpus) == (3, 12)
    nowhere = NEW | {"allocation": [{"zone": "nowhere", "nodes": 1}]}
    preview = preview_task(parse(TaskRequest, nowhere), SOURCES, [], "en")
    assert preview.selection.nodes == 0
    assert "task_allocation_none" in {notice["code"] for notice in preview.notices}


def test_what_is_asked_for_twice_is_counted_on():
    twice = NEW | {"allocation": [{"zone": "a", "nodes": 1}, {"zone": "a", "nodes": 2, "gpus_per_node": 1}]}
    checked = check_request(parse(TaskRequest, twice), SOURCES)
    assert {id: environment.gpus for id, environment in checked.environments.items()} == {
        "slurm-a.0": 8,
        "slurm-a.1": 1,
        "slurm-a.2": 1,
    }


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("task_allocation_missing", {"allocation": []}),
        ("task_allocation_existing", {"launchMode": "existing"}),
        ("task_allocation_both", {"distributedConfig": {"nodeIds": ["slurm-a"], "framework": "ddp"}}),
        ("task_allocation_none", {"allocation": [{"zone": "c"}]}),
        ("task_allocation_none", {"allocation": [{"zone": "a", "gpu": "h100-80gb-sxm"}]}),
        ("task_allocation_none", {"allocation": [{"zone": "a", "gpus_per_node": 9}]}),
        ("task_allocation_many", {"allocation": [{"zone": "a", "nodes": 1000}, {"zone": "b", "nodes": 1}]}),
        ("task_master_invalid", {"distributedConfig": {"masterNode": "slurm-a", "framework": "ddp"}}),
        ("task_framework_missing", {"distributedConfig": {}}),
        ("task_runners_mixed", {"allocation": [{"zone": "a"}, {"zone": "b", "gpu": "h200-141gb-sxm"}]}),
    ],
)
def test_an_allocation_that_cannot_be_is_refused_with_its_reason(code, wrong):
    with pytest.raises(InputError) as refused:
        check_request(parse(TaskRequest, NEW | wrong), SOURCES)
    (notice,) = refused.value.notices
    assert notice.code == code
    assert notice.message("zh") != notice.message("en")
    assert notice.hint("zh") and notice.hint("en")


def test_local_and_ssh_go_together_and_a_scheduler_goes_alone():
    places = {
        "here": Environment(name="h", zone="a", runner="local", gpu="a100-80gb-sxm", gpus=1),
        "there": Environment(name="t", zone="a", runner="ssh", gpu="a100-80gb-sxm", gpus=1),
        "ray": Environment(name="r", zone="a", runner="ray", gpu="a100-80gb-sxm", gpus=1),
    }
    registered = RegisteredEntries(environments=places, datasets=KNOWN.datasets, models={})

    def taken(*ids):
        where = {"nodeIds": list(ids), "masterNode": ids[0], "framework": "ddp"}
        return check_request(parse(TaskRequest, EXAMPLE | {"distributedConfig": where}), registered)

    assert len(taken("here", "there").environments) == 2
    with pytest.raises(InputError) as refused:
        taken("here", "ray")
    assert refused.value.notices[0].code == "task_runners_mixed"
    assert "ray" in refused.value.notices[0].message("zh")
