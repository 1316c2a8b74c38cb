"""Measured runs beside their predictions as sections: of a folder, of runs, jobs, transfers and published results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crosszone.text.figures import format_amount
from crosszone.views.answer_text import AnswerText
from crosszone.views.document import Align, Block, Paragraph, Section, Table

if TYPE_CHECKING:
    from crosszone.calibrate.accuracy import Accuracy
    from crosszone.calibrate.fit import CrossValidation
    from crosszone.calibrate.published import TwoSites

MOST_ROWS = 60  # Rows of a table that a terminal shows; --json has all
MOST_ASSUMED = 20
MOST_RUNS = 20  # Runs of a folder that are shown: those farthest off; --csv and --json have all
MOST_JOBS = 10  # Jobs shown side by side, where there is room for so many
GAP = 3  # Columns between two columns of a table
# Columns of scores
ERRORS = ">mape_pct >median_ape_pct >within_10_pct >within_20_pct >bias_pct >band_coverage_pct >band_width_pct"


def build_runs_sections(accuracy: Accuracy, text: AnswerText) -> list[Section]:
    """Scores by source and subset, how well plans are ranked, what was assumed, and what was left out."""
    total = {"source": text.label("total"), **accuracy.summary}
    subsets = [{"subset": text.label(f"subset_{name}"), **scores} for name, scores in accuracy.subsets.items()]
    if accuracy.doubtful["rows"]:
        subsets.append({"subset": text.label("subset_doubtful"), **accuracy.doubtful})
    columns = f"source >scored >skipped {ERRORS} >memory_rows >memory_mape_pct"
    sections = _build_section("accuracy_title", columns, [*accuracy.by_source, total], text, MOST_ROWS)
    sections += _build_section("subsets_title", f"subset >scored {ERRORS}", subsets, text, MOST_ROWS)
    ranking = accuracy.ranking
    if ranking.mean_regret is not None:
        line = text.label(
            "ranking_line",
            groups=ranking.groups,
            regret=f"{ranking.mean_regret:.3f}",
            worst=f"{ranking.max_regret:.3f}",
            pairs=ranking.pairs,
            right=format_amount(ranking.pairs_right_pct, 3),
        )
        sections.append(Section(blocks=(Paragraph(text=line),)))
    sections += _build_section("assumed_title", "source >rows assumed", accuracy.assumed, text, MOST_ASSUMED)
    return sections + _build_section("skipped_title", "source >rows reason", accuracy.skipped, text, MOST_ROWS)


def build_validation_sections(validations: Sequence[CrossValidation], text: AnswerText) -> list[Section]:
    """Scores of fits that did not see a source, a model or a row."""
    lines = [
        {"left_out": text.label(f"left_out_{validation.kind}"), "folds": validation.folds, **validation.scores}
        for validation in validations
    ]
    return _build_section("cv_title", f"left_out >folds {ERRORS}", lines, text, MOST_ROWS)


def build_fits_sections(fits: Mapping[str, Any], text: AnswerText) -> list[Section]:
    """Configurations that ran and that crashed, and how many of each are predicted not to fit."""
    shares = {
        name: format_amount(100.0 * fits[f"{name}_flagged"] / fits[name], 3) if fits[name] else "-"
        for name in ("ran", "crashed")
    }
    counts = {name: format_amount(value) for name, value in fits.items() if name != "by_group"}
    line = text.label("fits_line", ran_pct=shares["ran"], crashed_pct=shares["crashed"], **counts)
    rows = [*fits["by_group"], {"model": text.label("total"), **fits}]
    columns = "model >gpus >ran >ran_flagged >crashed >crashed_flagged"
    return [
        *_build_section("fits_title", columns, rows, text, MOST_ROWS),
        Section(blocks=(Paragraph(text=line, wraps=True),)),
    ]


def build_folder_sections(report: Mapping[str, Any], text: AnswerText, width: int | None) -> list[Section]:
    """Every table of a folder."""
    sections = [
        *_build_sources_sections(report, text),
        *_build_worst_runs_section(report, text),
        *build_jobs_sections(report, text, width),
        *_build_stability_section(report["stability"], text),
        *build_testbed_section(report["transfers"], text),
        *_build_published_section(report["published"], text),
        *_build_operators_section(report["operators"], text),
    ]
    if report["missing"]:
        missing = text.label("accuracy_missing", files=", ".join(report["missing"]))
        sections.append(Section(blocks=(Paragraph(text=missing),)))
    return sections


def build_components_sections(
    report: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], text: AnswerText, width: int | None
) -> list[Section]:
    """Jobs of one file, timed part by part."""
    sections = build_jobs_sections(report, text, width)
    columns = "part >jobs >mape_pct >median_error_pct"
    sections += _build_section("parts_error_title", columns, parts, text, MOST_ROWS)
    skipped = [{"run": run["id"], **run} for run in report["skipped"]]
    return sections + _build_section("skipped_title", "run source reason", skipped, text)


def build_jobs_sections(report: Mapping[str, Any], text: AnswerText, width: int | None) -> list[Section]:
    """Jobs timed part by part: error of the iteration by cluster, of every component, and the shares."""
    if not report["components"]:
        return []
    columns = "source >jobs >mape_pct >floor_pct >setups >setups_mape_pct >left_out_pct"
    clusters = [{**cluster, "jobs": cluster["scored"]} for cluster in report["clusters"]]
    return [
        *_build_section("clusters_title", columns, clusters, text),
        _build_component_errors_section(report["components"], text, width),
        *_build_shares_section(report["shares"], text),
    ]


def build_testbed_section(summaries: Sequence[Mapping[str, Any]], text: AnswerText) -> list[Section]:
    """Transfers between emulated zones."""
    columns = "experiment op >rows >predicted >median_best_pct >p90_best_pct >median_median_pct"
    return _build_section("rig_title", columns, summaries, text, MOST_ROWS)


def build_published_sections(
    families: Sequence[Mapping[str, Any]],
    cells: Mapping[str, Any],
    sites: TwoSites | None,
    rows: Sequence[Mapping[str, Any]],
    text: AnswerText,
) -> list[Section]:
    """Results across zones that others published, beside their predictions."""
    sections = _build_published_section(families, text)
    if cells["cells"]:
        line = text.build_line("published_cells", **cells)
        sections.append(Section(blocks=(line,)))
    sections += _build_sites_sections(sites, text) if sites is not None else []
    columns = "family published_case >published_figure >published_prediction >published_difference_pct"
    lines = [
        {
            "family": row["family"],
            "published_case": row["case"],
            "published_figure": f"{format_amount(row['published'], 4)} {row['unit']}",
            "published_prediction": row["reason"] or f"{format_amount(row['predicted'], 4)} {row['unit']}",
            "published_difference_pct": row["error_pct"],
        }
        for row in rows
    ]
    return sections + _build_section("published_title", columns, lines, text)


def _build_section(
    title: str, columns: str, lines: Sequence[Mapping[str, Any]], text: AnswerText, terminal_rows: int | None = None
) -> list[Section]:
    """A table of mappings under labelled columns; nothing where there are no rows."""
    if not lines:
        return []
    keys = columns.replace(">", "").split()
    rows = ([_format_cell(line.get(key)) for key in keys] for line in lines)
    table = text.build_table(columns, rows, terminal_rows=terminal_rows)
    return [Section(title=text.label(title), blocks=(table,))]


def _format_cell(cell: Any) -> str:
    """A value as a cell shows it: one decimal, or as it is."""
    if isinstance(cell, str):
        return cell
    return f"{cell:.1f}" if isinstance(cell, float) else format_amount(cell)


def _build_sources_sections(report: Mapping[str, Any], text: AnswerText) -> list[Section]:
    columns = f"source >scored {ERRORS}"
    sources = [source for source in report["sources"] if "bias_pct" in source]
    totals = [{"source": f"= {name}", **scores} for name, scores in report["summary"].items()]
    subsets = [{"source": text.label(f"subset_{name}"), **scores} for name, scores in report["subsets"].items()]
    if report["doubtful"] and report["doubtful"]["rows"]:
        subsets.append({"source": text.label("subset_doubtful"), **report["doubtful"]})
    sections = _build_section("accuracy_title", columns, [*sources, *totals], text)
    return sections + _build_section("subsets_title", columns, subsets, text)


def _build_worst_runs_section(report: Mapping[str, Any], text: AnswerText) -> list[Section]:
    """The runs farthest off."""
    counted = [run for run in report["runs"] if run["counts"]]
    worst = sorted(counted, key=lambda run: -abs(run["error_pct"]))[:MOST_RUNS]
    if not worst:
        return []
    columns = "run source >measured_s >predicted_s >error_pct"
    rows = [
        (
            run["id"],
            _format_cell(run["source"]),
            f"{run['measured_s']:.4g}",
            f"{run['predicted_s']:.4g}",
            _format_cell(run["error_pct"]),
        )
        for run in worst
    ]
    title = text.label("worst_runs_title", shown=len(worst), count=format_amount(len(counted)))
    return [Section(title=title, blocks=(text.build_table(columns, rows),))]


def _build_component_errors_section(components: Mapping[str, Any], text: AnswerText, width: int | None) -> Section:
    """Rows: components; columns: jobs, then means by cluster over all its jobs and over the fastest of each set-up."""
    jobs, clusters, lines = components["jobs"], components["clusters"], components["rows"]
    names = [(text.label("component"), *(line["name"] for line in lines))]
    errors = []
    for number, job in enumerate(jobs[:MOST_JOBS]):
        name, mark = job["name"].replace(" ", "\n"), "" if job["fastest"] else " *"
        heading = f"{job['cluster']}\n{name}\n{job['id']}{mark}"
        errors.append((heading, *(_format_error(line["errors_pct"][number]) for line in lines)))
    means = [
        (text.label(key, cluster=cluster), *(_format_cell(line["means"][cluster][field]) for line in lines))
        for cluster in clusters
        for key, field in (("mean_all_jobs", "all_pct"), ("mean_fastest_jobs", "fastest_pct"))
    ]
    while width is not None and errors and _measure_width([*names, *errors, *means]) > width:
        errors.pop()
    caption = text.label("component_error_caption")
    if len(jobs) > len(errors):
        caption += " " + text.label("figure_first_jobs", shown=len(errors), count=format_amount(len(jobs)))
    columns = [*names, *errors, *means]
    headings: list[tuple[str, Align]] = [(heading, "right") for heading, *_ in columns]
    headings[0] = (names[0][0], "left")
    rows = tuple(zip(*(cells for _, *cells in columns), strict=True))
    table = Table(headings=tuple(headings), rows=rows, caption=caption, uncut=frozenset({0}))
    return Section(title=text.label("component_error_title"), blocks=(table,))


def _measure_width(columns: Sequence[Sequence[str]]) -> int:
    """Columns of the terminal that a table takes when only its headings wrap, between words."""
    from rich.cells import cell_len

    pieces = ([*heading.split(), *cells] for heading, *cells in columns)
    return sum(GAP + max(map(cell_len, column)) for column in pieces)


def _build_shares_section(shares: Sequence[Mapping[str, Any]], text: AnswerText) -> list[Section]:
    if not shares:
        return []
    names = shares[0]["names"].values()
    headings: list[tuple[str, Align]] = [(text.label("job"), "left"), (text.label("kind"), "left")]
    headings += [(name, "right") for name in names]
    rows = []
    for job_shares in shares[:MOST_JOBS]:
        job = job_shares["job"]
        for kind in ("measured", "predicted"):
            if job_shares[f"{kind}_pct"]:
                # the job stands once, beside the first of its two rows
                name = f"{job['cluster']} {job['name']} {job['id']}" if kind == "measured" else ""
                percents = (f"{percent:.1f}" for percent in job_shares[f"{kind}_pct"].values())
                rows.append((name, text.label(f"kind_{kind}"), *percents))
    table = Table(headings=tuple(headings), rows=tuple(rows), uncut=frozenset({0, 1}))
    return [Section(title=text.label("figure_share_title"), blocks=(table,))]


def _build_stability_section(rows: Sequence[Mapping[str, Any]], text: AnswerText) -> list[Section]:
    lines = [
        {
            "job": f"{row['cluster']} {row['name']} {row['id']}".strip(),
            "iterations": row["count"],
            **{key: f"{row[key]:.3f}" for key in ("min_s", "max_s", "mean_s", "std_s")},
            "mean_to_min_pct": row["mean_to_min_pct"],
        }
        for row in rows
    ]
    columns = "job >iterations >min_s >max_s >mean_s >std_s >mean_to_min_pct"
    return _build_section("stability_title", columns, lines, text)


def _build_published_section(families: Sequence[Mapping[str, Any]], text: AnswerText) -> list[Section]:
    columns = "family >rows >predicted >median_ape_pct >within_10_pct >within_20_pct"
    return _build_section("published_summary_title", columns, families, text, MOST_ROWS)


def _build_sites_sections(sites: TwoSites, text: AnswerText) -> list[Section]:
    target = format_amount(sites.target_pct, 3)
    if sites.least_gbps is None:
        line = text.label("published_two_sites_never", target=target)
    else:
        gbps = format_amount(float(f"{sites.least_gbps:.3g}"))
        line = text.label("published_two_sites", target=target, gbps=gbps)
    blocks: tuple[Block, ...] = (Paragraph(text=line),)
    lines = [
        {"gbps": format_amount(gbps), "published_efficiency_pct": percent}
        for gbps, percent in sites.efficiency_pct.items()
    ]
    columns = ">gbps >published_efficiency_pct"
    return [Section(blocks=blocks), *_build_section("published_two_sites_title", columns, lines, text, MOST_ROWS)]


def _build_operators_section(lines: Sequence[Mapping[str, Any]], text: AnswerText) -> list[Section]:
    columns = "gpu operator_family >samples >operator_error_pct >operator_unseen_pct"
    rows = [
        {
            "gpu": line["gpu"],
            "operator_family": line["family"],
            "samples": int(line["samples"]),
            "operator_error_pct": float(line["error_pct"]),
            "operator_unseen_pct": float(line["unseen_pct"]),
        }
        for line in lines
    ]
    return _build_section("operators_title", columns, rows, text)


def _format_error(error_pct: float | None) -> str:
    return "-" if error_pct is None else f"{error_pct:+.1f}"
