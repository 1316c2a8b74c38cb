"""Dataset check: look at a version of a dataset on a machine, and keep its size and checksum.

checked_dataset(dataset, "v1", machine).version("v1").sha256
"""

from __future__ import annotations

from crosszone.errors import InvalidError, MachineError, Notice, UnknownNameError
from crosszone.inputs.dataset import Dataset
from crosszone.inputs.value import parse
from crosszone.run.machine import Machine

WAIT_S = 3600.0  # How long a machine may read: terabytes take their time


def checked_dataset(dataset: Dataset, version: str, machine: Machine) -> Dataset:
    """The dataset with size and checksum of one version, as the machine finds them."""
    found = dataset.version(version)
    if found is None:
        known = {"known": [one.id for one in dataset.versions][:20]}
        raise UnknownNameError(Notice(code="task_unknown", field="version", value=version, params=known))
    if found.path is None:
        raise InvalidError(Notice(code="dataset_no_path", field="version", value=version))
    told = machine.call("files.compute_digest", wait_s=WAIT_S, path=found.path)
    if not told["there"]:
        params = {"machine": machine.name, "path": found.path}
        raise MachineError(Notice(code="data_missing", value=found.path, params=params))
    filled = found.replace(bytes=told["bytes"], sha256=told["sha256"])
    versions = [filled if one.id == version else one for one in dataset.versions]
    return parse(Dataset, {**dataset.to_plain(), "versions": [one.to_plain() for one in versions]})
