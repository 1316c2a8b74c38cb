"""Computation: parameters, FLOPs, and what one layer costs on one GPU, as cells. The formulas are those of `cost/`.

Names of coefficients begin with `k_` (time) and `mem_` (memory); `_dense` and `_moe` are the two kinds of layers.
"""

from __future__ import annotations

from crosszone.calibrate.sheet.book import Heading, Line, line
from crosszone.calibrate.sheet.tables import OF_FRAMEWORKS, model_row
from crosszone.cost.layer import BACKWARD_SCORE_BYTES, FORWARD_SCORE_BYTES, RESIDUAL_PASSES, ROUTED_BYTES
from crosszone.cost.operators import HEAD_BLOCK, USUAL_HEAD
from crosszone.inputs.model import Model

KINDS = ("dense", "moe")
PARTS = ("matmul", "attention", "elementwise", "routing", "tp", "ep", "cp")
_MODEL = tuple(model_row(Model(layers=1, hidden=1, heads=1, ffn_hidden=1, vocab=1)))[1:]
_GPU = ("memory_gib", "memory_gb_per_s", "link_gb_per_s", "link_domain", "link_spans_nodes", "pcie_gb_per_s", "family")


def looked_up() -> list[Line | Heading]:
    """Figures of the chosen GPU, model, number format, framework and stack."""
    peaks = ("fp32", "fp16", "bf16", "fp8", "fp4")
    flags = ("unfused", "triton", "launch_added", "p2p_scatter", "release_base", "graphed_from")
    return [
        Heading(key="looked_up"),
        line("gpu_row", "=MATCH(gpu,gpus_name,0)"),
        *(line(f"gpu_{key}", f"=INDEX(gpus_{key},gpu_row)") for key in _GPU),
        *(line(f"peak_{path}", f"=INDEX(gpus_tflops_{path},gpu_row)", "TFLOP/s") for path in peaks),
        line("model_row", "=MATCH(model,models_name,0)"),
        *(line(key, f"=INDEX(models_{key},model_row)") for key in _MODEL),
        line("format_row", "=MATCH(precision,formats_name,0)"),
        line("path_name", "=INDEX(formats_compute,format_row)"),
        line("path_bits", "=INDEX(formats_bits,format_row)", "bits"),
        *(
            line(f"format_{key}", f"=INDEX(formats_{key},format_row)", "bytes")
            for key in ("weights", "gradients", "master", "moment")
        ),
        line("moments", "=INDEX(optimizers_moments,MATCH(optimizer,optimizers_name,0))"),
        line("framework_row", "=MATCH(framework,frameworks_name,0)"),
        *(line(f"its_{key}", f"=INDEX(frameworks_{key},framework_row)") for key in OF_FRAMEWORKS),
        line("stack_row", "=MATCH(stack,stacks_name,0)"),
        *(line(f"stack_{key}", f"=INDEX(stacks_{key},stack_row)") for key in flags),
        line(
            "release_age", "=IF(AND(ISNUMBER(stack_release),stack_release_base>0),stack_release-stack_release_base,0)"
        ),
        line(
            "graphed",
            "=IF(AND(stack_graphed_from>0,release_age>=stack_graphed_from-stack_release_base),1,0)",
        ),
    ]


