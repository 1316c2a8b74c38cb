"""`crosszone calibrate fit` and `calibrate operator`: fit samples of operators, and predict one operator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.output import amount, console, language, print_json, print_notices, said, table
from crosszone.text.figures import digits

if TYPE_CHECKING:
    from crosszone.calibrate.operator_correction import Settings
    from crosszone.calibrate.operator_samples import Read
    from crosszone.calibrate.operator_search import Search
    from crosszone.cost.operator_profile import OperatorFit, OperatorProfile, OperatorTime

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
Size = Annotated[float | None, typer.Option(min=0.0)]


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
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output, or the own profile.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fit times of operators: a physical form each, and a small correction where that helps on unseen sizes.

    Errors are cross-validated, with random samples and with whole sizes held out. What the samples do not tell keeps
    its shipped value, and is named. Samples: what `crosszone calibrate kernels` writes, or tables of GPUModeling25.

    Example: crosszone calibrate fit samples.csv -o my-gpu.yaml --save my-gpu
    """
    from crosszone.calibrate.operator_profiles import fitted_profile, kept, own_profile, text_of
    from crosszone.calibrate.operator_samples import read_samples
    from crosszone.cli.files import refuse_to_overwrite, write_file
    from crosszone.cost import own_profiles

    if output is not None:
        refuse_to_overwrite(output, force)
    read = read_samples(samples, gpu)
    searched = _searched(read) if tune and correction else {}
    chosen = {key: one.best for key, one in searched.items()}
    profile = _fitted(read, fitted_profile, correction, chosen, source)
    if output is not None:
        write_file(output, text_of(profile), force)
    if save is not None:
        own_profiles.save(own_profile(profile, save), replace=force)
    if as_json:
        told = profile.model_dump(mode="json", exclude={"operators": {"__all__": {"correction"}}})
        found = {key: _search_told(one) for key, one in searched.items()}
        print_json(
            {
                **told,
                "summary": profile.summary(),
                "kept": kept(profile),
                "search": found,
                "output": output and str(output),
                "saved": save,
            }
        )
        return
    _print_profile(profile, kept(profile), searched)
    if output is not None:
        console().print(said("operator_profile_written", path=str(output)), soft_wrap=True)
    if save is not None:
        console().print(said("operator_profile_saved", name=save), soft_wrap=True)


def _fitted(read: Read, make: Any, correction: bool, chosen: dict[str, Settings], source: str) -> OperatorProfile:
    from crosszone.calibrate.operator_profiles import fittable
    from crosszone.cli.progress import progress_bar

    done, total = [0], len(fittable(read))
    with progress_bar() as advance:

        def one_more() -> None:
            done[0] += 1
            if advance is not None:
                advance("operators", done[0], total)

        found: OperatorProfile = make(read, correction=correction, settings=chosen, source=source, progress=one_more)
    return found


def _searched(read: Read) -> dict[str, Search]:
    from crosszone.calibrate.operator_fit import LEAST_FOR_TREES
    from crosszone.calibrate.operator_profiles import fittable
    from crosszone.calibrate.operator_search import GRID, search
    from crosszone.cli.progress import progress_bar

    some = [one for one in fittable(read) if len(one.time_us) >= LEAST_FOR_TREES]
    found: dict[str, Search] = {}
    with progress_bar() as advance:
        done = [0]

        def one_more() -> None:
            done[0] += 1
            if advance is not None:
                advance("settings", done[0], len(some) * len(GRID))

        for one in some:
            found[one.key] = search(one, read.processors, progress=one_more)
    return found


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
    size_bytes: Annotated[float | None, typer.Option("--bytes", min=0.0)] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the time of one operator, with its error; sizes outside of the samples' are flagged.

    Example: crosszone calibrate operator h200 matmul --m 8192 --n 4096 --k 4096
    """
    from crosszone.errors import Notice, UnknownNameError
    from crosszone.inputs.value import nearest

    given = {"m": m, "n": n, "k": k, "groups": groups, "batch": batch, "heads": heads, "kv_heads": kv_heads}
    given |= {"head_dim": head_dim, "seq": seq, "tokens": tokens, "width": width, "vocab": vocab, "params": params}
    given |= {"layers": layers, "bytes": size_bytes}
    profile = _profile(gpu)
    fits = [
        one
        for one in profile.operators.values()
        if one.op == op and one.mode == mode and dtype in (None, one.dtype) and which in (None, one.which)
    ]
    if not fits:
        wanted = " ".join(word for word in (op, dtype, which) if word)
        known = sorted(profile.operators)
        params_ = {"gpu": profile.gpu, "known": known, "nearest": nearest(wanted, known)[:3]}
        raise UnknownNameError(Notice(code="operator_not_fitted", field="op", value=wanted, params=params_))
    sizes = {name: value for name, value in given.items() if value is not None}
    found = [profile.predict(one.op, sizes, dtype=one.dtype, which=one.which, mode=mode) for one in fits]
    notices = [_outside(profile, one, sizes) for one in found if one.outside]
    if as_json:
        told = [
            {
                "operator": one.key,
                "time_us": one.time_us,
                "physical_us": one.physical_us,
                "error_pct": one.error_pct,
                "outside": list(one.outside),
                "ranges": dict(one.ranges),
            }
            for one in found
        ]
        print_json({"gpu": profile.gpu, "sizes": sizes, "times": told, "notices": notices})
        return
    columns = (("operator", "left"), ("operator_time_us", "right"), ("operator_likely_pct", "right"))
    made = table(said("operator_times_title", gpu=profile.gpu), columns)
    for one in found:
        made.add_row(one.key, digits(one.time_us), f"± {one.error_pct:.1f}")
    console().print(made)
    print_notices(notices)


def _profile(gpu: str) -> OperatorProfile:
    from crosszone.cost.operator_profile import operator_profile, operator_profiles, read_operator_profile
    from crosszone.errors import Notice, UnknownNameError
    from crosszone.inputs.catalogue import catalogue
    from crosszone.inputs.value import nearest

    if gpu.endswith((".yaml", ".yml")) or "/" in gpu:
        return read_operator_profile(Path(gpu))
    found = operator_profile(catalogue().gpu(gpu).name)
    if found is None:
        known = operator_profiles()
        params = {"known": known, "nearest": nearest(gpu, known)[:3]}
        raise UnknownNameError(Notice(code="operator_profile_none", field="gpu", value=gpu, params=params))
    return found


def _outside(profile: OperatorProfile, one: OperatorTime, sizes: dict[str, float]) -> dict[str, Any]:
    from crosszone.errors import Notice

    told = ", ".join(f"{n} {sizes.get(n, 1.0):g} ({one.ranges[n][0]:g} - {one.ranges[n][1]:g})" for n in one.outside)
    notice = Notice(code="operator_outside", field=one.key, value=told, params={"gpu": profile.gpu}, level="warning")
    return notice.as_dict(language())
