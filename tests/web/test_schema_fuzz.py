"""Every route against what it says of itself: whatever is sent, an answer it documents, and never a 5xx.

schemathesis makes the requests from the API's description, valid and invalid ones. Most of its scenarios would be
refused at the door, so that scenarios of the examples, whole and with one value spoiled, are put in their place.
"""

import json
import re
from collections import Counter
from copy import deepcopy
from functools import cache

import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from starlette.testclient import TestClient

from crosszone.errors import MachineError, Notice
from crosszone.inputs.cluster import MAX_GPUS, MAX_ZONES
from crosszone.inputs.value import MAX_COUNT
from crosszone.run.machine import Ssh
from crosszone.web.app import create_app
from crosszone.web.scenarios import find_examples_folder
from effort import amount, mostly_long

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
TOO_LARGE = (413, 431)
"""Said of what breaks no schema, or so many bytes that nobody looks."""
HERE = "http://127.0.0.1:8000"
PARTS = 8
"""Tests that the routes are dealt out to."""
SMALL = ("single-node", "two-zones-7b", "fourteen-gpus", "mixed-gpus")
NASTY = [
    0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 10**400, 1e308, -1e308, 5e-324, 1e-12, 0.5, float("nan"), float("inf"), float("-inf"),
    None, True, "", "\x00", "\ud800", "x" * 10_000, "1e999", "../../etc/passwd", [], {}, [[]], [None] * 1000, {"a": {"b": {}}},
]  # fmt: skip
NAMES = {
    "kind": ["gpus", "models", "regions", "links"], "language": ["en", "zh"], "id": ["1", str(2**63), "-1", "0", "x"],
    "name": ["three-cities", "a100-80gb-sxm", "llama-2-7b", "cn-beijing", "meta-llama/llama-2-7b-hf", "common"],
    "version": ["v"], "node": [0, 1, -1, 2**63],
    "path": ["plan.yaml", "nodes/000.sh", "../plan.yaml", "x\x00"],
}  # fmt: skip
TRAINED = {
    "environments": {"name": "e", "zone": "z", "gpu": "a100-80gb-sxm", "gpus": 2, "address": "10.0.0.1"},
    "datasets": {"name": "d", "versions": [{"id": "v", "path": "/data"}]},
    "training-models": {"name": "m", "model": "llama-2-7b"},
}
AXES = ["job.seq_len=1024,2048", "cluster.links[*].gbps=1:100:log3", "strategy.tp=1,2", "job.global_batch=1:1e308:9", "=", "a=1",
        "job.seq_len=1:1e9:log1000000", "job.tokens=nan", "x" * 2000]  # fmt: skip


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    """The API with its description; tasks are not driven, and no machine is reached."""
    app = create_app(store=str(tmp_path_factory.mktemp("store") / "crosszone.db"), workers=1, drive=False)
    with TestClient(app, base_url=HERE) as client, pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ssh, "call", out_of_reach)
        for noun in ("scenarios", "results", "bundles", "scenarios", "results", "bundles"):
            saved = client.post(f"/api/v1/{noun}", json={"scenario": small_scenarios()[0], "name": "saved"})
            NAMES["id"].append(saved.json()["id"])
        NAMES["id"] += registered(client)
        described = schemathesis.openapi.from_dict(app.openapi())
        described.app = app
        yield described


def out_of_reach(machine, what, **_):
    raise MachineError(Notice(code="machine_unreachable", params={"machine": machine.name, "reason": what}))


def registered(client):
    """Ids of an environment, a dataset, a model, and a task on them."""
    for noun, body in TRAINED.items():
        assert client.post(f"/api/v1/{noun}", json={"id": noun, **body}).status_code == 201
    where = {"nodeIds": ["environments"]}
    asked = {
        "taskName": "t",
        "datasetId": "datasets",
        "datasetVersionId": "v",
        "modelId": "m",
        "distributedConfig": where,
    }
    return [*TRAINED, client.post("/api/v1/training-tasks", json=asked).json()["data"]["taskId"]]


@cache
def _small_scenarios():
    return [yaml.safe_load((find_examples_folder() / f"{name}.yaml").read_text("utf-8")) for name in SMALL]


def small_scenarios():
    """Copies: those who ask change them."""
    return deepcopy(_small_scenarios())


