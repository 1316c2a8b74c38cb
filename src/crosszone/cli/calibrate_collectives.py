"""`crosszone calibrate collectives` and `calibrate links`: time collectives, and put what they show into a scenario."""

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

from crosszone.cli.output import amount, console, language, print_json, print_notices, said, table
from crosszone.errors import InvalidError, MachineError, Notice

if TYPE_CHECKING:
    from crosszone.calibrate.collective_apply import MeasuredCluster, ScenarioWithLinks
    from crosszone.calibrate.collective_fit import Concurrency, LinkFit, Topology

PORT = 29500
SCRIPT = "collectives.py"
BACKENDS = ("auto", "nccl", "gloo")
TORCH_WAIT_S = 120
ASK = "import torch; print(torch.__version__, torch.cuda.device_count())"
LEFT_OUT = "collectives: left out "

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite the output.")]


def collectives(
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
    from crosszone.cli.files import refuse_to_overwrite, write_file

    began = time.time()
    asked = _asked(backend, zones, sizes, ops, budget)
    if script is not None:
        write_file(script, _sampler(), force)
    if nodes is not None:
        lines = _node_lines(nodes, nproc, master, [str(script or SCRIPT), "-o", str(output), *asked], python)
        _print_lines(lines, script, as_json)
        return
    if script is not None:
        _print_lines([], script, as_json)
        return
    refuse_to_overwrite(output, force)
    interpreter = python or sys.executable
    count = _processes(interpreter, backend) if nproc is None else nproc
    if nproc is not None:
        _torch(interpreter)
    names = [] if zones is None else zones.split(",")
    if zones is not None and (len(names) not in (1, count) or any(set("> ") & set(one) or not one for one in names)):
        raise InvalidError(Notice(code="collectives_zones", field="--zones", value=zones, params={"count": count}))
    told = _run(interpreter, count, output, [*asked, *(["--force"] if force else [])], as_json, began)
    _show_run(output, told, as_json)


def links(
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
    from crosszone.cli.files import refuse_to_overwrite, write_file
    from crosszone.cost import own_profiles
    from crosszone.inputs.catalogue import catalogue
    from crosszone.inputs.document import read_text

    if output is not None and scenario is None:
        raise InvalidError(Notice(code="links_scenario_needed", field="--output", value=str(output)))
    if output is not None:
        refuse_to_overwrite(output, force)
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
    told: ScenarioWithLinks | None = None
    if scenario is not None:
        name = "<stdin>" if scenario == "-" else scenario
        place = None if output is None else str(output)
        told = apply_link_figures(
            read_text(scenario), name, derive_link_figures(fits), zone=zone, output=place, cpu_for_gpus=cpu_for_gpus
        )
    made: MeasuredCluster | None = None
    if save is not None:
        made = measure_collectives(read.rows, gpu=catalogue().gpu(gpu or "").name, cpu_for_gpus=cpu_for_gpus)
        source = f"collectives: {samples.name}" + (f", {cluster}" if cluster else "")
        own_profiles.save(build_collective_profile(save, made.collectives, source), replace=force, add=add)
    if told is not None and output is not None:
        write_file(output, told.text, force)
    if as_json:
        document = _document(len(read.rows), read.flagged, fits, few, together, told, output)
        kept = None if made is None else [one.to_plain() for one in made.collectives]
        left_out = [] if made is None else [one.as_dict(language()) for one in made.left_out]
        print_json({**document, "saved": save, "collectives": kept, "left_out": left_out})
        return
    _show_fits(fits, few, together, read.flagged)
    if told is not None:
        _show_changes(told, output)
    if made is not None:
        print_notices([one.as_dict(language()) for one in made.left_out])
        console().print(said("collectives_saved", name=save, count=amount(len(made.collectives))), soft_wrap=True)


def _asked(backend: str, zones: str | None, sizes: str | None, ops: str | None, budget: str) -> list[str]:
    """Options of the sampler, checked before anything is started."""
    from argparse import ArgumentTypeError

    from crosszone.calibrate.sampling.collectives import OPS, parse_duration, parse_size

    _one_of("--backend", backend, BACKENDS)
    for op in (ops or "").split(",") if ops is not None else ():
        _one_of("--ops", op.strip(), OPS)
    try:
        parse_duration(budget)
        for one in ("4k" if sizes is None else sizes).split(","):
            parse_size(one)
    except ArgumentTypeError as error:
        notice = Notice(code="collectives_option", field="--sizes, --budget", value=None, params={"reason": str(error)})
        raise InvalidError(notice) from None
    given = {"--backend": backend, "--zones": zones, "--sizes": sizes, "--ops": ops, "--budget": budget}
    return [text for key, value in given.items() if value is not None for text in (key, value)]


def _one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        from crosszone.calibrate.user_files import build_choice_error

        raise build_choice_error(option, value, allowed)


def _sampler() -> str:
    return files("crosszone.calibrate.sampling").joinpath(SCRIPT).read_text("utf-8")


def _torch(python: str) -> int:
    """GPUs that torch sees; `MachineError` where that Python has no torch."""
    try:
        found = subprocess.run([python, "-c", ASK], capture_output=True, text=True, timeout=TORCH_WAIT_S, check=False)
    except (OSError, subprocess.SubprocessError, ValueError):
        found = None
    if found is None or found.returncode:
        raise MachineError(Notice(code="collectives_no_torch", field="--python", value=python))
    return int(found.stdout.split()[-1])


def _processes(python: str, backend: str) -> int:
    """Processes where none were asked for: one a GPU, two on a machine without."""
    gpus = _torch(python)
    if gpus == 1 and backend != "gloo":
        raise InvalidError(Notice(code="collectives_one_gpu", field="--nproc", value=1))
    return gpus if gpus > 1 and backend != "gloo" else 2


def _node_lines(nodes: int, nproc: int | None, master: str | None, program: list[str], python: str | None) -> list[str]:
    if master is None:
        raise InvalidError(Notice(code="collectives_master", field="--master", value=None))
    host, _, port = master.rpartition(":") if master.rpartition(":")[2].isdigit() else (master, "", "")
    start = ["torchrun"] if python is None else [python, "-m", "torch.distributed.run"]
    each = "gpu" if nproc is None else str(nproc)
    meet = ["--nnodes", str(nodes), "--nproc-per-node", each, "--master-addr", host, "--master-port", port or str(PORT)]
    return [shlex.join([*start, *meet, "--node-rank", str(rank), *program]) for rank in range(nodes)]


def _print_lines(lines: list[str], script: Path | None, as_json: bool) -> None:
    if as_json:
        print_json({"script": None if script is None else str(script), "lines": lines})
        return
    if script is not None:
        console(stderr=bool(lines)).print(said("written", output=str(script)), soft_wrap=True)
    for line in lines:
        typer.echo(line)


def _run(python: str, count: int, output: Path, options: list[str], quiet: bool, began: float) -> list[str]:
    """Start the sampler here; gives what it left out and why. Its budget counts from `began`, seconds since 1970."""
    program = str(files("crosszone.calibrate.sampling").joinpath(SCRIPT))
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), program]
    watched = sys.stderr.isatty() and not quiet
    done = subprocess.run(
        [*command, "-o", str(output), *options],
        stdout=sys.stderr if watched else subprocess.DEVNULL,
        stderr=None if watched else subprocess.PIPE,
        text=True,
        errors="replace",
        env={"OMP_NUM_THREADS": "1", **os.environ, "CROSSZONE_BEGAN": str(began)},
        check=False,
    )
    said_lines = (done.stderr or "").splitlines()
    if done.returncode:
        own = [line for line in said_lines if line.startswith("collectives")]
        reason = (own or [line for line in said_lines if "Error" in line] or [f"exit status {done.returncode}"])[-1]
        raise MachineError(Notice(code="collectives_failed", value=count, params={"reason": reason.strip()}))
    return [line.removeprefix(LEFT_OUT) for line in said_lines if line.startswith(LEFT_OUT)]


