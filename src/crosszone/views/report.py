"""The sections of a report in words: inputs, plan, numbers, where they come from, what would help, and warnings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from crosszone import __version__
from crosszone.inputs.scenario import Loaded
from crosszone.predict.prediction import Triple
from crosszone.text import DEFAULT_LANGUAGE
from crosszone.text.figures import format_amount, format_billions, format_digits
from crosszone.views.answer_text import AnswerText
from crosszone.views.communication import build_suggestion_sections, list_communication_blocks
from crosszone.views.document import Block, Code, Fact, Facts, Paragraph, Remark, Remarks, Report, Section, Table
from crosszone.views.html import render_html
from crosszone.views.markdown import render_markdown
from crosszone.views.plan import build_ranking, build_rejected_table, format_value
from crosszone.views.prediction import (
    build_assumption_sections,
    build_breakdown_section,
    build_memory_section,
    build_nearest_sections,
    list_answer_facts,
)
from crosszone.views.study import Study, build_study

MOST_ROWS = 200  # Rows of a table: a report is read, the JSON of the same answer has everything


Form = Literal["md", "html"]
FORMS: tuple[Form, ...] = get_args(Form)


def render_report(loaded: Loaded, language: str = DEFAULT_LANGUAGE, *, form: Form = "md", **options: Any) -> str:
    """The report of a scenario that was read from a file, as Markdown or HTML; `options` go to `build_study`."""
    document = build_report(build_study(loaded, language, **options), language)
    return render_html(document) if form == "html" else render_markdown(document)


def build_report(study: Study, language: str, now: datetime | None = None) -> Report:
    """The report of a study, in one language; `now` is the time it is dated."""
    writer = _ReportWriter(study, AnswerText(language))
    dated = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    return Report(
        language=language,
        title=study.scenario.name,
        about=(
            writer.label("report_about", version=__version__, date=dated),
            writer.words.describe_split(writer.prediction),
        ),
        sections=tuple(_clip_section(section, writer.words) for section in writer.build_sections()),
    )


def _clip_section(section: Section, words: AnswerText) -> Section:
    """The section without rows that nobody reads, and how many those are."""
    blocks = tuple(_clip_table(block, words) if isinstance(block, Table) else block for block in section.blocks)
    return replace(section, blocks=blocks)


def _clip_table(table: Table, words: AnswerText) -> Table:
    hidden = len(table.rows) - MOST_ROWS
    if hidden <= 0:
        return table
    more = words.label("report_rows_more", count=format_amount(hidden))
    return replace(table, rows=table.rows[:MOST_ROWS], caption=f"{table.caption} {more}".strip())


class _ReportWriter:
    """The study in the words of one language."""

    def __init__(self, study: Study, words: AnswerText) -> None:
        self.study, self.words, self.label = study, words, words.label
        self.prediction = study.answer.prediction

    def build_sections(self) -> list[Section]:
        """All of them, the answer first."""
        return [
            self._build_numbers(),
            self._build_plan(),
            self._build_inputs(),
            build_breakdown_section(self.prediction, self.words),
            build_memory_section(self.prediction.memory_gib, self.words, None),
            self._build_traffic(),
            *build_assumption_sections(self.prediction, self.words),
            *build_nearest_sections(self.prediction, self.words, None),
            self._build_reasons(),
            *build_suggestion_sections(self.study.suggestions, self.words, None),
            self._build_warnings(),
            self._build_basis(),
            Section(title=self.label("report_file"), blocks=(Code(text=self.study.scenario.to_yaml()),)),
        ]

    def _build_numbers(self) -> Section:
        """Every figure with its range."""
        prediction, run = self.prediction, self.prediction.run
        rows: list[tuple[str, Triple | None, float]] = [
            ("report_step", prediction.step_time_s, 1),
            ("report_tokens", prediction.tokens_per_s, 1),
            ("report_tokens_gpu", prediction.tokens_per_s_per_gpu, 1),
            ("report_tflops", prediction.tflops_per_gpu, 1),
            ("report_mfu", prediction.mfu, 100),
            ("report_peak", prediction.memory_gib.peak, 1),
            ("report_days", run.days, 1),
            ("report_gpu_hours", run.gpu_hours, 1),
            ("report_usd", run.usd, 1),
            ("report_kwh", run.kwh, 1),
            ("report_co2", run.co2_kg, 1),
        ]
        cells = [
            (
                self.label(key),
                *(format_digits(value * factor, 4) for value in (triple.expected, triple.low, triple.high)),
            )
            for key, triple, factor in rows
            if triple is not None
        ]
        columns = "figure >report_expected >report_low >report_high"
        numbers = self.words.build_table(columns, cells, caption=self.label("report_range"))
        facts = Facts(facts=tuple(list_answer_facts(prediction, self.words)))
        return Section(title=self.label("report_numbers"), blocks=(facts, numbers))

    def _build_plan(self) -> Section:
        """How the work is split, and where each part runs."""
        prediction, placement = self.prediction, self.study.answer.predictor.placed.placement
        used: dict[str, int] = {}
        rows, first = [], 0
        for block in placement.blocks:
            used[block.zone] = used.get(block.zone, 0) + block.count
            ranks = f"{first} - {first + block.count - 1}" if block.count > 1 else str(first)
            rows.append((ranks, block.zone, str(block.group), str(block.first), format_amount(block.count)))
            first += block.count
        where = self.words.join(
            self.label("plan_zone", zone=zone, gpus=format_amount(count)) for zone, count in used.items()
        )
        strategy = self.words.join(_list_options(prediction.strategy))
        total = self.study.scenario.cluster.gpus
        counts = {
            "used": format_amount(prediction.gpus),
            "total": format_amount(total),
            "idle": format_amount(total - prediction.gpus),
        }
        facts = [
            (self.label("framework"), self.study.answer.predictor.framework.title),
            (self.label("report_strategy"), strategy),
            (self.label("gpus"), self.label("plan_gpus", **counts)),
            (self.label("plan_where"), where),
        ]
        columns = "report_ranks zone >report_group >report_first_gpu >gpus"
        caption = self.label("report_order", order=" > ".join(placement.order))
        table = self.words.build_table(columns, rows, title=self.label("report_placement"), caption=caption)
        chosen = self.label("report_chosen" if self.study.chosen else "report_given")
        return Section(title=self.label("report_plan"), blocks=(Paragraph(text=chosen), _build_facts(facts), table))

    def _build_inputs(self) -> Section:
        """Model, job, zones and links, each link's figures with their origin."""
        model, job = self.study.described["model"], self.study.described["job"]
        cluster = self.study.described["cluster"]
        counted = model["parameters"]
        sizes = {"total": format_billions(counted["total"]), "layers": format_amount(model["layers"])}
        about = self.label("report_model", **sizes, hidden=format_amount(model["hidden"]), attention=model["attention"])
        facts = [(self.label("report_model_name"), f"{model['name']}{self.label('semicolon')}{about}")]
        batch = {"seq": format_amount(job["seq_len"]), "batch": format_amount(job["global_batch"])}
        work = self.label("report_job_line", **batch, tokens=format_amount(job["tokens_per_step"]))
        framework = self.label("report_framework_asked", name=job["framework"])
        kinds = self.words.join([job["precision"], job["optimizer"], framework])
        facts.append((self.label("report_job"), work + self.label("semicolon") + kinds))
        if job["total_tokens"] is not None:
            counts = {"tokens": format_digits(job["total_tokens"]), "steps": format_amount(job["steps"])}
            facts.append((self.label("report_length"), self.label("report_run_line", **counts)))
        return Section(
            title=self.label("report_inputs"),
            blocks=(
                _build_facts(facts),
                self._build_zones_table(cluster),
                *([self._build_links_table(cluster)] if cluster["links"] else []),
            ),
        )

    def _build_zones_table(self, cluster: dict[str, Any]) -> Table:
        columns = "zone region >nodes >gpus gpu >nic_node >usd_hour >carbon"
        rows = [
            (
                zone["name"],
                zone["region"] or "-",
                format_amount(group["count"]),
                format_amount(group["count"] * group["gpus"]),
                group["gpu"],
                format_amount(group["nic_gbps_node"]),
                format_amount(group["usd_per_gpu_hour"]),
                format_amount(zone["carbon_g_per_kwh"]),
            )
            for zone in cluster["zones"]
            for group in zone["groups"]
        ]
        title = self.label("zones_title", gpus=format_amount(cluster["gpus"]), nodes=format_amount(cluster["nodes"]))
        return self.words.build_table(columns, rows, title=title)

    def _build_links_table(self, cluster: dict[str, Any]) -> Table:
        def append_origin(link: dict[str, Any], key: str, figure: str) -> str:
            return f"{figure} ({self.label('origin_' + link['origins'][key])})"

        columns = "between >gbps >report_back >rtt_ms >km >usd_gb"
        rows = []
        for link in cluster["links"]:
            rtt = link["rtt_ms"]
            band = format_digits(rtt["expected"], 3)
            if rtt["low"] != rtt["high"]:
                band = self.label(
                    "value_range", value=band, low=format_digits(rtt["low"], 3), high=format_digits(rtt["high"], 3)
                )
            rows.append(
                (
                    " - ".join(link["between"]),
                    append_origin(link, "gbps", format_amount(link["gbps"])),
                    append_origin(link, "gbps_back", format_amount(link["gbps_back"])),
                    append_origin(link, "rtt_ms", band),
                    format_amount(None if link["km"] is None else round(link["km"])),
                    append_origin(link, "usd_per_gb", format_amount(link["usd_per_gb"])),
                )
            )
        return self.words.build_table(columns, rows, title=self.label("links_heading"))

    def _build_traffic(self) -> Section:
        """Bytes by kind and link, and by direction between zones."""
        title = self.label("traffic_title")
        if not self.study.traffic.lines:
            return Section(title=title, blocks=(Paragraph(text=self.label("no_traffic")),))
        blocks = list_communication_blocks(self.study.traffic, self.words)
        # the section has the title of its first table already
        untitled = (replace(b, title="") if isinstance(b, Table) and b.title == title else b for b in blocks)
        return Section(title=title, blocks=tuple(untitled))

    def _build_reasons(self) -> Section:
        """Reasons, idle GPUs, other plans and what was kept out."""
        free = self.study.free
        reasons = [*self.study.reasons, *self.study.refused]
        remarks = [Remark(text=reason["message"], hint=reason["hint"]) for reason in reasons]
        remarks += [Remark(text=idle["reason"]) for idle in self.study.described["strategy"]["idle"]]
        blocks: list[Block] = [Remarks(remarks=tuple(remarks))]
        if free is not None:
            ranking = build_ranking((*free.plans, *free.local_updates), free.objective, self.words, None)
            title = self.label("report_plans" if self.study.chosen else "report_plans_free")
            caption = f"{self.label('report_plans_caption')} {ranking.caption}".strip()
            blocks.append(replace(ranking, title=title, caption=caption))
        if free is not None and free.rejected:
            blocks.append(build_rejected_table(free, self.words))
        return Section(title=self.label("report_why"), blocks=tuple(blocks))

    def _build_warnings(self) -> Section:
        """Every notice on the file and the prediction, the worst first."""
        warnings = self.prediction.warnings
        nothing = Paragraph(text=self.label("report_no_warnings"))
        block = self.words.list_remarks(warnings) if warnings else nothing
        return Section(title=self.label("report_warnings"), blocks=(block,))

    def _build_basis(self) -> Section:
        """Profiles, measured or not, and what the range says."""
        measured = self.prediction.basis.measured
        rests = self.label("report_measured" if measured else "report_derived")
        lines = (*self.words.describe_basis(self.prediction, self.study.answer.predictor), rests)
        return Section(title=self.label("report_basis"), blocks=tuple(Paragraph(text=line) for line in lines))


def _build_facts(facts: Iterable[tuple[str, str]]) -> Facts:
    return Facts(facts=tuple(Fact(heading=heading, text=text) for heading, text in facts))


def _list_options(strategy: dict[str, Any], before: str = "") -> list[str]:
    """What a strategy sets, by its key in a file."""
    options = []
    for key, value in strategy.items():
        if isinstance(value, dict):
            options += _list_options(value, f"{before}{key}.")
        elif value is not None and value is not False and value != "none":
            options.append(f"{before}{key} {format_value(value)}")
    return options
