"""Whole training steps of Hugging Face models on one GPU: `python benchmarks/hf_steps.py --rows fit -o steps.csv`.

Needs torch and transformers, and a GPU. Weights are random; parameters, gradients and both Adam moments are bf16; a
step is forward, backward and a fused AdamW. Rows are written as soon as they are measured, in the columns that
`crosszone accuracy` reads; rows that are in the file already are not measured again.
"""

from __future__ import annotations

import argparse
import csv
import gc
import itertools
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

COLUMNS = [
    "id",
    "source",
    "model",
    "params_b",
    "layers",
    "hidden",
    "ffn_hidden",
    "heads",
    "kv_heads",
    "vocab",
    "seq_len",
    "n_experts",
    "top_k",
    "gpu",
    "gpus",
    "gpus_per_node",
    "intra_node_link",
    "inter_node_link_gbps_per_gpu",
    "precision",
    "framework",
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "interleave",
    "sequence_parallel",
    "recompute",
    "zero_stage_or_fsdp",
    "micro_batch",
    "global_batch",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu_pct",
    "hfu_pct",
    "memory_gb",
    "notes",
]
WARM, TIMED = 4, 7
# layers, hidden, MLP, heads, key/value heads, vocabulary, tied embeddings
LLAMA = {
    "llama-2-7b": (32, 4096, 11008, 32, 32, 32000, False),
    "llama-2-13b": (40, 5120, 13824, 40, 40, 32000, False),
    "llama-3-8b": (32, 4096, 14336, 32, 8, 128256, False),
    "llama-3.2-1b": (16, 2048, 8192, 32, 8, 128256, True),
    "llama-3.2-3b": (28, 3072, 8192, 24, 8, 128256, True),
    "tinyllama-1.1b": (22, 2048, 5632, 32, 4, 32000, False),
}
GPT = {
    "gpt2-large": (36, 1280, 5120, 20, 20, 50257, True),
    "gpt2-xl": (48, 1600, 6400, 25, 25, 50257, True),
    "gpt3-2.7b": (32, 2560, 10240, 32, 32, 50257, True),
    "gpt3-6.7b": (32, 4096, 16384, 32, 32, 50257, True),
}
# model, layers (0: all), micro-batch, sequence, full recomputation, compiled
FIT = [
    ("llama-2-7b", 8, 1, 4096, 0, 0),
    ("llama-2-7b", 8, 4, 2048, 0, 0),
    ("llama-2-7b", 8, 2, 8192, 1, 0),
    ("llama-3-8b", 8, 1, 4096, 0, 0),
    ("llama-3-8b", 8, 1, 8192, 1, 0),
    ("llama-3.2-1b", 0, 1, 2048, 0, 0),
    ("llama-3.2-1b", 0, 8, 2048, 0, 0),
    ("llama-3.2-1b", 0, 4, 4096, 1, 0),
    ("gpt2-xl", 0, 8, 1024, 0, 0),
    ("gpt2-xl", 0, 2, 1024, 0, 0),
    ("gpt3-6.7b", 8, 4, 2048, 0, 0),
    ("gpt3-6.7b", 8, 8, 1024, 1, 0),
    ("llama-2-7b", 4, 4, 4096, 0, 1),
    ("llama-3-8b", 4, 2, 4096, 0, 1),
    ("llama-3.2-1b", 8, 4, 2048, 0, 1),
    ("gpt2-xl", 12, 8, 1024, 0, 1),
]
CHECK = [
    ("llama-3.2-3b", 0, 1, 4096, 0, 0),
    ("llama-3.2-3b", 0, 4, 2048, 1, 0),
    ("llama-3.2-3b", 14, 2, 8192, 1, 0),
    ("tinyllama-1.1b", 0, 4, 2048, 0, 0),
    ("tinyllama-1.1b", 0, 16, 2048, 1, 0),
    ("tinyllama-1.1b", 0, 2, 4096, 0, 0),
    ("llama-2-13b", 6, 2, 4096, 0, 0),
    ("llama-2-13b", 10, 1, 2048, 0, 0),
    ("llama-2-13b", 6, 8, 2048, 1, 0),
    ("gpt2-large", 0, 8, 1024, 0, 0),
    ("gpt2-large", 0, 4, 512, 0, 0),
    ("gpt3-2.7b", 0, 2, 2048, 0, 0),
    ("gpt3-2.7b", 16, 8, 2048, 1, 0),
    ("llama-3.2-3b", 7, 2, 4096, 0, 1),
    ("tinyllama-1.1b", 11, 8, 2048, 0, 1),
    ("llama-2-13b", 4, 2, 4096, 0, 1),
    ("gpt3-2.7b", 8, 4, 2048, 0, 1),
]