def counts() -> list[Line | Heading]:
    """Parameters and FLOPs of the model. [P1] [F1]"""
    plain = "hidden*heads*qk_dim+2*hidden*kv_heads*qk_dim+heads*qk_dim*hidden"
    biases = "bias_qkv*(heads+2*kv_heads)*qk_dim+bias_out*hidden+qk_norm_params+sinks*heads"
    query = "IF(q_rank>0,hidden*q_rank+q_rank*heads*qk_dim,hidden*heads*qk_dim)"
    low = "hidden*(kv_rank+rope_dim)+kv_rank*heads*(qk_dim-rope_dim+v_dim)+heads*v_dim*hidden"
    mlp = "matrices*hidden*{w}+bias_mlp*((matrices-1)*{w}+hidden)"
    return [
        Heading(key="parameters"),
        line("moe_layers", "=IF(experts>0,INT((layers-first_dense)/moe_every),0)", "", "R4"),
        line("attention_params", f"=IF(latent=1,{query}+{low},{plain}+{biases})+layer_norm_params", "", "P1"),
        line("mlp_params", "=" + mlp.format(w="ffn_hidden"), "", "P1"),
        line("expert_params", "=IF(experts>0," + mlp.format(w="expert_ffn") + ",0)", "", "P1"),
        line("router_params", "=(hidden+bias_router)*experts", "", "P1"),
        line(
            "shared_params",
            f"=router_params+IF(shared_experts>0,shared_experts*({mlp.format(w='shared_ffn')}),0)+shared_gate*hidden",
            "",
            "P1",
        ),
        line(
            "padded_vocab",
            "=IF(AND(vocab_fixed=0,its_vocab_multiple>1),"
            "ROUNDUP(vocab_rows/(its_vocab_multiple*tp),0)*its_vocab_multiple*tp,vocab_rows)",
            "rows",
        ),
        line("embedding_params", "=padded_vocab*embedding_width+(position_rows+token_types)*hidden", "", "P1"),
        line("head_params", "=IF(tied=1,0,padded_vocab*embedding_width)+norm_params", "", "P1"),
        line(
            "total_params",
            "=outer_params+layers*attention_params+(layers-moe_layers)*mlp_params"
            "+moe_layers*(shared_params+experts*expert_params)",
            "",
            "P1",
        ),
        Heading(key="flops"),
        line("seen_full", "=seq_len-causal*seq_len*seq_len/(2*seq_len)", "tokens", "F2"),
        line("reach_window", "=IF(window_tokens=0,seq_len,MIN(window_tokens,seq_len))", "tokens", "F2"),
        line("seen_window", "=reach_window-causal*reach_window*reach_window/(2*seq_len)", "tokens", "F2"),
        line(
            "flops_projections",
            f"=2*layers*(IF(latent=1,{query}+{low},2*hidden*heads*qk_dim+2*hidden*kv_heads*qk_dim))",
            "FLOP/token",
            "F1",
        ),
        line(
            "flops_core",
            "=2*heads*(qk_dim+v_dim)*(full_layers*seen_full+(layers-full_layers)*seen_window)",
            "FLOP/token",
            "F1",
        ),
        line(
            "flops_mlp",
            "=2*matrices*hidden*(ffn_hidden*(layers-moe_layers)+moe_layers*(expert_ffn*top_k+shared_ffn*shared_experts))",
            "FLOP/token",
            "F1",
        ),
        line("flops_router", "=2*hidden*experts*moe_layers", "FLOP/token", "F1"),
        line(
            "flops_head",
            "=2*vocab_rows*embedding_width+IF(embedding_width<>hidden,4*embedding_width*hidden,0)"
            "+IF(mlm_head=1,2*hidden*hidden,0)",
            "FLOP/token",
            "F1",
        ),
        line("flops_forward", "=flops_projections+flops_core+flops_mlp+flops_router+flops_head", "FLOP/token", "F1"),
        line("model_flops", "=3*flops_forward*seq_len*global_batch", "FLOP", "F1"),
    ]


