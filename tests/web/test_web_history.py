"""After a run the history shows what was predicted and what was measured, and the two can be compared and exported."""

import csv
import io

import pytest
from starlette.testclient import TestClient

from crosszone.run.history import save_history
from crosszone.store import open_store
from crosszone.web.app import create_app
from run.measured_runs import rows, work

API = "/api/v1"


@pytest.mark.slow
def test_a_finished_run_stands_in_the_history_beside_its_prediction(tmp_path):
    path = str(tmp_path / "history.db")
    with open_store(path) as store:
        task = store.tasks.add(name="two cities", request={})[0]
        save_history(store, task, work(), rows(work(), 40, slow={"communication": 2.0}, since=1, noise=0.0))
        store.tasks.move(task.id, "initializing", "failed")
    with TestClient(create_app(store=path, workers=1), base_url="http://127.0.0.1:8000") as client:
        measured, predicted = client.get(f"{API}/results").json()["rows"]
        assert (measured["kind"], predicted["kind"]) == ("measured", "predicted")
        expected = work().prediction["step_time_s"]
        assert measured["headline"]["predicted"]["step_time_s"]["value"] == pytest.approx(expected["expected"])
        communication = work().prediction["breakdown_s"]["gradients"] + work().prediction["breakdown_s"]["jitter"]
        step = measured["headline"]["step_time_s"]["value"]
        assert step == pytest.approx(expected["expected"] + communication)
        items = [{"result": predicted["id"]}, {"result": measured["id"]}]
        found = client.post(f"{API}/compare", json={"items": items})
        assert found.status_code == 200, found.text
        first, second = next(row for row in found.json()["figures"] if row["name"] == "step_time_s")["cells"]
        assert second["difference"] == pytest.approx(communication) and first["value"] == pytest.approx(
            step - communication
        )
        ids = {"ids": f"{predicted['id']},{measured['id']}"}
        table = list(csv.DictReader(io.StringIO(client.get(f"{API}/results/export", params=ids).text)))
        assert float(table[1]["classes_communication_s"]) == pytest.approx(2 * communication)
        whole = client.get(f"{API}/results/{measured['id']}").json()
        assert whole["document"]["run"]["predicted"]["parts_s"]["communication"] == pytest.approx(communication)
