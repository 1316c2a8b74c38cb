"""README of a bundle: what it does, how to start it, what to expect, what every option is for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from crosszone.deploy.bundle import Bundle
from crosszone.deploy.environment import TUNING_FILE as TUNING
from crosszone.deploy.launch import Launch
from crosszone.inputs.frameworks import frameworks
from crosszone.inputs.parameters import parameters
from crosszone.predict.prediction import Triple
from crosszone.text import label, load_texts
from crosszone.text.figures import format_billions, format_digits

MAX_VALUE_LENGTH = 80


def name_framework(framework: str) -> str:
    """What people call a framework; torchft has no abilities of its own to be listed with."""
    entry = frameworks().get(framework)
    return entry.title if entry else framework


def render_readme(launch: Launch, bundle: Bundle) -> str:
    """The page, in the launch's language."""
    language = launch.language
    parts = [
        f"# {_escape_markdown(launch.scenario.name)}: {name_framework(launch.framework)}",
        _describe_plan(launch),
        f"## {label('bundle_start', language)}",
        _describe_start(launch, bundle),
        f"## {label('bundle_expect', language)}",
        _describe_prediction(launch),
        f"## {label('bundle_data', language)}",
        _describe_data(launch),
        f"## {label('bundle_options', language)}",
        _render_options(bundle, language),
        f"## {label('bundle_files', language)}",
        _render_files(bundle, language),
    ]
    warnings = [
        f"- {_escape_markdown(warning['message'])} {_escape_markdown(warning['hint'])}".rstrip()
        for warning in bundle.warnings
    ]
    if warnings:
        parts += [f"## {label('bundle_warnings', language)}", "\n".join(warnings)]
    return "\n\n".join(parts) + "\n"


def _describe_plan(launch: Launch) -> str:
    s, job, model = launch.predictor.strategy, launch.scenario.job, launch.scenario.model
    degrees = ", ".join(
        f"{axis} {getattr(s, axis)}" for axis in ("tp", "pp", "dp", "cp", "ep") if getattr(s, axis) != 1
    )
    params = {
        "model": _escape_markdown(model.name),
        "parameters": format_billions(parameters(model).total),
        "gpus": launch.world_size,
        "nodes": len(launch.nodes),
        "zones": ", ".join(map(_escape_markdown, launch.zones)),
        "degrees": degrees or "dp 1",
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "steps": f"{launch.steps:,}",
    }
    return label("bundle_what", launch.language, **params)


def _describe_start(launch: Launch, bundle: Bundle) -> str:
    language, lines = launch.language, []
    if launch.template:
        lines += [label("bundle_fill", language), _render_code(["python3 fill.py hosts.txt"])]
    lines += [label("bundle_check", language), _render_code(["python3 verify.py"])]
    if any(file.path == TUNING for file in bundle.files):
        lines += [label("bundle_tune", language), _render_code([f"bash {TUNING}", f"sudo bash {TUNING} --apply"])]
    lines += [label(f"bundle_by_{bundle.launcher}", language), _render_code(bundle.how)]
    if launch.framework != "megatron":
        lines += [label("bundle_try", language), _render_code([f"bash {launch.nodes[0].script} --tiny --steps 5"])]
    return "\n\n".join(lines)


def _describe_prediction(launch: Launch) -> str:
    prediction, language = launch.prediction, launch.language
    rows: list[tuple[str, Triple, str]] = [
        (label("bundle_step", language), prediction.step_time_s, "s"),
        (label("bundle_tokens", language), prediction.tokens_per_s, ""),
        (label("bundle_memory", language), prediction.memory_gib.peak, "GiB"),
    ]
    head = ["", *(label(f"bundle_{part}", language) for part in ("low", "expected", "high"))]
    cells = [
        [name, *(f"{format_digits(value)} {unit}".rstrip() for value in _split_triple(triple))]
        for name, triple, unit in rows
    ]
    params = {
        "limit": format_digits(prediction.memory_gib.limit),
        "bottleneck": label(f"class_{prediction.bottleneck}", language),
    }
    return f"{_render_table(head, cells)}\n\n{label('bundle_range', language, **params)}"


def _describe_data(launch: Launch) -> str:
    data, language = launch.settings.data, launch.language
    if launch.framework == "megatron":
        return label("bundle_data_megatron", language)
    source = (
        label("bundle_data_given", language, data=_escape_markdown(data))
        if data
        else label("bundle_data_synthetic", language)
    )
    return f"{source} {label('bundle_data_forms', language)}"


def _render_options(bundle: Bundle, language: str) -> str:
    head = [label(f"bundle_option_{part}", language) for part in ("where", "name", "value", "why")]
    rows = [
        [
            label(f"bundle_{option.where}", language),
            f"`{option.name}`",
            f"`{_format_value(option.value)}`",
            _format_cell(option.why),
        ]
        for option in bundle.options
    ]
    return _render_table(head, rows)


def _render_files(bundle: Bundle, language: str) -> str:
    scripts = sum(file.path.startswith("nodes/") for file in bundle.files)
    rows = [
        [f"`{file.path}`", label(f"bundle_file_{file.path.replace('.', '_').replace('-', '_')}", language)]
        for file in bundle.files
        if not file.path.startswith("nodes/") and _has_label(file.path, language)
    ]
    rows.append([f"`nodes/000.sh` ... ({scripts})", label("bundle_file_nodes", language)])
    head = [label("bundle_file", language), label("bundle_option_why", language)]
    return _render_table(head, rows)


def _has_label(path: str, language: str) -> bool:
    """The file has a line of its own; modules of the trainer stand under train.py."""
    return f"bundle_file_{path.replace('.', '_').replace('-', '_')}" in load_texts(language)["label"]


def _split_triple(triple: Triple) -> tuple[float, float, float]:
    return triple.low, triple.expected, triple.high


def _format_value(value: Any) -> str:
    text = _escape_markdown(str(value)).replace("`", "'")
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 3]}..."


def _escape_markdown(text: Any) -> str:
    """One line of text that Markdown leaves alone."""
    clean = " ".join(str(text).split())
    return "".join(f"\\{char}" if char in "`<>[]|*_" else char for char in clean)


def _format_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _render_code(lines: Sequence[str]) -> str:
    return "\n".join(["```bash", *lines, "```"])
