"""Predict what others published of training over wide-area links: `python benchmarks/studies/published/table.py`.

With --write the answers are stored with the measured runs, from which `crosszone accuracy` shows them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this package lies beside the other studies

from crosszone import measured
from crosszone.calibrate.published import STORED, PublishedResult, Row, build_unpredicted, read_published_rows
from published.dtfm import predict_dtfm, predict_transfers
from published.intellect import predict_intellect
from published.sites import predict_headlines, predict_two_sites
from published.streaming import predict_streaming

LINKS = "region_links_dtfm.csv"  # File beside the runs with delay and rate of every pair of regions


def predict_published(path: Path) -> tuple[PublishedResult, ...]:
    """Every published figure of a file with its prediction or the reason for none, by publication."""
    families: dict[str, list[Row]] = {}
    for row in read_published_rows(path):
        families.setdefault(row["id"].rsplit("-", 1)[0], []).append(row)
    links = path.parent / LINKS
    return tuple(result for family, rows in families.items() for result in _predict_family(family, rows, links))


def _predict_family(family: str, rows: list[Row], links: Path) -> list[PublishedResult]:
    match family:
        case "streaming-diloco":
            return predict_streaming(rows)
        case "intellect-1":
            return predict_intellect(rows)
        case "headline":
            return predict_headlines(rows)
        case "tc-micro":
            return predict_transfers(rows)
        case "dtfm":
            return predict_dtfm(rows, links)
    return [build_unpredicted(row, "published_unmodelled") for row in rows]


def build_document(path: Path) -> dict[str, Any]:
    """What is stored: predictions of the file's rows, of further figures of the same tables, and the two sites."""
    ids = {row["id"] for row in read_published_rows(path)}
    results = [result.model_dump() for result in predict_published(path)]
    return {
        "rows": [result for result in results if result["id"] in ids],
        "further": [result for result in results if result["id"] not in ids],
        "two_sites": predict_two_sites().model_dump(mode="json"),
    }


def format_document(document: dict[str, Any]) -> str:
    """JSON with one figure a line, so that a change of the models shows as the lines it changes."""
    parts = []
    for key in ("rows", "further"):
        lines = ",\n".join(json.dumps(result, ensure_ascii=False) for result in document[key])
        parts.append(f'"{key}": [\n{lines}\n]')
    return "{" + ",\n".join([*parts, f'"two_sites": {json.dumps(document["two_sites"])}']) + "}\n"


def main() -> None:
    """Predict every figure; store the answers where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {STORED} anew")
    arguments = parser.parse_args()
    text = format_document(build_document(measured.FOLDER / "cross_zone_runs.csv"))
    if arguments.write:
        (measured.FOLDER / STORED).write_text(text, "utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