def _show_run(output: Path, left_out: list[str], as_json: bool) -> None:
    import csv

    with output.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    flags = sorted({row["flag"] for row in rows if row["flag"]})
    flagged = {flag: sum(row["flag"] == flag for row in rows) for flag in flags}
    if as_json:
        about = {key: rows[0][key] if rows else None for key in ("device", "torch", "backend", "dtype")}
        print_json({"written": str(output), **about, "rows": len(rows), "flagged": flagged, "left_out": left_out})
        return
    terminal = console()
    terminal.print(said("collectives_rows", rows=amount(len(rows)), output=str(output)), soft_wrap=True)
    for flag, count in flagged.items():
        terminal.print(said("links_flagged", flag=flag, rows=amount(count)), soft_wrap=True)
    for line in left_out:
        terminal.print(said("collectives_left_out", reason=line), soft_wrap=True)
    terminal.print(said("collectives_next", output=shlex.quote(str(output))), soft_wrap=True)


def _document(
    rows: int,
    flagged: Any,
    fits: Sequence[LinkFit],
    few: Sequence[Topology],
    together: Sequence[Concurrency],
    told: ScenarioWithLinks | None,
    output: Path | None,
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "rows": rows,
        "flagged": dict(flagged),
        "fits": [fit.as_dict() for fit in fits],
        "too_few_sizes": [asdict(one) for one in few],
        "concurrency": [one.as_dict() for one in together],
        "scenario": None if told is None else told.as_dict(language()),
        "written": None if output is None else str(output),
    }


