"""README of a bundle: what it does, how to start it, what to expect, what every option is for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from crosszone.deploy.bundle import Bundle
from crosszone.deploy.launch import Launch
from crosszone.deploy.tuning import FILE as TUNING
from crosszone.inputs.frameworks import frameworks
from crosszone.inputs.parameters import parameters
from crosszone.predict.prediction import Triple
from crosszone.text import label, texts
from crosszone.text.figures import billions, digits

LONGEST_VALUE = 80


def name_framework(framework: str) -> str:
    """What people call a framework; torchft has no abilities of its own to be listed with."""
    known = frameworks().get(framework)
    return known.title if known else framework


def readme(launch: Launch, bundle: Bundle) -> str:
    """The page, in the launch's language."""
    words = launch.language
    parts = [
        f"# {_plain(launch.scenario.name)}: {name_framework(launch.framework)}",
        _what(launch),
        f"## {label('bundle_start', words)}",
        _start(launch, bundle),
        f"## {label('bundle_expect', words)}",
        _expected(launch),
        f"## {label('bundle_data', words)}",
        _data(launch),
        f"## {label('bundle_options', words)}",
        _options(bundle, words),
        f"## {label('bundle_files', words)}",
        _files(bundle, words),
    ]
    told = [f"- {_plain(one['message'])} {_plain(one['hint'])}".rstrip() for one in bundle.warnings]
    if told:
        parts += [f"## {label('bundle_warnings', words)}", "\n".join(told)]
    return "\n\n".join(parts) + "\n"


def _what(launch: Launch) -> str:
    s, job, model = launch.predictor.strategy, launch.scenario.job, launch.scenario.model
    degrees = ", ".join(
        f"{axis} {getattr(s, axis)}" for axis in ("tp", "pp", "dp", "cp", "ep") if getattr(s, axis) != 1
    )
    told = {
        "model": _plain(model.name),
        "parameters": billions(parameters(model).total),
        "gpus": launch.world_size,
        "nodes": len(launch.nodes),
        "zones": ", ".join(map(_plain, launch.zones)),
        "degrees": degrees or "dp 1",
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "steps": f"{launch.steps:,}",
    }
    return label("bundle_what", launch.language, **told)


def _start(launch: Launch, bundle: Bundle) -> str:
    words, lines = launch.language, []
    if launch.template:
        lines += [label("bundle_fill", words), _code(["python3 fill.py hosts.txt"])]
    lines += [label("bundle_check", words), _code(["python3 verify.py"])]
    if any(one.path == TUNING for one in bundle.files):
        lines += [label("bundle_tune", words), _code([f"bash {TUNING}", f"sudo bash {TUNING} --apply"])]
    lines += [label(f"bundle_by_{bundle.launcher}", words), _code(bundle.how)]
    if launch.framework != "megatron":
        lines += [label("bundle_try", words), _code([f"bash {launch.nodes[0].script} --tiny --steps 5"])]
    return "\n\n".join(lines)


def _expected(launch: Launch) -> str:
    found, words = launch.prediction, launch.language
    rows: list[tuple[str, Triple, str]] = [
        (label("bundle_step", words), found.step_time_s, "s"),
        (label("bundle_tokens", words), found.tokens_per_s, ""),
        (label("bundle_memory", words), found.memory_gib.peak, "GiB"),
    ]
    head = ["", *(label(f"bundle_{part}", words) for part in ("low", "expected", "high"))]
    cells = [[name, *(f"{digits(value)} {unit}".rstrip() for value in _three(triple))] for name, triple, unit in rows]
    told = {"limit": digits(found.memory_gib.limit), "bottleneck": label(f"class_{found.bottleneck}", words)}
    return f"{_table(head, cells)}\n\n{label('bundle_range', words, **told)}"


def _data(launch: Launch) -> str:
    data, words = launch.settings.data, launch.language
    if launch.framework == "megatron":
        return label("bundle_data_megatron", words)
    known = label("bundle_data_given", words, data=_plain(data)) if data else label("bundle_data_synthetic", words)
    return f"{known} {label('bundle_data_forms', words)}"


def _options(bundle: Bundle, words: str) -> str:
    head = [label(f"bundle_option_{part}", words) for part in ("where", "name", "value", "why")]
    rows = [
        [label(f"bundle_{one.where}", words), f"`{one.name}`", f"`{_value(one.value)}`", _cell(one.why)]
        for one in bundle.options
    ]
    return _table(head, rows)


def _files(bundle: Bundle, words: str) -> str:
    scripts = sum(one.path.startswith("nodes/") for one in bundle.files)
    rows = [
        [f"`{one.path}`", label(f"bundle_file_{one.path.replace('.', '_').replace('-', '_')}", words)]
        for one in bundle.files
        if not one.path.startswith("nodes/") and _known(one.path, words)
    ]
    rows.append([f"`nodes/000.sh` ... ({scripts})", label("bundle_file_nodes", words)])
    head = [label("bundle_file", words), label("bundle_option_why", words)]
    return _table(head, rows)


def _known(path: str, words: str) -> bool:
    """The file has a line of its own; modules of the trainer stand under train.py."""
    return f"bundle_file_{path.replace('.', '_').replace('-', '_')}" in texts(words)["label"]


def _three(triple: Triple) -> tuple[float, float, float]:
    return triple.low, triple.expected, triple.high


def _value(value: Any) -> str:
    text = _plain(str(value)).replace("`", "'")
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def _plain(text: Any) -> str:
    """One line of text that Markdown leaves alone."""
    clean = " ".join(str(text).split())
    return "".join(f"\\{char}" if char in "`<>[]|*_" else char for char in clean)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _code(lines: Sequence[str]) -> str:
    return "\n".join(["```bash", *lines, "```"])