def work() -> list[Line | Heading]:
    """Bytes and rates that all parts read. [J3] [X2]"""
    mixed = "AND(format_master>0,its_{}>0)"
    own = f"IF({mixed.format('fp32_weights')},4,{{plain}})"
    wider = f"IF({mixed.format('fp32_gradients')},4,format_gradients)"
    peak = 'IF(path_name="{0}",peak_{0},{1})'
    nested = "0"
    for path in ("fp32", "fp16", "bf16", "fp8", "fp4"):
        nested = peak.format(path, nested)
    return [
        Heading(key="work"),
        line("micro_batches", "=MAX(1,global_batch/(micro_batch*dp))", "", "R2"),
        line("gpus_used", "=tp*cp*dp*pp", "GPUs", "R1"),
        line("nodes_used", "=ROUNDUP(gpus_used/node_gpus,0)", "nodes"),
        line("link_domain", "=MAX(fast_domain,node_gpus)", "GPUs"),
        line("expert_tp", "=IF(ep>1,1,tp)"),
        line("dp_stride", "=tp"),
        line("shards_all", "=MIN(dp,shard_ranks)"),
        line("tokens_micro", "=micro_batch*seq_len/cp", "tokens"),
        line("word", "=IF(path_bits=32,4,2)", "bytes"),
        line("gathered_bytes", '=IF(weight_compression="int8",1,word)', "bytes"),
        line("weight_bytes", "=" + own.format(plain="format_weights"), "bytes", "J3"),
        line("gradient_bytes", "=" + own.format(plain=wider), "bytes", "J3"),
        line(
            "optimizer_bytes",
            f"={own.format(plain='format_master').replace('4,', '0,', 1)}+moments*format_moment",
            "bytes",
            "J3",
        ),
        line(
            "plain_wire",
            '=IF(gradient_dtype="own",gradient_bytes,INDEX(dtypes_bytes,MATCH(gradient_dtype,dtypes_name,0)))',
            "bytes",
        ),
        line("compressed", "=INDEX(compressions_bytes,MATCH(compression,compressions_name,0))", "bytes"),
        line(
            "wire_bytes",
            '=IF(compression="powersgd",MIN(plain_wire,plain_wire*2*MAX(1,compression_rank)/hidden),'
            "IF(compressed>0,MIN(plain_wire,compressed),plain_wire))",
            "bytes",
            "V4",
        ),
        line("rounds", "=INDEX(compressions_rounds,MATCH(compression,compressions_name,0))"),
        line("tree", '=IF(algorithm="tree",1,IF(algorithm="ring",-1,0))'),
        line("offload_level", '=IF(offload="none",0,IF(offload="optimizer",1,2))'),
        line("half_peak", "=IF(peak_bf16>0,peak_bf16,IF(peak_fp16>0,peak_fp16,peak_fp32))", "TFLOP/s"),
        line("path_peak", f"={nested}", "TFLOP/s"),
        line("flops_path", "=1E12*IF(path_peak>0,path_peak,half_peak)", "FLOP/s"),
        line("flops_half", "=IF(path_bits=32,flops_path,1E12*half_peak)", "FLOP/s"),
        line("memory_bytes_per_s", "=1E9*gpu_memory_gb_per_s", "bytes/s"),
        line("link_bytes_per_s", '=1E9*IF(fast_link="yes",gpu_link_gb_per_s,gpu_pcie_gb_per_s)', "bytes/s"),
        line("nic_bytes_per_s", "=1E9*nic_gbps_node/node_gpus/8", "bytes/s"),
        line("byte_s", "=k_tile/memory_bytes_per_s*word/2", "s"),
        line("memory_rate", "=k_memory*memory_bytes_per_s", "bytes/s"),
        line("pcie_rate", "=k_pcie*1E9*gpu_pcie_gb_per_s", "bytes/s"),
        line("link_rate", "=k_link*link_bytes_per_s", "bytes/s"),
        line("nic_rate", "=k_nic*nic_bytes_per_s/(1+k_nic_spread*LOG(MAX(nodes_used,1),2))", "bytes/s", "X2"),
        line(
            "linear_rate",
            "=flops_path*IF(path_bits>=16,k_matmul,IF(path_bits=4,k_matmul_fp8*k_nvfp4,"
            "k_matmul_fp8*IF(path_bits=7,k_mxfp8,1)))",
            "FLOP/s",
        ),
        line("cast_bytes", "=IF(path_bits<16,k_cast,0)*word", "bytes"),
        line("split_share", '=IF(sequence_parallel="yes",1/tp,1)'),
        line("score_lanes", "=micro_batch*heads/tp"),
        line(
            "plain_softmax",
            "=IF(stack_unfused>1,1,IF(stack_unfused>0,IF(score_lanes-4*INT(score_lanes/4)<>0,1,0),0))",
        ),
        line("dense_ffn", "=IF(moe_layers<layers,ffn_hidden,0)"),
    ]