def _show_fits(fits: Sequence[LinkFit], few: Sequence[Topology], together: Sequence[Concurrency], flagged: Any) -> None:
    terminal = console()
    columns: tuple[tuple[str, str], ...] = (
        *(("op", "left"), ("links_where", "left"), ("links_layout", "left"), ("links_groups", "right")),
        *(("rows", "right"), ("links_sizes", "right"), ("links_latency", "right"), ("links_rate", "right")),
        *(("links_error", "right"), ("links_random", "right"), ("links_unseen", "right")),
    )
    shown = table(said("links_fits"), columns, caption=said("links_fits_note"))
    for fit in fits:
        latency = f"{fit.latency_s * 1e6:.4g}" if fit.latency_known else said("links_unknown")
        rate = f"{fit.bytes_per_s / 1e9:.4g}" if fit.rate_known and fit.bytes_per_s else said("links_unknown")
        sizes = f"{_bytes(fit.low_bytes)} - {_bytes(fit.high_bytes)}"
        errors = (_pct(fit.error_pct), _pct(fit.random_pct), _pct(fit.unseen_pct))
        shown.add_row(*_place(fit.where), amount(fit.rows), sizes, latency, rate, *errors)
    terminal.print(shown)
    if together:
        columns = (*columns[:4], ("links_sizes_count", "right"), ("links_factor", "right"), ("links_range", "right"))
        shown = table(said("links_together"), columns)
        for one in together:
            band = f"{one.low:.2f} - {one.high:.2f}"
            shown.add_row(*_place(one.where), amount(one.sizes), f"{one.factor:.2f}", band)
        terminal.print(shown)
    for flag, count in flagged.items():
        terminal.print(said("links_flagged", flag=flag, rows=amount(count)), soft_wrap=True)
    if few:
        terminal.print(said("links_few", count=amount(len(few))), soft_wrap=True)


def _place(where: Topology) -> tuple[str, str, str, str]:
    name = " ".join(one for one in (where.cluster, where.scope, where.zone, where.size_class) if one)
    return where.op, name, f"{where.nodes} x {where.gpus_per_node}", amount(where.groups)


def _show_changes(told: ScenarioWithLinks, output: Path | None) -> None:
    columns = (("links_field", "left"), ("links_before", "right"), ("links_after", "right"), ("links_unit", "left"))
    shown = table(said("links_changes"), (*columns, ("op", "left")))
    for change in told.changes:
        before = "-" if change.before is None else amount(change.before)
        shown.add_row(change.field, before, amount(change.after), change.unit, change.from_op)
    console().print(shown)
    print_notices([notice.as_dict(language()) for notice in told.notices])
    if output is not None:
        console().print(said("written", output=str(output)), soft_wrap=True)
    else:
        console().print(said("links_not_written"), soft_wrap=True)


def _pct(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
