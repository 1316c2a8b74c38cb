"""Checks flags of Megatron-LM; run by a Python that has torch and megatron-core, not by pytest.

    megatron_checks.py core RUNS.json                TransformerConfig of the installed megatron-core takes the shapes
    megatron_checks.py upstream RUNS.json CHECKOUT   the parser and validate_args of a checkout take the flags
    megatron_checks.py layout RUNS.json              the installed megatron-core reads the layouts
    megatron_checks.py hook RUNS.json                a step of the installed megatron-core's schedule, timed by the hook

RUNS.json: [{"name": .., "argv": [..], "world": 128, "environment": {..}}, ..]. Prints one JSON object: name -> "" or what
was wrong. A checkout is imported without a GPU: Triton and the device queries are stood in for.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import types
import typing
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

RENAMED = {
    "norm_epsilon": "layernorm_epsilon",
    "num_experts": "num_moe_experts",
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
}
"""Flags whose field of TransformerConfig has another name."""


def main() -> None:
    what, runs = sys.argv[1], json.loads(Path(sys.argv[2]).read_text("utf-8"))
    warnings.simplefilter("ignore")
    check = {"core": core, "upstream": upstream, "layout": layout, "hook": hook}[what]
    found = {}
    for run in runs:
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                check(run)
            found[run["name"]] = ""
        except SystemExit:
            found[run["name"]] = said.getvalue()[-400:]
        except Exception as error:
            found[run["name"]] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


def core(run: dict[str, Any]) -> None:
    """The shapes, as the installed TransformerConfig has them."""
    import dataclasses

    import torch
    from megatron.core.activations import squared_relu
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig
    from torch.nn import functional

    flags = read(run["argv"])
    latent = "multi_latent_attention" in flags
    chosen = MLATransformerConfig if latent else TransformerConfig
    types_of = {field.name: str(field.type) for field in dataclasses.fields(chosen)}
    known = {RENAMED.get(name, name): value for name, value in flags.items()}
    fields = {name: typed(value, types_of[name]) for name, value in known.items() if name in types_of}
    fields["add_bias_linear"] = "disable_bias_linear" not in flags
    if "group_query_attention" not in flags:
        fields.pop("num_query_groups", None)
    if "swiglu" in flags:
        fields |= {"activation_func": functional.silu, "gated_linear_unit": True}
    if "squared_relu" in flags:
        fields["activation_func"] = squared_relu
    if "moe_layer_freq" in flags:
        fields["moe_layer_freq"] = eval(flags["moe_layer_freq"][0], {"__builtins__": {}})  # as Megatron reads it
    if "window_size" in flags:
        fields["window_size"] = tuple(int(part) for part in flags["window_size"][0].split(","))
    stages = (
        int(flags["num_virtual_stages_per_pipeline_rank"][0])
        if "num_virtual_stages_per_pipeline_rank" in flags
        else None
    )
    fields |= {"virtual_pipeline_model_parallel_size": stages, "pipeline_dtype": torch.bfloat16}
    for needs_te in ("fp8", "fp4", "fp8_recipe", "fp4_recipe"):  # Transformer Engine is looked for
        fields.pop(needs_te, None)
    fields.pop("moe_grouped_gemm", None)
    chosen(**fields)


def layout(run: dict[str, Any]) -> None:
    """The layout, as the installed megatron-core reads it, holds the layers that were meant."""
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    read_as = PipelineParallelLayerLayout(run["layout"], run["stages"])
    read_as.validate_layer_layout(num_layers=sum(run["layers"]), mtp_num_layers=None)
    chunks = len(run["layers"]) // run["stages"]
    held = [
        read_as.layout[at % run["stages"]][at // run["stages"]].count(LayerType.decoder)
        for at in range(len(run["layers"]))
    ]
    assert held == run["layers"], f"{run['layout']} holds {held} in {chunks} chunks a stage"


def hook(run: dict[str, Any]) -> None:
    """One step without a pipeline on a CPU through the hook's wrappers: real schedule, real backward passes."""
    import importlib.util

    import torch
    from megatron.core import parallel_state
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer import TransformerConfig

    sys.path.insert(0, str(Path(run["hook"]).parent))
    spec = importlib.util.spec_from_file_location("megatron_hook", run["hook"])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    settings = {
        "order": ["tp", "cp", "dp", "pp"],
        "strategy": {"tp": 1, "cp": 1, "dp": 1, "pp": 1},
        "zones": ["a"],
        "zone_of_rank": [0],
        "name": "check",
    }
    watch = module.StageWatch(settings, Path(run["out"]), rank=0, tiny=True, tokens=64)
    missing = module.install(watch)
    assert missing == ["megatron.training.training.finalize_model_grads", "megatron.training.training.train_step"], (
        missing
    )
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": run["port"], "RANK": "0", "WORLD_SIZE": "1"})
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()

    class Tiny(torch.nn.Linear):
        def set_input_tensor(self, tensor: Any) -> None: ...

    zeros = torch.zeros  # the schedule counts tokens on a GPU
    torch.zeros = lambda *size, **more: zeros(*size, **{**more, "device": "cpu"})
    model = Tiny(4, 1)
    config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1)
    model.config, model.model_type = config, ModelType.encoder_or_decoder

    def forward_step(data: Any, of: Any) -> Any:
        return of(next(data)), lambda out: (out.sum(), {"lm loss": out.sum().detach()})

    data = iter(torch.ones(3, 2, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(
        forward_step_func: Any, data_iterator: Any, model: Any, optimizer: Any, iteration: Any = None
    ) -> Any:
        losses = schedules.forward_backward_no_pipelining(
            forward_step_func=forward_step_func,
            data_iterator=data_iterator,
            model=model,
            num_microbatches=3,
            seq_length=2,
            micro_batch_size=1,
        )
        optimizer.step()
        return {"lm loss": torch.stack([one["lm loss"] for one in losses]).mean()}, 0, False, False, 0, 1.5, None

    module.wrap_train_step(watch, train_step)(forward_step, data, model, optimizer, iteration=6)
    torch.distributed.destroy_process_group()
    assert not watch.broken


def upstream(run: dict[str, Any]) -> None:
    """Megatron's own parser, its validation, and the configuration it makes of the flags."""
    arguments = imported(sys.argv[3])
    arguments.get_device_arch_version = lambda: run.get("architecture", 9)
    os.environ.update({"RANK": "1", "WORLD_SIZE": str(run["world"]), "LOCAL_RANK": "0"})
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(run["environment"])
    before = sys.argv
    sys.argv = ["pretrain_gpt.py", *run["argv"]]
    try:
        args = arguments.parse_args()
    finally:
        sys.argv = before
    arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
    if args.fp8 is None and args.fp4 is None:  # Transformer Engine is looked for
        args.moe_grouped_gemm = args.apply_rope_fusion = False
        arguments.core_transformer_config_from_args(args)


def read(argv: list[str]) -> dict[str, Any]:
    """Flags as {name_with_underscores: [values]}."""
    found: dict[str, Any] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            found[name] = []
        else:
            found[name].append(word)
    return found


def typed(values: list[str], annotation: str) -> Any:
    """A flag's value as its field has it."""
    if not values:
        return True
    if "List" in annotation and "Union" not in annotation:
        return values
    for kind, make in (("int", int), ("float", float)):
        if kind in annotation:
            with contextlib.suppress(ValueError):
                return make(values[0])
    return values[0]


class Anything:
    """Stands in for whatever Triton is asked for; a decorated function stays what it is."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *words: Any, **more: Any) -> Any:
        return words[0] if len(words) == 1 and callable(words[0]) and not more else Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, _: Any) -> Any:
        return Anything()


class Stand(MetaPathFinder, Loader):
    """Imports Triton's modules as ones that have everything."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "triton" else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = self._part  # type: ignore[method-assign]
        module.__dict__["__version__"] = "3.0.0"
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...

    @staticmethod
    def _part(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


def imported(checkout: str) -> Any:
    """megatron.training.arguments of a checkout."""
    if "megatron.training.arguments" in sys.modules:
        return sys.modules["megatron.training.arguments"]
    if not hasattr(typing, "override"):  # Python 3.11
        typing.override = lambda method: method  # type: ignore[attr-defined]
    import torch
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch._inductor.runtime.triton_heuristics
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.utils.flop_counter

    sys.path.insert(0, checkout)
    sys.meta_path.append(Stand())
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    from megatron.training import arguments

    arguments.is_te_min_version = lambda *_, **__: True
    return arguments


if __name__ == "__main__":
    main()