def leaves(value, path=()):
    """Paths of everything inside a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from leaves(one, (*path, key))


def spoiled(document, path, value):
    """A copy of the document with another value at a path."""
    copy = json.loads(json.dumps(document))
    at = copy
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return copy


@st.composite
def scenarios(draw):
    """A scenario of the examples, whole or with one or two values spoiled."""
    document = draw(st.sampled_from(small_scenarios()))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        path = draw(st.sampled_from(list(leaves(document))))
        document = spoiled(document, path, draw(st.sampled_from(NASTY)))
    return document


@st.composite
def seeds(draw):
    """What goes over a generated request so that it gets past the door."""
    scenario = draw(scenarios())
    text = yaml.safe_dump(scenario, allow_unicode=True)
    as_text = draw(st.booleans()) or not finite(scenario)
    axes = [draw(st.sampled_from(AXES)) for _ in range(2)]
    names = {key: draw(st.sampled_from(known)) for key, known in NAMES.items()}
    return {"text": text} if as_text else {"scenario": scenario}, axes, names


def finite(value):
    """JSON can hold it."""
    try:
        return json.dumps(value, allow_nan=False).encode() != b""
    except ValueError:
        return False


def put_over(case, over, fields):
    """Give a request a scenario and names that exist, and make it quick to answer; `fields` are those of its body."""
    scenario, axes, names = over
    for name in case.path_parameters:
        case.path_parameters[name] = names.get(name, case.path_parameters[name])
    if not isinstance(case.body, dict) or "scenario" not in fields:
        return
    body = {key: value for key, value in case.body.items() if key not in ("text", "scenario", "way")}
    for name, axis in zip(("x", "y"), axes, strict=True):
        if name in body:
            body[name] = axis
    if "budget_s" in fields:
        body["budget_s"] = 1.0
    case.body = {**body, **scenario}


def properties_of_body(operation):
    body = operation.definition.raw.get("requestBody", {})
    known = operation.schema.raw_schema["components"]["schemas"]
    names = re.findall(r"#/components/schemas/(\w+)", json.dumps(body))
    return {key for name in names for key in known[name].get("properties", {})}


def tried(operation, mode, examples):
    """What went wrong with requests to one route, and how often each status was the answer."""
    wrong, statuses = [], Counter()
    fields = properties_of_body(operation)

    @seed(1)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), over=st.one_of(st.none(), seeds(), seeds()))
    def send(case, over):
        if over is not None:
            put_over(case, over, fields)
        try:
            response = case.call(base_url=HERE, timeout=120)
            statuses[response.status_code] += 1
            told_apart = over is None and response.status_code not in TOO_LARGE
            case.validate_response(response, checks=[*CHECKS, checks.negative_data_rejection] if told_apart else CHECKS)
        except (Exception, BaseExceptionGroup) as error:
            wrong.append(f"{operation.label}: {error!r}")

    try:
        send()
    except Unsatisfiable:  # nothing about the route can be wrong
        assert mode is GenerationMode.NEGATIVE
    return wrong, statuses


def fuzz(api, part, examples):
    wrong, statuses = [], Counter()
    for result in list(api.get_all_operations())[part::PARTS]:
        operation = result.ok()
        has_input = operation.body or list(operation.path_parameters)
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            more, counted = tried(operation, mode, examples if has_input else 3)
            wrong += more
            statuses += counted
    return wrong, statuses


@pytest.mark.slow
@pytest.mark.scaled
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_sent_to_a_route_is_answered_as_documented(api, part):
    """Hundreds of requests in ./test, ten thousand in ./test --long."""
    wrong, statuses = fuzz(api, part, amount(usual=2, long=50))
    assert not wrong, "\n".join(wrong[:5])
    assert statuses[200] > 0
    assert statuses[422] > 0


def big(**changes):
    """The text of a small scenario with some of its fields changed, by path."""
    document = small_scenarios()[0]
    for path, value in changes.items():
        *outer, last = path.split("__")
        at = document
        for step in outer:
            at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
        at[int(last) if isinstance(at, list) else last] = value
    return document


def zones(many, **node):
    nodes = [{"count": 1, "gpus": 8, "gpu": "a100-80gb-sxm", **node}]
    return [
        {"name": f"z{number}", "region": {"lat": number % 80, "lon": number % 170}, "nodes": nodes}
        for number in range(many)
    ]


def tall(layers, hidden=64):
    return {"layers": layers, "hidden": hidden, "heads": 1, "ffn_hidden": 64, "vocab": 100}


def cities(gbps, rtt_ms):
    return {"zones": zones(2), "links": [{"between": ["z0", "z1"], "gbps": gbps, "rtt_ms": rtt_ms}]}


EXTREMES = {
    "ten thousand zones": big(cluster__zones=zones(10_000), strategy={"dp": 80_000}, job__global_batch=80_000),
    "as many zones as there may be": big(cluster__zones=zones(MAX_ZONES), strategy={}, job__global_batch=8 * MAX_ZONES),
    "as many zones as there may be, none pinned": big(cluster__zones=zones(MAX_ZONES), strategy=None),
    "a billion GPUs": big(cluster__zones=zones(1, count=125_000_000), strategy={"dp": 1_000_000_000}),
    "a billion GPUs in one node": big(cluster__zones=zones(1, gpus=1_000_000_000), strategy={"dp": 1_000_000_000}),
    "as many GPUs as there may be": big(
        cluster__zones=zones(1, count=MAX_GPUS // 8), strategy={}, job__global_batch=MAX_GPUS
    ),
    "as many GPUs as there may be, none pinned": big(cluster__zones=zones(1, count=MAX_GPUS // 8), strategy=None),
    "nodes of a thousand kinds": big(cluster__zones=[{"name": "a", "nodes": zones(1)[0]["nodes"] * 1000}], strategy={}),
    "nodes of ten thousand kinds": big(
        cluster__zones=[{"name": "a", "nodes": zones(1)[0]["nodes"] * 10_000}], strategy={}
    ),
    "a million layers": big(model=tall(10**6)),
    "ten thousand layers": big(model=tall(10_000, 10_000), strategy={"pp": 8}),
    "ten thousand stages": big(
        model=tall(10_000), cluster__zones=zones(1, count=1250), strategy={"pp": 10_000}, job__global_batch=100_000
    ),
    "a thousand stages and a million micro-batches": big(
        model=tall(1000),
        cluster__zones=zones(1, count=125),
        strategy={"pp": 1000, "micro_batch": 1},
        job__global_batch=10**6,
    ),
    "layers of 2^63": big(model={"layers": 2**63, "hidden": 2**63, "heads": 2**63, "vocab": 2**63}),
    "a model of 1e308": big(model={"size_b": 1e308}),
    "a model of nothing": big(model={"size_b": 5e-324}),
    "a batch of 2^63": big(job__global_batch=2**63),
    "a batch of as many as there may be": big(
        job__global_batch=MAX_COUNT - MAX_COUNT % 8, strategy={"pp": 8, "micro_batch": 1}
    ),
    "sequences of 2^62": big(job__seq_len=2**62),
    "sequences of a hundred million": big(job__seq_len=100_000_000),
    "tokens without end": big(job__tokens=1e308),
    "a rate of nothing": big(cluster=cities(5e-324, 1)),
    "a rate of next to nothing": big(cluster=cities(1e-9, 1), strategy={}),
    "a way of 1e308 ms": big(cluster=cities(1e308, 1e308)),
    "a way as long as there may be": big(cluster=cities(1e18, 1e18), strategy={}),
    "degrees of 2^63": big(strategy={"tp": 2**63, "pp": 2**63, "dp": 2**63, "cp": 2**63, "ep": 2**63}),
    "negative degrees": big(strategy={"tp": -1, "pp": -(2**63)}),
    "not numbers": big(job__seq_len=float("nan"), job__global_batch=float("inf")),
}
TAKING = {
    "scenarios/describe": {}, "predict": {}, "plan": {"budget_s": 2.0}, "analyse": {"parts": ["traffic", "suggestions", "bill", "rating", "drill"]},
    "what-if": {"changes": {"job.seq_len": 2048}}, "what-if/switches": {}, "sweep": {"x": "job.seq_len=1024,2048", "mode": "predict"},
    "timeline": {"micro_batch": 0}, "timeline/trace": {"format": "csv"}, "ranks": {}, "report": {"budget_s": 2.0}, "places": {},
    "scenarios/change": {"changes": {}}, "radar": {}, "explain": {"figure": "step_time_s"}, "results": {},
    "bundles/preview": {"budget_s": 2.0, "template": True},
    "answers": {"parts": ["describe", "predict", "places", "timeline", "switches", "traffic"]},
}  # fmt: skip


LONG = {
    "ten thousand stages": ("plan", "report"),
    "a thousand stages and a million micro-batches": ("plan", "report"),
    "nodes of a thousand kinds": ("analyse", "report"),
    "as many zones as there may be": ("analyse", "report"),
}
"""A search looks at its budget between pipelines, not inside one that is longer than any in use; suggestions and ratings
are hundreds of predictions, each slow where a thousand groups meet. Both are done beside the server and can be cancelled."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "extreme",
    mostly_long(
        EXTREMES,
        "ten thousand layers",
        "a billion GPUs in one node",
        "layers of 2^63",
        "a rate of nothing",
        "not numbers",
    ),
)
def test_extreme_scenarios_are_answered(extreme, client):
    text = yaml.safe_dump(EXTREMES[extreme])
    known = client.get("/api/v1/openapi.json").json()["paths"]
    for route, more in TAKING.items():
        if f"/api/v1/{route}" in known and route not in LONG.get(extreme, ()):
            answer = client.post(f"/api/v1/{route}", json={"text": text, **more})
            assert answer.status_code in (200, 201, 413, 422), (route, answer.text[:300])
            assert '"code":"internal"' not in answer.text, (route, answer.text[:300])  # of a part alone
