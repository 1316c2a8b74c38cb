"""`crosszone calibrate fit`, `operator` and `jobs`: fit samples of operators, predict one of them, and learn from jobs.

`jobs` learns what a cluster's software adds from jobs that were timed part by part.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import ForceProfileOption, JsonOption, SaveOption, require_choice
from crosszone.cli.output import (
    Progress,
    check_not_existing,
    get_text,
    localize,
    open_progress_bar,
    print_json,
    print_line,
    print_notices,
    print_sections,
    write_file,
)
from crosszone.errors import InputError, InvalidError, Notice, UnknownNameError, find_close_names

if TYPE_CHECKING:
    from crosszone.calibrate.operator_fit import SampledOperators, SettingsSearch
    from crosszone.cost.operator_profile import OperatorFit, OperatorProfile, OperatorTime
    from crosszone.cost.own_profiles import OwnProfile


Size = Annotated[float | None, typer.Option()]
# Largest side of an operator, and largest count of parameters or bytes, that one is asked for.
MOST_SIZE, MOST_COUNT = 1e9, 1e13
COUNTS = ("params", "bytes")


def fit(
    samples: Annotated[list[Path], typer.Argument(help="Timed operators (CSV) of one GPU.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Operator profile (YAML) to write.")] = None,
    save: Annotated[
        str | None, typer.Option(metavar="NAME", help="Also save an own profile, which predictions can use.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="Catalogue name of the GPU, where the samples' is not known.")] = None,
    correction: Annotated[bool, typer.Option(help="Correct the physical forms by small boosted trees.")] = True,
    tune: Annotated[bool, typer.Option("--search", help="Search the best settings of each correction (slow).")] = False,
    source: Annotated[str, typer.Option(help="What the samples are, for the profile's file.")] = "",
    add: Annotated[bool, typer.Option("--add", help="Add to the own profile of that name.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output, or the own profile.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fit times of operators: a physical form each, and a small correction where that helps on unseen sizes.

    Errors are cross-validated, with random samples and with whole sizes held out. What the samples do not tell keeps
    its shipped value, and is named. Samples: what `crosszone calibrate kernels` writes, or tables of GPUModeling25.

    Example: crosszone calibrate fit samples.csv -o my-gpu.yaml --save my-gpu
    """
    from crosszone.calibrate.operator_profiles import (
        build_own_profile,
        fit_operator_profile,
        format_profile,
        list_undetermined,
        select_fittable,
    )
    from crosszone.cost import own_profiles

    if output is not None:
        check_not_existing(output, force)
    if add and save is None:
        raise InvalidError(Notice(code="own_profile_add_unsaved", field="--add"))
    if save is not None:
        own_profiles.check_free(save, replace=force or add)
    with open_progress_bar() as advance:
        read = _read_samples(samples, gpu)
        _require_samples(read)
        searched = _search_settings(read, advance) if tune and correction else {}
        chosen = {key: item.best for key, item in searched.items()}
        add_one = count_pieces(advance, "operators", len(select_fittable(read)))
        profile = fit_operator_profile(read, correction=correction, settings=chosen, source=source, progress=add_one)
    own_profile_to_save = None if save is None else _require_values(build_own_profile(profile, save))
    if output is not None:
        write_file(output, format_profile(profile), force)
    if own_profile_to_save is not None:
        own_profiles.save(own_profile_to_save, replace=force, add=add)
    undetermined, notices = list_undetermined(profile), localize(_check_gpu(read, gpu))
    if as_json:
        fields = profile.model_dump(mode="json", exclude={"operators": {"__all__": {"correction"}}, "checks": True})
        searches = {key: _build_search_answer(item) for key, item in searched.items()}
        print_json(
            {
                **fields,
                "summary": profile.summarize(),
                "kept": undetermined,
                "search": searches,
                "output": output and str(output),
                "saved": save,
                "notices": notices,
            }
        )
        return

    from crosszone.views.calibration import build_operator_profile_section

    print_sections([build_operator_profile_section(profile, undetermined, searched, get_text())])
    print_notices(notices)
    if output is not None:
        print_line("operator_profile_written", path=str(output))
    if save is not None:
        print_line("operator_profile_saved", name=save)


def count_pieces(advance: Progress | None, what: str, of: int) -> Callable[[], None]:
    """To be called after each of so many pieces; that there is something to wait for is told before the first."""
    done = 0
    if advance is not None:
        advance(what, 0, of)

    def add_one() -> None:
        nonlocal done
        done += 1
        if advance is not None:
            advance(what, done, of)

    return add_one


