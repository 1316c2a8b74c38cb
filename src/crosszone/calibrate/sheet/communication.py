"""Communication: sends between stages, groups of replicas, and what a parameter costs them, as cells. [X5] to [X8]"""

from __future__ import annotations

from crosszone.calibrate.sheet.book import Heading, Line, line
from crosszone.cost.replicas import FAST_HOP_S, NETWORK_HOP_S, WEIGHT_TRAFFIC


def communication() -> list[Line | Heading]:
    """The whole sheet."""
    return [*pipeline_lines(), *replica_lines(), *exchange_lines(), *overlap_lines(), *optimizer_lines()]


def pipeline_lines() -> list[Line | Heading]:
    """One message between stages. [X8]"""
    return [
        Heading(key="sends"),
        line("send_bytes", "=word*tokens_micro*hidden*IF(stack_p2p_scatter>0,1/tp,split_share)", "bytes", "X8"),
        line("send_fast_s", "=IF(pp>1,send_bytes/link_rate+k_p2p_message_s,0)", "s", "X8"),
        line("send_network_s", "=IF(pp>1,send_bytes/nic_rate+k_p2p_message_s,0)", "s", "X8"),
        line("send_exposed", "=IF(pp>1,k_p2p_exposed,0)", "", "X8"),
    ]


def replica_lines() -> list[Line | Heading]:
    """Replicas of a stage, those that share states, those of experts, and the rate of a ring through them. [X5]"""

    def bus(count: str, stride: str) -> str:
        far = f"MIN(link_rate,MIN(MAX(INT(link_domain/({stride})),1),{count})*nic_rate)"
        return f"=IF({count}*{stride}<=link_domain,link_rate,{far})"

    return [
        Heading(key="replicas"),
        line("members_all", "=MAX(1,dp*cp)", "GPUs", "X5"),
        line("members_states", "=MIN(members_all,shards_all*cp)", "GPUs", "X5"),
        line("members_experts", "=MAX(1,members_all*tp/(ep*expert_tp))", "GPUs", "X5"),
        line("bus_all", bus("members_all", "dp_stride"), "bytes/s", "X5"),
        line("bus_states", bus("members_states", "dp_stride"), "bytes/s", "X5"),
        line("bus_experts", bus("members_experts", "ep*expert_tp"), "bytes/s", "X5"),
        line("share_all", "=(members_all-1)/members_all", "", "X6"),
        line("share_states", "=(members_states-1)/members_states", "", "X6"),
        line("share_experts", "=(members_experts-1)/members_experts", "", "X6"),
    ]


def exchange_lines() -> list[Line | Heading]:
    """Seconds that one parameter of a stage adds to a reduction and to a gather. [X7]"""
    sets = "members_all/members_states"
    return [
        Heading(key="exchange"),
        line("sharded", "=IF(AND(zero>0,shards_all>1),1,0)"),
        line("one_ring", "=IF(OR(members_states>=members_all,sharded=0),1,0)"),
        line("passes_bytes", "=IF(sharded=1,1,2)*wire_bytes", "bytes", "X7"),
        line("once_s", "=IF(one_ring=1,share_all/bus_all,share_states/bus_states)", "s/byte", "X7"),
        line(
            "outer_each_s",
            f"=k_dp_traffic*wire_bytes*IF(one_ring=1,0,2*({sets}-1)/({sets})/members_states/nic_rate)",
            "s",
            "X7",
        ),
        line("ring_members", "=IF(one_ring=1,members_all,members_states)", "", "X7"),
        line("hop_s", f"=IF(members_all*dp_stride<=link_domain,{FAST_HOP_S!r},{NETWORK_HOP_S!r})", "s"),
        line("reduce_each_s", "=k_dp_traffic*passes_bytes*once_s", "s", "X7"),
        line("reduce_hops_s", "=rounds*IF(sharded=1,1,2)*(ring_members-1)*hop_s", "s", "X7"),
        line("may_tree", "=IF(AND(sharded=0,members_all>1,tree>=0),1,0)"),
        line("tree_each_s", "=k_dp_traffic*2*wire_bytes/bus_all", "s", "X7"),
        line("tree_hops_s", "=rounds*2*ROUNDUP(ROUND(LOG(members_all,2),9),0)*hop_s", "s", "X7"),
        line("expert_each_s", "=k_dp_traffic*share_experts/bus_experts", "s/byte", "X7"),
        line("gather_each_s", "=sharded*k_dp_traffic*gathered_bytes*once_s", "s", "X7"),
        line("gather_host_s", "=IF(offload_level>1,word/members_states/pcie_rate,0)", "s", "X7"),
        line("gather_start_s", "=sharded*k_shard_message_s*(members_states-1)", "s", "X7"),
        line(
            "bucket_bytes",
            "=IF(ISNUMBER(bucket_mb),1E6*bucket_mb,IF(its_bucket_mb>0,1E6*its_bucket_mb,"
            "IF(its_bucket_parameters_m>0,"
            "1E6*gradient_bytes*MAX(its_bucket_parameters_m,its_bucket_parameters_per_rank_m*dp),"
            "gradient_bytes*total_params/layers/tp)))",
            "bytes",
        ),
        line(
            "bucket_usual",
            "=IF(its_bucket_mb>0,1E6*its_bucket_mb,IF(its_bucket_parameters_m>0,"
            "1E6*gradient_bytes*MAX(its_bucket_parameters_m,its_bucket_parameters_per_rank_m),"
            "gradient_bytes*total_params/layers))",
            "bytes",
        ),
        line(
            "bucket_room",
            "=IF(AND(ISNUMBER(bucket_mb),its_bucket_buffer>0),MAX(0,1E6*bucket_mb-bucket_usual),0)",
            "bytes",
        ),
    ]


def overlap_lines() -> list[Line | Heading]:
    """Which exchanges go with every micro-batch, and the share of each that can hide. [V1]"""

    def hides(switch: str, contention: str) -> str:
        return f'=IF({switch}="yes",IF(ISNUMBER(overlap),overlap,1-{contention}),0)'

    return [
        Heading(key="overlap"),
        line("each_gather", "=IF(AND(pp=1,zero>=3),1,0)"),
        line("each_reduce", "=IF(AND(pp=1,zero>=2,OR(shards_all>1,dp=1)),1,0)"),
        line("hides_gather", hides("overlap_parameters", "k_dp_contention"), "", "V1"),
        line("hides_reduce", hides("overlap_gradients", "k_dp_contention"), "", "V1"),
        line("hides_each_gather", hides("overlap_parameters", "k_fsdp_contention"), "", "V1"),
        line("hides_each_reduce", hides("overlap_gradients", "k_fsdp_contention"), "", "V1"),
    ]


def optimizer_lines() -> list[Line | Heading]:
    """Bytes that the optimizer's step moves for one parameter. [O10]"""
    weights = f"{WEIGHT_TRAFFIC:g}"
    return [
        Heading(key="optimizer"),
        line("update_shards", "=IF(zero>0,MIN(shards_all*cp,members_all),1)", "", "O10"),
        line("update_expert_shards", "=IF(zero>0,MIN(members_experts,update_shards),1)", "", "O10"),
        line("update_states", "=k_optimizer_traffic*(optimizer_bytes+gradient_bytes)/16", "bytes", "O10"),
        *(
            line(
                f"update_{kind}bytes",
                f"=(update_states+IF(zero>=3,{weights},0))/update_{kind}shards+IF(zero>=3,0,{weights})",
                "bytes",
                "O10",
            )
            for kind in ("", "expert_")
        ),
    ]
