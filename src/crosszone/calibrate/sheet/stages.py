"""Stages: one row a pipeline stage: its layers, passes, exchanges and memory, as cells.

In a column's formula `[layers]` is the cell of that column in the same row, `[layers^]` the one of the row above;
`stage_layers` is the whole column. Rows beyond `pp` are 0.
"""

from __future__ import annotations

import re

from crosszone.calibrate.sheet.book import INPUT, Book
from crosszone.cost.memory_layer import SCORE_BYTES

SHEET = "Stages"
TOP = 2
"""Row of the headings; stage 0 is below."""

LAYERS = {
    "on": ("", "IF([stage]<pp,1,0)"),
    "own_layers": ("", None),
    "even_layers": (
        "R3",
        "INT(layers/pp)+IF(AND([stage]>=IF(layers-pp*INT(layers/pp)<pp-1,1,0),"
        "[stage]<IF(layers-pp*INT(layers/pp)<pp-1,1,0)+layers-pp*INT(layers/pp)),1,0)",
    ),
    "layers": ("R3", "IF([on]=1,IF(ISNUMBER([own_layers]),[own_layers],[even_layers]),0)"),
    "end": ("R4", "[layers]+[end^]"),
    "moe": (
        "R4",
        "IF(moe_layers>0,INT(MAX(0,[end]-first_dense)/moe_every)-INT(MAX(0,[end^]-first_dense)/moe_every),0)",
    ),
    "dense": ("R4", "[layers]-[moe]"),
    "first": ("R4", "IF(AND([layers]>0,[end^]=0),1,0)"),
    "last": ("R4", "IF(AND([layers]>0,[end]=layers),1,0)"),
    "held": ("", "IF([layers]>0,1,0)"),
}
PASSES = {
    "forward_cost": (
        "O7",
        "[dense]*forward_dense+[moe]*forward_moe+[first]*(embedding_s+tp_exposed_s)+[last]*head_forward_s",
    ),
    "backward_cost": (
        "O7",
        "[dense]*backward_dense+[moe]*backward_moe+[first]*2*embedding_s+[last]*(head_backward_s+tp_exposed_s)",
    ),
    "fast": (
        "X8",
        "IF(INT([stage]*tp*cp*dp/fast_domain)=INT((([stage]+1)*tp*cp*dp+tp*cp-1)/fast_domain),1,0)",
    ),
    "send": ("X8", "IF([fast]=1,send_fast_s,send_network_s)"),
    "passed": ("X8", "IF(AND([held]=1,[last]=0),send_exposed*[send],0)"),
    "beside": ("X8", "(1-send_exposed)*[send]"),
}
EXCHANGE = {
    "outer_params": (
        "M1",
        "([first]*embedding_params+[last]*head_params+[last]*(1-[first])*tied*embedding_params)/tp",
    ),
    "shared": (
        "M1",
        "([dense]*(attention_params+mlp_params)+[moe]*(attention_params+shared_params))/tp+[outer_params]",
    ),
    "experts": ("M1", "[moe]*experts*expert_params/(ep*expert_tp)"),
    "buckets": ("X7", "MAX([shared]*gradient_bytes/bucket_bytes,IF([shared]>0,1,0))"),
    "ring_s": ("X7", "[shared]*reduce_each_s+[buckets]*reduce_hops_s"),
    "tree_s": ("X7", "[shared]*tree_each_s+[buckets]*tree_hops_s"),
    "reduce_s": (
        "X7",
        "IF(AND(may_tree=1,OR(tree>0,[tree_s]<[ring_s])),[tree_s],[ring_s])+[experts]*expert_each_s*passes_bytes",
    ),
    "outer_s": ("X7", "[shared]*outer_each_s"),
    "gather_s": (
        "X7",
        "[shared]*(gather_each_s+gather_host_s)+[experts]*expert_each_s*sharded*gathered_bytes"
        "+IF([shared]>0,1,0)*gather_start_s",
    ),
    "once": ("V1", "IF(each_reduce=1,[outer_s],[reduce_s]+[outer_s])"),
    "again": ("V1", "[gather_s]*each_gather+[reduce_s]*each_reduce"),
    "window": ("V1", "MIN(MAX(0,[backward_cost]-[again]),[once]*(1-1/MAX([buckets],1)))"),
    "reduce_exposed": ("V1", "[held]*([once]-hides_reduce*MIN([once],[window]))"),
    "gather_exposed": (
        "V1",
        "IF(each_gather=1,0,[held]*([gather_s]-hides_gather*MIN([gather_s],[forward_cost])))",
    ),
    "with_forward": (
        "V1",
        "each_gather*[held]*([gather_s]-hides_each_gather*MIN([gather_s],[forward_cost]))",
    ),
    "with_backward": ("V1", "[held]*([again]-hides_each_reduce*MIN([again],[backward_cost]))"),
    "forward": ("V2", "[forward_cost]*[held]+[passed]+[with_forward]"),
    "backward": ("V2", "[backward_cost]*[held]+[passed^]*(1-[first])*[held]+[with_backward]"),
    "both": ("V2", "[forward]+[backward]"),
    "cost_both": ("V2", "[forward_cost]+[backward_cost]"),
    "local": ("O10", "[shared]/update_shards+[experts]/update_expert_shards"),
    "update": (
        "O10",
        "IF(offload_level>0,[local]*node_gpus/k_host_update_per_s+[local]*(gradient_bytes+word)/pcie_rate,"
        "([shared]*update_bytes+[experts]*update_expert_bytes)/memory_rate)",
    ),
    "tail": ("V2", "[update]+[gather_exposed]"),
    "ready": ("S3", "IF([on]=1,IF(pp=1,micro_batches*[both],INDEX(pipeline_ready,1,pp-[stage])),0)"),
    "reduced": ("V2", "([ready]+[reduce_exposed])*[held]"),
}
MEMORY = {
    "in_flight": ("M4", "MIN(micro_batches,pp-[stage])"),
    "whole_params": ("M1", "[shared]+[experts]"),
    "local_states": ("M2", "[shared]/memory_shards+[experts]/memory_expert_shards"),
    "optimizer_b": (
        "M2",
        "IF(offload_level>=1,0,optimizer_bytes*IF(zero>=1,[local_states],[whole_params]))",
    ),
    "weights_b": (
        "M2",
        "IF(AND(offload_level>=2,zero>=3),0,weight_bytes*IF(OR(zero>=3,AND(zero=2,casts=1)),[local_states],[whole_params]))",
    ),
    "reduced_b": ("M2", "gradient_bytes*IF(zero>=2,[local_states],[whole_params])"),
    "gradients_b": (
        "M2",
        "[reduced_b]+IF(zero<3,mem_gradient_copy_bytes+IF(AND(zero<2,wire_bytes>gradient_bytes),wire_bytes,0),0)"
        "*[whole_params]",
    ),
    "buckets_b": (
        "M2",
        "IF(dp>1,mem_bucket_copy*[reduced_b]+MIN(bucket_room,gradient_bytes*[whole_params]),0)",
    ),
    "step_b": ("M2", "IF(offload_level>=1,0,mem_step_bytes*IF(zero>=1,[local_states],[whole_params]))"),
    "layer_params": ("M6", "(attention_params+IF([dense]>0,mlp_params,shared_params))/tp"),
    "layer_experts": ("M6", "IF([moe]>0,experts*expert_params/(ep*expert_tp),0)"),
    "gathered_b": (
        "M6",
        "IF(held_zero>=3,word*IF(pp>1,[whole_params],MIN(mem_gathered_layers,[layers])*([layer_params]+[layer_experts])"
        "+[outer_params])+IF(AND(pp>1,micro_batches>1),wire_bytes*[whole_params],0),IF(casts=1,2*[whole_params],0))",
    ),
    "layer_grad_b": ("M6", "layer_grad_bytes*([layer_params]+IF(held_zero>=2,[layer_experts],0))"),
    "head_grad_b": ("M6", "layer_grad_bytes*[last]*IF(tied=1,embedding_params,head_params)/tp"),
    "embedding_grad_b": ("M6", "layer_grad_bytes*[first]*embedding_params/tp"),
    "micro_b": ("M3", "[dense]*kept_dense+[moe]*kept_moe"),
    "activations_b": ("M4", "[in_flight]*[micro_b]+[last]*2*word*tokens_micro*hidden*split_share"),
    "whole_b": ("M3", "IF([moe]>0,whole_moe,whole_dense)"),
    "kept_b": ("M3", "IF([moe]>0,kept_moe,kept_dense)"),
    "one_layer_b": ("M7", "[gathered_b]+[layer_grad_b]+mem_working*[whole_b]+[whole_b]-[kept_b]"),
    "before_b": ("M7", "IF(AND(mem_gradients_freed>0,micro_batches<=1),0,[gradients_b])"),
    "cached_b": ("M7", "mem_step_kept*[step_b]"),
    "logits_b": (
        "M5",
        "[last]*(mem_logit_bytes+IF(tp>1,mem_split_logit_bytes,0))*tokens_micro*padded_vocab/tp",
    ),
    "work_loss_b": ("M7", "[gathered_b]+[head_grad_b]+[cached_b]"),
    "work_last_b": ("M7", "[one_layer_b]+[head_grad_b]+[cached_b]"),
    "work_first_b": ("M7", "[one_layer_b]+[embedding_grad_b]+[cached_b]"),
    "others_b": ("M7", "MAX([in_flight]-1,0)*[micro_b]+[kept_b]"),
    "at_loss_b": ("M7", "[before_b]+[activations_b]+[logits_b]+[work_loss_b]"),
    "at_backward_b": ("M7", "[before_b]+[activations_b]+[work_last_b]"),
    "at_end_b": ("M7", "[gradients_b]+[others_b]+[work_first_b]"),
    "at_step_b": ("M7", "[gradients_b]+[step_b]"),
    "moment": (
        "M7",
        "IF(AND([at_loss_b]>=[at_backward_b],[at_loss_b]>=[at_end_b],[at_loss_b]>=[at_step_b]),1,"
        "IF(AND([at_backward_b]>=[at_end_b],[at_backward_b]>=[at_step_b]),2,IF([at_end_b]>=[at_step_b],3,4)))",
    ),
    "peak_gradients_b": ("M7", "IF([moment]<=2,[before_b],[gradients_b])"),
    "peak_activations_b": ("M7", "IF([moment]<=2,[activations_b],IF([moment]=3,[others_b],0))"),
    "peak_logits_b": ("M7", "IF([moment]=1,[logits_b],0)"),
    "peak_working_b": (
        "M7",
        "IF([moment]=1,[work_loss_b],IF([moment]=2,[work_last_b],IF([moment]=3,[work_first_b],[step_b])))",
    ),
    "peak_buffers_b": ("M9", "[buckets_b]+message_bytes"),
    "peak_b": (
        "M7",
        "[held]*([weights_b]+[optimizer_b]+[peak_gradients_b]+[peak_activations_b]+[peak_logits_b]+[peak_working_b]"
        "+[peak_buffers_b]+mem_base_gib*2^30)",
    ),
}
COLUMNS: dict[str, tuple[str, str | None]] = {"stage": ("", None), **LAYERS, **PASSES, **EXCHANGE, **MEMORY}


