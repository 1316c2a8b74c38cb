"""`crosszone calibrate fit` and `calibrate operator`: fit samples of operators, and predict one operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.output import amount, console, language, print_json, print_notices, said, table
from crosszone.text.figures import digits

if TYPE_CHECKING:
    from crosszone.calibrate.operator_fit import Read, Search, Settings
    from crosszone.cli.progress import Progress
    from crosszone.cost.operator_profile import OperatorFit, OperatorProfile, OperatorTime

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
Size = Annotated[float | None, typer.Option()]
# Largest side of an operator, and largest count of parameters or bytes, that one is asked for.
MOST_SIZE, MOST_COUNT = 1e9, 1e13
COUNTS = ("params", "bytes")
LARGE_US = 1e9  # Longer times are shown with a power of ten


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
    from crosszone.calibrate.operator_profiles import kept, own_profile, text_of
    from crosszone.cli.calibrate_samples import checked_samples, enough, gpu_notices, worth_saving
    from crosszone.cli.files import refuse_to_overwrite, write_file
    from crosszone.cli.progress import progress_bar
    from crosszone.cost import own_profiles
    from crosszone.errors import InvalidError, Notice

    if output is not None:
        refuse_to_overwrite(output, force)
    if add and save is None:
        raise InvalidError(Notice(code="own_profile_add_unsaved", field="--add"))
    if save is not None:
        own_profiles.check_free(save, replace=force or add)
    with progress_bar() as advance:
        read = checked_samples(samples, gpu)
        enough(read)
        searched = _searched(read, advance) if tune and correction else {}
        chosen = {key: one.best for key, one in searched.items()}
        profile = _fitted(read, correction, chosen, source, advance)
    own = None if save is None else worth_saving(own_profile(profile, save))
    if output is not None:
        write_file(output, text_of(profile), force)
    if own is not None:
        own_profiles.save(own, replace=force, add=add)
    notices = [one.as_dict(language()) for one in gpu_notices(read, gpu)]
    if as_json:
        told = profile.model_dump(mode="json", exclude={"operators": {"__all__": {"correction"}}, "checks": True})
        found = {key: _search_told(one) for key, one in searched.items()}
        print_json(
            {
                **told,
                "summary": profile.summary(),
                "kept": kept(profile),
                "search": found,
                "output": output and str(output),
                "saved": save,
                "notices": notices,
            }
        )
        return
    _print_profile(profile, kept(profile), searched)
    print_notices(notices)
    if output is not None:
        console().print(said("operator_profile_written", path=str(output)), soft_wrap=True)
    if save is not None:
        console().print(said("operator_profile_saved", name=save), soft_wrap=True)


def _fitted(
    read: Read, correction: bool, chosen: dict[str, Settings], source: str, advance: Progress | None
) -> OperatorProfile:
    from crosszone.calibrate.operator_profiles import fittable, fitted_profile

    one_more = _counted(advance, "operators", len(fittable(read)))
    return fitted_profile(read, correction=correction, settings=chosen, source=source, progress=one_more)


def _counted(advance: Progress | None, what: str, of: int) -> Callable[[], None]:
    """To be called after each of so many pieces; that there is something to wait for is told before the first."""
    done = 0
    if advance is not None:
        advance(what, 0, of)

    def one_more() -> None:
        nonlocal done
        done += 1
        if advance is not None:
            advance(what, done, of)

    return one_more


def _searched(read: Read, advance: Progress | None) -> dict[str, Search]:
    from crosszone.calibrate.operator_fit import GRID, LEAST_FOR_TREES, search
    from crosszone.calibrate.operator_profiles import fittable

    some = [one for one in fittable(read) if len(one.time_us) >= LEAST_FOR_TREES]
    one_more = _counted(advance, "settings", len(some) * len(GRID))
    return {one.key: search(one, read.processors, progress=one_more) for one in some}


def _search_told(found: Search) -> dict[str, Any]:
    return {
        "best": found.best.as_dict(),
        "test_pct": found.test_pct,
        "physical_test_pct": found.physical_pct,
        "tried": [{**one.settings.as_dict(), "error_pct": one.error_pct} for one in found.table],
    }


def _print_profile(profile: OperatorProfile, kept: list[str], searched: dict[str, Search]) -> None:
    columns = (
        ("operator", "left"),
        ("samples", "right"),
        ("operator_physical_pct", "right"),
        ("operator_error_pct", "right"),
        ("operator_unseen_pct", "right"),
        ("operator_held_out", "left"),
        ("operator_settings", "left"),
    )
    made = table(said("operator_fits_title", gpu=profile.gpu, samples=amount(profile.samples)), columns)
    for name, fit_ in profile.operators.items():
        made.add_row(*_line(name, fit_))
        for part, one in fit_.parts.items() if len(fit_.parts) > 1 else ():
            made.add_row(f"  {part}", amount(one.samples), "", f"{one.error_pct:.1f}", f"{one.unseen_pct:.1f}", "", "")
    console().print(made)
    if searched:
        best = (("operator", "left"), ("operator_best_model", "left"), ("operator_settings", "left"))
        made = table(said("operator_search_title"), (*best, ("operator_test_pct", "right")))
        for name, found in searched.items():
            made.add_row(name, found.best.regressor, _settings(found.best.as_dict()), f"{found.test_pct:.1f}")
        console().print(made)
    if profile.coefficients:
        made = table(
            said("operator_coefficients_title"),
            (("operator_coefficient", "left"), ("value", "right"), ("operator_log_error", "right")),
        )
        for where, values in (("", profile.coefficients), *profile.stack_coefficients.items()):
            for name, value in values.items():
                made.add_row(f"{where} {name}".strip(), f"{value.value:.4g}", f"{value.error:.2g}")
        console().print(made)
    for note in profile.notes:
        console().print(note, soft_wrap=True)
    if profile.left_out:
        told = ", ".join(f"{flag} {count}" for flag, count in profile.left_out.items())
        console().print(said("operator_left_out", flags=told), soft_wrap=True)
    if kept:
        console().print(said("operator_kept", fields=", ".join(kept)), soft_wrap=True)


def _line(name: str, one: OperatorFit) -> list[str]:
    settings = _settings(one.settings) if one.correction else said("operator_form_alone")
    return [
        name,
        amount(one.samples),
        f"{one.physical_unseen_pct:.1f}",
        f"{one.error_pct:.1f}",
        f"{one.unseen_pct:.1f}",
        one.held_out,
        settings,
    ]


def _settings(given: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in given.items())


def operator(
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
    from crosszone.errors import Notice, UnknownNameError
    from crosszone.inputs.value import near

    given = {"m": m, "n": n, "k": k, "groups": groups, "batch": batch, "heads": heads, "kv_heads": kv_heads}
    given |= {"head_dim": head_dim, "seq": seq, "tokens": tokens, "width": width, "vocab": vocab, "params": params}
    given |= {"layers": layers, "bytes": size_bytes}
    sizes = _sizes(given)
    profile = _profile(gpu)
    fits = [
        one
        for one in profile.operators.values()
        if one.op == op and one.mode == mode and dtype in (None, one.dtype) and which in (None, one.which)
    ]
    if not fits:
        wanted = " ".join(word for word in (op, dtype, which) if word)
        known = sorted(profile.operators)
        params_ = {"gpu": profile.gpu, "known": known, "nearest": near(wanted, known)}
        code = "operator_not_fitted_near" if params_["nearest"] else "operator_not_fitted"
        raise UnknownNameError(Notice(code=code, field="op", value=wanted, params=params_))
    found = [profile.predict(one.op, sizes, dtype=one.dtype, which=one.which, mode=mode) for one in fits]
    formulas = [_formula(profile, one, sizes, stack) for one in fits]
    notices = _outside(profile, found, sizes)
    if as_json:
        told = [
            {
                "operator": one.key,
                "time_us": _short(one.time_us),
                "physical_us": _short(one.physical_us),
                "error_pct": _short(one.error_pct),
                "outside": list(one.outside),
                "ranges": dict(one.ranges),
                "formula_us": formula_us and _short(formula_us),
                "formula_error_pct": formula_pct,
            }
            for one, (formula_us, formula_pct) in zip(found, formulas, strict=True)
        ]
        print_json({"gpu": profile.gpu, "stack": stack, "sizes": sizes, "times": told, "notices": notices})
        return
    sampled = (("operator", "left"), ("operator_time_us", "right"), ("operator_likely_pct", "right"))
    columns = (*sampled, ("operator_formula_us", "right"), ("operator_formula_pct", "right"))
    made = table(said("operator_times_title", gpu=profile.gpu), columns)
    for one, (formula_us, formula_pct) in zip(found, formulas, strict=True):
        formula = ("-" if formula_us is None else _microseconds(formula_us), _percentage(formula_pct))
        made.add_row(one.key, _microseconds(one.time_us), _percentage(one.error_pct), *formula)
    console().print(made)
    if any(formula_us is not None for formula_us, _ in formulas):
        console().print(said("operator_formula_about", stack=stack), soft_wrap=True)
    print_notices(notices)


def _microseconds(time_us: float) -> str:
    return digits(time_us) if time_us < LARGE_US else f"{time_us:.3e}"


def _percentage(error_pct: float | None) -> str:
    return "-" if error_pct is None else f"± {error_pct:.1f}"


def _formula(
    profile: OperatorProfile, fit_: OperatorFit, sizes: dict[str, float], stack: str
) -> tuple[float | None, float | None]:
    """Microseconds that a predicted step counts for this operator, and the mean error of its formula.

    None: a step has no formula for it alone, or no such shapes were measured.
    """
    from crosszone.cost.operator_checks import FORMULA_DIMS, FORMULA_FAMILIES, formula_errors, formula_s
    from crosszone.cost.operator_profile import ALIKE, complete
    from crosszone.cost.profile import Profiles
    from crosszone.inputs.catalogue import catalogue

    op, dtype = fit_.op, fit_.dtype
    if op not in FORMULA_DIMS or dtype == "fp32":
        return None, None
    profiles, gpu = Profiles.load(), catalogue().gpu(profile.gpu)
    settings = profiles.select(gpu, profiles.stack_of(stack, stack))
    triton = bool(settings.settings.get("triton"))
    time_s = formula_s(op, (fit_.which,), complete(op, sizes), dtype, gpu, settings.coefficients, triton=triton)
    alike = ALIKE if dtype in ALIKE else (dtype,)
    tables = [table_ for table_ in profile.checks.values() if table_.op == op and table_.dtype in alike]
    errors = formula_errors(tables, gpu, settings.coefficients, triton=triton)
    error = errors.get(FORMULA_FAMILIES[op])
    return 1e6 * float(time_s), None if error is None else error.error_pct


def _sizes(given: Mapping[str, float | None]) -> dict[str, float]:
    """The sizes that were given; an `InvalidError` names each that none can be."""
    from crosszone.errors import InvalidError, Notice

    wrong = []
    for name, value in given.items():
        most = MOST_COUNT if name in COUNTS else MOST_SIZE
        if value is None:
            continue
        if not 1 <= value <= most:
            limits = {"low": 1, "high": f"{most:,.0f}"}
            wrong.append(Notice(code="operator_size", field=_option(name), value=_plain(value), params=limits))
        elif value != math.floor(value):
            wrong.append(Notice(code="operator_size_whole", field=_option(name), value=value))
    if wrong:
        raise InvalidError(*wrong)
    return {name: value for name, value in given.items() if value is not None}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _plain(value: float) -> str:
    return f"{value:.6g}"


def _short(value: float) -> float:
    """Six digits: more are not known."""
    return float(_plain(value))


def _profile(gpu: str) -> OperatorProfile:
    from crosszone.cost.operator_profile import operator_profile, operator_profiles, read_operator_profile
    from crosszone.errors import Notice, UnknownNameError
    from crosszone.inputs.catalogue import catalogue

    if gpu.endswith((".yaml", ".yml")) or "/" in gpu:
        return read_operator_profile(Path(gpu))
    found = operator_profile(catalogue().gpu(gpu).name)
    if found is None:
        params = {"known": operator_profiles()}
        raise UnknownNameError(Notice(code="operator_profile_none", field="gpu", value=gpu, params=params))
    return found


def _outside(profile: OperatorProfile, found: Sequence[OperatorTime], sizes: dict[str, float]) -> list[dict[str, Any]]:
    """Which sizes lie outside of those that were sampled, once for operators that were sampled alike."""
    from crosszone.errors import Notice

    alike: dict[str, list[str]] = {}
    for one in found:
        told = (f"{n} {sizes.get(n, 1.0):g} ({one.ranges[n][0]:g} - {one.ranges[n][1]:g})" for n in one.outside)
        if one.outside:
            alike.setdefault(", ".join(told), []).append(one.key)
    return [
        Notice(
            code="operator_outside",
            field=", ".join(keys),
            level="warning",
            params={"gpu": profile.gpu, "value": told},
        ).as_dict(language())
        for told, keys in alike.items()
    ]