MATMULS = {
    "qkv": ("tokens_micro", "hidden", "IF(AND(latent=1,q_rank>0),0,heads*qk_dim/tp)+(1-latent)*kv_width"),
    "q_down": ("tokens_micro", "hidden", "latent*q_rank"),
    "q_up": ("tokens_micro", "latent*q_rank", "heads*qk_dim/tp"),
    "kv_down": ("tokens_micro", "hidden", "latent*(kv_rank+rope_dim)"),
    "kv_up": ("tokens_micro", "latent*kv_rank", "heads*(qk_dim-rope_dim+v_dim)/tp"),
    "attention_out": ("tokens_micro", "heads*v_dim/tp", "hidden"),
    "mlp_up": ("tokens_micro", "hidden", "(matrices-1)*dense_ffn/tp"),
    "mlp_down": ("tokens_micro", "dense_ffn/tp", "hidden"),
    "expert_up": ("routed", "hidden", "(matrices-1)*expert_inner"),
    "expert_down": ("routed", "expert_inner", "hidden"),
    "shared_up": ("tokens_micro", "hidden", "(matrices-1)*shared_inner"),
    "shared_down": ("tokens_micro", "shared_inner", "hidden"),
    "head": ("tokens_micro", "hidden", "padded_vocab/tp"),
}
"""Rows, inner width and columns of each product of a layer's forward pass, and of the head's."""


def matmul_lines() -> list[Line | Heading]:
    """Each product: inner width, columns, seconds. [O1]"""
    found: list[Line | Heading] = [
        Heading(key="matmuls"),
        line("kv_width", "=MAX(kv_heads/tp,1)*(qk_dim+v_dim)"),
        line("routed", "=tokens_micro*top_k/tp*expert_tp", "tokens", "O6"),
        line("local_experts", "=experts/ep", "", "O6"),
        line("expert_inner", "=expert_ffn/expert_tp", "", "O6"),
        line("shared_inner", "=shared_experts*shared_ffn/tp", "", "O6"),
    ]
    for name, (rows, inner, columns) in MATMULS.items():
        k, n, copies = f"{name}_inner_k", f"{name}_columns_n", "local_experts*" if name.startswith("expert_") else ""
        speed = "linear_rate*k_grouped" if copies else "k_matmul*flops_half" if name == "head" else "linear_rate"
        traffic = f"{rows}*{k}+{copies}{k}*{n}+{rows}*{n}"
        seconds = f"2*{rows}*{k}*{n}/({speed})+2*({traffic})*byte_s"
        found += [
            line(k, f"={inner}"),
            line(n, f"={columns}"),
            line(f"{name}_s", f"=IF(AND({k}>0,{n}>0),{seconds},0)", "s", "O1"),
        ]
    return found


def attention_lines() -> list[Line | Heading]:
    """The attention's core, fused or not, and the tensor-parallel collective. [O2] [O3] [O11] [X1]"""
    width = "heads*(qk_dim+v_dim)/tp"
    products = f"2*tokens_micro*seq_len*{width}/(k_batched*flops_half)"
    scores = "tokens_micro*seq_len*heads/tp"
    return [
        Heading(key="attention"),
        line("full_share", "=full_layers/layers"),
        line("tokens_seen", "=full_share*seen_full+(1-full_share)*seen_window", "tokens", "F2"),
        line("attention_reach", "=full_share*seq_len+(1-full_share)*reach_window", "tokens"),
        line("mean_head", "=(qk_dim+v_dim)/2"),
        line(
            "flash_share",
            f"=mean_head*(1+k_flash_width/{USUAL_HEAD:g})/(ROUNDUP(mean_head/{HEAD_BLOCK:g},0)*{HEAD_BLOCK:g}+k_flash_width)"
            "*attention_reach/(attention_reach+k_flash_ramp)",
            "",
            "O11",
        ),
        line(
            "flash_s",
            f"=2*tokens_micro*tokens_seen*{width}/(IF(stack_triton>0,k_triton,1)*flash_share*k_flash*flops_half)",
            "s",
            "O2",
        ),
        line("score_passes", "=IF(sinks>0,k_sink_traffic,k_score_traffic*IF(plain_softmax=1,k_plain_scores,1))"),
        line("unfused_s", f"={products}+{scores}*{FORWARD_SCORE_BYTES:g}*score_passes/memory_rate", "s", "O3"),
        line(
            "unfused_back_s",
            f"=2*({products}+{scores}*{BACKWARD_SCORE_BYTES / 2:g}*score_passes/memory_rate)",
            "s",
            "O3",
        ),
        line("attention_unfused", "=IF(OR(stack_unfused>0,sinks>0),1,0)"),
        line("attention_s", "=IF(attention_unfused=1,unfused_s,flash_s)", "s"),
        line("attention_back_s", "=IF(attention_unfused=1,unfused_back_s,k_flash_backward*flash_s)", "s"),
        line(
            "block_elementwise_s",
            f"=(k_elementwise*word*tokens_micro*({RESIDUAL_PASSES:g}*hidden*split_share+2*(heads*qk_dim/tp+2*kv_width))"
            "+k_written_out*written*word*tokens_micro*hidden*split_share"
            "+cast_bytes*tokens_micro*(hidden+heads*v_dim/tp))/memory_rate",
            "s",
            "O4",
        ),
        line("block_matmul_s", "=qkv_s+q_down_s+q_up_s+kv_down_s+kv_up_s+attention_out_s", "s", "O1"),
        line("tp_bus", "=IF(tp<=link_domain,link_rate,MIN(link_rate,node_gpus*nic_rate))", "bytes/s", "X1"),
        line(
            "tp_collective_s",
            "=IF(tp>1,2*(tp-1)/tp*word*tokens_micro*hidden/tp_bus+k_tp_message_s,0)",
            "s",
            "X1",
        ),
        line("tp_exposed_s", '=IF(overlap_tensor="yes",k_tp_exposed,1)*tp_collective_s', "s"),
        line("reductions", "=2-parallel_residual"),
        line(
            "context_width",
            "=IF(latent=1,heads/tp,MAX(kv_heads/tp,1))*(qk_dim+v_dim)",
        ),
        line(
            "context_exchange_s",
            "=word*tokens_micro*context_width*(cp-1)/IF(tp*cp<=link_domain,link_rate,nic_rate)",
            "s",
            "X4",
        ),
    ]