def memory_lines() -> list[tuple[str, str, str, str]]:
    """What all stages' memory reads: name, formula, unit, id. [M2] [M3] [M6] [M9] [M10]"""
    norms = "IF(matrices>2,mem_norm_bytes,word)"
    inputs = "IF(mem_gathered_inputs>0,1,split_share)"
    outer = f"hidden*((2-parallel_residual)*({norms}*split_share+word*{inputs})+2*mem_dropout*split_share)"
    groups = "IF(latent=1,heads/tp,MAX(kv_heads/tp,1))"
    latents = "latent*(2*q_rank+2*kv_rank+rope_dim)"
    attention = f"word*(heads*qk_dim/tp+{groups}*(qk_dim+v_dim)+heads*v_dim/tp+{latents})"
    experts = (
        "mem_routed_copies*word*routed*hidden"
        "+word*mlp_copies*(routed*expert_ffn/expert_tp+tokens_micro*shared_experts*shared_ffn/tp)"
        "+2*word*tokens_micro*split_share*experts"
    )
    kept = (
        '=IF(recompute="full",mem_activations*word*tokens_micro*hidden*split_share,'
        'IF(recompute="selective",mem_selective_kept*mem_activations*most_{kind},whole_{kind}))'
    )
    wider = "MAX(gradient_bytes,wire_bytes)>word"
    return [
        ("casts", "=IF(AND(weight_bytes>2,path_bits<=16),1,0)", "", "M6"),
        ("memory_shards", "=shards_all*cp", "", "M2"),
        ("memory_expert_shards", "=MIN(MAX(1,dp*cp*tp/(ep*expert_tp)),memory_shards)", "", "M2"),
        ("held_zero", "=IF(shards_all*cp>1,zero,0)", "", "M6"),
        ("layer_grad_bytes", f"=IF(held_zero>=2,word+wire_bytes,IF({wider},word,0))", "bytes", "M6"),
        ("mlp_copies", "=IF(matrices>2,mem_gated_copies,mem_plain_copies)", "", "M3"),
        ("block_bytes", f"=tokens_micro*({outer}+{attention})", "bytes", "M3"),
        ("score_bytes", f"=IF(stack_unfused>0,{SCORE_BYTES:g}*tokens_micro*seq_len*heads/tp,0)", "bytes", "M3"),
        ("most_dense", "=block_bytes+word*tokens_micro*mlp_copies*dense_ffn/tp", "bytes", "M3"),
        ("most_moe", f"=block_bytes+{experts}", "bytes", "M10"),
        *((f"whole_{kind}", f"=mem_activations*(most_{kind}+score_bytes)", "bytes", "M3") for kind in ("dense", "moe")),
        *((f"kept_{kind}", kept.format(kind=kind), "bytes", "M3") for kind in ("dense", "moe")),
        (
            "message_bytes",
            '=word*tokens_micro*hidden*(IF(pp>1,2*split_share,0)+IF(sequence_parallel="yes",1-1/tp,0))',
            "bytes",
            "M9",
        ),
    ]


