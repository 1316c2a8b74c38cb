"""Inputs: the sheet a user types into: what to train, where and how, prefilled from a scenario."""

from __future__ import annotations

from crosszone.calibrate.sheet.book import Heading, Line, Text
from crosszone.inputs.geography import routes
from crosszone.predict.predictor import Predictor
from crosszone.predict.run import goodput_of

YES_NO = ("yes", "no")
RECOMPUTE, OFFLOADS = ("none", "selective", "full"), ("none", "optimizer", "optimizer+weights")
ALGORITHMS = ("auto", "ring", "tree")


def inputs(p: Predictor) -> list[Line | Heading]:
    """The whole sheet."""
    return [*_what(p), *_where(p), *_how(p), *_communication(p)]


def _typed(name: str, value: object, unit: str = "", choices: tuple[str, ...] | str | None = None) -> Line:
    return Line(name=name, value=value, unit=unit, choices=choices, typed=True)


def _what(p: Predictor) -> list[Line | Heading]:
    job = p.case.job
    return [
        Heading(key="what"),
        _typed("scenario_name", Text(p.name)),
        _typed("model", Text(p.case.model.name), "", "models_name"),
        _typed("seq_len", job.seq_len, "tokens"),
        _typed("global_batch", job.global_batch, "samples"),
        _typed("run_tokens", job.total_tokens, "tokens"),
        _typed("precision", job.precision, "", "formats_name"),
        _typed("optimizer", job.optimizer, "", "optimizers_name"),
        _typed("framework", p.framework.name, "", "frameworks_name"),
        _typed("stack", Text(p.stack), "", "stacks_name"),
        _typed("stack_release", p.release, "year"),
        _typed("goodput", goodput_of(p.site, p.framework.name).share),
    ]


def _where(p: Predictor) -> list[Line | Heading]:
    group = p.case.cluster.zones[0].nodes[0]
    own = group.nvlink_domain is not None and group.fast_link
    usual = '=IF(fast_link="yes",MIN(gpu_link_domain,IF(gpu_link_spans_nodes=1,node_gpus*node_count,node_gpus)),1)'
    return [
        Heading(key="where"),
        _typed("gpu", Text(group.gpu.name), "", "gpus_name"),
        _typed("node_gpus", group.gpus, "GPUs"),
        _typed("node_count", group.count, "nodes"),
        _typed("fast_link", "yes" if group.fast_link else "no", "", YES_NO),
        _typed("fast_domain", group.domain if own else usual, "GPUs"),
        _typed("nic_gbps_node", group.nic_gbps_node or float(routes()["example_nic_gbps"]), "Gbit/s"),
    ]


def _how(p: Predictor) -> list[Line | Heading]:
    s = p.strategy
    return [
        Heading(key="how"),
        *(_typed(axis, getattr(s, axis)) for axis in ("tp", "pp", "dp", "cp", "ep")),
        _typed("micro_batch", s.micro_batch, "samples"),
        _typed("schedule", "1f1b", "", ("1f1b",)),
        _typed("zero", s.zero or 0, "", ("0", "1", "2", "3")),
        _typed("shard_ranks", p.site.shard_ranks if s.shard_within == "node" else "=dp", "replicas"),
        _typed("sequence_parallel", _yes(s.sequence_parallel), "", YES_NO),
        _typed("recompute", s.recompute, "", RECOMPUTE),
        _typed("offload", s.offload, "", OFFLOADS),
    ]


def _communication(p: Predictor) -> list[Line | Heading]:
    c = p.strategy.communication
    return [
        Heading(key="exchange_how"),
        _typed("overlap_gradients", _yes(c.overlap_gradients), "", YES_NO),
        _typed("overlap_parameters", _yes(c.overlap_parameters), "", YES_NO),
        _typed("overlap_tensor", _yes(c.overlap_tensor), "", YES_NO),
        _typed("overlap", c.overlap),
        _typed("gradient_dtype", c.gradient_dtype or "own", "", "dtypes_name"),
        _typed("compression", c.compression, "", "compressions_name"),
        _typed("compression_rank", c.compression_rank or 1),
        _typed("weight_compression", c.weight_compression, "", ("none", "int8")),
        _typed("algorithm", c.algorithm, "", ALGORITHMS),
        _typed("bucket_mb", c.bucket_mb, "MB"),
    ]


def _yes(on: bool) -> str:
    return "yes" if on else "no"