def _search_settings(read: SampledOperators, advance: Progress | None) -> dict[str, SettingsSearch]:
    from crosszone.calibrate.operator_fit import GRID, LEAST_FOR_TREES, search_settings
    from crosszone.calibrate.operator_profiles import select_fittable

    searchable = [samples for samples in select_fittable(read) if len(samples.time_us) >= LEAST_FOR_TREES]
    add_one = count_pieces(advance, "settings", len(searchable) * len(GRID))
    return {samples.key: search_settings(samples, read.processors, progress=add_one) for samples in searchable}


def _build_search_answer(search: SettingsSearch) -> dict[str, Any]:
    return {
        "best": asdict(search.best),
        "test_pct": search.test_pct,
        "physical_test_pct": search.physical_pct,
        "tried": [{**asdict(trial.settings), "error_pct": trial.error_pct} for trial in search.table],
    }


def predict_operator(
    gpu: Annotated[str, typer.Argument(help="GPU with an operator profile, or the file of one.")],
    op: Annotated[str, typer.Argument(help="matmul, attention, rmsnorm ...")],
    dtype: Annotated[str | None, typer.Option(help="bf16, fp16, fp8 or fp32; default: what was sampled.")] = None,
    which: Annotated[str | None, typer.Option("--pass", help="fwd, dgrad, wgrad, bwd or step; default: all.")] = None,
    mode: Annotated[str, typer.Option(help="eager, compiled ...")] = "eager",
    m: Size = None,
    n: Size = None,
    k: Size = None,
    groups: Size = None,
    batch: Size = None,
    heads: Size = None,
    kv_heads: Size = None,
    head_dim: Size = None,
    seq: Size = None,
    tokens: Size = None,
    width: Size = None,
    vocab: Size = None,
    params: Size = None,
    layers: Size = None,
    size_bytes: Annotated[float | None, typer.Option("--bytes")] = None,
    stack: Annotated[str, typer.Option(help="Stack whose coefficients the step's formula takes.")] = "generic",
    as_json: JsonOption = False,
) -> None:
    """Predict the time of one operator from samples, with its error; sizes outside of the samples' are flagged.

    Beside it stand the time that the formula of a predicted step gives, and that formula's own error.

    Example: crosszone calibrate operator h200 matmul --m 8192 --n 4096 --k 4096
    """
    given_sizes = {
        "m": m, "n": n, "k": k, "groups": groups, "batch": batch, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim, "seq": seq, "tokens": tokens, "width": width, "vocab": vocab, "params": params,
        "layers": layers, "bytes": size_bytes,
    }  # fmt: skip
    sizes = _check_sizes(given_sizes)
    profile = _read_operator_profile(gpu)
    fits = [
        item
        for item in profile.operators.values()
        if item.op == op and item.mode == mode and dtype in (None, item.dtype) and which in (None, item.which)
    ]
    if not fits:
        name = " ".join(word for word in (op, dtype, which) if word)
        known_operators = sorted(profile.operators)
        params_ = {"gpu": profile.gpu, "known": known_operators, "nearest": find_close_names(name, known_operators)}
        code = "operator_not_fitted_near" if params_["nearest"] else "operator_not_fitted"
        raise UnknownNameError(Notice(code=code, field="op", value=name, params=params_))
    times = [profile.predict(item.op, sizes, dtype=item.dtype, which=item.which, mode=mode) for item in fits]
    formulas = [_compute_formula_time(profile, item, sizes, stack) for item in fits]
    notices = _list_outside(profile, times, sizes)
    if as_json:
        answer_rows = [
            {
                "operator": item.key,
                "time_us": _round_six_digits(item.time_us),
                "physical_us": _round_six_digits(item.physical_us),
                "error_pct": _round_six_digits(item.error_pct),
                "outside": list(item.outside),
                "ranges": dict(item.ranges),
                "formula_us": formula_us and _round_six_digits(formula_us),
                "formula_error_pct": formula_pct,
            }
            for item, (formula_us, formula_pct) in zip(times, formulas, strict=True)
        ]
        print_json({"gpu": profile.gpu, "stack": stack, "sizes": sizes, "times": answer_rows, "notices": notices})
        return

    from crosszone.views.calibration import build_operator_times_section

    print_sections([build_operator_times_section(profile.gpu, times, formulas, stack, get_text())])
    print_notices(notices)


