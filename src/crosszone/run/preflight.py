"""Preflight: whether a task can run where it is to run, found out before anything is started there.

    wrong = check(work, environments, machines, links, turn=turn, files=files)
    [notice for notice in wrong if notice.level == "error"]         these stop the launch

Each check says what it looked at, where, and what it found, also when all is well: an event of the task. Machines that
only a scheduler reaches are checked by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from crosszone.errors import Level, MachineError, Notice
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.run import link_checks, machine_checks
from crosszone.run.checks import NeededFile, Outcome, Subject, Turn, Watched, beside
from crosszone.run.machine import Machine
from crosszone.run.trial import Trial, measured_step
from crosszone.run.work import Work


def check(
    work: Work,
    environments: Mapping[str, Environment],
    machines: Mapping[str, Machine],
    links: Iterable[MeasuredLink],
    *,
    turn: Turn,
    files: Iterable[NeededFile] = (),
    fixed_port: int | None = None,
    trial: bool = True,
) -> list[Notice]:
    """Everything that is wrong; each outcome is told to the turn, which also takes the work with what was found out.

    `trial`: also try a step on every machine.
    """
    subject = Subject(
        work=work,
        environments=environments,
        machines={id: Watched(machine=machine, turn=turn) for id, machine in machines.items()},
        links=tuple(links),
        files=tuple(files),
        fixed_port=fixed_port,
    )
    notices = []
    for outcome in _outcomes(subject, turn, trial):
        turn.tell("check", **outcome.to_plain())
        if outcome.notice is not None:
            notices.append(outcome.notice)
    return notices


def _outcomes(subject: Subject, turn: Turn, trial: bool) -> Iterator[Outcome]:
    """All checks, each begun when those before it have been told; what rests on a failed one is left out."""
    for id, one in subject.environments.items():
        if id not in subject.machines:
            notice = Notice(code="environment_scheduled", value=id, params={"runner": one.runner}, level="note")
            yield Outcome(check="reach", environments=(id,), notice=notice)
    if not subject.machines:
        return
    reached, states = machine_checks.reached(subject)
    yield from reached
    if len(states) < len(subject.machines):
        return
    wrong = False
    yield from machine_checks.clocks(subject)
    yield from machine_checks.disks(subject, states)
    for outcome in machine_checks.software(subject, states):
        wrong = wrong or outcome.level == "error"
        yield outcome
    yield from machine_checks.versions(subject, states)
    for outcome in machine_checks.gpus(subject, states):
        wrong = wrong or outcome.level == "error"
        yield outcome
    yield from machine_checks.data(subject)
    try:
        port = link_checks.chosen_port(subject, subject.work.port)
    except MachineError as error:
        port, wrong = None, True
        yield Outcome(check="port", environments=(subject.master,), notice=error.notices[0])
    else:
        turn.refined = subject.work.replace(port=port)
    yield from link_checks.ports(subject, port)
    yield from link_checks.links(subject)
    if trial and not wrong:
        yield from steps(subject, turn)


def steps(subject: Subject, turn: Turn) -> Iterator[Outcome]:
    """A short step of one rank on each machine, all at once, against what is predicted for it.

    On a CPU the step also tells how fast it is, and the task's own prediction goes by it from then on.
    """
    found = beside(
        lambda id: measured_step(id, subject.environments[id], subject.machines[id], subject.work), subject.machines
    )
    trials = []
    for id, told in found.items():
        if isinstance(told, MachineError):
            yield Outcome(check="step", environments=(id,), notice=told.notices[0])
            continue
        trials.append(told)
        seen = {"step_s": told.step_s, "predicted": told.predicted, "speed": round(told.speed, 4)}
        notice = _step_notice(subject.environments[id], told)
        yield Outcome(check="step", environments=(id,), measured=seen, notice=notice)
    if trials:
        turn.refined = (turn.refined or subject.work).refined(trials)


def _step_notice(environment: Environment, trial: Trial) -> Notice | None:
    """Slower than the band is wrong: a GPU that throttles, or is shared; the figures of a CPU are rough."""
    high = trial.predicted["high"]
    if trial.step_s <= high:
        return None
    level: Level = "error" if environment.gpus else "warning"
    params = {"machine": trial.environment, "seconds": round(trial.step_s, 4)}
    params |= {"low": round(trial.predicted["low"], 4), "high": round(high, 4)}
    return Notice(code="preflight_step_slow", params=params, level=level)
