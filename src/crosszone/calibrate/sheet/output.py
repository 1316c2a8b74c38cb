"""Output: the step as a timeline, what it is made of, memory and the run: the cells that an import reads.

The last stage of the pipeline is what a timeline shows: it waits while the pipeline fills (warm-up), runs one forward
and one backward pass for every micro-batch, and waits while the pipeline empties (cool-down).
"""

from __future__ import annotations

from crosszone.calibrate.sheet.book import Heading, Line, line

SHEET = "Output"
PHASES = (
    "warm_up_s",
    "forward_s",
    "backward_s",
    "steady_s",
    "cool_down_s",
    "all_reduce_s",
    "optimizer_s",
    "weights_s",
    "other_s",
    "iteration_s",
)
"""Cells that every workbook has, in seconds."""
STEP_PARTS = ("warm_up_s", "steady_s", "cool_down_s", "all_reduce_s", "optimizer_s", "weights_s", "other_s")
"""Of these, those that add up to the iteration."""
BREAKDOWN = (
    "matmul",
    "attention",
    "elementwise",
    "routing",
    "embedding",
    "head",
    "recompute",
    "host",
    "tensor",
    "context",
    "expert",
    "sharding",
    "pipeline",
    "bubble",
    "gradients",
    "weights",
    "optimizer",
    "fixed",
    "jitter",
)
FIGURES = {
    "tokens_per_s": "out_tokens_per_s",
    "mfu": "out_mfu",
    "memory_gib": "out_memory_gib",
    "gpus": "out_gpus",
    "days": "out_days",
    "usd": "out_usd",
    "kwh": "out_kwh",
}
"""Figures of a result, and the cells that hold them where they are known."""


def output(usd: float | None, kwh: float | None) -> list[Line | Heading]:
    """The whole sheet; what only the program can tell is given as numbers."""
    return [*_timeline(), *_parts(), *_memory(), *_run(usd, kwh)]


def _timeline() -> list[Line | Heading]:
    return [
        Heading(key="timeline"),
        line("out_layers", "=layers"),
        line("out_micro_batches", "=micro_batches", "", "R2"),
        line("span_s", "=MAX(stage_ready)", "s", "S3"),
        line("out_warm_up_s", "=IF(pp=1,0,last_stage_starts)", "s", "S13"),
        line("out_forward_s", "=INDEX(stage_forward,pp)", "s", "V2"),
        line("out_backward_s", "=INDEX(stage_backward,pp)", "s", "V2"),
        line("out_steady_s", "=IF(pp=1,span_s,last_stage_ends-last_stage_starts)", "s", "S13"),
        line("out_cool_down_s", "=IF(pp=1,0,span_s-last_stage_ends)", "s", "S13"),
        line("reduced_at_s", "=MAX(stage_reduced)", "s", "V2"),
        line("out_all_reduce_s", "=reduced_at_s-span_s", "s", "V2"),
        line("last_updated", "=MATCH(MAX(stage_tail),stage_tail,0)"),
        line("out_optimizer_s", "=INDEX(stage_update,last_updated)", "s", "O10"),
        line("out_weights_s", "=INDEX(stage_gather_exposed,last_updated)", "s", "V1"),
        line("fixed_s", "=k_step_s", "s"),
        line(
            "jitter_s",
            "=micro_batches*MAX(stage_cost_both)*k_jitter*LOG(MAX(nodes_used,1),2)",
            "s",
        ),
        line("out_other_s", "=fixed_s+jitter_s", "s"),
        line(
            "out_iteration_s",
            "=out_warm_up_s+out_steady_s+out_cool_down_s+out_all_reduce_s+out_optimizer_s+out_weights_s+out_other_s",
            "s",
            "V3",
        ),
    ]


