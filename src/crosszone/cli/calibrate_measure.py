"""`crosszone calibrate collectives`, `links` and `kernels`: time collectives and kernels with a Python that has torch.

`links` fits latency and rate to timed collectives, and puts them into a scenario or an own profile.
"""

from __future__ import annotations

import csv
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import JsonOption, PythonOption, require_choice
from crosszone.cli.output import (
    check_not_existing,
    get_language,
    get_text,
    label,
    localize,
    print_json,
    print_line,
    print_notices,
    print_sections,
    write_file,
)
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.text.figures import format_amount

if TYPE_CHECKING:
    from crosszone.calibrate.collective_apply import MeasuredCluster, ScenarioWithLinks


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
    python: PythonOption = None,
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
    concurrency = measure_concurrency(read.rows)
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
        print_json(
            {
                "rows": len(read.rows),
                "flagged": dict(read.flagged),
                "fits": [fit.as_dict() for fit in fits],
                "too_few_sizes": [asdict(item) for item in few],
                "concurrency": [item.as_dict() for item in concurrency],
                "scenario": None if changed_scenario is None else changed_scenario.as_dict(get_language()),
                "written": None if output is None else str(output),
                "saved": save,
                "collectives": None if measured is None else [item.to_plain() for item in measured.collectives],
                "left_out": [] if measured is None else localize(measured.left_out),
            }
        )
        return

    from crosszone.views.calibration import build_link_changes_section, build_link_fits_section

    print_sections([build_link_fits_section(fits, few, concurrency, read.flagged, get_text())])
    if changed_scenario is not None:
        print_sections([build_link_changes_section(changed_scenario, localize(changed_scenario.notices), get_text())])
        print_line("links_not_written" if output is None else "written", output=str(output))
    if measured is not None:
        print_notices(localize(measured.left_out))
        print_line("collectives_saved", name=save, count=format_amount(len(measured.collectives)))


def _check_sampler_options(
    backend: str, zones: str | None, sizes: str | None, ops: str | None, budget: str
) -> list[str]:
    """Options of the sampler, checked before anything is started."""
    from argparse import ArgumentTypeError

    from crosszone.calibrate.sampling.collectives import OPS, parse_duration, parse_size

    require_choice("--backend", backend, BACKENDS)
    for op in (ops or "").split(",") if ops is not None else ():
        require_choice("--ops", op.strip(), OPS)
    try:
        parse_duration(budget)
        for size in ("4k" if sizes is None else sizes).split(","):
            parse_size(size)
    except ArgumentTypeError as error:
        notice = Notice(code="collectives_option", field="--sizes, --budget", value=None, params={"reason": str(error)})
        raise InvalidError(notice) from None
    options = {"--backend": backend, "--zones": zones, "--sizes": sizes, "--ops": ops, "--budget": budget}
    return [text for key, value in options.items() if value is not None for text in (key, value)]


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
        print_line("written", output=str(script), stderr=bool(lines))
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
    rows, flags = _read_samples(output)
    flagged = dict(sorted(flags.items()))
    if as_json:
        about = {key: rows[0][key] if rows else None for key in ("device", "torch", "backend", "dtype")}
        print_json({"written": str(output), **about, "rows": len(rows), "flagged": flagged, "left_out": left_out})
        return
    print_line("collectives_rows", rows=format_amount(len(rows)), output=str(output))
    for flag, count in flagged.items():
        print_line("links_flagged", flag=flag, rows=format_amount(count))
    for line in left_out:
        print_line("collectives_left_out", reason=line)
    print_line("collectives_next", output=shlex.quote(str(output)))


def _read_samples(path: Path) -> tuple[list[dict[str, str]], Counter[str]]:
    """Rows that a sampler wrote, and how many of them bear each flag."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return rows, Counter(row["flag"] for row in rows if row["flag"])


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
            require_choice(field, word, allowed)
    if gpu not in ("auto", "cpu") and not gpu.isdecimal():
        raise _build_refusal("kernels_gpu", "--gpu", gpu)
    device = f"cuda:{gpu}" if gpu.isdecimal() else gpu
    chosen = ["--device", device, "--budget", budget]
    return [*chosen, *(["--dtypes", dtypes] if dtypes else []), *(["--ops", ops] if ops else [])]


def _build_refusal(code: str, field: str, value: Any, **params: Any) -> Exception:
    return InvalidError(Notice(code=code, field=field, value=value, params=params))


def _write_kernel_script(script: Path, force: bool, as_json: bool) -> None:
    from crosszone.calibrate.sampling.kernel_script import build_kernel_script

    write_file(script, build_kernel_script(), force)
    if as_json:
        print_json({"script": str(script)})
    else:
        print_line("kernels_copy", file=script, stderr=True)


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
    from crosszone.calibrate.sampling.kernel_script import build_kernel_script

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
    # `import torch` would take seconds for each Python that is tried
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        return subprocess.run([python, "-c", ask], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _print_kernel_rows(output: Path, as_json: bool) -> None:
    """How many rows the file now has, and how many of them are flagged."""
    rows, flags = _read_samples(output)
    if as_json:
        ops = Counter(row["op"] for row in rows)
        print_json({"file": str(output), "rows": len(rows), "flags": dict(flags), "ops": dict(ops)})
    else:
        failed, noisy, above = (flags[flag] for flag in ("failed", "noisy", "above_roof"))
        print_line("kernels_done", file=output, rows=len(rows), failed=failed, noisy=noisy, above=above)
