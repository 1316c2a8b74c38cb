"""Coefficients: the few physical numbers that are fitted or assumed, by name.

A coefficient has one home: `common` (all GPUs and stacks), a GPU family, or a software stack; a home nearer to the case
wins. Each field is a number or an array, as in `columns`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from crosszone.cost.columns import Numbers


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """Shares of a peak have no unit; times are seconds; traffic is a factor on the bytes a formula counts."""

    # GPU family
    matmul: Numbers
    """Share of the 16-bit peak that large matmuls reach."""
    matmul_fp8: Numbers
    """Share of the fp8 peak."""
    nvfp4: Numbers
    """Share of the fp4 peak over that of the fp8 peak."""
    rowwise: Numbers
    """Rate of fp8 with one scale per row over one per tensor."""
    mxfp8: Numbers
    """Rate of fp8 with block scales over plain fp8."""
    mxfp8_moe: Numbers
    """Launch time of an MoE layer with block scales over the plain one."""
    flash: Numbers
    """Share of the 16-bit peak of the fused attention's forward pass (only unmasked scores counted)."""
    flash_width: Numbers
    """Width of a head at which the fused attention loses half of what wider heads could add."""
    flash_ramp: Numbers
    """Tokens of a sequence at which the fused attention reaches half of its rate."""
    triton: Numbers
    """Rate of a Triton attention kernel over the vendor's."""
    # operators
    tile: Numbers
    """Share of a matmul's operand traffic that adds to its arithmetic."""
    batched: Numbers
    """Share of the 16-bit peak of batched products (unfused attention)."""
    memory: Numbers
    """Share of the memory rate that elementwise kernels reach."""
    flash_backward: Numbers
    """Backward over forward time of the fused attention."""
    score_traffic: Numbers
    """Passes over the score matrix of unfused attention, over the fused softmax's."""
    plain_scores: Numbers
    """Passes over the scores of a softmax of plain kernels over the fused one's."""
    plain_launch: Numbers
    """Launch time of a layer with such a softmax over one with the fused."""
    sink_traffic: Numbers
    """The same for attention with sinks."""
    grouped: Numbers
    """Rate of grouped (expert) matmuls over dense ones."""
    elementwise: Numbers
    """Traffic of norms, activations, residuals, copies over that of fused kernels."""
    written_out: Numbers
    """Passes over the residual stream that RMSNorm and rotary positions add where they are single operations."""
    written_out_launch: Numbers
    """Launch time of a layer with these over one whose norms are fused and whose positions are not rotary."""
    cast: Numbers
    """Passes over the inputs of linear layers to quantise them."""
    unaligned: Numbers
    """Time of the head's product where the vocabulary is no multiple of 8, over an aligned one."""
    head_traffic: Numbers
    """Bytes moved per logit by the loss, forward and backward."""
    optimizer_traffic: Numbers
    """Bytes moved per parameter whose states are local."""
    host_update_per_s: Numbers
    """Parameters a second that the CPUs of a node update (offloaded optimizer)."""
    pcie: Numbers
    """Share of the PCIe rate that copies to and from host memory reach."""
    # host
    host_s: Numbers
    """Launch time of a layer's forward pass on the host."""
    collective_host_s: Numbers
    """More launch time for each tensor-parallel collective and further rank."""
    host_backward: Numbers
    """Launch time of a layer's backward pass over the forward's."""
    # tensor parallelism
    tp_exposed: Numbers
    """Share of a tensor-parallel collective that does not hide below matmuls."""
    tp_message_s: Numbers
    """Fixed time of a tensor-parallel collective: launch, skew of ranks."""
    link: Numbers
    """Share of the fast link's rate that collectives reach."""
    nic: Numbers
    """Share of the network's rate that collectives reach."""
    nic_spread: Numbers
    """Loss of network rate per doubling of the nodes."""
    # pipeline
    p2p_exposed: Numbers
    """Share of a pipeline send that adds to the stage's time."""
    p2p_message_s: Numbers
    # data parallelism
    dp_traffic: Numbers
    """Time of gradient exchange over that of an ideal ring."""
    shard_message_s: Numbers
    """Fixed time of a gather for each rank that holds a shard."""
    dp_contention: Numbers
    """Share of an overlapped exchange that still slows compute."""
    fsdp_contention: Numbers
    """The same for gathers and reductions of every layer."""
    # experts
    permute: Numbers
    """Passes over the routed tokens to sort them by expert and back."""
    moe_s: Numbers
    """Launch and synchronisation time of an MoE layer's dispatch."""
    a2a_exposed: Numbers
    """Share of the all-to-all that does not hide."""
    release_decay: Numbers
    """MoE overhead falls by this factor's exponent a year of releases."""
    graphed: Numbers
    """MoE overhead with dispatch captured in graphs over that without."""
    # context parallelism
    cp_exposed: Numbers
    """Share of a hidden key/value exchange that still costs."""
    # scale
    step_s: Numbers
    """Fixed time of a step: batch, norms, logging."""
    jitter: Numbers
    """Growth of the step per doubling of the nodes."""
    selective_share: Numbers
    """Share of a layer's matmuls that selective recomputation repeats."""

    def at_speed(self, speed: float) -> Coefficients:
        """The same where everything a GPU computes, and its launches, take 1 / speed of their time."""
        rates = {name: getattr(self, name) * speed for name in RATES}
        return replace(self, **rates, **{name: getattr(self, name) / speed for name in TIMES})


RATES = ("matmul", "matmul_fp8", "flash", "batched", "memory", "host_update_per_s")
"""Coefficients that the rate of a GPU's work is proportional to."""
TIMES = ("tile", "host_s", "collective_host_s", "moe_s", "step_s")
"""Coefficients that the time of its work is proportional to."""
