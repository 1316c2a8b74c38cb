"""What was measured and fitted, as sections: operators, jobs, links, imported runs, single-run fits, own profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from crosszone.text.figures import format_amount, format_digits
from crosszone.views.answer_text import AnswerText
from crosszone.views.document import Block, Paragraph, Section, Table

if TYPE_CHECKING:
    from crosszone.calibrate.collective_apply import ScenarioWithLinks
    from crosszone.calibrate.collective_fit import Concurrency, LinkFit, Topology
    from crosszone.calibrate.imported import ImportedRun
    from crosszone.calibrate.operator_fit import SettingsSearch
    from crosszone.calibrate.single_run import SingleRunCalibration
    from crosszone.cost.operator_profile import OperatorFit, OperatorProfile, OperatorTime
    from crosszone.cost.own_profiles import OwnProfile

LARGE_US = 1e9  # Longer times are shown with a power of ten
MOST_ITERATIONS = 20  # Iterations shown in the terminal; --json has all
MOST_NEXT_RUNS = 5  # Next runs shown in the terminal; --json has all
LEAST_S = 1e-12  # Shorter phases of a workbook are rounding
PIPELINE_PHASES = ("warm_up", "steady", "cool_down", "tail")


# --- operators


def build_operator_profile_section(
    profile: OperatorProfile, unfitted: Sequence[str], searched: Mapping[str, SettingsSearch], text: AnswerText
) -> Section:
    """Every fit with its errors, the settings that were searched, coefficients, and what was left out."""
    rows: list[tuple[str, ...]] = []
    for name, operator_fit in profile.operators.items():
        rows.append(_list_fit_cells(name, operator_fit, text))
        for part, part_fit in operator_fit.parts.items() if len(operator_fit.parts) > 1 else ():
            errors = (f"{part_fit.error_pct:.1f}", f"{part_fit.unseen_pct:.1f}")
            rows.append((f"  {part}", format_amount(part_fit.samples), "", *errors, "", ""))
    columns = "operator >samples >operator_physical_pct >operator_error_pct >operator_unseen_pct operator_held_out"
    columns += " operator_settings"
    title = text.label("operator_fits_title", gpu=profile.gpu, samples=format_amount(profile.samples))
    blocks: list[Block] = [text.build_titled_table(columns, rows, title)]
    if searched:
        rows = [
            (name, search.best.regressor, _format_settings(asdict(search.best)), f"{search.test_pct:.1f}")
            for name, search in searched.items()
        ]
        columns = "operator operator_best_model operator_settings >operator_test_pct"
        blocks.append(text.build_titled_table(columns, rows, text.label("operator_search_title")))
    if profile.coefficients:
        rows = [
            (f"{scope} {name}".strip(), f"{value.value:.4g}", f"{value.error:.2g}")
            for scope, values in (("", profile.coefficients), *profile.stack_coefficients.items())
            for name, value in values.items()
        ]
        columns = "operator_coefficient >value >operator_log_error"
        blocks.append(text.build_titled_table(columns, rows, text.label("operator_coefficients_title")))
    lines = list(profile.notes)
    if profile.left_out:
        flags = ", ".join(f"{flag} {count}" for flag, count in profile.left_out.items())
        lines.append(text.label("operator_left_out", flags=flags))
    if unfitted:
        lines.append(text.label("operator_kept", fields=", ".join(unfitted)))
    return Section(blocks=(*blocks, *(Paragraph(text=line) for line in lines)))


def _list_fit_cells(name: str, operator_fit: OperatorFit, text: AnswerText) -> tuple[str, ...]:
    is_corrected = bool(operator_fit.correction)
    return (
        name,
        format_amount(operator_fit.samples),
        f"{operator_fit.physical_unseen_pct:.1f}",
        f"{operator_fit.error_pct:.1f}",
        f"{operator_fit.unseen_pct:.1f}",
        operator_fit.held_out,
        _format_settings(operator_fit.settings) if is_corrected else text.label("operator_form_alone"),
    )


def _format_settings(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def build_operator_times_section(
    gpu: str,
    times: Sequence[OperatorTime],
    formulas: Sequence[tuple[float | None, float | None]],
    stack: str,
    text: AnswerText,
) -> Section:
    """Times of operators with their errors, beside what the formula of a step gives and its error."""
    rows = [
        (
            time.key,
            _format_microseconds(time.time_us),
            _format_error(time.error_pct),
            "-" if formula_us is None else _format_microseconds(formula_us),
            _format_error(formula_pct),
        )
        for time, (formula_us, formula_pct) in zip(times, formulas, strict=True)
    ]
    columns = "operator >operator_time_us >operator_likely_pct >operator_formula_us >operator_formula_pct"
    table = text.build_titled_table(columns, rows, text.label("operator_times_title", gpu=gpu))
    about = text.build_line("operator_formula_about", stack=stack)
    has_formula = any(formula_us is not None for formula_us, _ in formulas)
    return Section(blocks=(table, about) if has_formula else (table,))


def _format_microseconds(time_us: float) -> str:
    return format_digits(time_us) if time_us < LARGE_US else f"{time_us:.3e}"


def _format_error(error_pct: float | None) -> str:
    return "-" if error_pct is None else f"± {error_pct:.1f}"


# --- jobs


def build_jobs_section(jobs: Sequence[Mapping[str, Any]], fitted: OwnProfile, text: AnswerText) -> Section:
    """Jobs before and after the fit and by a fit without them, and the coefficients of the stack."""
    rows = [
        (
            job["id"],
            *(format_amount(job[key], 4) for key in ("measured_s", "before_s", "after_s")),
            "-" if job["left_out_error_pct"] is None else f"{job['left_out_error_pct']:+.1f} %",
        )
        for job in jobs
    ]
    columns = "jobs_job >log_measured_s >log_before_s >log_after_s >jobs_left_out"
    times = text.build_titled_table(columns, rows, text.label("jobs_title"))
    rows = [(key, *_format_pair(item.value, item.error)) for key, item in next(iter(fitted.stacks.values())).items()]
    coefficients = text.build_titled_table("coefficient >value >error_pct", rows, text.label("jobs_coefficients"))
    return Section(blocks=(times, coefficients))


def _format_pair(value: float, error: float) -> tuple[str, str]:
    """A value and its error in percent."""
    return format_amount(value, 4), format_amount(100 * error, 2)


# --- links


def build_link_fits_section(
    fits: Sequence[LinkFit],
    few: Sequence[Topology],
    concurrency: Sequence[Concurrency],
    flagged: Mapping[str, int],
    text: AnswerText,
) -> Section:
    """Latency and rate of every layout with errors, what groups at once do to each other, and rows left out."""
    layout = "op links_where links_layout >links_groups"
    rows = []
    for fit in fits:
        latency = f"{fit.latency_s * 1e6:.4g}" if fit.latency_known else text.label("links_unknown")
        rate = f"{fit.bytes_per_s / 1e9:.4g}" if fit.rate_known and fit.bytes_per_s else text.label("links_unknown")
        sizes = f"{_format_bytes(fit.low_bytes)} - {_format_bytes(fit.high_bytes)}"
        errors = (_format_pct(error_pct) for error_pct in (fit.error_pct, fit.random_pct, fit.unseen_pct))
        rows.append((*_list_layout_cells(fit.where), format_amount(fit.rows), sizes, latency, rate, *errors))
    columns = f"{layout} >rows >links_sizes >links_latency >links_rate >links_error >links_random >links_unseen"
    caption = text.label("links_fits_note")
    blocks: list[Block] = [text.build_titled_table(columns, rows, text.label("links_fits"), caption=caption)]
    if concurrency:
        rows = [
            (
                *_list_layout_cells(factor.where),
                format_amount(factor.sizes),
                f"{factor.factor:.2f}",
                f"{factor.low:.2f} - {factor.high:.2f}",
            )
            for factor in concurrency
        ]
        columns = f"{layout} >links_sizes_count >links_factor >links_range"
        blocks.append(text.build_titled_table(columns, rows, text.label("links_together")))
    for flag, count in flagged.items():
        blocks.append(text.build_line("links_flagged", flag=flag, rows=format_amount(count)))
    if few:
        blocks.append(text.build_line("links_few", count=format_amount(len(few))))
    return Section(blocks=tuple(blocks))


def _list_layout_cells(where: Topology) -> tuple[str, str, str, str]:
    name = " ".join(part for part in (where.cluster, where.scope, where.zone, where.size_class) if part)
    return where.op, name, f"{where.nodes} x {where.gpus_per_node}", format_amount(where.groups)


def _format_pct(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _format_bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def build_link_changes_section(
    changed: ScenarioWithLinks, notices: Sequence[dict[str, Any]], text: AnswerText
) -> Section:
    """What measured links change in a scenario."""
    rows = [
        (change.field, format_amount(change.before), format_amount(change.after), change.unit, change.from_op)
        for change in changed.changes
    ]
    columns = "links_field >links_before >links_after links_unit op"
    table = text.build_titled_table(columns, rows, text.label("links_changes"))
    return Section(blocks=(table, text.list_remarks(notices)))


# --- imported runs


def has_pipeline(run: ImportedRun) -> bool:
    """The run has a pipeline: it says so, its phases are of one, or it has several stages."""
    stages = run.meta.get("pp") or run.meta.get("pipeline_group")
    if isinstance(stages, int):
        return stages > 1
    if not set(run.steps[0].phases_s) <= set(PIPELINE_PHASES):
        return bool({"warm_up", "pipeline"} & set(run.steps[0].phases_s))
    lanes = (run.timeline or {}).get("lanes", ())
    return len([lane for lane in lanes if lane.get("group") == "stages"]) > 1


def build_run_section(
    run: ImportedRun, iteration: str, difference: Mapping[str, Any] | None, text: AnswerText
) -> Section:
    """Iterations of a run, how steady they are, the phases of one of them, and that beside its prediction."""
    blocks: list[Block] = [text.build_line("trace_title", name=run.name, count=run.statistics.count)]
    if run.meta.get("device"):
        blocks.append(text.build_line("trace_device", device=run.meta["device"]))
    rows = [(str(step.step), _format_seconds(step.seconds)) for step in run.steps[:MOST_ITERATIONS]]
    blocks.append(text.build_titled_table(">trace_iteration >trace_seconds", rows, text.label("trace_iterations")))
    if len(run.steps) > MOST_ITERATIONS:
        blocks.append(text.build_line("trace_more", count=len(run.steps) - MOST_ITERATIONS))
    statistics = run.statistics
    seconds = (statistics.min_s, statistics.max_s, statistics.mean_s, statistics.std_s)
    steadiness = [*map(_format_seconds, seconds), f"{statistics.mean_to_min_pct:.2f} %"]
    columns = ">trace_min >trace_max >trace_mean >trace_std >trace_to_min"
    blocks.append(text.build_titled_table(columns, [steadiness], text.label("trace_steady")))
    blocks.append(text.build_line("trace_best", step=statistics.best_step))
    has_pipeline_phases = set(run.get_step(iteration).phases_s) <= set(PIPELINE_PHASES)
    if has_pipeline(run) or not has_pipeline_phases:
        blocks.append(_build_phases_table(run, iteration, text))
    if run.timeline is not None and has_pipeline_phases:
        blocks.append(_build_kinds_table(run, iteration, text))
    if difference is not None:
        blocks.append(_build_difference_table(difference, text))
    return Section(blocks=tuple(blocks))


def _build_phases_table(run: ImportedRun, iteration: str, text: AnswerText) -> Table:
    """Phases of one iteration, and messages that overlap them where the run has those."""
    step = run.get_step(iteration)
    messages = run.meta.get("messages_s") or {}
    phases = dict(step.phases_s)
    phases |= {phase: 0.0 for phase, seconds in messages.items() if phase not in phases and seconds}
    rows = []
    for phase, seconds in phases.items():
        cells = [text.label(f"trace_phase_{phase}"), _format_seconds(seconds), f"{100 * seconds / step.seconds:.1f} %"]
        if messages:
            cells.append(_format_seconds(messages[phase]) if phase in messages else "")
        rows.append(cells)
    columns = "trace_phase >trace_seconds >share" + (" >trace_with_overlap" if messages else "")
    return text.build_titled_table(columns, rows, text.label("trace_phases", step=step.step))


def _build_kinds_table(run: ImportedRun, iteration: str, text: AnswerText) -> Table:
    """What the average stage does, by kind, for formats whose phases are those of a pipeline."""
    from crosszone.schedule.timeline import list_lane_totals

    timeline, _ = run.read_timelines().timeline(run.get_step(iteration).step)
    rows = [
        (text.label(f"trace_kind_{row['kind']}"), _format_seconds(row["seconds"]), f"{100 * row['share']:.1f} %")
        for row in list_lane_totals(timeline)
    ]
    return text.build_titled_table("trace_part >trace_seconds >share", rows, text.label("trace_kinds"))


def _build_difference_table(difference: Mapping[str, Any], text: AnswerText) -> Table:
    """The predicted step beside the measured one, by phase and kind."""
    parts = [("trace_part_step", difference["step"])]
    parts += [(f"trace_phase_{row['part']}", row) for row in difference["phases"]]
    parts += [(f"trace_kind_{row['part']}", row) for row in difference["kinds"]]
    rows = [
        (
            text.label(key),
            _format_seconds(row["predicted_s"]),
            _format_seconds(row["measured_s"]),
            "-" if row["difference_pct"] is None else f"{row['difference_pct']:+.1f} %",
        )
        for key, row in parts
    ]
    columns = "trace_part >kind_predicted >kind_measured >trace_off"
    return text.build_titled_table(columns, rows, text.label("trace_beside"))


def _format_seconds(seconds: float) -> str:
    return f"{seconds:,.3f} s" if seconds >= 10 else f"{seconds * 1e3:,.3f} ms"


def build_book_section(run: ImportedRun, text: AnswerText) -> Section:
    """What the formulas of a workbook come to."""
    step = text.label("sheet_read", name=run.name, step=f"{run.figures['step_time_s']:.6g}")
    rows = [
        (text.label(f"trace_phase_{phase}"), f"{seconds:.6g}")
        for phase, seconds in (run.steps[0].phases_s or run.phases_s).items()
        if seconds > LEAST_S
    ]
    table = text.build_titled_table("sheet_phase >sheet_seconds", rows, text.label("sheet_phases"))
    return Section(blocks=(Paragraph(text=step), table))


# --- one run


def build_single_run_section(calibration: SingleRunCalibration, text: AnswerText) -> Section:
    """Parts before and after, coefficients that moved, and which short run would tell most."""

    def build_table(columns: str, rows: Sequence[Sequence[str]], title: str, **params: Any) -> Table:
        return text.build_titled_table(columns, rows, text.label(title, **params))

    rows: list[tuple[str, ...]] = [
        (
            text.label(f"log_part_{part}"),
            *_format_all((calibration.before_s[part], measured, calibration.after_s[part]), 4),
        )
        for part, measured in calibration.measured_s.items()
    ]
    columns = "part >log_before_s >log_measured_s >log_after_s"
    blocks = [build_table(columns, rows, "log_title", format=calibration.format)]
    if calibration.moved:
        rows = [
            (
                item.field + (text.label("log_limit_mark") if item.at_limit else ""),
                item.kept_with,
                *_format_all((item.before, item.after, item.error_before_pct, item.error_after_pct), 3),
            )
            for item in calibration.moved
        ]
        columns = "log_coefficient log_kept_with >log_from >log_to >log_error_before_pct >log_error_after_pct"
        blocks.append(build_table(columns, rows, "log_moved_title"))
    if calibration.next_runs:
        rows = [
            (run.name, *_format_all((run.step_s, run.sd_before_pct, run.sd_after_pct), 3))
            for run in calibration.next_runs[:MOST_NEXT_RUNS]
        ]
        columns = "log_run >log_step_s >log_pair_before_pct >log_pair_after_pct"
        blocks.append(build_table(columns, rows, "log_next_title"))
    return Section(blocks=tuple(blocks))


def _format_all(values: Sequence[float | None], digits: int) -> list[str]:
    return [format_amount(value, digits) for value in values]


# --- own profiles


def build_own_profiles_table(profiles: Sequence[OwnProfile], default: str | None, text: AnswerText) -> Table:
    """Own profiles, and which one is in use."""
    rows = [
        (
            profile.name,
            text.label("yes") if profile.name == default else "",
            format_amount(_count_coefficients(profile)),
            profile.source,
        )
        for profile in profiles
    ]
    columns = "own_profile own_profile_used >coefficients source"
    return text.build_titled_table(columns, rows, text.label("own_profiles_title"))


def _count_coefficients(profile: OwnProfile) -> int:
    return sum(len(fields) for scope in (profile.gpus, profile.stacks) for fields in scope.values())


def build_own_profile_section(profile: OwnProfile, text: AnswerText) -> Section:
    """Every value of an own profile, its timed collectives and its notes."""
    blocks: list[Block] = []
    if _count_coefficients(profile) or not profile.collectives:
        rows: list[tuple[str, ...]] = [
            (scope, field, *_format_pair(value.value, value.error), value.origin)
            for scopes in (profile.gpus, profile.stacks)
            for scope, fields in scopes.items()
            for field, value in fields.items()
        ]
        title = f"{profile.name}: {profile.source} ({profile.created})"
        blocks.append(text.build_titled_table("home coefficient >value >error_pct origin", rows, title))
    if profile.collectives:
        rows = [
            (
                timed.op,
                timed.gpu,
                f"{timed.nodes} x {timed.gpus_per_node}",
                f"{timed.low_bytes / 1e6:.4g} - {timed.high_bytes / 1e6:.4g} MB",
                *_format_all((timed.latency_us, timed.gb_per_s, timed.error_pct), 4),
                timed.origin,
            )
            for timed in profile.collectives
        ]
        columns = "op gpu links_layout >links_sizes >links_latency >links_rate >error_pct origin"
        blocks.append(text.build_titled_table(columns, rows, text.label("links_fits")))
    return Section(blocks=(*blocks, *(Paragraph(text=note) for note in profile.notes)))
