"""Answer: the bundle of a scenario file, the same for every surface."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from crosszone.deploy.bundle import MANIFEST, Bundle, BundleFile, NodeCommand, manifest
from crosszone.deploy.environment import FILE as ENVIRONMENT
from crosszone.deploy.environment import environment_text, variables_of
from crosszone.deploy.frameworks import FRAMEWORKS, load_framework
from crosszone.deploy.launch import Command, Launch, Node, list_nodes, node_files
from crosszone.deploy.launchers import LAUNCHERS, Launcher, load_launcher
from crosszone.deploy.program import FILE as PROGRAM
from crosszone.deploy.program import program_text
from crosszone.deploy.readme import readme
from crosszone.deploy.settings import LaunchSettings
from crosszone.deploy.shell import command_line
from crosszone.deploy.trainer_files import shipped, trainer_files
from crosszone.deploy.tuning import FILE as TUNING
from crosszone.deploy.tuning import tuning_text
from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.frameworks import framework_of_alias
from crosszone.inputs.scenario import Loaded
from crosszone.plan.plan import Plans, apply_plan
from crosszone.plan.planner import plan, select_best
from crosszone.predict.answer import answer as predicted
from crosszone.predict.predictor import Predictor
from crosszone.text import DEFAULT_LANGUAGE, label

TORCHFT, BY_HAND = "torchft", "nodes"


def build_bundle(
    loaded: Loaded,
    language: str = DEFAULT_LANGUAGE,
    *,
    framework: str | None = None,
    launcher: str = BY_HAND,
    settings: LaunchSettings | None = None,
    template: bool = False,
    **watched: Any,
) -> Bundle:
    """The bundle of a scenario that was read from a file; without a strategy, of its best plan.

    `framework`: null: the plan's own. `template`: addresses that are missing are marked, to be filled in later.
    """
    wanted = None if framework is None else _one_of("--framework", framework_of_alias(framework), FRAMEWORKS)
    started_by = load_launcher(_one_of("--launcher", launcher, LAUNCHERS))
    planned = _planned(loaded, wanted, watched)
    found = predicted(planned, language)
    own = found.predictor.framework.name
    nodes = _nodes(found.predictor, started_by, template)
    launch = Launch(
        scenario=planned.scenario.replace(
            job=planned.scenario.job.replace(framework=own),
            strategy=found.predictor.strategy,
            placement=found.predictor.site.placement,
        ),
        predictor=found.predictor,
        prediction=found.prediction,
        framework=wanted or own,
        settings=settings or LaunchSettings(),
        nodes=nodes,
        language=language,
        template=any((node.address or "").startswith("@") for node in nodes),
    )
    if started_by.needs_addresses and len(launch.nodes) > 1:
        launch.require_addresses(label("launch_by_hand", language) if launcher == BY_HAND else launcher)
    if wanted is not None or found.predictor.strategy.local_update is None:
        return assemble_bundle(launch, launcher)
    return _of_local_updates(launch, launcher)


def _of_local_updates(launch: Launch, launcher: str) -> Bundle:
    """By torchft, which recovers a lost zone and exchanges in the background; where it cannot do this plan, the
    framework's own trainer averages, and a note says why.
    """
    try:
        return assemble_bundle(replace(launch, framework=TORCHFT), launcher)
    except InputError as error:
        told = error.notices[0].message(launch.language)
        note = Notice(code="torchft_cannot", level="note", params={"reason": told, "framework": launch.framework})
    return assemble_bundle(launch, launcher, note)


def assemble_bundle(launch: Launch, launcher: str, *notes: Notice) -> Bundle:
    """All files of a launch; `notes`: what was decided on the way."""
    framework, started_by = load_framework(launch.framework), load_launcher(launcher)
    options = (*framework.options(launch), *variables_of(launch))
    files = {
        "plan.yaml": launch.scenario.to_yaml(),
        PROGRAM: program_text(launch),
        ENVIRONMENT: environment_text(launch, options),
        "verify.py": shipped("verify.py"),
        **node_files(launch, framework.command),
        **trainer_files(launch.framework),
        **framework.files(launch),
        **started_by.files(launch),
    }
    tuning = tuning_text(launch)
    if tuning is not None:
        files[TUNING] = tuning
    if launch.template:
        files["fill.py"] = shipped("fill.py")
        files["hosts.txt"] = _hosts(launch)
    made = Bundle(
        name=launch.scenario.name,
        framework=launch.framework,
        launcher=launcher,
        template=launch.template,
        world_size=launch.world_size,
        port=launch.settings.port,
        nodes=tuple(_command(launch, node, framework.command) for node in launch.nodes),
        how=started_by.how(launch),
        options=options,
        files=tuple(BundleFile(path=path, text=text) for path, text in sorted(files.items())),
        warnings=(*launch.prediction.warnings, *(note.as_dict(launch.language) for note in notes)),
    )
    about = BundleFile(path="README.md", text=readme(launch, made))
    whole = made.replace(files=(about, *made.files))
    return whole.replace(files=(*whole.files, BundleFile(path=MANIFEST, text=manifest(whole))))


def _nodes(predictor: Predictor, started_by: Launcher, template: bool) -> tuple[Node, ...]:
    """The machines; where a launcher places nodes as it likes, none has an address yet."""
    known = list_nodes(predictor)
    if started_by.places_nodes(known):
        return tuple(replace(node, address=None, interface=None) for node in known)
    return list_nodes(predictor, template=template)


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        params = {"allowed": list(allowed), "nearest": allowed[0]}
        raise InvalidError(Notice(code="not_one_of", field=field, value=value, params=params))
    return value


def _planned(loaded: Loaded, framework: str | None, watched: dict[str, Any]) -> Loaded:
    """The scenario on the framework that was asked for, with its best plan where it has no strategy."""
    scenario = loaded.scenario
    if framework is not None and framework != TORCHFT:
        scenario = scenario.replace(job=scenario.job.replace(framework=framework))
    if scenario.strategy is not None:
        return loaded._replace(scenario=scenario)
    try:
        found = plan(scenario, top=1, **watched)
    except InputError as error:
        raise type(error)(*map(loaded.document.placed, error.notices)) from None
    best = _best_local_update(found) if framework == TORCHFT else select_best(found)
    return loaded._replace(scenario=apply_plan(scenario, best))


def _best_local_update(found: Plans) -> Any:
    if not found.local_updates:
        raise InvalidError(Notice(code="torchft_without_local_update", field="strategy.local_update"))
    return found.local_updates[0]


def _command(launch: Launch, node: Node, command: Command) -> NodeCommand:
    made = [command(launch, agent) for agent in node.agents]
    return NodeCommand(
        number=node.number,
        name=node.name,
        zone=node.zone,
        address=node.address,
        interface=node.interface,
        ranks=tuple(agent.span for agent in node.agents),
        script=node.script,
        commands=tuple(command_line(words) for words in made if words is not None),
    )


def _hosts(launch: Launch) -> str:
    """The list to fill in: one line a node."""
    lines = ["# node  address  interface (or - to find it at the start)   name, zone"]
    for node in launch.nodes:
        known = "" if node.address is None or node.address.startswith("@") else node.address
        lines.append(f"{node.number:03d}  {known or '?'}  {node.interface or '-'}   # {node.name}, {node.zone}")
    return "\n".join(lines) + "\n"
