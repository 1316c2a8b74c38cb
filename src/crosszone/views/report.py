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
from crosszone.views.document import Align, Item, Report, Section, Table
from crosszone.views.html import render_html
from crosszone.views.markdown import render_markdown
from crosszone.views.study import Study, build_study
from crosszone.views.words import SMALL, Words

MOST_ROWS = 200  # Rows of a table: a report is read, the JSON of the same answer has everything


Form = Literal["md", "html"]
FORMS: tuple[Form, ...] = get_args(Form)


def render_report(loaded: Loaded, language: str = DEFAULT_LANGUAGE, *, form: Form = "md", **options: Any) -> str:
    """The report of a scenario that was read from a file, as Markdown or HTML; `options` go to `build_study`."""
    document = build_report(build_study(loaded, language, **options), language)
    return render_html(document) if form == "html" else render_markdown(document)


def build_report(found: Study, language: str, now: datetime | None = None) -> Report:
    """The report of a study, in one language; `now` is the time it is dated."""
    told = _Told(found, Words(language))
    made = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    return Report(
        language=language,
        title=found.scenario.name,
        about=(told.said("report_about", version=__version__, date=made), told.words.split(told.prediction)),
        sections=tuple(section for section in told.sections() if section is not None),
    )


class _Told:
    """The study in the words of one language."""

    def __init__(self, found: Study, words: Words) -> None:
        self.study, self.words, self.said = found, words, words.said
        self.prediction = found.answer.prediction

    def sections(self) -> list[Section | None]:
        """All of them, the answer first."""
        return [
            self._numbers(),
            self._plan(),
            self._inputs(),
            self._time(),
            self._memory(),
            self._traffic(),
            self._why(),
            self._suggestions(),
            self._warnings(),
            self._basis(),
            Section(title=self.said("report_file"), code=self.study.scenario.to_yaml()),
        ]

    def _table(
        self, columns: Sequence[tuple[str, Align]], rows: Iterable[Sequence[str]], title: str = "", caption: str = ""
    ) -> Table:
        cells = [tuple(row) for row in rows]
        if len(cells) > MOST_ROWS:
            more = self.said("report_rows_more", count=format_amount(len(cells) - MOST_ROWS))
            caption = f"{caption} {more}".strip()
        headings = tuple((self.said(key), align) for key, align in columns)
        return Table(headings=headings, rows=tuple(cells[:MOST_ROWS]), title=title, caption=caption)

    def _numbers(self) -> Section:
        """Every figure with its range."""
        p, run = self.prediction, self.prediction.run
        rows: list[tuple[str, Triple | None, float]] = [
            ("report_step", p.step_time_s, 1),
            ("report_tokens", p.tokens_per_s, 1),
            ("report_tokens_gpu", p.tokens_per_s_per_gpu, 1),
            ("report_tflops", p.tflops_per_gpu, 1),
            ("report_mfu", p.mfu, 100),
            ("report_peak", p.memory_gib.peak, 1),
            ("report_days", run.days, 1),
            ("report_gpu_hours", run.gpu_hours, 1),
            ("report_usd", run.usd, 1),
            ("report_kwh", run.kwh, 1),
            ("report_co2", run.co2_kg, 1),
        ]
        cells = [
            (self.said(key), *(format_digits(value * factor, 4) for value in (one.expected, one.low, one.high)))
            for key, one, factor in rows
            if one is not None
        ]
        columns: list[tuple[str, Align]] = [("figure", "left"), ("report_expected", "right")]
        columns += [("report_low", "right"), ("report_high", "right")]
        facts = (
            (self.said("answer_memory"), self.words.memory(p.memory_gib)),
            (self.said("answer_run"), self.words.run(run)),
            (self.said("answer_cost"), self.words.cost(run)),
            (self.said("answer_energy"), self.words.energy(run)),
            (self.said("answer_bottleneck"), self.words.bottleneck(p)),
        )
        numbers = self._table(columns, cells, caption=self.said("report_range"))
        return Section(title=self.said("report_numbers"), tables=(numbers,), facts=facts)

    def _plan(self) -> Section:
        """How the work is split, and where each part runs."""
        p, placement = self.prediction, self.study.answer.predictor.site.placement
        used: dict[str, int] = {}
        rows, first = [], 0
        for block in placement.blocks:
            used[block.zone] = used.get(block.zone, 0) + block.count
            ranks = f"{first} - {first + block.count - 1}" if block.count > 1 else str(first)
            rows.append((ranks, block.zone, str(block.group), str(block.first), format_amount(block.count)))
            first += block.count
        where = self.words.listed(
            self.said("plan_zone", zone=zone, gpus=format_amount(count)) for zone, count in used.items()
        )
        strategy = self.words.listed(_options(p.strategy))
        total = self.study.scenario.cluster.gpus
        counts = {"used": format_amount(p.gpus), "total": format_amount(total), "idle": format_amount(total - p.gpus)}
        facts = [
            (self.said("framework"), self.study.answer.predictor.framework.title),
            (self.said("report_strategy"), strategy),
            (self.said("gpus"), self.said("plan_gpus", **counts)),
            (self.said("plan_where"), where),
        ]
        columns: list[tuple[str, Align]] = [("report_ranks", "left"), ("zone", "left"), ("report_group", "right")]
        columns += [("report_first_gpu", "right"), ("gpus", "right")]
        caption = self.said("report_order", order=" > ".join(placement.order))
        table = self._table(columns, rows, title=self.said("report_placement"), caption=caption)
        chosen = self.said("report_chosen" if self.study.chosen else "report_given")
        return Section(title=self.said("report_plan"), lines=(chosen,), facts=tuple(facts), tables=(table,))

    def _inputs(self) -> Section:
        """Model, job, zones and links, each link's figures with their origin."""
        model, job = self.study.described["model"], self.study.described["job"]
        cluster = self.study.described["cluster"]
        counted = model["parameters"]
        sizes = {"total": format_billions(counted["total"]), "layers": format_amount(model["layers"])}
        about = self.said("report_model", **sizes, hidden=format_amount(model["hidden"]), attention=model["attention"])
        facts = [(self.said("report_model_name"), f"{model['name']}{self.said('semicolon')}{about}")]
        batch = {"seq": format_amount(job["seq_len"]), "batch": format_amount(job["global_batch"])}
        work = self.said("report_job_line", **batch, tokens=format_amount(job["tokens_per_step"]))
        asked = self.said("report_framework_asked", name=job["framework"])
        kinds = self.words.listed([job["precision"], job["optimizer"], asked])
        facts.append((self.said("report_job"), work + self.said("semicolon") + kinds))
        if job["total_tokens"] is not None:
            counts = {"tokens": format_digits(job["total_tokens"]), "steps": format_amount(job["steps"])}
            facts.append((self.said("report_length"), self.said("report_run_line", **counts)))
        return Section(
            title=self.said("report_inputs"),
            facts=tuple(facts),
            tables=(self._zones(cluster), *([self._links(cluster)] if cluster["links"] else [])),
        )

    def _zones(self, cluster: dict[str, Any]) -> Table:
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
        title = self.said("zones_title", gpus=format_amount(cluster["gpus"]), nodes=format_amount(cluster["nodes"]))
        return self._table(columns, rows, title=title)

    def _links(self, cluster: dict[str, Any]) -> Table:
        def with_origin(link: dict[str, Any], key: str, shown: str) -> str:
            return f"{shown} ({self.said('origin_' + link['origins'][key])})"

        columns: list[tuple[str, Align]] = [("between", "left"), ("gbps", "right"), ("report_back", "right")]
        columns += [("rtt_ms", "right"), ("km", "right"), ("usd_gb", "right")]
        rows = []
        for link in cluster["links"]:
            rtt = link["rtt_ms"]
            band = format_digits(rtt["expected"], 3)
            if rtt["low"] != rtt["high"]:
                band = self.said(
                    "value_range", value=band, low=format_digits(rtt["low"], 3), high=format_digits(rtt["high"], 3)
                )
            rows.append(
                (
                    " - ".join(link["between"]),
                    with_origin(link, "gbps", format_amount(link["gbps"])),
                    with_origin(link, "gbps_back", format_amount(link["gbps_back"])),
                    with_origin(link, "rtt_ms", band),
                    format_amount(None if link["km"] is None else round(link["km"])),
                    with_origin(link, "usd_per_gb", format_amount(link["usd_per_gb"])),
                )
            )
        return self._table(columns, rows, title=self.said("links_heading"))

    def _time(self) -> Section:
        """Parts of the step, largest first; small ones in one row; they add up to the step."""
        total = self.prediction.step_time_s.expected
        ordered = sorted(self.prediction.breakdown_s.items(), key=lambda item: -item[1])
        large = [(name, value) for name, value in ordered if abs(value) >= SMALL * total]
        small = [value for name, value in ordered if value and (name, value) not in large]
        rows = [
            (self.said(f"step_{name}"), format_digits(value), format_percent(value / total)) for name, value in large
        ]
        if small:
            rest = sum(small)
            rows.append(
                (self.said("small_parts", count=len(small)), format_digits(rest, 2), format_percent(rest / total))
            )
        rows.append((self.said("total"), format_digits(total), format_percent(1.0)))
        table = self._table([("step_part", "left"), ("time_s", "right"), ("share_pct", "right")], rows)
        return Section(title=self.said("breakdown_title"), tables=(table,))

    def _memory(self) -> Section:
        """A row for each run of equal stages."""
        memory = self.prediction.memory_gib
        parts = [part for part in memory.stages[0].parts if any(one.parts[part] for one in memory.stages)]
        kinds = len({one.gpu for one in memory.stages}) > 1
        columns: list[tuple[str, Align]] = [("stage", "left")]
        columns += [("gpu", "left")] if kinds else []
        columns += [("layers", "right")]
        columns += [(f"mem_{part}", "right") for part in parts]
        columns += [("total", "right"), ("mem_limit", "right"), ("peak_at", "left")]
        rows = []
        for group in _alike(memory.stages):
            one = group[0]
            name = str(one.stage) if len(group) == 1 else f"{one.stage} - {group[-1].stage}"
            worst = any(stage.stage == memory.worst_stage for stage in group)
            start = [name + (" *" if worst else ""), *([one.gpu] if kinds else []), format_amount(one.layers)]
            gib = [f"{value:.2f}" for value in (*(one.parts[part] for part in parts), one.total, one.limit)]
            rows.append((*start, *gib, self.said(f"peak_{one.peak_at}")))
        return Section(
            title=self.said("memory_title"), tables=(self._table(columns, rows, caption=self.said("memory_caption")),)
        )

    def _traffic(self) -> Section | None:
        """Bytes by kind and link, and by direction between zones."""
        found = self.study.traffic
        if not found.lines:
            return Section(title=self.said("traffic_title"), lines=(self.said("no_traffic"),))
        columns: list[tuple[str, Align]] = [("traffic_kind", "left"), ("traffic_link", "left"), ("traffic_gb", "right")]
        columns += [("share_pct", "right"), ("traffic_busy", "right"), ("traffic_exposed", "right")]
        lines = self._table(
            columns,
            [
                (
                    self.said(f"kind_{line.kind}"),
                    self._link(line.link),
                    format_digits(line.bytes_per_step / 1e9),
                    format_percent(line.share),
                    format_digits(line.busy_s),
                    format_digits(line.exposed_s),
                )
                for line in found.lines
            ],
            caption=self.said("analyse_caption"),
        )
        tables = [lines]
        if found.links:
            columns = [("traffic_link", "left"), ("traffic_gb", "right"), ("analyse_dominant", "left")]
            columns += [("analyse_used", "right"), ("analyse_rate", "right"), ("analyse_rtt", "right")]
            rows = [
                (
                    one.link,
                    format_digits(one.bytes_per_step / 1e9),
                    self.said(f"kind_{one.dominant}"),
                    *(format_digits(value, 3) for value in (one.used_gbps, one.gbps, one.rtt_ms)),
                )
                for one in found.links
            ]
            tables.append(self._table(columns, rows, title=self.said("analyse_links")))
        ratio = "-" if found.compute_to_communication is None else format_digits(found.compute_to_communication, 3)
        line = self.said(
            "analyse_ratio_line",
            ratio=ratio,
            compute=format_digits(found.compute_s),
            exposed=format_digits(found.exposed_s),
            bound=self.said(f"bound_{found.boundness}"),
            share=format_percent(found.communication_share),
        )
        facts = ((self.said("analyse_ratio"), line),)
        return Section(title=self.said("traffic_title"), facts=facts, tables=tuple(tables))

    def _link(self, link: str) -> str:
        return self.said(f"link_{link}") if link in KNOWN_LINKS else link

    def _why(self) -> Section:
        """Reasons, idle GPUs, other plans and what was kept out."""
        free = self.study.free
        told = [*self.study.reasons, *self.study.refused]
        items = [Item(text=one["message"], hint=one["hint"]) for one in told]
        items += [Item(text=one["reason"]) for one in self.study.described["strategy"]["idle"]]
        tables = []
        if free is not None:
            plans = (*free.plans, *free.local_updates)
            columns: list[tuple[str, Align]] = [("rank", "left"), ("framework", "left"), ("degrees", "left")]
            columns += [("where", "left"), ("step_s", "right"), ("tokens_s", "right"), ("gib", "right")]
            rows = [self._other(one) for one in plans]
            title = self.said("report_plans" if self.study.chosen else "report_plans_free")
            tables.append(self._table(columns, rows, title=title, caption=self.said("report_plans_caption")))
        if free is not None and free.rejected:
            rejected = [
                (self._family(one.family), format_amount(one.count), one.reason["message"]) for one in free.rejected
            ]
            columns = [("family", "left"), ("count", "right"), ("reason", "left")]
            tables.append(self._table(columns, rejected, title=self.said("rejected_title")))
        return Section(title=self.said("report_why"), items=tuple(items), tables=tuple(tables))

    def _other(self, plan: Plan) -> tuple[str, ...]:
        s = plan.strategy
        rank = str(plan.rank) if plan.kind == "synchronous" else f"L{plan.rank}"
        more = [f"{name} {degree}" for name, degree in (("cp", s.cp), ("ep", s.ep), ("v", s.interleave)) if degree > 1]
        averages = s.local_update is not None and plan.crossing != "none"
        where = self.said(f"crossing_{'local' if averages else plan.crossing}", zones=" > ".join(plan.zones))
        found = plan.prediction
        return (
            rank,
            frameworks()[plan.framework].title,
            " ".join([f"tp {s.tp} pp {s.pp} dp {s.dp}", *more]),
            where,
            format_digits(found.step_time_s.expected),
            format_digits(found.tokens_per_s.expected),
            f"{found.memory_gib.peak.expected:.1f}",
        )

    def _family(self, family: str) -> str:
        """What strategies have in common, in words where it is not a degree."""
        name, _, rest = family.partition(": ")
        if rest == "memory":
            return self.said("family_memory", framework=frameworks()[name].title)
        return self.said("family_bound") if family == "bound" else family

    def _suggestions(self) -> Section:
        """Switches by what they gain, and settings of the hosts."""
        found = self.study.suggestions
        title = self.said("suggest_title", boundness=self.said(f"bound_{found.boundness}"))
        items = tuple(Item(text=one.setting, hint=one.why) for one in found.host)
        if not found.ranked:
            return Section(title=title, lines=(self.said("report_no_switch"),), items=items)
        columns: list[tuple[str, Align]] = [("suggest_switch", "left"), ("suggest_gain", "right")]
        columns += [("step_s", "right"), ("suggest_exact", "left"), ("suggest_option", "left")]
        rows = [
            (
                f"{one.title} ({one.switch}={_written(one.value)})",
                format_signed(100 * one.gain, 3),
                format_digits(one.step_s),
                self.said("suggest_same") if one.exact else one.risk,
                one.option or self.said("suggest_no_option"),
            )
            for one in found.ranked
        ]
        return Section(
            title=title, tables=(self._table(columns, rows, caption=self.said("report_suggest_caption")),), items=items
        )

    def _warnings(self) -> Section:
        """Every notice on the file and the prediction, the worst first."""
        items = tuple(
            Item(text=one["message"], hint=one["hint"], level=self.said(f"level_{one['level']}"))
            for one in self.prediction.warnings
        )
        lines = () if items else (self.said("report_no_warnings"),)
        return Section(title=self.said("report_warnings"), items=items, lines=lines)

    def _basis(self) -> Section:
        """Profiles, measured or not, and what the range says."""
        measured = self.prediction.basis.measured
        rests = self.said("report_measured" if measured else "report_derived")
        lines = (*self.words.basis(self.prediction, self.study.answer.predictor), rests)
        return Section(title=self.said("report_basis"), lines=lines)


def _options(strategy: dict[str, Any], before: str = "") -> list[str]:
    """What a strategy sets, by its key in a file."""
    found = []
    for key, value in strategy.items():
        if isinstance(value, dict):
            found += _options(value, f"{before}{key}.")
        elif value is not None and value is not False and value != "none":
            found.append(f"{before}{key} {_written(value)}")
    return found


def _written(value: Any) -> str:
    """A value as a file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list | tuple) else str(value)


def _alike(stages: Sequence[StageMemory]) -> list[list[StageMemory]]:
    """Stages that follow each other and need the same."""

    def seen(one: StageMemory) -> tuple[Any, ...]:
        return (one.gpu, one.layers, one.peak_at, *(f"{value:.2f}" for value in one.parts.values()))

    return [list(group) for _, group in groupby(stages, key=seen)]
