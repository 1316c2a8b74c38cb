"""Samples of operators as `crosszone calibrate fit` takes them: read with plain refusals, and enough of them.

read = checked_samples([Path("samples.csv")], gpu=None)
enough(read)                      # refused where no operator has samples enough
gpu_notices(read, "h200")         # the samples name another GPU than --gpu
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from crosszone.errors import InputError, InvalidError, Notice, UnknownNameError

if TYPE_CHECKING:
    from crosszone.calibrate.operator_fit import Read
    from crosszone.cost.own_profiles import OwnProfile

UNKNOWN = "unknown_name"
DEVICE = "device"


def checked_samples(paths: Sequence[Path], gpu: str | None) -> Read:
    """The samples of some files; what is wrong with many rows in the same way is said once."""
    from crosszone.calibrate.operator_fit import MOST_MISTAKES, read_samples
    from crosszone.calibrate.user_files import check_text, merge_notices
    from crosszone.inputs.catalogue import catalogue

    if gpu is not None:
        catalogue().gpu(gpu)
    for path in paths:
        check_text(path)
    try:
        return read_samples(paths, gpu)
    except InputError as error:
        stopped = len(error.notices) >= MOST_MISTAKES
        told = merge_notices((_device(_listed(one), gpu) for one in error.notices), MOST_MISTAKES, at_least=stopped)
        raise (InvalidError if isinstance(error, UnknownNameError) else type(error))(*told) from None


def enough(read: Read) -> None:
    """Refuse samples of which nothing can be fitted."""
    from crosszone.calibrate.operator_fit import LEAST_SAMPLES
    from crosszone.calibrate.operator_profiles import BLOCKS, fittable

    if fittable(read):
        return
    counts = {one.key: len(one.time_us) for one in read.samples if one.op not in BLOCKS} or {"-": 0}
    most = max(counts, key=lambda key: counts[key])
    params = {"least": LEAST_SAMPLES, "most": counts[most], "operator": most}
    raise InvalidError(Notice(code="samples_few", value=read.used, params=params))


def worth_saving(profile: OwnProfile) -> OwnProfile:
    """The same; one without any value is refused, for it would change no prediction."""
    if not profile.gpus and not profile.stacks:
        raise InvalidError(Notice(code="samples_tell_nothing", field="--save", value=profile.name))
    return profile


def gpu_notices(read: Read, gpu: str | None) -> list[Notice]:
    """A warning where --gpu names another GPU than the samples do."""
    from crosszone.calibrate.operator_fit import MODEL_GPUS, catalogue_name

    own = {MODEL_GPUS.get(one) or catalogue_name(one) for one in read.device.split(", ")}
    if gpu is None or own == {read.gpu}:
        return []
    return [Notice(code="samples_gpu_other", level="warning", value=read.gpu, params={DEVICE: read.device})]


def _device(notice: Notice, gpu: str | None) -> Notice:
    """A row whose device is no GPU: said as such, and that --gpu does not change it."""
    if notice.code != UNKNOWN or notice.line is None:
        return notice
    code = "samples_device_unknown" if gpu is None else "samples_gpu_unused"
    return replace(notice, code=code, field=DEVICE, value=gpu, params={DEVICE: _own_name(notice)})


def _own_name(notice: Notice) -> str:
    """The device as the row of a notice calls it."""
    with Path(notice.file or "").open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        found = (row.get(DEVICE) for row in rows if rows.line_num == notice.line)
        return next(found, None) or str(notice.value)


def _listed(notice: Notice) -> Notice:
    """The same with a list in words."""
    given = notice.value
    return replace(notice, value=", ".join(map(str, given))) if isinstance(given, list | tuple) else notice
