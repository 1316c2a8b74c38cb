"""The sections of a report in words: inputs, plan, numbers, where they come from, what would help, and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Literal, get_args

from crosszone import __version__
from crosszone.analyse.communication import KNOWN_LINKS
from crosszone.inputs.frameworks import frameworks
from crosszone.inputs.scenario import Loaded
from crosszone.plan.plan import Plan
from crosszone.predict.prediction import StageMemory, Triple
from crosszone.text import DEFAULT_LANGUAGE
from crosszone.text.figures import format_amount, format_billions, format_digits, format_percent, format_signed
from crosszone.views.document import Align, Remark, Report, Section, Table
from crosszone.views.html import render_html
from crosszone.views.markdown import render_markdown
from crosszone.views.study import Study, build_study
from crosszone.views.words import SMALL, AnswerText

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
        sections=tuple(section for section in writer.build_sections() if section is not None),
    )


class _ReportWriter:
    """The study in the words of one language."""

    def __init__(self, study: Study, words: AnswerText) -> None:
        self.study, self.words, self.label = study, words, words.label
        self.prediction = study.answer.prediction

    def build_sections(self) -> list[Section | None]:
        """All of them, the answer first."""
        return [
            self._build_numbers(),
            self._build_plan(),
            self._build_inputs(),
            self._build_time(),
            self._build_memory(),
            self._build_traffic(),
            self._build_reasons(),
            self._build_suggestions(),
            self._build_warnings(),
            self._build_basis(),
            Section(title=self.label("report_file"), code=self.study.scenario.to_yaml()),
        ]

    def _build_table(
        self, columns: Sequence[tuple[str, Align]], rows: Iterable[Sequence[str]], title: str = "", caption: str = ""
    ) -> Table:
        cells = [tuple(row) for row in rows]
        if len(cells) > MOST_ROWS:
            more = self.label("report_rows_more", count=format_amount(len(cells) - MOST_ROWS))
            caption = f"{caption} {more}".strip()
        headings = tuple((self.label(key), align) for key, align in columns)
        return Table(headings=headings, rows=tuple(cells[:MOST_ROWS]), title=title, caption=caption)

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
        columns: list[tuple[str, Align]] = [("figure", "left"), ("report_expected", "right")]
        columns += [("report_low", "right"), ("report_high", "right")]
        facts = (
            (self.label("answer_memory"), self.words.describe_memory(prediction.memory_gib)),
            (self.label("answer_run"), self.words.describe_run(run)),
            (self.label("answer_cost"), self.words.describe_cost(run)),
            (self.label("answer_energy"), self.words.describe_energy(run)),
            (self.label("answer_bottleneck"), self.words.describe_bottleneck(prediction)),
        )
        numbers = self._build_table(columns, cells, caption=self.label("report_range"))
        return Section(title=self.label("report_numbers"), tables=(numbers,), facts=facts)

    def _build_plan(self) -> Section:
        """How the work is split, and where each part runs."""
        prediction, placement = self.prediction, self.study.answer.predictor.site.placement
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
        columns: list[tuple[str, Align]] = [("report_ranks", "left"), ("zone", "left"), ("report_group", "right")]
        columns += [("report_first_gpu", "right"), ("gpus", "right")]
        caption = self.label("report_order", order=" > ".join(placement.order))
        table = self._build_table(columns, rows, title=self.label("report_placement"), caption=caption)
        chosen = self.label("report_chosen" if self.study.chosen else "report_given")
        return Section(title=self.label("report_plan"), lines=(chosen,), facts=tuple(facts), tables=(table,))

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
            facts=tuple(facts),
            tables=(
                self._build_zones_table(cluster),
                *([self._build_links_table(cluster)] if cluster["links"] else []),
            ),
        )

    def _build_zones_table(self, cluster: dict[str, Any]) -> Table:
        columns: list[tuple[str, Align]] = [("zone", "left"), ("region", "left"), ("nodes", "right"), ("gpus", "right")]
        columns += [("gpu", "left"), ("nic_node", "right"), ("usd_hour", "right"), ("carbon", "right")]
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
        return self._build_table(columns, rows, title=title)

    def _build_links_table(self, cluster: dict[str, Any]) -> Table:
        def append_origin(link: dict[str, Any], key: str, figure: str) -> str:
            return f"{figure} ({self.label('origin_' + link['origins'][key])})"

        columns: list[tuple[str, Align]] = [("between", "left"), ("gbps", "right"), ("report_back", "right")]
        columns += [("rtt_ms", "right"), ("km", "right"), ("usd_gb", "right")]
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
        return self._build_table(columns, rows, title=self.label("links_heading"))

    def _build_time(self) -> Section:
        """Parts of the step, largest first; small ones in one row; they add up to the step."""
        total = self.prediction.step_time_s.expected
        ordered = sorted(self.prediction.breakdown_s.items(), key=lambda item: -item[1])
        large = [(name, value) for name, value in ordered if abs(value) >= SMALL * total]
        small = [value for name, value in ordered if value and (name, value) not in large]
        rows = [
            (self.label(f"step_{name}"), format_digits(value), format_percent(value / total)) for name, value in large
        ]
        if small:
            small_s = sum(small)
            rows.append(
                (
                    self.label("small_parts", count=len(small)),
                    format_digits(small_s, 2),
                    format_percent(small_s / total),
                )
            )
        rows.append((self.label("total"), format_digits(total), format_percent(1.0)))
        table = self._build_table([("step_part", "left"), ("time_s", "right"), ("share_pct", "right")], rows)
        return Section(title=self.label("breakdown_title"), tables=(table,))

    def _build_memory(self) -> Section:
        """A row for each run of equal stages."""
        memory = self.prediction.memory_gib
        parts = [part for part in memory.stages[0].parts if any(stage.parts[part] for stage in memory.stages)]
        kinds = len({stage.gpu for stage in memory.stages}) > 1
        columns: list[tuple[str, Align]] = [("stage", "left")]
        columns += [("gpu", "left")] if kinds else []
        columns += [("layers", "right")]
        columns += [(f"mem_{part}", "right") for part in parts]
        columns += [("total", "right"), ("mem_limit", "right"), ("peak_at", "left")]
        rows = []
        for group in _group_equal_stages(memory.stages):
            stage = group[0]
            name = str(stage.stage) if len(group) == 1 else f"{stage.stage} - {group[-1].stage}"
            worst = any(member.stage == memory.worst_stage for member in group)
            start = [name + (" *" if worst else ""), *([stage.gpu] if kinds else []), format_amount(stage.layers)]
            gib = [f"{value:.2f}" for value in (*(stage.parts[part] for part in parts), stage.total, stage.limit)]
            rows.append((*start, *gib, self.label(f"peak_{stage.peak_at}")))
        return Section(
            title=self.label("memory_title"),
            tables=(self._build_table(columns, rows, caption=self.label("memory_caption")),),
        )

    def _build_traffic(self) -> Section | None:
        """Bytes by kind and link, and by direction between zones."""
        traffic = self.study.traffic
        if not traffic.lines:
            return Section(title=self.label("traffic_title"), lines=(self.label("no_traffic"),))
        columns: list[tuple[str, Align]] = [("traffic_kind", "left"), ("traffic_link", "left"), ("traffic_gb", "right")]
        columns += [("share_pct", "right"), ("traffic_busy", "right"), ("traffic_exposed", "right")]
        lines = self._build_table(
            columns,
            [
                (
                    self.label(f"kind_{line.kind}"),
                    self._name_link(line.link),
                    format_digits(line.bytes_per_step / 1e9),
                    format_percent(line.share),
                    format_digits(line.busy_s),
                    format_digits(line.exposed_s),
                )
                for line in traffic.lines
            ],
            caption=self.label("analyse_caption"),
        )
        tables = [lines]
        if traffic.links:
            columns = [("traffic_link", "left"), ("traffic_gb", "right"), ("analyse_dominant", "left")]
            columns += [("analyse_used", "right"), ("analyse_rate", "right"), ("analyse_rtt", "right")]
            rows = [
                (
                    direction.link,
                    format_digits(direction.bytes_per_step / 1e9),
                    self.label(f"kind_{direction.dominant}"),
                    *(format_digits(value, 3) for value in (direction.used_gbps, direction.gbps, direction.rtt_ms)),
                )
                for direction in traffic.links
            ]
            tables.append(self._build_table(columns, rows, title=self.label("analyse_links")))
        ratio = "-" if traffic.compute_to_communication is None else format_digits(traffic.compute_to_communication, 3)
        line = self.label(
            "analyse_ratio_line",
            ratio=ratio,
            compute=format_digits(traffic.compute_s),
            exposed=format_digits(traffic.exposed_s),
            bound=self.label(f"bound_{traffic.boundness}"),
            share=format_percent(traffic.communication_share),
        )
        facts = ((self.label("analyse_ratio"), line),)
        return Section(title=self.label("traffic_title"), facts=facts, tables=tuple(tables))

    def _name_link(self, link: str) -> str:
        return self.label(f"link_{link}") if link in KNOWN_LINKS else link

    def _build_reasons(self) -> Section:
        """Reasons, idle GPUs, other plans and what was kept out."""
        free = self.study.free
        reasons = [*self.study.reasons, *self.study.refused]
        items = [Remark(text=item["message"], hint=item["hint"]) for item in reasons]
        items += [Remark(text=item["reason"]) for item in self.study.described["strategy"]["idle"]]
        tables = []
        if free is not None:
            plans = (*free.plans, *free.local_updates)
            columns: list[tuple[str, Align]] = [("rank", "left"), ("framework", "left"), ("degrees", "left")]
            columns += [("where", "left"), ("step_s", "right"), ("tokens_s", "right"), ("gib", "right")]
            rows = [self._list_plan_cells(item) for item in plans]
            title = self.label("report_plans" if self.study.chosen else "report_plans_free")
            tables.append(self._build_table(columns, rows, title=title, caption=self.label("report_plans_caption")))
        if free is not None and free.rejected:
            rejected = [
                (self._name_family(item.family), format_amount(item.count), item.reason["message"])
                for item in free.rejected
            ]
            columns = [("family", "left"), ("count", "right"), ("reason", "left")]
            tables.append(self._build_table(columns, rejected, title=self.label("rejected_title")))
        return Section(title=self.label("report_why"), items=tuple(items), tables=tuple(tables))

    def _list_plan_cells(self, plan: Plan) -> tuple[str, ...]:
        s = plan.strategy
        rank = str(plan.rank) if plan.kind == "synchronous" else f"L{plan.rank}"
        more = [f"{name} {degree}" for name, degree in (("cp", s.cp), ("ep", s.ep), ("v", s.interleave)) if degree > 1]
        averages = s.local_update is not None and plan.crossing != "none"
        where = self.label(f"crossing_{'local' if averages else plan.crossing}", zones=" > ".join(plan.zones))
        prediction = plan.prediction
        return (
            rank,
            frameworks()[plan.framework].title,
            " ".join([f"tp {s.tp} pp {s.pp} dp {s.dp}", *more]),
            where,
            format_digits(prediction.step_time_s.expected),
            format_digits(prediction.tokens_per_s.expected),
            f"{prediction.memory_gib.peak.expected:.1f}",
        )

    def _name_family(self, family: str) -> str:
        """What strategies have in common, in words where it is not a degree."""
        name, _, limit = family.partition(": ")
        if limit == "memory":
            return self.label("family_memory", framework=frameworks()[name].title)
        return self.label("family_bound") if family == "bound" else family

    def _build_suggestions(self) -> Section:
        """Switches by what they gain, and settings of the hosts."""
        suggestions = self.study.suggestions
        title = self.label("suggest_title", boundness=self.label(f"bound_{suggestions.boundness}"))
        items = tuple(Remark(text=item.setting, hint=item.why) for item in suggestions.host)
        if not suggestions.ranked:
            return Section(title=title, lines=(self.label("report_no_switch"),), items=items)
        columns: list[tuple[str, Align]] = [("suggest_switch", "left"), ("suggest_gain", "right")]
        columns += [("step_s", "right"), ("suggest_exact", "left"), ("suggest_option", "left")]
        rows = [
            (
                f"{item.title} ({item.switch}={_format_value(item.value)})",
                format_signed(100 * item.gain, 3),
                format_digits(item.step_s),
                self.label("suggest_same") if item.exact else item.risk,
                item.option or self.label("suggest_no_option"),
            )
            for item in suggestions.ranked
        ]
        return Section(
            title=title,
            tables=(self._build_table(columns, rows, caption=self.label("report_suggest_caption")),),
            items=items,
        )

    def _build_warnings(self) -> Section:
        """Every notice on the file and the prediction, the worst first."""
        items = tuple(
            Remark(text=notice["message"], hint=notice["hint"], level=self.label(f"level_{notice['level']}"))
            for notice in self.prediction.warnings
        )
        lines = () if items else (self.label("report_no_warnings"),)
        return Section(title=self.label("report_warnings"), items=items, lines=lines)

    def _build_basis(self) -> Section:
        """Profiles, measured or not, and what the range says."""
        measured = self.prediction.basis.measured
        rests = self.label("report_measured" if measured else "report_derived")
        lines = (*self.words.describe_basis(self.prediction, self.study.answer.predictor), rests)
        return Section(title=self.label("report_basis"), lines=lines)


def _list_options(strategy: dict[str, Any], before: str = "") -> list[str]:
    """What a strategy sets, by its key in a file."""
    options = []
    for key, value in strategy.items():
        if isinstance(value, dict):
            options += _list_options(value, f"{before}{key}.")
        elif value is not None and value is not False and value != "none":
            options.append(f"{before}{key} {_format_value(value)}")
    return options


def _format_value(value: Any) -> str:
    """A value as a file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list | tuple) else str(value)


def _group_equal_stages(stages: Sequence[StageMemory]) -> list[list[StageMemory]]:
    """Stages that follow each other and need the same."""

    def list_cells(stage: StageMemory) -> tuple[Any, ...]:
        return (stage.gpu, stage.layers, stage.peak_at, *(f"{value:.2f}" for value in stage.parts.values()))

    return [list(group) for _, group in groupby(stages, key=list_cells)]
