"""A client of the API that says which status each request must have, and the platform's own three environments."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager

from starlette.testclient import TestClient

from crosszone.store.tables import DATASETS, ENVIRONMENTS, MEASURED_LINKS, TASK_EVENTS, TASKS, TRAINING_MODELS
from crosszone.web.app import create_app

HERE = "http://127.0.0.1:8000"
A100 = {"gpu": "a100-80gb-sxm"}
SEED = {
    "env-001": {"name": "pytorch-dev-env", "type": "jupyter", "zone": "beijing-a", "region": "cn-beijing", **A100,
                "gpus": 2, "cpus": 16, "memory_gb": 128.0, "status": "running", "since": 300.0, "address": "192.168.1.10"},
    "env-003": {"name": "llm-training-env", "zone": "shenzhen-c", "region": "cn-shenzhen", **A100, "gpus": 4, "cpus": 32,
                "memory_gb": 256.0, "status": "running", "since": 100.0, "address": "192.168.2.20"},
    "env-005": {"name": "nlp-research-lab", "zone": "shanghai-a", "region": "cn-shanghai", **A100, "gpus": 8, "cpus": 64,
                "memory_gb": 512.0, "address": "192.168.3.30"},
}  # fmt: skip
"""The three environments of the platform's own example."""


class Api:
    """The API, with the status each request must have."""

    def __init__(self, client):
        self.client = client

    def __call__(self, method, path, body=None, *, status=200, **more):
        answer = self.client.request(method, f"/api/v1/{path}", **({} if body is None else {"json": body}), **more)
        assert answer.status_code == status, answer.text[:500]
        return answer.json() if answer.content else None

    def seed(self):
        for id, fields in SEED.items():
            self("POST", "environments", {"id": id, **fields}, status=201)


@contextmanager
def undriven(path):
    """An API whose tasks nobody drives; it does not start, so that it has no worker processes to wait for."""
    client = TestClient(create_app(store=str(path), workers=1, drive=False), base_url=HERE)
    try:
        yield Api(client)
    finally:
        client.close()


def empty(path):
    """Forget everything that is registered in a store."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in (TASK_EVENTS, TASKS, ENVIRONMENTS, DATASETS, TRAINING_MODELS, MEASURED_LINKS):
            connection.execute(f"DELETE FROM {table.name}")
