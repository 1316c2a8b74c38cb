"""Pipeline: the chunks of the model that a rank holds, and the schedule that runs micro-batches through them.

Built on torch.distributed.pipelining (PyTorch 2.13). Shapes between stages are known beforehand, so no trial pass is
made. Inside a stage FSDP keeps the gathered weights from the first to the last micro-batch of a step and reduces the
gradients once, after the last: torch's stages do so whatever the ZeRO stage.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from run import Refusal
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}
ONE_STAGE = ("gpipe", "1f1b")
V_SHAPED = ("zbv", "dualpipev")


def list_places(schedule: str, pp: int, interleave: int) -> list[list[int]]:
    """Places in the model of the chunks of each stage; a V goes back up, so that the last stage holds the middle."""
    if schedule in V_SHAPED:
        return [[stage, 2 * pp - 1 - stage] for stage in range(pp)]
    return [[chunk * pp + stage for chunk in range(interleave)] for stage in range(pp)]


def list_layers(place: int, chunk_layers: list[int]) -> list[int]:
    """Layer numbers of the chunk at a place."""
    first = sum(chunk_layers[:place])
    return list(range(first, first + chunk_layers[place]))


def check_schedule(strategy: dict) -> None:
    """Refuse numbers of micro-batches that torch's schedules cannot run."""
    pp, schedule = strategy["pp"], strategy["schedule"]
    if schedule not in SCHEDULES:
        raise Refusal(f"strategy.schedule={schedule}; torch has {', '.join(SCHEDULES)}")
    for micro_batches in sorted(set(strategy["replica_micro_batches"])):
        rounds = max(1, micro_batches // pp)
        if schedule in ("interleaved", "zero-bubble") and micro_batches % rounds:
            raise Refusal(
                f"{micro_batches} micro-batches on {pp} stages: torch's {schedule} schedule takes multiples of {rounds}"
            )
        if schedule == "dualpipev" and micro_batches < 2 * pp:
            raise Refusal(f"{micro_batches} micro-batches: torch's dualpipev takes at least {2 * pp} on {pp} stages")


class Pipeline:
    """The chunks of this rank and their schedule."""

    def __init__(
        self,
        chunks: dict[int, nn.Module],
        *,
        strategy: dict,
        group: dist.ProcessGroup,
        device: torch.device,
        micro_batches: int,
        tokens: tuple[int, int],
        hidden: tuple[tuple[int, ...], torch.dtype],
        logits: tuple[tuple[int, ...], torch.dtype],
        loss: Callable[[Tensor, Tensor], Tensor],
        span: Callable,
    ) -> None:
        """`chunks`: modules by their place in the model; `tokens`, `hidden`, `logits`: shapes of one micro-batch."""
        count = len(strategy["chunk_layers"])
        between = torch.empty(hidden[0], dtype=hidden[1], device="meta", requires_grad=True)
        ids = torch.empty(tokens, dtype=torch.int64, device="meta")
        out = torch.empty(logits[0], dtype=logits[1], device="meta", requires_grad=True)
        self.stages = [
            PipelineStage(
                module,
                place,
                count,
                device,
                input_args=ids if place == 0 else between,
                output_args=out if place == count - 1 else between,
                group=group,
            )
            for place, module in sorted(chunks.items())
        ]
        for number, stage in enumerate(self.stages):
            _time_stage(stage, number, span)
        self.first = any(stage.is_first for stage in self.stages)
        self.last = any(stage.is_last for stage in self.stages)
        kind = strategy["schedule"]
        stages = self.stages[0] if kind in ONE_STAGE else self.stages
        self.schedule = SCHEDULES[kind](stages, micro_batches, loss_fn=loss, scale_grads=False)

    def run_step(self, inputs: list[Tensor], targets: list[Tensor]) -> list[Tensor]:
        """Forward and backward passes of all micro-batches; the losses on the ranks of the last stage."""
        losses: list[Tensor] = []
        ids = (torch.cat(inputs),) if self.first else ()
        target = torch.cat(targets) if self.last else None
        self.schedule.step(*ids, target=target, losses=losses if self.last else None, return_outputs=False)
        return [loss.detach() for loss in losses]


def _time_stage(stage: PipelineStage, chunk: int, span: Callable) -> None:
    """Measure each pass of a stage; torch calls these three methods once for each micro-batch in every schedule."""
    for method, kind in (
        ("forward_one_chunk", "forward"),
        ("backward_one_chunk", "backward"),
        ("backward_weight_one_chunk", "weight"),
    ):
        setattr(stage, method, _wrap_span(getattr(stage, method), kind, chunk, span))


def _wrap_span(run: Callable, kind: str, chunk: int, span: Callable) -> Callable:
    def measured(micro_batch: int, *args, **kwargs):
        with span(kind, micro_batch=micro_batch, chunk=chunk):
            return run(micro_batch, *args, **kwargs)

    return measured