def build_model(name: str, layers: int, seq: int) -> tuple[Any, tuple[int, ...]]:
    """The model with random weights on the GPU, and its sizes."""
    torch, hf = import_module("torch"), import_module("transformers")
    all_layers, hidden, ffn, heads, kv, vocab, tied = (LLAMA | GPT)[name]
    layer_count = layers or all_layers
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        if name in LLAMA:
            config = hf.LlamaConfig(
                num_hidden_layers=layer_count,
                hidden_size=hidden,
                intermediate_size=ffn,
                num_attention_heads=heads,
                num_key_value_heads=kv,
                vocab_size=vocab,
                tie_word_embeddings=tied,
                max_position_embeddings=max(seq, 2048),
                attn_implementation="sdpa",
                use_cache=False,
            )
            model: Any = hf.LlamaForCausalLM(config)
        else:
            config = hf.GPT2Config(
                n_layer=layer_count,
                n_embd=hidden,
                n_inner=ffn,
                n_head=heads,
                vocab_size=vocab,
                n_positions=max(seq, 1024),
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                attn_implementation="sdpa",
                use_cache=False,
            )
            model = hf.GPT2LMHeadModel(config)
    return model.to(torch.bfloat16).train(), (layer_count, hidden, ffn, heads, kv, vocab)


def measure_row(name: str, layers: int, batch: int, seq: int, recompute: int, compiled: int) -> dict[str, Any]:
    """One row: median step and peak memory."""
    torch = import_module("torch")
    model, (layer_count, hidden, ffn, heads, kv, vocab) = build_model(name, layers, seq)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(0, vocab, (batch, seq), device="cuda")
    laps: list[list[float]] = []
    for number in range(WARM + TIMED):
        if number == WARM:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        marks[0].record()
        loss = run(input_ids=tokens, labels=tokens).loss
        marks[1].record()
        loss.backward()
        marks[2].record()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        marks[3].record()
        torch.cuda.synchronize()
        if number >= WARM:
            laps.append([a.elapsed_time(b) for a, b in itertools.pairwise(marks)])
    steps = [sum(lap) / 1e3 for lap in laps]
    step = statistics.median(steps)
    parts = [statistics.median(times) for times in zip(*laps, strict=True)]
    spread = 100 * (max(steps) - min(steps)) / step
    notes = f"bf16 states; fused AdamW; sdpa; peak allocated GiB; median of {TIMED} after {WARM} warm-ups, "
    notes += f"spread {spread:.1f} %; "
    notes += "fwd {:.1f} ms, bwd {:.1f} ms, optimizer {:.1f} ms".format(*parts)
    kind = "torch.compile" if compiled else "eager"
    return {
        "source": f"Own measurement, one H200, torch {torch.__version__.split('+')[0]}",
        "model": f"{name}[{layers} layers]" if layers else name,
        "params_b": f"{parameters / 1e9:.6f}",
        "layers": layer_count,
        "hidden": hidden,
        "ffn_hidden": ffn,
        "heads": heads,
        "kv_heads": kv,
        "vocab": vocab,
        "seq_len": seq,
        "gpu": "H200-141GB",
        "gpus": 1,
        "gpus_per_node": 1,
        "intra_node_link": "NVLink",
        "precision": "bf16-pure",
        "framework": f"Hugging Face transformers ({kind})",
        **dict.fromkeys(("dp", "tp", "pp", "cp", "interleave"), 1),
        "sequence_parallel": 0,
        "recompute": "full" if recompute else "none",
        "zero_stage_or_fsdp": "none",
        "micro_batch": batch,
        "global_batch": batch,
        "step_time_s": f"{step:.6f}",
        "tokens_per_s_per_gpu": f"{batch * seq / step:.1f}",
        "memory_gb": f"{torch.cuda.max_memory_allocated() / 2**30:.3f}",
        "notes": notes,
    }


def main() -> int:
    """Measure what the time allows, eager steps first, fit and check in turn."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--rows", choices=("fit", "check"), help="only those fitted to, or only those for checking")
    parser.add_argument("--only", choices=("eager", "compiled"))
    arguments = parser.parse_args()
    torch = import_module("torch")
    done = set()
    if arguments.output.exists():
        with arguments.output.open() as file:
            done = {row["id"] for row in csv.DictReader(file)}
    cases_by_id = [
        (f"{kind}-{at:02}", case) for kind, cases in (("fit", FIT), ("check", CHECK)) for at, case in enumerate(cases)
    ]
    cases_by_id.sort(key=lambda entry: (entry[1][5], entry[0][-2:], entry[0]))
    until = time.monotonic() + 60 * arguments.minutes
    with arguments.output.open("a", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not done:
            rows.writeheader()
        for id, case in cases_by_id:
            if id in done or (arguments.only and (arguments.only == "compiled") != bool(case[5])):
                continue
            if time.monotonic() > until:
                sys.stderr.write("the time is up\n")
                break
            start = time.monotonic()
            try:
                row = {"id": id, **measure_row(*case)}
            except torch.cuda.OutOfMemoryError:
                sys.stderr.write(f"{id} {case}: out of memory\n")
            else:
                rows.writerow(row)
                file.flush()
                sys.stderr.write(
                    f"{id} {case} {row['step_time_s']} s {row['memory_gb']} GiB ({time.monotonic() - start:.0f} s)\n"
                )
            gc.collect()
            torch.cuda.empty_cache()
            torch._dynamo.reset()
    return 0


if __name__ == "__main__":
    sys.exit(main())
