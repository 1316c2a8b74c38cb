"""A task as the command line asks for it: a file with the fields of the API, flags, or both; flags win.

request_of({"file": "request.yaml", "steps": 20, "env": ["gpu-1", "gpu-2"]})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import parse_assignments
from crosszone.errors import InvalidError, Notice

if TYPE_CHECKING:
    from crosszone.run.request import TaskRequest

FileArgument = Annotated[
    str | None, typer.Argument(metavar="FILE", help="Request (YAML or JSON) with the fields of the API; flags win.")
]
FileOption = Annotated[str | None, typer.Option("--file", metavar="FILE", help="The same; - for standard input.")]
NameOption = Annotated[str | None, typer.Option(help="What to call the task.")]
DatasetOption = Annotated[str | None, typer.Option(metavar="ID", help="Dataset.")]
VersionOption = Annotated[str | None, typer.Option(metavar="ID", help="Version of the dataset.")]
ModelOption = Annotated[str | None, typer.Option(metavar="NAME", help="Model: its id, or a name in the catalogue.")]
EnvOption = Annotated[list[str] | None, typer.Option(metavar="ID", help="Environment; once for each of them.")]
NewOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="K=V,...", help="Ask a scheduler for nodes: zone=bj,gpu=a100-80gb-sxm,nodes=2,gpus_per_node=8"
    ),
]
MasterOption = Annotated[str | None, typer.Option(metavar="ID", help="Where ranks meet; default: the first --env.")]
FrameworkOption = Annotated[
    str | None, typer.Option(help="pytorch-ddp, pytorch-fsdp, deepspeed, megatron-lm or horovod.")
]
DpOption = Annotated[int | None, typer.Option(min=1, help="Data parallel; without dp, pp and tp they are planned.")]
PpOption = Annotated[int | None, typer.Option(min=1, help="Pipeline parallel.")]
TpOption = Annotated[int | None, typer.Option(min=1, help="Tensor parallel.")]
StepsOption = Annotated[int | None, typer.Option(min=1, help="Optimizer steps; default 1000.")]
SeqLenOption = Annotated[int | None, typer.Option(min=1, help="Tokens of a sample; default 1024.")]
BatchOption = Annotated[int | None, typer.Option(min=1, help="Samples a step; default: eight for each rank.")]
PrecisionOption = Annotated[str | None, typer.Option(help="bf16 (default), fp16, fp32, ...")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Launch setting: training.lr=1e-4, training.checkpoint_every=10."),
]
RestartsOption = Annotated[
    int | None, typer.Option("--max-restarts", min=0, max=100, help="Restarts after a rank has failed; default 3.")
]
IgnoreOption = Annotated[bool, typer.Option("--ignore-preflight", help="Start although a check has failed.")]
KeyOption = Annotated[
    str | None, typer.Option(metavar="KEY", help="The same key makes the same task once, however often it is sent.")
]

# Where each flag stands in a request.
_PLACES = {
    "name": ("taskName",),
    "dataset": ("datasetId",),
    "version": ("datasetVersionId",),
    "model": ("modelId",),
    "env": ("distributedConfig", "nodeIds"),
    "master": ("distributedConfig", "masterNode"),
    "framework": ("distributedConfig", "framework"),
    "dp": ("distributedConfig", "strategy", "dataParallel"),
    "pp": ("distributedConfig", "strategy", "pipelineParallel"),
    "tp": ("distributedConfig", "strategy", "tensorParallel"),
    "steps": ("job", "steps"),
    "seq_len": ("job", "seq_len"),
    "batch": ("job", "global_batch"),
    "precision": ("job", "precision"),
    "max_restarts": ("policy", "maxRestarts"),
}


def build_request(flags: Mapping[str, Any]) -> TaskRequest:
    """The request that a file and flags make; the first environment is the master where none is named."""
    from crosszone.inputs.value import parse
    from crosszone.run.request import TaskRequest

    document, fields = _read(flags.get("argument"), flags.get("file"))
    for flag, path in _PLACES.items():
        if flags.get(flag) not in (None, []):
            _put(fields, path, flags[flag])
    if flags.get("new"):
        fields |= {
            "launchMode": "new",
            "allocation": [parse_assignments(fields_text.split(","), "--new") for fields_text in flags["new"]],
        }
    if flags.get("ignore_preflight"):
        _put(fields, ("policy", "ignorePreflight"), True)
    if flags.get("settings"):
        fields["settings"] = _merge_settings(fields.get("settings"), flags["settings"])
    where = fields.get("distributedConfig")
    if isinstance(where, dict) and isinstance(where.get("nodeIds"), list) and where["nodeIds"]:
        where.setdefault("masterNode", where["nodeIds"][0])
    return parse(TaskRequest, fields, document)


def _read(argument: str | None, option: str | None) -> tuple[Any, dict[str, Any]]:
    """The file, and its fields, which may be changed."""
    from copy import deepcopy

    from crosszone.inputs.document import read_document

    if argument is not None and option is not None:
        raise InvalidError(Notice(code="task_file_twice", field="--file", value=option, params={"other": argument}))
    file = argument or option
    if file is None:
        return None, {}
    document = read_document(file)
    if not isinstance(document.value, dict):
        raise InvalidError(document.placed(Notice(code="must_be_mapping", field="", value=document.value)))
    return document, deepcopy(document.value)


def _put(fields: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Put a value at a path; what is no mapping on the way is left to the check of the whole."""
    *parents, last = path
    for key in parents:
        inner = fields.get(key)
        fields[key] = inner if isinstance(inner, dict) else {}
        fields = fields[key]
    fields[last] = value


def _merge_settings(file_settings: Any, lines: list[str]) -> dict[str, Any]:
    """Launch settings of a file with those of flags on top."""
    from crosszone.deploy.settings import LaunchSettings
    from crosszone.inputs.value import parse

    return parse(LaunchSettings, file_settings or {}).apply_assignments(lines).to_plain()
