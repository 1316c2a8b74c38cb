"""A task is refused for the first thing a form would ask for, in both languages; the platform's own example too."""

from __future__ import annotations

import pytest

from crosszone.errors import InputError, InvalidError
from crosszone.inputs.dataset import Dataset
from crosszone.inputs.environment import Environment
from crosszone.inputs.value import parse
from crosszone.run.request import Known, TaskRequest, checked, created

KNOWN = Known(
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
        checked(parse(TaskRequest, EXAMPLE | {"distributedConfig": where} | changes), KNOWN)
    (notice,) = refused.value.notices
    return notice


def test_the_example_is_taken_and_answered_as_the_platform_does():
    asked = checked(parse(TaskRequest, EXAMPLE), KNOWN)
    told = created(asked, "task-1", "initializing", "训练任务创建成功")
    assert told == {
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
    assert checked(parse(TaskRequest, EXAMPLE | {"distributedConfig": where}), KNOWN).ranks == 14


ORDER = [
    ("task_name_missing", {"taskName": "  "}, "请输入任务名称"),
    ("task_dataset_missing", {"datasetVersionId": ""}, "请选择数据集"),
    ("task_environment_missing", {"where": {"nodeIds": []}}, "请至少选择一个开发环境"),
    ("task_master_invalid", {"where": {"masterNode": "env-009"}}, "请选择有效的主节点"),
    ("task_framework_missing", {"where": {"framework": ""}}, "请选择分布式框架"),
]


@pytest.mark.parametrize(("code", "wrong", "said"), ORDER)
def test_what_is_missing_is_said_in_both_languages(code, wrong, said):
    notice = refusal(**wrong)
    assert notice.code == code
    assert notice.message("zh").startswith(said)
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
    asked = checked(parse(TaskRequest, EXAMPLE | {"distributedConfig": where}), KNOWN)
    assert (asked.master, asked.framework, asked.together.distributed) == ("env-003", None, False)


def test_the_master_comes_first():
    where = EXAMPLE["distributedConfig"] | {"masterNode": "env-005"}
    asked = checked(parse(TaskRequest, EXAMPLE | {"distributedConfig": where}), KNOWN)
    assert list(asked.environments) == ["env-005", "env-001", "env-003"]


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
    assert checked(parse(TaskRequest, EXAMPLE | {"distributedConfig": where}), KNOWN).framework in name


def test_unknown_fields_and_bad_types_are_refused():
    for wrong in ({"taskname": "x"}, {"taskName": 3}, {"launchMode": "later"}, {"distributedConfig": {"nodeIds": "x"}}):
        with pytest.raises(InvalidError):
            parse(TaskRequest, EXAMPLE | wrong)