def _parts() -> list[Line | Heading]:
    """What the step is made of, the stage that works longest setting the pace. [V3]"""
    both = "=micro_batches*(pace_dense*({0})+pace_moe*({1}))"

    def twice(form: str) -> str:
        return both.format(*(form.replace("_KIND", f"_{kind}") for kind in ("dense", "moe")))

    full = 'IF(recompute="full",{0},0)'
    work = "part_matmul+part_attention+part_elementwise+part_routing+part_embedding+part_head+part_recompute"
    formulas = {
        "matmul": twice("3*matmul_KIND"),
        "attention": twice("attention_s+attention_back_s"),
        "elementwise": twice("3*elementwise_KIND"),
        "routing": twice("3*routing_KIND+2*excess_KIND"),
        "embedding": "=micro_batches*pace_first*3*embedding_s",
        "head": "=micro_batches*pace_last*(head_forward_s+head_backward_s)",
        "recompute": twice("again_KIND-repeated_KIND"),
        "host": twice("host_forward_KIND+host_backward_KIND"),
        "tensor": twice(f"(reductions+2+{full.format('reductions')})*tp_exposed_s")
        + "+micro_batches*(pace_first+pace_last)*tp_exposed_s",
        "context": twice(f"cp_forward+cp_backward+{full.format('cp_forward')}"),
        "expert": twice(f"2*ep_KIND+{full.format('ep_KIND')}"),
        "sharding": "=micro_batches*(INDEX(stage_with_forward,pace)+INDEX(stage_with_backward,pace))",
        "pipeline": "=micro_batches*(INDEX(stage_passed,pace)+IF(pace>1,INDEX(stage_passed,MAX(1,pace-1)),0))",
        "bubble": f"=MAX(0,span_s-({work}+part_host+part_tensor+part_context+part_expert+part_sharding)-part_pipeline)",
        "gradients": "=out_all_reduce_s",
        "weights": "=out_weights_s",
        "optimizer": "=out_optimizer_s",
        "fixed": "=fixed_s",
        "jitter": "=jitter_s",
    }
    return [
        Heading(key="breakdown"),
        line("pace", "=MATCH(MAX(stage_both),stage_both,0)", "", "V3"),
        *(line(f"pace_{key}", f"=INDEX(stage_{key},pace)") for key in ("dense", "moe", "first", "last")),
        *(line(f"part_{part}", formulas[part], "s", "V3") for part in BREAKDOWN),
    ]


def _memory() -> list[Line | Heading]:
    parts = {
        "weights": "weights_b",
        "gradients": "peak_gradients_b",
        "optimizer": "optimizer_b",
        "activations": "peak_activations_b",
        "logits": "peak_logits_b",
        "working": "peak_working_b",
        "buffers": "peak_buffers_b",
    }
    return [
        Heading(key="memory"),
        line("fullest", "=MATCH(MAX(stage_peak_b),stage_peak_b,0)", "", "M7"),
        *(line(f"memory_{part}", f"=INDEX(stage_{cell},fullest)/2^30", "GiB", "M7") for part, cell in parts.items()),
        line("memory_base", "=mem_base_gib", "GiB", "M7"),
        line("out_memory_gib", "=MAX(stage_peak_b)/2^30", "GiB", "M7"),
        line("memory_limit", "=gpu_memory_gib", "GiB"),
        line("memory_fits", '=IF(out_memory_gib<=memory_limit,"yes","no")'),
    ]


def _run(usd: float | None, kwh: float | None) -> list[Line | Heading]:
    found: list[Line | Heading] = [
        Heading(key="run"),
        line("out_gpus", "=gpus_used", "GPUs", "R1"),
        line("out_tokens_per_s", "=seq_len*global_batch/out_iteration_s", "tokens/s", "J1"),
        line("out_mfu", "=IF(path_peak>0,model_flops/(out_iteration_s*gpus_used*path_peak*1E12),0)", "", "V6"),
        line(
            "out_iterations",
            '=IF(ISNUMBER(run_tokens),ROUNDUP(run_tokens/(seq_len*global_batch),0),"")',
            "",
            "J2",
        ),
        line("out_total_s", '=IF(ISNUMBER(out_iterations),out_iterations*out_iteration_s,"")', "s", "J2"),
        line("out_days", '=IF(ISNUMBER(out_total_s),out_total_s/86400/goodput,"")', "days", "J2"),
    ]
    given = {"out_usd": (usd, "$"), "out_kwh": (kwh, "kWh")}
    return [*found, *(line(name, value, unit) for name, (value, unit) in given.items() if value is not None)]


CHECKS = {
    "check_gpus": "gpus_used<=node_gpus*node_count",
    "check_batch": "ROUND(micro_batches,0)*micro_batch*dp=global_batch",
    "check_heads": "heads-tp*INT(heads/tp)=0",
    "check_tp": "IF(tp<=node_gpus,node_gpus-tp*INT(node_gpus/tp),tp-node_gpus*INT(tp/node_gpus))=0",
    "check_layers": "SUM(stage_layers)=layers",
    "check_stages": "pp<={stages}",
    "check_micro_batches": "OR(pp=1,micro_batches<={micro_batches})",
    "check_link": 'OR(fast_link="no",gpu_link_gb_per_s>0)',
    "check_experts": "OR(ep=1,AND(experts>0,experts-ep*INT(experts/ep)=0,tp*cp*dp-ep*INT(tp*cp*dp/ep)=0))",
    "check_precision": "path_peak>0",
}
"""What must hold for the formulas to be right, after the inputs were changed."""


def checks(stages: int, micro_batches: int) -> list[Line | Heading]:
    """Whether the inputs are such that the formulas hold, in a pipeline with so much room."""
    room = {"stages": stages, "micro_batches": micro_batches}
    return [
        Heading(key="checks"),
        *(line(name, f'=IF({form.format(**room)},"ok","wrong")') for name, form in CHECKS.items()),
    ]