def _compute_formula_time(
    profile: OperatorProfile, fit_: OperatorFit, sizes: dict[str, float], stack: str
) -> tuple[float | None, float | None]:
    """Microseconds that a predicted step counts for this operator, and the mean error of its formula.

    None: a step has no formula for it alone, or no such shapes were measured.
    """
    from crosszone.cost.operator_checks import FORMULA_DIMS, FORMULA_FAMILIES, compute_formula_errors, formula_s
    from crosszone.cost.operator_profile import SIXTEEN_BIT, complete_sizes
    from crosszone.cost.profile import Profiles
    from crosszone.inputs.catalogue import catalogue

    op, dtype = fit_.op, fit_.dtype
    if op not in FORMULA_DIMS or dtype == "fp32":
        return None, None
    profiles, gpu = Profiles.load(), catalogue().gpu(profile.gpu)
    settings = profiles.select(gpu, profiles.select_stack(stack, stack))
    kernel = settings.settings.get("attention") or "flash"
    time_s = formula_s(op, (fit_.which,), complete_sizes(op, sizes), dtype, gpu, settings.coefficients, kernel=kernel)
    alike = SIXTEEN_BIT if dtype in SIXTEEN_BIT else (dtype,)
    tables = [table_ for table_ in profile.checks.values() if table_.op == op and table_.dtype in alike]
    errors = compute_formula_errors(tables, gpu, settings.coefficients, kernel=kernel)
    error = errors.get(FORMULA_FAMILIES[op])
    return 1e6 * float(time_s), None if error is None else error.error_pct


def _check_sizes(sizes: Mapping[str, float | None]) -> dict[str, float]:
    """The sizes that were given; an `InvalidError` names each that none can be."""
    mistakes = []
    for name, value in sizes.items():
        limit = MOST_COUNT if name in COUNTS else MOST_SIZE
        if value is None:
            continue
        if not 1 <= value <= limit:
            limits = {"low": 1, "high": f"{limit:,.0f}"}
            mistakes.append(
                Notice(code="operator_size", field=_name_option(name), value=_format_six_digits(value), params=limits)
            )
        elif value != math.floor(value):
            mistakes.append(Notice(code="operator_size_whole", field=_name_option(name), value=value))
    if mistakes:
        raise InvalidError(*mistakes)
    return {name: value for name, value in sizes.items() if value is not None}


def _name_option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _format_six_digits(value: float) -> str:
    return f"{value:.6g}"


def _round_six_digits(value: float) -> float:
    """Six digits: more are not known."""
    return float(_format_six_digits(value))


def _read_operator_profile(gpu: str) -> OperatorProfile:
    from crosszone.cost.operator_profile import list_sampled_gpus, load_operator_profile, read_operator_profile
    from crosszone.inputs.catalogue import catalogue

    if gpu.endswith((".yaml", ".yml")) or "/" in gpu:
        return read_operator_profile(Path(gpu))
    profile = load_operator_profile(catalogue().gpu(gpu).name)
    if profile is None:
        params = {"known": list_sampled_gpus()}
        raise UnknownNameError(Notice(code="operator_profile_none", field="gpu", value=gpu, params=params))
    return profile


def _list_outside(
    profile: OperatorProfile, times: Sequence[OperatorTime], sizes: dict[str, float]
) -> list[dict[str, Any]]:
    """Which sizes lie outside of those that were sampled, once for operators that were sampled alike."""
    operators_by_limits: dict[str, list[str]] = {}
    for time in times:
        limits = (f"{n} {sizes.get(n, 1.0):g} ({time.ranges[n][0]:g} - {time.ranges[n][1]:g})" for n in time.outside)
        if time.outside:
            operators_by_limits.setdefault(", ".join(limits), []).append(time.key)
    return localize(
        Notice(
            code="operator_outside",
            field=", ".join(keys),
            level="warning",
            params={"gpu": profile.gpu, "value": limits},
        )
        for limits, keys in operators_by_limits.items()
    )


# --- samples: read with plain refusals, and enough of them

UNKNOWN_NAME = "unknown_name"
DEVICE = "device"


def _read_samples(paths: Sequence[Path], gpu: str | None) -> SampledOperators:
    """The samples of some files; what is wrong with many rows in the same way is said once."""
    from crosszone.calibrate.operator_fit import MOST_MISTAKES, read_samples
    from crosszone.calibrate.user_files import check_text, merge_notices
    from crosszone.inputs.catalogue import catalogue

    if gpu is not None:
        catalogue().gpu(gpu)
    for path in paths:
        check_text(path)
    try:
        return read_samples(paths, gpu)
    except InputError as error:
        stopped = len(error.notices) >= MOST_MISTAKES
        notices = merge_notices(
            (_explain_device(_join_value(notice), gpu) for notice in error.notices), MOST_MISTAKES, at_least=stopped
        )
        raise (InvalidError if isinstance(error, UnknownNameError) else type(error))(*notices) from None


def _require_samples(read: SampledOperators) -> None:
    """Refuse samples of which nothing can be fitted."""
    from crosszone.calibrate.operator_fit import LEAST_SAMPLES
    from crosszone.calibrate.operator_profiles import BLOCKS, select_fittable

    if select_fittable(read):
        return
    counts = {samples.key: len(samples.time_us) for samples in read.samples if samples.op not in BLOCKS} or {"-": 0}
    operator = max(counts, key=lambda key: counts[key])
    params = {"least": LEAST_SAMPLES, "most": counts[operator], "operator": operator}
    raise InvalidError(Notice(code="samples_few", value=read.used_rows, params=params))


