"""`crosszone calibrate collectives`, `links` and `kernels`: time collectives and kernels with a Python that has torch.

`links` fits latency and rate to timed collectives, and puts them into a scenario or an own profile.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import JsonOption
from crosszone.cli.output import (
    build_table,
    check_not_existing,
    get_language,
    label,
    open_console,
    print_json,
    print_notices,
    write_file,
)
from crosszone.errors import InvalidError, MachineError, Notice, build_choice_error
from crosszone.text.figures import format_amount

if TYPE_CHECKING:
    from crosszone.calibrate.collective_apply import MeasuredCluster, ScenarioWithLinks
    from crosszone.calibrate.collective_fit import Concurrency, LinkFit, Topology


PORT = 29500
COLLECTIVES_SCRIPT = "collectives.py"
BACKENDS = ("auto", "nccl", "gloo")
TORCH_WAIT_S = 120
TORCH_PROBE = "import torch; print(torch.__version__, torch.cuda.device_count())"
LEFT_OUT = "collectives: left out "

ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite the output.")]


def measure_collectives(
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV file to write.")] = Path("collectives.csv"),
    nproc: Annotated[
        int | None, typer.Option(help="Processes of a node; default: one a GPU, two without GPUs.", min=1, max=1024)
    ] = None,
    python: Annotated[str | None, typer.Option(metavar="PATH", help="Python with torch; default: this one.")] = None,
    backend: Annotated[str, typer.Option(help="auto, nccl or gloo.")] = "auto",
    zones: Annotated[
        str | None, typer.Option(help="Zone of every node, in order (or of every process), e.g. a,a,b,b.")
    ] = None,
    sizes: Annotated[str | None, typer.Option(help="Sizes, e.g. 4k,1m,64m; default: 4 KiB to 1 GiB.")] = None,
    ops: Annotated[str | None, typer.Option(help="Only these, e.g. all_reduce,send_recv.")] = None,
    budget: Annotated[str, typer.Option(help="Time to take, e.g. 90s, 5m.")] = "5m",
    nodes: Annotated[
        int | None, typer.Option(help="Print the command of each of so many nodes; nothing is started.", min=1)
    ] = None,
    master: Annotated[str | None, typer.Option(metavar="HOST[:PORT]", help="First node, for --nodes.")] = None,
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only write the sampler there: one file that needs torch.")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Time all-reduce, all-gather, reduce-scatter, all-to-all and messages: one group alone, then all at once.

    Inside a node, between nodes, and between zones (--zones). One machine: started here. Several nodes: --script writes
    the sampler to copy, --nodes prints the line to type on each. Then `crosszone calibrate links` fits what it wrote.

    Example: crosszone calibrate collectives --python .venv-train/bin/python --nproc 4 --zones a,a,b,b --budget 1m
    """
    began = time.time()
    options = _check_sampler_options(backend, zones, sizes, ops, budget)
    if script is not None:
        write_file(script, _read_sampler(), force)
    if nodes is not None:
        lines = _build_node_commands(
            nodes, nproc, master, [str(script or COLLECTIVES_SCRIPT), "-o", str(output), *options], python
        )
        _print_commands(lines, script, as_json)
        return
    if script is not None:
        _print_commands([], script, as_json)
        return
    check_not_existing(output, force)
    interpreter = python or sys.executable
    count = _choose_process_count(interpreter, backend) if nproc is None else nproc
    if nproc is not None:
        _count_torch_gpus(interpreter)
    names = [] if zones is None else zones.split(",")
    if zones is not None and (len(names) not in (1, count) or any(set("> ") & set(name) or not name for name in names)):
        raise InvalidError(Notice(code="collectives_zones", field="--zones", value=zones, params={"count": count}))
    left_out = _run_collectives(interpreter, count, output, [*options, *(["--force"] if force else [])], as_json, began)
    _print_collective_run(output, left_out, as_json)