def write(book: Book, stages: int, own_layers: tuple[int, ...] | None) -> None:
    """The sheet with room for so many stages; `own_layers` where they are dealt out otherwise than evenly."""
    from openpyxl.styles import Font, PatternFill  # type: ignore[import-untyped]
    from openpyxl.utils import get_column_letter  # type: ignore[import-untyped]

    to = book.sheet(SHEET)
    letters = {name: get_column_letter(at) for at, name in enumerate(COLUMNS, 1)}
    to.cell(1, 1, book.words("stages_note"))
    for name, (id_, formula) in COLUMNS.items():
        head = to[f"{letters[name]}{TOP}"]
        head.value, head.font = f"{name} [{id_}]" if id_ else name, Font(bold=True)
        to.column_dimensions[letters[name]].width = 15
        for stage in range(stages):
            row = TOP + 1 + stage
            cell = to[f"{letters[name]}{row}"]
            if name == "stage":
                cell.value = stage
            elif formula is None:
                cell.fill = PatternFill("solid", fgColor=INPUT)
                if own_layers is not None and stage < len(own_layers):
                    cell.value = own_layers[stage]
            else:
                cell.value = "=" + _placed(formula, letters, row, stage)
        book.name(f"stage_{name}", SHEET, f"${letters[name]}${TOP + 1}:${letters[name]}${TOP + stages}")
    book.freeze(SHEET, f"B{TOP + 1}")


def _placed(formula: str, letters: dict[str, str], row: int, stage: int) -> str:
    def cell(found: re.Match[str]) -> str:
        if found[2]:
            return f"{letters[found[1]]}{row - 1}" if stage else "0"
        return f"{letters[found[1]]}{row}"

    return re.sub(r"\[(\w+)(\^?)\]", cell, formula)