def _require_values(profile: OwnProfile) -> OwnProfile:
    """The same; one without any value is refused, for it would change no prediction."""
    if not profile.gpus and not profile.stacks:
        raise InvalidError(Notice(code="samples_tell_nothing", field="--save", value=profile.name))
    return profile


def _check_gpu(read: SampledOperators, gpu: str | None) -> list[Notice]:
    """A warning where --gpu names another GPU than the samples do."""
    from crosszone.calibrate.operator_fit import MODEL_GPUS, find_catalogue_name

    sampled_gpus = {MODEL_GPUS.get(device) or find_catalogue_name(device) for device in read.device.split(", ")}
    if gpu is None or sampled_gpus == {read.gpu}:
        return []
    return [Notice(code="samples_gpu_other", level="warning", value=read.gpu, params={DEVICE: read.device})]


def _explain_device(notice: Notice, gpu: str | None) -> Notice:
    """A row whose device is no GPU: said as such, and that --gpu does not change it."""
    if notice.code != UNKNOWN_NAME or notice.line is None:
        return notice
    code = "samples_device_unknown" if gpu is None else "samples_gpu_unused"
    return replace(notice, code=code, field=DEVICE, value=gpu, params={DEVICE: _read_device(notice)})


def _read_device(notice: Notice) -> str:
    """The device as the row of a notice calls it."""
    with Path(notice.file or "").open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        devices = (row.get(DEVICE) for row in rows if rows.line_num == notice.line)
        return next(devices, None) or str(notice.value)


def _join_value(notice: Notice) -> Notice:
    """The same with a list in words."""
    value = notice.value
    return replace(notice, value=", ".join(map(str, value))) if isinstance(value, list | tuple) else notice


# --- jobs


def fit_jobs(
    file: Annotated[Path, typer.Argument(metavar="RUNS", help="Jobs timed part by part (CSV).")],
    cluster: Annotated[str | None, typer.Option(help="Only jobs of this cluster, where a file has several.")] = None,
    save: SaveOption = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add it to the own profile of that name, and fit beside it.")
    ] = False,
    force: ForceProfileOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit launches, unfused kernels, optimizer and stragglers of the software to jobs timed part by part.

    Kernels and links are not touched: `calibrate fit` and `calibrate links` tell them. Each set-up is also predicted by
    a fit that has not seen it.

    Example: crosszone calibrate jobs runs.csv --cluster perlmutter --save perlmutter --add
    """
    from crosszone.calibrate.components import predict_components
    from crosszone.calibrate.components_fit import fit_cluster, select_fastest
    from crosszone.calibrate.components_read import read_components
    from crosszone.cost import own_profiles
    from crosszone.cost.profile import Profiles

    if add and save is None:
        raise InvalidError(Notice(code="own_profile_add_unsaved", field="--add"))
    if save is not None:
        own_profiles.check_free(save, replace=force or add)
    runs, skipped = read_components(file)
    names = list(dict.fromkeys(run.cluster for run in runs))
    require_choice("--cluster", cluster, names)
    if cluster is None and len(names) > 1:
        raise InvalidError(Notice(code="links_several_clusters", field="--cluster", params={"names": names}))
    runs = [run for run in runs if cluster in (None, run.cluster)]
    if not runs:
        raise InvalidError(Notice(code="jobs_none", value=str(file), params={"skipped": len(skipped)}))
    name = save or own_profiles.UNNAMED
    # what the profile says of kernels and links already is what the software's share is fitted beside
    saved_profile = own_profiles.read_named(name) if add and own_profiles.is_kept(name) else None
    profiles = Profiles.load() if saved_profile is None else Profiles.load_shipped().with_own(saved_profile)
    fit = fit_cluster(runs, profiles, name=name, source=f"jobs: {file.name}")
    fitted = fit.profile
    after = profiles.with_own(fitted)
    left_out_errors = {item.run.id: item.error_pct for item in fit.left_out}
    rows: list[dict[str, Any]] = [
        {
            "id": run.id,
            "measured_s": run.step_s,
            "before_s": predict_components(run, profiles).step,
            "after_s": predict_components(run, after).step,
            "left_out_error_pct": left_out_errors.get(run.id),
        }
        for run in select_fastest(runs)
    ]
    if save is not None:
        own_profiles.save(fitted, replace=force, add=add)
    if as_json:
        values = {key: item.to_plain() for key, item in next(iter(fitted.stacks.values())).items()}
        print_json(
            {"coefficients": values, "rows": rows, "skipped": len(skipped), "scores": fitted.scores, "saved": save}
        )
        return

    from crosszone.views.calibration import build_jobs_section

    print_sections([build_jobs_section(rows, fitted, get_text())])
    if save is not None:
        print_line("log_saved", name=save)
