"""Train in a real browser: environments are chosen, a task is asked for, checked, started, watched and ended."""

import json
import re
import time
import urllib.error
import urllib.request

import pytest

from conftest import ROOT
from waiting import wait_until

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api").expect

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
TORCH = ROOT / ".venv-train" / "bin" / "python"
A100 = "a100-80gb-sxm"
ENVIRONMENTS = [
    (
        "env-001",
        "pytorch-dev-env",
        "jupyter",
        "北京可用区A",
        "cn-beijing",
        A100,
        2,
        16,
        128,
        "pytorch",
        5 * 86400 + 3 * 3600,
    ),
    (
        "env-002",
        "cv-experiment-env",
        "jupyter",
        "北京可用区A",
        "cn-beijing",
        "v100-32gb-sxm",
        2,
        16,
        128,
        "pytorch",
        7200,
    ),
    (
        "env-003",
        "llm-training-env",
        "custom",
        "深圳可用区C",
        "cn-shenzhen",
        A100,
        4,
        32,
        256,
        "transformers",
        12 * 3600,
    ),
    ("env-005", "nlp-research-lab", "custom", "上海可用区A", "cn-shanghai", A100, 8, 64, 512, "nlp", 2 * 86400),
]
FIELDS = ("id", "name", "type", "zone", "region", "gpu", "gpus", "cpus", "memory_gb", "image")
CREATED = {
    "code": 200,
    "message": "训练任务创建成功",
    "data": {
        "taskId": "task-distributed-001",
        "status": "initializing",
        "distributedInfo": {"nodeCount": 3, "totalGpus": 14, "masterNode": "env-001", "framework": "deepspeed"},
    },
}
LIVE = ("initializing", "preflight", "queued", "running", "stopping")


