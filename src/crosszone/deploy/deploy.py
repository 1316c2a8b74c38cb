"""Answer: the bundle of a scenario file, the same for every surface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from crosszone.deploy.bundle import MANIFEST, Bundle, BundleFile, NodeCommand, build_manifest
from crosszone.deploy.environment import ENVIRONMENT_FILE as ENVIRONMENT
from crosszone.deploy.environment import TUNING_FILE as TUNING
from crosszone.deploy.environment import list_variable_options, render_environment, render_tuning
from crosszone.deploy.frameworks import FRAMEWORKS, load_framework
from crosszone.deploy.launch import BuildCommand, Launch, Node, build_node_files, build_refusal, list_nodes
from crosszone.deploy.launchers import LAUNCHERS, LauncherFunctions, load_launcher
from crosszone.deploy.settings import LaunchSettings
from crosszone.deploy.shell import format_command
from crosszone.deploy.trainer_files import SETTINGS_FILE as PROGRAM
from crosszone.deploy.trainer_files import collect_trainer_files, read_trainer_file, render_trainer_settings
from crosszone.errors import InputError, InvalidError, Notice, build_choice_error
from crosszone.inputs.frameworks import load_frameworks, resolve_framework_name
from crosszone.inputs.parameters import parameters
from crosszone.inputs.scenario import Loaded
from crosszone.plan.plan import Plans, apply_plan
from crosszone.plan.planner import plan, select_best
from crosszone.predict.answer import answer as predict_answer
from crosszone.predict.prediction import Triple
from crosszone.predict.predictor import Predictor
from crosszone.text import DEFAULT_LANGUAGE, label, load_texts
from crosszone.text.figures import format_billions, format_digits

TORCHFT, NO_LAUNCHER = "torchft", "nodes"


def build_bundle(
    loaded: Loaded,
    language: str = DEFAULT_LANGUAGE,
    *,
    framework: str | None = None,
    launcher: str = NO_LAUNCHER,
    settings: LaunchSettings | None = None,
    template: bool = False,
    **plan_options: Any,
) -> Bundle:
    """The bundle of a scenario that was read from a file; without a strategy, of its best plan.

    `framework`: null: the plan's own. `template`: addresses that are missing are marked, to be filled in later.
    """
    if framework is not None:
        framework = _require_one_of("--framework", resolve_framework_name(framework), FRAMEWORKS)
    launcher_module = load_launcher(_require_one_of("--launcher", launcher, LAUNCHERS))
    loaded_plan = _apply_best_plan(loaded, framework, plan_options)
    answer = predict_answer(loaded_plan, language)
    plan_framework = answer.predictor.framework.name
    nodes = _list_launch_nodes(answer.predictor, launcher_module, template)
    launch = Launch(
        scenario=loaded_plan.scenario.replace(
            job=loaded_plan.scenario.job.replace(framework=plan_framework),
            strategy=answer.predictor.strategy,
            placement=answer.predictor.placed.placement,
        ),
        predictor=answer.predictor,
        prediction=answer.prediction,
        framework=framework or plan_framework,
        settings=settings or LaunchSettings(),
        nodes=nodes,
        language=language,
        template=any((node.address or "").startswith("@") for node in nodes),
    )
    if launcher_module.needs_addresses and len(launch.nodes) > 1:
        launch.require_addresses(label("launch_by_hand", language) if launcher == NO_LAUNCHER else launcher)
    if framework is not None or answer.predictor.strategy.local_update is None:
        return assemble_bundle(launch, launcher)
    return _build_local_update_bundle(launch, launcher)


def _require_trainable(launch: Launch) -> None:
    """Refuse models that can be predicted but that no bundle trains."""
    model = launch.scenario.model
    if model.pattern is not None:
        raise build_refusal("bundle_hybrid", "model.pattern", model.name)
    if launch.framework == MEGATRON:
        return
    if model.mtp_layers:
        raise build_refusal("bundle_mtp", "model.mtp_layers", model.mtp_layers, framework=launch.framework)
    if model.moe and model.moe.latent:
        raise build_refusal("bundle_latent", "model.moe.latent", model.moe.latent, framework=launch.framework)


MEGATRON = "megatron"  # The framework whose own model a bundle trains; the others train that of the bundle


def _build_local_update_bundle(launch: Launch, launcher: str) -> Bundle:
    """By torchft, which recovers a lost zone and exchanges in the background; where it cannot do this plan, the
    framework's own trainer averages, and a note says why.
    """
    try:
        return assemble_bundle(replace(launch, framework=TORCHFT), launcher)
    except InputError as error:
        reason = error.notices[0].message(launch.language)
        note = Notice(code="torchft_cannot", level="note", params={"reason": reason, "framework": launch.framework})
    return assemble_bundle(launch, launcher, note)


def assemble_bundle(launch: Launch, launcher: str, *notes: Notice) -> Bundle:
    """All files of a launch; `notes`: what was decided on the way."""
    _require_trainable(launch)
    framework, launcher_module = load_framework(launch.framework), load_launcher(launcher)
    options = (*framework.build_options(launch), *list_variable_options(launch))
    files = {
        "plan.yaml": launch.scenario.to_yaml(),
        PROGRAM: render_trainer_settings(launch),
        ENVIRONMENT: render_environment(launch, options),
        "verify.py": read_trainer_file("verify.py"),
        **build_node_files(launch, framework.build_command),
        **collect_trainer_files(launch.framework),
        **framework.build_files(launch),
        **launcher_module.build_files(launch),
    }
    tuning = render_tuning(launch)
    if tuning is not None:
        files[TUNING] = tuning
    if launch.template:
        files["fill.py"] = read_trainer_file("fill.py")
        files["hosts.txt"] = _render_hosts(launch)
    unsigned = Bundle(
        name=launch.scenario.name,
        framework=launch.framework,
        launcher=launcher,
        template=launch.template,
        world_size=launch.world_size,
        port=launch.settings.port,
        nodes=tuple(_build_node_command(launch, node, framework.build_command) for node in launch.nodes),
        how=launcher_module.list_start_commands(launch),
        options=options,
        files=tuple(BundleFile(path=path, text=text) for path, text in sorted(files.items())),
        warnings=(*launch.prediction.warnings, *(note.as_dict(launch.language) for note in notes)),
    )
    readme_file = BundleFile(path="README.md", text=render_readme(launch, unsigned))
    with_readme = unsigned.replace(files=(readme_file, *unsigned.files))
    return with_readme.replace(files=(*with_readme.files, BundleFile(path=MANIFEST, text=build_manifest(with_readme))))


def _list_launch_nodes(predictor: Predictor, launcher_module: LauncherFunctions, template: bool) -> tuple[Node, ...]:
    """The machines; where a launcher places nodes as it likes, none has an address yet."""
    nodes = list_nodes(predictor)
    if launcher_module.places_nodes(nodes):
        return tuple(replace(node, address=None, interface=None) for node in nodes)
    return list_nodes(predictor, template=template)


def _require_one_of(field: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise build_choice_error(field, value, allowed)
    return value


def _apply_best_plan(loaded: Loaded, framework: str | None, plan_options: dict[str, Any]) -> Loaded:
    """The scenario on the framework that was asked for, with its best plan where it has no strategy."""
    scenario = loaded.scenario
    if framework is not None and framework != TORCHFT:
        scenario = scenario.replace(job=scenario.job.replace(framework=framework))
    if scenario.strategy is not None:
        return loaded._replace(scenario=scenario)
    with loaded.document.place_errors():
        plans = plan(scenario, top=1, **plan_options)
    best = _select_local_update(plans) if framework == TORCHFT else select_best(plans)
    return loaded._replace(scenario=apply_plan(scenario, best))


def _select_local_update(plans: Plans) -> Any:
    if not plans.local_updates:
        raise InvalidError(Notice(code="torchft_without_local_update", field="strategy.local_update"))
    return plans.local_updates[0]


def _build_node_command(launch: Launch, node: Node, command: BuildCommand) -> NodeCommand:
    commands = [command(launch, agent) for agent in node.agents]
    return NodeCommand(
        number=node.number,
        name=node.name,
        zone=node.zone,
        address=node.address,
        interface=node.interface,
        ranks=tuple(agent.span for agent in node.agents),
        script=node.script,
        commands=tuple(format_command(words) for words in commands if words is not None),
    )


def _render_hosts(launch: Launch) -> str:
    """The list to fill in: one line a node."""
    lines = ["# node  address  interface (or - to find it at the start)   name, zone"]
    for node in launch.nodes:
        address = "" if node.address is None or node.address.startswith("@") else node.address
        lines.append(f"{node.number:03d}  {address or '?'}  {node.interface or '-'}   # {node.name}, {node.zone}")
    return "\n".join(lines) + "\n"


# ---- README of the bundle ----


MAX_VALUE_LENGTH = 80


def name_framework(framework: str) -> str:
    """What people call a framework; torchft has no abilities of its own to be listed with."""
    entry = load_frameworks().get(framework)
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
    parts = ("low", "expected", "high")
    head = ["", *(label(f"bundle_{part}", language) for part in parts)]
    cells = [
        [name, *(f"{format_digits(getattr(triple, part))} {unit}".rstrip() for part in parts)]
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
    labels = load_texts(language)["label"]
    keys = {file.path: f"bundle_file_{file.path.replace('.', '_').replace('-', '_')}" for file in bundle.files}
    # Modules of the trainer and the scripts in nodes/ have no label of their own.
    rows = [[f"`{path}`", label(key, language)] for path, key in keys.items() if key in labels]
    rows.append([f"`nodes/000.sh` ... ({scripts})", label("bundle_file_nodes", language)])
    head = [label("bundle_file", language), label("bundle_option_why", language)]
    return _render_table(head, rows)


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