def measure_links(
    samples: Annotated[Path, typer.Argument(help="Timed collectives (CSV), as `calibrate collectives` writes them.")],
    scenario: Annotated[
        str | None, typer.Option(help="Scenario whose links take the measured figures; - for standard input.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="New scenario file to write.")] = None,
    zone: Annotated[str | None, typer.Option(help="Zone of the scenario that samples without a zone are of.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Only rows of this cluster, where a file has several.")] = None,
    keep_noisy: Annotated[bool, typer.Option("--keep-noisy", help="Also use rows flagged as noisy.")] = False,
    cpu_for_gpus: Annotated[
        bool, typer.Option("--cpu-for-gpus", help="Take figures measured on CPUs (Gloo) for links of GPUs too.")
    ] = False,
    save: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Keep them as an own profile, which predictions and plans can use."),
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Add them to the own profile of that name.")] = False,
    gpu: Annotated[str | None, typer.Option(help="Catalogue name of the GPUs, for --save.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit latency and rate of links to timed collectives, and put them into a scenario or an own profile.

    Every fit with its error, also for sizes it has not seen, and how much slower a group is when all of its kind run.
    With --scenario: what changes, from what to what; with -o the new scenario is written, its links told as measured.
    With --save: the quiet timings of every op and layout inside a zone become part of an own profile.
    Gloo measures between processes on CPUs: NVLink and NICs of GPUs stay as they are, unless --cpu-for-gpus is given.

    Example: crosszone calibrate links collectives.csv --scenario two-zones.yaml -o measured.yaml
    """
    from crosszone.calibrate.collective_apply import apply_link_figures, build_collective_profile, measure_collectives
    from crosszone.calibrate.collective_fit import derive_link_figures, fit_links, measure_concurrency, read_collectives
    from crosszone.cost import own_profiles
    from crosszone.inputs.catalogue import catalogue
    from crosszone.inputs.document import read_text

    if output is not None and scenario is None:
        raise InvalidError(Notice(code="links_scenario_needed", field="--output", value=str(output)))
    if output is not None:
        check_not_existing(output, force)
    if save is None and (add or gpu is not None):
        raise InvalidError(Notice(code="own_profile_add_unsaved", field="--add" if add else "--gpu"))
    if save is not None:
        own_profiles.check_free(save, replace=force or add)
        if gpu is None:
            raise InvalidError(Notice(code="collectives_gpu_needed", field="--gpu"))
    read = read_collectives(samples, keep_noisy=keep_noisy, cluster=cluster)
    if (scenario is not None or save is not None) and cluster is None and len(read.clusters) > 1:
        names = {"names": list(read.clusters)}
        raise InvalidError(Notice(code="links_several_clusters", field="--cluster", params=names))
    fits, few = fit_links(read.rows)
    together = measure_concurrency(read.rows)
    changed_scenario: ScenarioWithLinks | None = None
    if scenario is not None:
        name = "<stdin>" if scenario == "-" else scenario
        place = None if output is None else str(output)
        changed_scenario = apply_link_figures(
            read_text(scenario), name, derive_link_figures(fits), zone=zone, output=place, cpu_for_gpus=cpu_for_gpus
        )
    measured: MeasuredCluster | None = None
    if save is not None:
        measured = measure_collectives(read.rows, gpu=catalogue().gpu(gpu or "").name, cpu_for_gpus=cpu_for_gpus)
        source = f"collectives: {samples.name}" + (f", {cluster}" if cluster else "")
        own_profiles.save(build_collective_profile(save, measured.collectives, source), replace=force, add=add)
    if changed_scenario is not None and output is not None:
        write_file(output, changed_scenario.text, force)
    if as_json:
        document = _build_links_answer(len(read.rows), read.flagged, fits, few, together, changed_scenario, output)
        saved_collectives = None if measured is None else [item.to_plain() for item in measured.collectives]
        left_out = [] if measured is None else [item.as_dict(get_language()) for item in measured.left_out]
        print_json({**document, "saved": save, "collectives": saved_collectives, "left_out": left_out})
        return
    _print_fits(fits, few, together, read.flagged)
    if changed_scenario is not None:
        _print_changes(changed_scenario, output)
    if measured is not None:
        print_notices([item.as_dict(get_language()) for item in measured.left_out])
        open_console().print(
            label("collectives_saved", name=save, count=format_amount(len(measured.collectives))), soft_wrap=True
        )


def _check_sampler_options(
    backend: str, zones: str | None, sizes: str | None, ops: str | None, budget: str
) -> list[str]:
    """Options of the sampler, checked before anything is started."""
    from argparse import ArgumentTypeError

    from crosszone.calibrate.sampling.collectives import OPS, parse_duration, parse_size

    _require_choice("--backend", backend, BACKENDS)
    for op in (ops or "").split(",") if ops is not None else ():
        _require_choice("--ops", op.strip(), OPS)
    try:
        parse_duration(budget)
        for size in ("4k" if sizes is None else sizes).split(","):
            parse_size(size)
    except ArgumentTypeError as error:
        notice = Notice(code="collectives_option", field="--sizes, --budget", value=None, params={"reason": str(error)})
        raise InvalidError(notice) from None
    options = {"--backend": backend, "--zones": zones, "--sizes": sizes, "--ops": ops, "--budget": budget}
    return [text for key, value in options.items() if value is not None for text in (key, value)]


def _require_choice(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise build_choice_error(option, value, allowed)


def _read_sampler() -> str:
    return files("crosszone.calibrate.sampling").joinpath(COLLECTIVES_SCRIPT).read_text("utf-8")


def _count_torch_gpus(python: str) -> int:
    """GPUs that torch sees; `MachineError` where that Python has no torch."""
    try:
        probe = subprocess.run(
            [python, "-c", TORCH_PROBE], capture_output=True, text=True, timeout=TORCH_WAIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        probe = None
    if probe is None or probe.returncode:
        raise MachineError(Notice(code="collectives_no_torch", field="--python", value=python))
    return int(probe.stdout.split()[-1])


def _choose_process_count(python: str, backend: str) -> int:
    """Processes where none were asked for: one a GPU, two on a machine without."""
    gpus = _count_torch_gpus(python)
    if gpus == 1 and backend != "gloo":
        raise InvalidError(Notice(code="collectives_one_gpu", field="--nproc", value=1))
    # one process has nobody to talk to, and two are enough to try Gloo
    return gpus if gpus > 1 and backend != "gloo" else 2


def _build_node_commands(
    nodes: int, nproc: int | None, master: str | None, program: list[str], python: str | None
) -> list[str]:
    if master is None:
        raise InvalidError(Notice(code="collectives_master", field="--master", value=None))
    host, _, port = master.rpartition(":") if master.rpartition(":")[2].isdigit() else (master, "", "")
    start = ["torchrun"] if python is None else [python, "-m", "torch.distributed.run"]
    processes = "gpu" if nproc is None else str(nproc)
    rendezvous = [
        "--nnodes",
        str(nodes),
        "--nproc-per-node",
        processes,
        "--master-addr",
        host,
        "--master-port",
        port or str(PORT),
    ]
    return [shlex.join([*start, *rendezvous, "--node-rank", str(rank), *program]) for rank in range(nodes)]


def _print_commands(lines: list[str], script: Path | None, as_json: bool) -> None:
    if as_json:
        print_json({"script": None if script is None else str(script), "lines": lines})
        return
    if script is not None:
        open_console(stderr=bool(lines)).print(label("written", output=str(script)), soft_wrap=True)
    for line in lines:
        typer.echo(line)


def _run_collectives(python: str, count: int, output: Path, options: list[str], quiet: bool, began: float) -> list[str]:
    """Start the sampler here; gives what it left out and why. Its budget counts from `began`, seconds since 1970."""
    program = str(files("crosszone.calibrate.sampling").joinpath(COLLECTIVES_SCRIPT))
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), program]
    # the sampler writes its progress to standard output, which --json needs for itself
    shows_progress = sys.stderr.isatty() and not quiet
    done = subprocess.run(
        [*command, "-o", str(output), *options],
        stdout=sys.stderr if shows_progress else subprocess.DEVNULL,
        stderr=None if shows_progress else subprocess.PIPE,
        text=True,
        errors="replace",
        env={"OMP_NUM_THREADS": "1", **os.environ, "CROSSZONE_BEGAN": str(began)},
        check=False,
    )
    messages = (done.stderr or "").splitlines()
    if done.returncode:
        own_lines = [line for line in messages if line.startswith("collectives")]
        reason = (own_lines or [line for line in messages if "Error" in line] or [f"exit status {done.returncode}"])[-1]
        raise MachineError(Notice(code="collectives_failed", value=count, params={"reason": reason.strip()}))
    return [line.removeprefix(LEFT_OUT) for line in messages if line.startswith(LEFT_OUT)]


def _print_collective_run(output: Path, left_out: list[str], as_json: bool) -> None:
    import csv

    with output.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    flags = sorted({row["flag"] for row in rows if row["flag"]})
    flagged = {flag: sum(row["flag"] == flag for row in rows) for flag in flags}
    if as_json:
        about = {key: rows[0][key] if rows else None for key in ("device", "torch", "backend", "dtype")}
        print_json({"written": str(output), **about, "rows": len(rows), "flagged": flagged, "left_out": left_out})
        return
    terminal = open_console()
    terminal.print(label("collectives_rows", rows=format_amount(len(rows)), output=str(output)), soft_wrap=True)
    for flag, count in flagged.items():
        terminal.print(label("links_flagged", flag=flag, rows=format_amount(count)), soft_wrap=True)
    for line in left_out:
        terminal.print(label("collectives_left_out", reason=line), soft_wrap=True)
    terminal.print(label("collectives_next", output=shlex.quote(str(output))), soft_wrap=True)


def _build_links_answer(
    rows: int,
    flagged: Any,
    fits: Sequence[LinkFit],
    few: Sequence[Topology],
    together: Sequence[Concurrency],
    changed_scenario: ScenarioWithLinks | None,
    output: Path | None,
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "rows": rows,
        "flagged": dict(flagged),
        "fits": [fit.as_dict() for fit in fits],
        "too_few_sizes": [asdict(item) for item in few],
        "concurrency": [item.as_dict() for item in together],
        "scenario": None if changed_scenario is None else changed_scenario.as_dict(get_language()),
        "written": None if output is None else str(output),
    }


def _print_fits(
    fits: Sequence[LinkFit], few: Sequence[Topology], together: Sequence[Concurrency], flagged: Any
) -> None:
    terminal = open_console()
    columns: tuple[tuple[str, str], ...] = (
        *(("op", "left"), ("links_where", "left"), ("links_layout", "left"), ("links_groups", "right")),
        *(("rows", "right"), ("links_sizes", "right"), ("links_latency", "right"), ("links_rate", "right")),
        *(("links_error", "right"), ("links_random", "right"), ("links_unseen", "right")),
    )
    rows = build_table(label("links_fits"), columns, caption=label("links_fits_note"))
    for fit in fits:
        latency = f"{fit.latency_s * 1e6:.4g}" if fit.latency_known else label("links_unknown")
        rate = f"{fit.bytes_per_s / 1e9:.4g}" if fit.rate_known and fit.bytes_per_s else label("links_unknown")
        sizes = f"{_format_bytes(fit.low_bytes)} - {_format_bytes(fit.high_bytes)}"
        errors = (_format_pct(fit.error_pct), _format_pct(fit.random_pct), _format_pct(fit.unseen_pct))
        rows.add_row(*_format_layout(fit.where), format_amount(fit.rows), sizes, latency, rate, *errors)
    terminal.print(rows)
    if together:
        columns = (*columns[:4], ("links_sizes_count", "right"), ("links_factor", "right"), ("links_range", "right"))
        rows = build_table(label("links_together"), columns)
        for factor in together:
            band = f"{factor.low:.2f} - {factor.high:.2f}"
            rows.add_row(*_format_layout(factor.where), format_amount(factor.sizes), f"{factor.factor:.2f}", band)
        terminal.print(rows)
    for flag, count in flagged.items():
        terminal.print(label("links_flagged", flag=flag, rows=format_amount(count)), soft_wrap=True)
    if few:
        terminal.print(label("links_few", count=format_amount(len(few))), soft_wrap=True)


def _format_layout(where: Topology) -> tuple[str, str, str, str]:
    name = " ".join(part for part in (where.cluster, where.scope, where.zone, where.size_class) if part)
    return where.op, name, f"{where.nodes} x {where.gpus_per_node}", format_amount(where.groups)


def _print_changes(changed_scenario: ScenarioWithLinks, output: Path | None) -> None:
    columns = (("links_field", "left"), ("links_before", "right"), ("links_after", "right"), ("links_unit", "left"))
    rows = build_table(label("links_changes"), (*columns, ("op", "left")))
    for change in changed_scenario.changes:
        before = "-" if change.before is None else format_amount(change.before)
        rows.add_row(change.field, before, format_amount(change.after), change.unit, change.from_op)
    open_console().print(rows)
    print_notices([notice.as_dict(get_language()) for notice in changed_scenario.notices])
    if output is not None:
        open_console().print(label("written", output=str(output)), soft_wrap=True)
    else:
        open_console().print(label("links_not_written"), soft_wrap=True)


def _format_pct(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _format_bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


# --- kernels

SBATCH = """#!/bin/bash
# {title}
#SBATCH --job-name=crosszone-kernels
#SBATCH --array=1-{parts}
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --time={minutes}
set -eu
sampler=$(mktemp --suffix=.py)
trap 'rm -f "$sampler"' EXIT
cat > "$sampler" <<'END_OF_SAMPLER'
{sampler}END_OF_SAMPLER
{python} "$sampler" {options} --parts {parts} --part "$SLURM_ARRAY_TASK_ID" -o {stem}."$SLURM_ARRAY_TASK_ID".csv
"""
STDERR = 2
MARGIN_MIN = 10  # Minutes a job may start and end in, beside the budget


def measure_kernels(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Samples (CSV) to write; one that has rows is continued.")
    ] = None,
    gpu: Annotated[
        str, typer.Option(help="auto, the number of a GPU, or cpu (tiny shapes: only tries the code).")
    ] = "auto",
    budget: Annotated[
        str, typer.Option(help="Time to spend: 90s, 10m, 1h. Short ones still sample all operators.")
    ] = "10m",
    parts: Annotated[int, typer.Option(help="Shards the points are dealt into.", min=1, max=10_000)] = 1,
    part: Annotated[int, typer.Option(help="The shard to measure, from 1.", min=1, max=10_000)] = 1,
    dtypes: Annotated[str, typer.Option(help="Only these: bf16,fp16,fp8,fp32.")] = "",
    ops: Annotated[str, typer.Option(help="Only these operators: matmul,attention,rmsnorm,...")] = "",
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Python with torch; default: one found here.")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only write the sampler as one file, to copy to a GPU box.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --script.")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Only print a Slurm array job that runs all parts.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Time matmuls, attention, norms, optimizer, whole layers and whole steps on a GPU; one CSV row for each.

    The same command continues a file, and tries again what failed. Shards are concatenated by giving all files to
    `calibrate fit`.

    Example: crosszone calibrate kernels --budget 10m -o samples.csv
    """
    options = _check_kernel_options(gpu, budget, parts, part, dtypes, ops)
    if script is not None:
        _write_kernel_script(script, force, as_json)
    elif output is None:
        raise _build_refusal("kernels_no_output", "--output", None)
    elif slurm:
        _print_slurm(output, options, parts, budget, python, as_json)
    else:
        _run_kernels(output, [*options, "--parts", str(parts), "--part", str(part)], python)
        _print_kernel_rows(output, as_json)


def _check_kernel_options(gpu: str, budget: str, parts: int, part: int, dtypes: str, ops: str) -> list[str]:
    """The sampler's own options; a wrong one is refused before anything starts."""
    from argparse import ArgumentTypeError

    from crosszone.calibrate.sampling.kernel_points import DTYPES, list_operators, parse_duration

    try:
        parse_duration(budget)
    except ArgumentTypeError:
        raise _build_refusal("kernels_budget", "--budget", budget) from None
    if part > parts:
        raise _build_refusal("kernels_part", "--part", part, parts=parts)
    for field, listed, allowed in (("--dtypes", dtypes, DTYPES), ("--ops", ops, list_operators())):
        for word in listed.split(",") if listed else ():
            if word not in allowed:
                raise build_choice_error(field, word, allowed)
    if gpu not in ("auto", "cpu") and not gpu.isdecimal():
        raise _build_refusal("kernels_gpu", "--gpu", gpu)
    device = f"cuda:{gpu}" if gpu.isdecimal() else gpu
    chosen = ["--device", device, "--budget", budget]
    return [*chosen, *(["--dtypes", dtypes] if dtypes else []), *(["--ops", ops] if ops else [])]


def _build_refusal(code: str, field: str, value: Any, **params: Any) -> Exception:
    from crosszone.errors import InvalidError, Notice

    return InvalidError(Notice(code=code, field=field, value=value, params=params))


def _write_kernel_script(script: Path, force: bool, as_json: bool) -> None:
    from crosszone.calibrate.sampling.kernel_script import build_kernel_script

    write_file(script, build_kernel_script(), force)
    if as_json:
        print_json({"script": str(script)})
    else:
        open_console(stderr=True).print(label("kernels_copy", file=script), soft_wrap=True)


def _print_slurm(
    output: Path, options: Sequence[str], parts: int, budget: str, python: str | None, as_json: bool
) -> None:
    from crosszone.calibrate.sampling.kernel_points import parse_duration
    from crosszone.calibrate.sampling.kernel_script import build_kernel_script

    stem = output.with_suffix("")
    text = SBATCH.format(
        title=label("kernels_slurm", stem=shlex.quote(str(stem))),
        parts=parts,
        minutes=int(parse_duration(budget) / 60) + MARGIN_MIN,
        sampler=build_kernel_script(),
        python=shlex.quote(python or "python3"),
        options=shlex.join(options),
        stem=shlex.quote(str(stem)),
    )
    if as_json:
        print_json({"sbatch": text, "files": [f"{stem}.{part}.csv" for part in range(1, parts + 1)]})
    else:
        sys.stdout.write(text)


def _run_kernels(output: Path, options: Sequence[str], python: str | None) -> None:
    """Start the sampler; its progress goes to standard error as it is."""
    import subprocess
    import tempfile

    from crosszone.calibrate.sampling.kernel_script import build_kernel_script
    from crosszone.errors import MachineError, Notice

    chosen = _find_python(python)
    with tempfile.TemporaryDirectory(prefix="crosszone-") as folder:
        # as one file, for a Python with torch need not have CrossZone
        sampler = Path(folder) / "kernels.py"
        sampler.write_text(build_kernel_script(), encoding="utf-8")
        status = subprocess.run([chosen, sampler, *options, "-o", output], stdout=STDERR, check=False).returncode
    if status:
        raise MachineError(Notice(code="kernels_failed", value=status, params={"python": chosen}))


def _find_python(requested: str | None) -> str:
    """A Python that has torch: the one given, else this one, else one found."""
    import os
    import shutil

    from crosszone.errors import MachineError, Notice

    if requested is not None:
        if _has_torch(requested):
            return requested
        raise MachineError(Notice(code="kernels_no_torch", field="--python", value=requested))
    homes = [os.environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    places = [
        sys.executable,
        *(f"{home}/bin/python" for home in homes),
        shutil.which("python3"),
        shutil.which("python"),
    ]
    for python in dict.fromkeys(place for place in places if place):
        if _has_torch(python):
            return python
    raise MachineError(Notice(code="kernels_no_torch_here", value=sys.executable))


def _has_torch(python: str) -> bool:
    import subprocess

    # `import torch` would take seconds for each Python that is tried
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        return subprocess.run([python, "-c", ask], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _print_kernel_rows(output: Path, as_json: bool) -> None:
    """How many rows the file now has, and how many of them are flagged."""
    import csv
    from collections import Counter

    with output.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    flags = Counter(row["flag"] for row in rows if row["flag"])
    if as_json:
        ops = Counter(row["op"] for row in rows)
        print_json({"file": str(output), "rows": len(rows), "flags": dict(flags), "ops": dict(ops)})
    else:
        counts = {"file": output, "rows": len(rows), "failed": flags["failed"], "noisy": flags["noisy"]}
        open_console().print(label("kernels_done", **counts, above=flags["above_roof"]), soft_wrap=True)