def mlp_lines() -> list[Line | Heading]:
    """What the two kinds of layers add to the attention: a dense MLP, or experts. [O4] [O6] [X3]"""
    return [
        Heading(key="mlp"),
        line("matmul_dense", "=block_matmul_s+mlp_up_s+mlp_down_s", "s", "O1"),
        line(
            "elementwise_dense",
            "=block_elementwise_s+(k_elementwise*word*tokens_micro*matrices*dense_ffn/tp"
            "+cast_bytes*tokens_micro*(hidden+dense_ffn/tp))/memory_rate",
            "s",
            "O4",
        ),
        line("routing_dense", 0, "s"),
        line("excess_dense", 0, "s"),
        line("ep_dense", 0, "s"),
        line("wait_dense", 0, "s"),
        line("moe_age", "=EXP(0-k_release_decay*release_age)*IF(graphed>0,k_graphed,1)", "", "O6"),
        line("matmul_moe", "=block_matmul_s+expert_up_s+expert_down_s+shared_up_s+shared_down_s", "s", "O6"),
        line(
            "elementwise_moe",
            "=block_elementwise_s+(k_elementwise*word*matrices*(routed*expert_inner+tokens_micro*shared_inner)"
            "+cast_bytes*(routed*(hidden+expert_inner)+tokens_micro*shared_inner))/memory_rate",
            "s",
            "O6",
        ),
        line("routing_moe", f"=moe_age*k_permute*{ROUTED_BYTES:g}*tokens_micro*top_k*hidden/tp/memory_rate", "s", "O6"),
        line("experts_inside", "=MIN(MAX(link_domain/expert_tp,1),ep)", "", "X3"),
        line("expert_domains", "=ep/experts_inside", "", "X3"),
        line("remote_share", "=(expert_domains-1)*(1-(1-1/expert_domains)^MAX(top_k,1))", "", "X3"),
        line("routed_bytes", "=word*tokens_micro*hidden/tp", "bytes", "X3"),
        line(
            "all_to_all_s",
            "=2*(routed_bytes*top_k*(1-1/ep)/link_rate+routed_bytes*remote_share/nic_rate)",
            "s",
            "X3",
        ),
        line("ep_moe", "=MIN(moe_age*k_a2a_exposed,1)*all_to_all_s", "s", "X3"),
        line("excess_moe", "=MAX(moe_age*k_a2a_exposed-1,0)*all_to_all_s", "s", "O6"),
        line("wait_moe", "=moe_age*k_moe_s*IF(path_bits=7,k_mxfp8_moe,1)", "s", "O6"),
        line(
            "cp_forward",
            "=IF(cp>1,MIN(context_exchange_s,MAX(0,context_exchange_s-attention_s)+k_cp_exposed*context_exchange_s),0)",
            "s",
            "X4",
        ),
        line(
            "cp_backward",
            "=IF(cp>1,MIN(2*context_exchange_s,"
            "MAX(0,2*context_exchange_s-attention_back_s)+k_cp_exposed*2*context_exchange_s),0)",
            "s",
            "X4",
        ),
    ]


