"""The requests of the page for parts of one scenario, as a browser sees them."""

from conftest import ROOT


def asks_for(part):
    """Whether a response of the page answers this part."""
    return lambda response: "/api/v1/answers" in response.url and part in response.request.post_data_json["parts"]


def answer_of(response, part):
    """What a response says of a part; asked for once more, since a browser keeps nothing of a body read as a stream."""
    answer = response.frame.page.request.post(response.url, data=response.request.post_data_json)
    return answer.json()[part]["answer"]


WATCH_REQUESTS = (ROOT / "benchmarks" / "page_requests.js").read_text("utf-8")
"""From now on the page notes what it asks the API."""
SETTLED_REQUESTS = "settledRequests()"
"""Waits until the page asks no more: the paths, and the most requests on their way at a time."""