def call(server, path, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/api/v1/{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        read = answer.read()
        return json.loads(read) if read else None


def ended(server, id):
    """The task when it is at an end."""

    def now():
        task = call(server, f"training-tasks/{id}")
        return None if task["state"] in LIVE else task

    return wait_until(now)


def empty(server):
    for task in call(server, "training-tasks?limit=500")["entries"]:
        if task["state"] in LIVE:
            call(server, f"training-tasks/{task['id']}/stop", {})
            ended(server, task["id"])
        call(server, f"training-tasks/{task['id']}", method="DELETE")
    for kind in ("environments", "datasets", "training-models"):
        for entry in call(server, kind)["entries"]:
            call(server, f"{kind}/{entry['id']}", method="DELETE")


@pytest.fixture
def bare(server):
    """A server that knows nothing to train with."""
    empty(server)
    yield server
    empty(server)


@pytest.fixture
def seeded(bare):
    """The environments of the platform's own description, and a dataset."""
    now = time.time()
    for *values, uptime in ENVIRONMENTS:
        fields = dict(zip(FIELDS, values, strict=True))
        address = f"192.0.2.{fields['id'][-1]}"
        call(bare, "environments", {**fields, "status": "running", "since": now - uptime, "address": address})
    version = {"id": "version-001", "path": "/data/wiki.bin"}
    call(bare, "datasets", {"id": "dataset-001", "name": "wiki-zh", "versions": [version]})
    return bare


def opened(open_page, query="", **context):
    page = open_page(f"/?place=train{query}", **context)
    page.locator("[data-environment], .train-first, [data-opened]").first.wait_for()
    return page


def card(page, id):
    return page.locator(f"[data-environment={id}]")


def pick(page, *ids):
    for id in ids:
        card(page, id).get_by_role("checkbox").check()


def field(page, name):
    return page.locator(f"[data-field='{name}']")


def figure(page, name):
    return page.locator(f"[data-figure={name}]")


def names(page):
    return [one.get_attribute("data-environment") for one in page.locator("[data-environment]").all()]


def filled(page):
    """A name and a dataset, as a task needs them."""
    field(page, "taskName").fill("gpt3-pretraining")
    field(page, "datasetId").select_option("dataset-001")
    expect(field(page, "datasetVersionId")).to_have_value("version-001")


def sent(page, answer=CREATED):
    """What is sent when the task is created: nothing is, for these machines are not there."""
    asked = []

    def take(route):
        if route.request.method != "POST":
            return route.continue_()
        asked.append(route.request)
        return route.fulfill(status=200, content_type="application/json", body=json.dumps(answer))

    page.route("**/api/v1/training-tasks?*", take)
    page.locator(".train-create button").click()
    page.locator("[data-opened]").wait_for()
    (request,) = asked
    assert len(request.headers["idempotency-key"]) == 32
    return json.loads(request.post_data)


# --- the three scenarios of the platform ---------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("language", ["en", "zh"])
def test_one_environment_trains_alone(open_page, seeded, language):
    page = opened(open_page, f"&lang={language}")
    pick(page, "env-001")
    expect(figure(page, "mode")).to_have_text({"en": "Single machine", "zh": "单机训练"}[language])
    expect(figure(page, "gpus")).to_contain_text(f"2 ({A100})")
    expect(figure(page, "cpus")).to_contain_text({"en": "16 cores", "zh": "16 核"}[language])
    expect(figure(page, "memory")).to_contain_text("128 GB")
    expect(figure(page, "nodes")).to_have_count(0)
    expect(page.locator("#train-distributed")).to_have_count(0)
    expect(page.locator(".train-badge.master")).to_have_count(0)
    filled(page)
    alone = {
        **CREATED["data"],
        "distributedInfo": {**CREATED["data"]["distributedInfo"], "nodeCount": 1, "totalGpus": 2},
    }
    body = sent(page, {**CREATED, "data": alone})
    assert body["distributedConfig"] == {"enabled": False, "nodeIds": ["env-001"]}
    told = {"en": "Environment: pytorch-dev-env", "zh": "使用环境：pytorch-dev-env"}[language]
    expect(page.locator(".train-made")).to_contain_text(told)


@pytest.mark.long
@pytest.mark.parametrize("language", ["en", "zh"])
def test_two_environments_of_one_zone_train_together(open_page, seeded, language):
    page = opened(open_page, f"&lang={language}")
    pick(page, "env-001", "env-002")
    expect(figure(page, "nodes")).to_contain_text("2")
    expect(figure(page, "gpus")).to_contain_text(f"4 ({A100}, v100-32gb-sxm)")
    expect(figure(page, "cpus")).to_contain_text("32")
    expect(figure(page, "memory")).to_contain_text("256 GB")
    expect(figure(page, "zones").locator("dd")).to_have_text(re.compile("^1北京可用区A$"))
    expect(figure(page, "framework")).to_contain_text("PyTorch DDP")
    expect(figure(page, "slowdown")).to_have_count(0)
    expect(page.locator("#task-master")).to_have_value("env-001")
    filled(page)
    body = sent(page)
    where = {"enabled": True, "nodeIds": ["env-001", "env-002"], "masterNode": "env-001", "framework": "pytorch-ddp"}
    assert body["distributedConfig"] == where


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_three_zones_train_together_and_the_slowdown_is_told(open_page, seeded, language):
    page = opened(open_page, f"&lang={language}")
    pick(page, "env-001", "env-003", "env-005")
    expect(figure(page, "selected")).to_have_text({"en": "3 selected", "zh": "已选 3"}[language])
    expect(figure(page, "mode")).to_have_text({"en": "Distributed training", "zh": "分布式训练"}[language])
    expect(figure(page, "nodes").locator("dd")).to_have_text("3")
    expect(figure(page, "gpus").locator("dd")).to_have_text(f"14 ({A100})")
    expect(figure(page, "cpus").locator("dd")).to_have_text({"en": "112 cores", "zh": "112 核"}[language])
    expect(figure(page, "memory").locator("dd")).to_have_text("896 GB")
    expect(figure(page, "zones").locator("dd")).to_have_text(re.compile("^3"))
    expect(card(page, "env-001").locator(".train-badge.master")).to_have_text(
        {"en": "Master", "zh": "主节点"}[language]
    )
    assert "5 days 3 hours" in card(page, "env-001").inner_text() or "5天3小时" in card(page, "env-001").inner_text()
    page.locator("#task-framework").select_option("deepspeed")
    expect(page.locator("#task-framework-note")).to_contain_text("ZeRO")
    expect(page.locator("[data-unavailable=horovod]")).to_contain_text("0.28.1")
    expect(page.locator("#task-framework option[value=horovod]")).to_be_disabled()
    field(page, "modelId").select_option("gpt-2")
    expect(figure(page, "step")).to_be_visible()
    body = {
        "modelId": "gpt-2",
        "distributedConfig": {
            "nodeIds": ["env-001", "env-003", "env-005"],
            "masterNode": "env-001",
            "framework": "deepspeed",
        },
    }
    chosen = call(seeded, "environments/selection", body)
    assert chosen["slowdown"] > 1
    expect(figure(page, "slowdown")).to_contain_text(f"{chosen['slowdown']:.2f}")
    expect(figure(page, "planned")).to_contain_text(str(chosen["strategy"]["dp"]))
    filled(page)
    body = sent(page)
    assert {key: body[key] for key in ("taskName", "datasetId", "datasetVersionId", "modelId", "launchMode")} == {
        "taskName": "gpt3-pretraining",
        "datasetId": "dataset-001",
        "datasetVersionId": "version-001",
        "modelId": "gpt-2",
        "launchMode": "existing",
    }
    assert body["distributedConfig"] == {
        "enabled": True,
        "nodeIds": ["env-001", "env-003", "env-005"],
        "masterNode": "env-001",
        "framework": "deepspeed",
    }
    told = {"en": "3 nodes · 14 GPUs in all", "zh": "3 个节点 · 总计 14 块 GPU"}[language]
    expect(page.locator(".train-made")).to_contain_text(told)


# --- choosing ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_there_is_a_master_as_long_as_something_is_selected(open_page, seeded):
    page = opened(open_page)
    pick(page, "env-003", "env-001", "env-005")
    expect(card(page, "env-003").locator(".train-badge.master")).to_be_visible()
    card(page, "env-005").get_by_role("button", name="Make master: nlp-research-lab").click()
    expect(card(page, "env-005").locator(".train-badge.master")).to_be_visible()
    expect(page.locator("#task-master")).to_have_value("env-005")
    card(page, "env-005").get_by_role("checkbox").uncheck()
    expect(page.locator("#task-master")).to_have_value("env-003")
    page.locator("#task-master").select_option("env-001")
    expect(card(page, "env-001").locator(".train-badge.master")).to_be_visible()
    page.reload()
    expect(page.locator("#task-master")).to_have_value("env-001")
    assert "nodes=env-003%2Cenv-001" in page.url


@pytest.mark.long
def test_a_click_anywhere_on_a_card_selects_it(open_page, seeded):
    page = opened(open_page)
    card(page, "env-001").locator(".facts").click()
    expect(card(page, "env-001").get_by_role("checkbox")).to_be_checked()
    card(page, "env-001").locator("label").click()
    expect(card(page, "env-001").get_by_role("checkbox")).not_to_be_checked()


@pytest.mark.long
def test_environments_are_filtered_sorted_and_selected_together(open_page, seeded):
    page = opened(open_page)
    assert names(page) == ["env-002", "env-003", "env-005", "env-001"]
    page.locator("[data-filter=sort]").select_option("gpus")
    expect(page.locator("[data-environment]").first).to_have_attribute("data-environment", "env-005")
    page.locator("[data-filter=sort]").select_option("uptime")
    expect(page.locator("[data-environment]").first).to_have_attribute("data-environment", "env-001")
    assert names(page) == ["env-001", "env-005", "env-003", "env-002"]
    page.get_by_title("Turn the order round").click()
    expect(page.locator("[data-environment]").first).to_have_attribute("data-environment", "env-002")
    page.locator("[data-filter=zone]").select_option("北京可用区A")
    expect(page.locator("[data-environment]")).to_have_count(2)
    page.locator("[data-filter=gpu]").select_option(A100)
    expect(page.locator("[data-environment]")).to_have_count(1)
    page.get_by_role("button", name="Select all shown").click()
    expect(figure(page, "selected")).to_have_text("1 selected")
    page.reload()
    expect(page.locator("[data-environment]")).to_have_count(1)
    page.locator("[data-filter=zone]").select_option("深圳可用区C")
    expect(page.get_by_text("1 of them not shown by the filter")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    page.locator("[data-filter=type]").select_option("custom")
    expect(page.locator("[data-environment]")).to_have_count(2)
    page.get_by_role("button", name="Select all shown").click()
    expect(figure(page, "selected")).to_have_text("3 selected")
    page.get_by_role("button", name="Deselect all shown").click()
    expect(figure(page, "selected")).to_have_text("1 selected")


@pytest.mark.long
def test_the_product_of_the_degrees_is_checked_while_one_types(open_page, seeded):
    page = opened(open_page, "&nodes=env-001,env-003,env-005")
    page.get_by_label("As given here").check()
    for name, value in (("Data", "2"), ("Pipeline", "4"), ("Tensor", "8")):
        page.get_by_role("spinbutton", name=name).fill(value)
    expect(figure(page, "product")).to_have_text("2 × 4 × 8 = 64, but there are 14 ranks")
    filled(page)
    field(page, "modelId").select_option("gpt-2")
    page.locator(".train-create button").click()
    refused = page.get_by_role("alert").filter(has_text="makes 64 ranks, but the environments run 14")
    refused.wait_for()
    expect(page.get_by_role("spinbutton", name="Data")).to_be_focused()
    for name, value in (("Data", "7"), ("Pipeline", "2"), ("Tensor", "1")):
        page.get_by_role("spinbutton", name=name).fill(value)
    expect(figure(page, "product")).to_contain_text("7 × 2 × 1 = 14")
    expect(refused).to_have_count(0)
    strategy = {"dataParallel": 7, "pipelineParallel": 2, "tensorParallel": 1}
    assert sent(page)["distributedConfig"]["strategy"] == strategy


# --- validation ----------------------------------------------------------------------------------------------------

MISSING = {
    "en": [
        ("taskName", "Enter a name for the task."),
        ("datasetId", "Choose a dataset and its version."),
        ("distributedConfig.nodeIds", "Choose at least one environment."),
        ("distributedConfig.framework", "Choose a distributed framework."),
    ],
    "zh": [
        ("taskName", "请输入任务名称"),
        ("datasetId", "请选择数据集"),
        ("distributedConfig.nodeIds", "请至少选择一个开发环境"),
        ("distributedConfig.framework", "请选择分布式框架"),
    ],
}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_is_missing_is_told_beside_its_field_one_after_the_other(open_page, seeded, language):
    page = opened(open_page, f"&lang={language}")
    create = page.locator(".train-create button")

    def refused(at):
        name, words = MISSING[language][at]
        create.click()
        page.get_by_role("alert").filter(has_text=words).wait_for()
        expect(field(page, name)).to_be_focused()
        expect(field(page, name)).to_have_attribute("aria-invalid", "true")
        assert page.locator("[role=alert]").count() == 1

    refused(0)
    field(page, "taskName").fill("gpt")
    refused(1)
    field(page, "datasetId").select_option("dataset-001")
    refused(2)
    pick(page, "env-001", "env-002")
    page.locator("#task-framework").select_option("")
    refused(3)


# --- what is registered --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_an_environment_is_added_changed_and_deleted_on_the_page(open_page, seeded):
    page = opened(open_page)
    page.locator("#train-environments").locator("xpath=../..").get_by_role("button", name="Add", exact=True).click()
    panel = page.get_by_role("dialog")
    field(panel, "zone").fill("北京可用区A")
    panel.get_by_role("button", name="Save").click()
    expect(field(panel, "name")).to_be_focused()
    expect(field(panel, "name")).to_have_attribute("aria-invalid", "true")
    field(panel, "name").fill("new one")
    field(panel, "id").fill("env-009")
    field(panel, "gpus").fill("many")
    panel.get_by_role("button", name="Save").click()
    expect(field(panel, "gpus")).to_have_attribute("aria-invalid", "true")
    field(panel, "gpus").fill("1")
    field(panel, "gpu").fill(A100)
    panel.get_by_role("button", name="Save").click()
    expect(card(page, "env-009")).to_contain_text(f"1 × {A100}")
    assert call(seeded, "environments/env-009")["value"]["runner"] == "ssh"
    pick(page, "env-009")
    card(page, "env-009").get_by_role("button", name="Edit “new one”").click()
    expect(field(panel, "gpu")).to_have_value(A100)
    field(panel, "cpus").fill("12")
    panel.get_by_role("button", name="Save").click()
    expect(card(page, "env-009")).to_contain_text("12 cores")
    assert call(seeded, "environments/env-009")["value"]["gpus"] == 1
    card(page, "env-009").get_by_role("button", name="Delete “new one”").click()
    card(page, "env-009").get_by_role("button", name="Delete", exact=True).click()
    expect(card(page, "env-009")).to_have_count(0)
    expect(figure(page, "selected")).to_have_text("0 selected")


@pytest.mark.long
def test_environments_are_imported_from_a_list(open_page, seeded):
    page = opened(open_page)
    page.get_by_role("button", name="Import", exact=True).click()
    panel = page.get_by_role("dialog")
    field(panel, "text").fill("environments: [")
    panel.get_by_role("button", name="Import", exact=True).click()
    panel.get_by_role("alert").first.wait_for()
    field(panel, "text").fill(
        "environments:\n- {id: env-010, name: listed, zone: z}\n- {id: env-001, name: pytorch-dev-env, zone: 北京可用区A, gpus: 4}\n"
    )
    panel.get_by_role("button", name="Import", exact=True).click()
    expect(card(page, "env-010")).to_be_visible()
    expect(page.get_by_text("1 added, 1 changed.")).to_be_visible()
    expect(card(page, "env-001")).to_contain_text("4 × ")


@pytest.mark.long
def test_datasets_and_models_are_added_where_they_are_chosen(open_page, bare):
    page = opened(open_page)
    page.get_by_role("button", name="Use synthetic tokens").click()
    expect(field(page, "datasetVersionId")).to_have_value("v1")
    page.get_by_role("button", name="Add a version").click()
    panel = page.get_by_role("dialog")
    field(panel, "versions[1].id").fill("v1")
    panel.get_by_role("button", name="Save").click()
    panel.get_by_role("alert").first.wait_for()
    field(panel, "versions[1].id").fill("v2")
    field(panel, "versions[1].path").fill("/data/tokens.bin")
    panel.get_by_role("button", name="Save").click()
    expect(field(page, "datasetVersionId")).to_have_value("v2")
    (dataset,) = call(bare, "datasets")["entries"]
    assert [one["path"] for one in dataset["value"]["versions"]] == [None, "/data/tokens.bin"]
    page.get_by_role("button", name="Add a model").click()
    field(panel, "name").fill("tiny")
    field(panel, "id").fill("tiny")
    field(panel, "model").fill('{"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "ffn_hidden": 128}')
    panel.get_by_role("button", name="Save").click()
    expect(field(page, "modelId")).to_have_value("tiny")
    assert call(bare, "training-models/tiny")["value"]["model"]["layers"] == 2


@pytest.mark.long
def test_an_empty_place_adds_this_machine_by_one_click(open_page, bare):
    page = opened(open_page, "&lang=zh")
    page.get_by_role("button", name="添加本机").click()
    expect(card(page, "this-machine")).to_contain_text("运行中")
    expect(figure(page, "selected")).to_have_text("已选 1")
    value = call(bare, "environments/this-machine")["value"]
    assert value["runner"] == "local"
    assert value["cpus"] >= 1
    expect(card(page, "this-machine")).to_contain_text(f"{value['cpus']} 核")


@pytest.mark.long
def test_new_nodes_are_asked_of_a_scheduler(open_page, seeded):
    source = {
        "id": "slurm-bj",
        "name": "bj",
        "type": "slurm",
        "zone": "beijing-b",
        "runner": "slurm",
        "partition": "gpu",
    }
    call(seeded, "environments", {**source, "gpu": A100, "gpus": 8, "cpus": 64, "memory_gb": 512})
    page = opened(open_page)
    page.get_by_role("button", name="New nodes").click()
    field(page, "allocation[0].zone").select_option("beijing-b")
    field(page, "allocation[0].gpu").select_option(A100)
    field(page, "allocation[0].nodes").fill("2")
    expect(page.locator("#task-framework")).to_be_visible()
    expect(page.locator("#task-master")).to_have_count(0)
    filled(page)
    body = sent(page)
    assert body["launchMode"] == "new"
    assert body["allocation"] == [{"zone": "beijing-b", "gpu": A100, "nodes": 2}]
    assert body["distributedConfig"] == {"enabled": True, "nodeIds": [], "framework": "pytorch-ddp"}


# --- for everyone --------------------------------------------------------------------------------------------------


def broken(page):
    """What axe finds wrong."""
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("rules => axe.run(document, {runOnly: {type: 'tag', values: rules}})", RULES)
    return [f"{rule['id']}: {node['target']}" for rule in found["violations"] for node in rule["nodes"]]


@pytest.mark.long
@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm install (a developer's check)")
@pytest.mark.parametrize(("theme", "language"), [("light", "en"), ("dark", "zh")])
def test_axe_finds_nothing_on_the_form_its_refusals_and_its_panels(open_page, seeded, theme, language):
    page = opened(open_page, f"&theme={theme}&lang={language}&nodes=env-001,env-003,env-005")
    expect(figure(page, "nodes")).to_be_visible()
    page.locator(".train-split input[type=radio]").nth(1).check()
    assert broken(page) == []
    page.locator(".train-create button").click()
    page.get_by_role("alert").wait_for()
    assert broken(page) == []
    card(page, "env-001").locator(".train-environment-foot button").nth(1).click()
    page.get_by_role("dialog").wait_for()
    assert broken(page) == []


@pytest.mark.long
@pytest.mark.parametrize("language", ["en", "zh"])
def test_at_400_pixels_only_tables_scroll_sideways(open_page, seeded, language):
    page = opened(open_page, f"&lang={language}&nodes=env-001,env-003,env-005", width=400, height=800)
    expect(figure(page, "nodes")).to_be_visible()
    page.locator(".train-split input[type=radio]").nth(1).check()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    card(page, "env-001").locator(".train-environment-foot button").nth(1).click()
    panel = page.get_by_role("dialog")
    panel.wait_for()
    assert panel.evaluate(
        "panel => [panel.scrollWidth <= 400, panel.querySelector('.panel-body').scrollWidth <= 400]"
    ) == [True, True]


# --- tasks ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_without_tasks_the_list_leads_to_the_form(open_page, bare):
    page = open_page("/?place=train&tab=tasks")
    page.get_by_role("button", name="Create one").click()
    field(page, "taskName").wait_for()


@pytest.mark.long
def test_a_task_that_is_gone_is_said(open_page, bare):
    page = open_page("/?place=train&task=nothere")
    page.get_by_role("alert").filter(has_text="nothere").wait_for()
    page.get_by_role("button", name=re.compile("^Tasks")).click()
    page.get_by_text("No task was created yet.").wait_for()


@pytest.fixture
def here(bare, tmp_path):
    """This machine as an environment, a tiny model and synthetic tokens."""
    environment = {"id": "here", "name": "here", "type": "local", "zone": "here", "runner": "local"}
    where = {"address": "127.0.0.1", "python": str(TORCH), "workdir": str(tmp_path / "work")}
    call(bare, "environments", {**environment, **where})
    call(bare, "environments/here/probe", {})
    call(bare, "datasets", {"id": "synthetic", "name": "synthetic", "versions": [{"id": "v1"}]})
    model = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "ffn_hidden": 128}
    call(bare, "training-models", {"id": "tiny", "name": "tiny", "model": model})
    return bare


def asked(page, name, steps):
    pick(page, "here")
    field(page, "taskName").fill(name)
    field(page, "datasetId").select_option("synthetic")
    field(page, "modelId").select_option("tiny")
    field(page, "job.steps").fill(str(steps))
    field(page, "job.seq_len").fill("64")
    field(page, "job.global_batch").fill("4")
    field(page, "job.precision").select_option("fp32")


@pytest.mark.long
@pytest.mark.framework
@pytest.mark.skipif(not TORCH.exists(), reason="PyTorch is not installed in .venv-train")
def test_a_task_runs_here_and_is_watched_until_its_end(open_page, here):
    page = opened(open_page)
    asked(page, "night run", 40)
    expect(figure(page, "step")).to_be_visible()
    page.locator(".train-create button").dblclick()
    page.locator("[data-opened]").wait_for()
    expect(page.locator(".train-made")).to_contain_text("Environment: here")
    (task,) = call(here, "training-tasks")["entries"]
    assert f"task={task['id']}" in page.url
    page.locator("[data-opened] [data-state=running]").wait_for()
    page.locator("[data-chart=train-loss] canvas").wait_for()
    expect(page.locator("[data-opened] .train-badge.state")).to_have_attribute(
        "data-state", "succeeded", timeout=180_000
    )
    expect(page.locator("[data-opened] .facts").first).to_contain_text("40 of 40")
    page.locator("[data-chart=train-loss] summary").click()
    expect(page.locator("[data-chart=train-loss] tbody tr")).to_have_count(40)
    expect(page.locator("[data-chart=train-speed] [role=img]")).to_have_attribute(
        "aria-label", re.compile("predicted between")
    )
    expect(page.locator("[data-part=step]")).to_be_visible()
    expect(page.locator(".train-log pre")).to_contain_text(re.compile(r"\w"))
    assert page.locator("[data-choose=log] option").count() >= 1
    expect(page.locator(".train-states li.now")).to_have_text(re.compile("Succeeded"))
    expect(page.locator(".train-events li").first).to_contain_text("Succeeded")
    page.get_by_role("button", name="Tasks (1)").click()
    row = page.locator(f"[data-task='{task['id']}']")
    expect(row).to_contain_text("40 of 40")
    expect(row).to_contain_text("predicted")
    row.get_by_role("link").click()
    page.get_by_role("button", name="Delete “night run”").click()
    page.get_by_role("group", name=re.compile("Delete task")).get_by_role("button", name="Delete").click()
    page.get_by_text("No task was created yet.").wait_for()


@pytest.mark.long
@pytest.mark.framework
@pytest.mark.skipif(not TORCH.exists(), reason="PyTorch is not installed in .venv-train")
def test_a_running_task_is_stopped_and_resumed(open_page, here):
    page = opened(open_page, "&lang=zh", width=400, height=800)
    asked(page, "长跑", 100_000)
    page.locator(".train-create button").click()
    state = page.locator("[data-opened] .train-badge.state")
    page.locator("[data-chart=train-loss] canvas").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.get_by_role("button", name="停止", exact=True).click()
    expect(state).to_have_attribute("data-state", "stopped")
    page.get_by_role("button", name="恢复", exact=True).click()
    expect(page.get_by_text("第 2 次尝试")).to_be_visible()
    expect(state).to_have_attribute("data-state", "running")