def pass_lines(kind: str) -> list[Line | Heading]:
    """Forward, backward and recomputation of one kind of layer, with launches. [O5] [O7]"""
    forward = f"gpu_forward_{kind}"
    back, launch = f"gpu_backward_{kind}", f"launch_{kind}"

    def hosts(gpu: str, launches: str) -> str:
        longer = f"MAX({gpu},{launches})*(1+(MIN({gpu},{launches})/MAX({gpu},{launches},1E-30))^6)^(1/6)-({gpu})"
        return f"=IF(stack_launch_added>0,{launches},{longer})"

    return [
        Heading(key=f"layer_{kind}"),
        line(
            launch,
            f"=k_host_s*(1+written*(k_written_out_launch-1))*IF(plain_softmax=1,k_plain_launch,1)"
            f"+wait_{kind}+reductions*k_collective_host_s*(tp-1)",
            "s",
            "O7",
        ),
        line(
            forward,
            f"=matmul_{kind}+attention_s+elementwise_{kind}+routing_{kind}+excess_{kind}"
            f"+reductions*tp_exposed_s+ep_{kind}+cp_forward",
            "s",
            "O7",
        ),
        line(
            f"again_{kind}",
            f'=IF(recompute="full",{forward},IF(recompute="selective",IF(stack_unfused>0,attention_s,0)'
            f"+k_selective_share*matmul_{kind}+IF(k_selective_share>0,elementwise_{kind},0),0))",
            "s",
            "O7",
        ),
        line(
            f"repeated_{kind}",
            f'=IF(recompute="full",reductions*tp_exposed_s+ep_{kind}+cp_forward,0)',
            "s",
            "O7",
        ),
        line(
            back,
            f"=2*matmul_{kind}+attention_back_s+2*elementwise_{kind}+2*routing_{kind}+excess_{kind}"
            f"+2*tp_exposed_s+ep_{kind}+cp_backward",
            "s",
            "O7",
        ),
        line(f"host_forward_{kind}", hosts(forward, launch), "s", "O5"),
        line(f"launch_back_{kind}", f'=(k_host_backward+IF(recompute="full",1,0))*{launch}', "s", "O7"),
        line(f"busy_back_{kind}", f"={back}+again_{kind}", "s", "O7"),
        line(f"host_backward_{kind}", hosts(f"busy_back_{kind}", f"launch_back_{kind}"), "s", "O5"),
        line(f"forward_{kind}", f"={forward}+host_forward_{kind}", "s", "O7"),
        line(f"backward_{kind}", f"={back}+host_backward_{kind}+again_{kind}", "s", "O7"),
    ]


def end_lines() -> list[Line | Heading]:
    """Embedding, head and loss. [O8] [O9]"""
    return [
        Heading(key="ends"),
        line("embedding_s", "=k_elementwise*2*word*tokens_micro*hidden/memory_rate", "s", "O8"),
        line("head_product_s", "=head_s*IF(padded_vocab-8*INT(padded_vocab/8)=0,1,k_unaligned)", "s", "O9"),
        line("loss_s", "=k_head_traffic*tokens_micro*padded_vocab/tp/memory_rate", "s", "O9"),
        line("head_forward_s", "=head_product_s+loss_s/3", "s", "O9"),
        line("head_backward_s", "=2*head_product_s+loss_s*2/3", "s", "O9"),
    ]


def computation() -> list[Line | Heading]:
    """The whole sheet."""
    layers = [one for kind in KINDS for one in pass_lines(kind)]
    return [
        *looked_up(),
        *counts(),
        *work(),
        *matmul_lines(),
        *attention_lines(),
        *mlp_lines(),
        *layers,
        *end_lines(),
    ]
