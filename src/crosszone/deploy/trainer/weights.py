"""Weights: first values by seed and name, or published ones from a folder in Hugging Face's format.

First values depend only on the seed, a parameter's name and its shape. So a model starts the same whole, sharded
(DTensor) or split into stages, and on any device: values come from integer arithmetic on the place of an element,
not from a generator whose stream depends on who draws.
"""

import hashlib
import json
import math
from pathlib import Path

import torch
from attention import RMSNorm
from torch.distributed.tensor import DTensor, distribute_tensor

# Standard deviation of weights (GPT-2's); outputs to the residual stream have it over the root of 2 x layers.
SPREAD = 0.02
WRAPPERS = ("module.", "_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
CHUNK = 1 << 24  # Elements made at a time, for the integers take more room than the values


@torch.no_grad()
def init_weights(module, seed, device=None):
    """Fill every parameter of a Transformer (wrapped or not); parameters on device meta are made on `device` first.

    Matrices are near normal with a standard deviation of 0.02, norms 1, biases and sinks 0.
    """
    if any(parameter.is_meta for parameter in module.parameters()):
        module.to_empty(device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
    transformer = _find_transformer(module)
    for wrapped, parameter in module.named_parameters():
        name = get_full_name(wrapped)
        name = transformer.tied.get(name, name)
        fill_parameter(parameter, _make_values(parameter, name, seed, transformer.model["layers"]))
    return module


def get_full_name(name):
    """The parameter's name in a bare Transformer."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def fill_parameter(parameter, values):
    """Put full-size values into a parameter; of a DTensor only this rank's shard, without communication."""
    if isinstance(parameter, DTensor):
        values = distribute_tensor(values, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
        parameter.to_local().copy_(values)
    else:
        parameter.copy_(values)


def _make_values(parameter, name, seed, layers):
    shape, device = parameter.shape, parameter.device
    kind = name.rsplit(".", 1)[-1]
    if "bias" in kind or kind == "sinks":
        return torch.zeros(shape, device=device)
    if len(shape) == 1:
        return torch.ones(shape, device=device)
    residual = ".out." in name or ".down." in name or kind == "down"
    return generate_noise(shape, f"{seed}/{name}", SPREAD / math.sqrt(2 * layers) if residual else SPREAD, device)


def generate_noise(shape, key, spread, device="cpu"):
    """A tensor of near normal numbers with a standard deviation of `spread`, the same for the same key on any device.

    Each element's number is scrambled to 64 bits (the finaliser of SplitMix64); the sum of its four 16-bit pieces is
    near normal, within 3.5 deviations. Integers throughout, so that devices agree to the last bit.
    """
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little", signed=True)
    values = torch.empty(math.prod(shape), device=device)
    for first in range(0, len(values), CHUNK):
        x = torch.arange(first, min(first + CHUNK, len(values)), device=device)
        x = x * _to_signed(0x9E3779B97F4A7C15) + start
        x = (x ^ _shift_right(x, 30)) * _to_signed(0xBF58476D1CE4E5B9)
        x = (x ^ _shift_right(x, 27)) * _to_signed(0x94D049BB133111EB)
        x = x ^ _shift_right(x, 31)
        total = sum(_shift_right(x, bits) & 0xFFFF for bits in (0, 16, 32, 48))
        # Each piece is uniform over 65,536 values, so the sum's deviation is 65,536 x sqrt(4 / 12).
        values[first : first + len(x)] = (total.double() - 2 * 65_535).mul_(spread * math.sqrt(3) / 65_536).float()
    return values.view(shape)


def _shift_right(x, bits):
    """Shift right, filling with zeros (tensors' own shift keeps the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1) if bits else x


def _to_signed(value):
    return value - (1 << 64) if value >= 1 << 63 else value


# ---- published weights, in safetensors files with LLaMA's family of names ----

#     Llama-3.1-8B/config.json                         model_type, rope_theta, rms_norm_eps and the sizes
#     Llama-3.1-8B/model.safetensors.index.json        which file has which tensor (or one model.safetensors)
#
# A rank opens only the files that have tensors of its stage; of a sharded parameter it keeps its own part.


FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
# Keys of config.json whose value a field of the model must equal.
SIZES = {
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "num_local_experts": "moe.experts",
    "num_experts": "moe.experts",
    "num_experts_per_tok": "moe.top_k",
}
OUTER = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
INNER = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
EXPERTS = {
    "mixtral": ("block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"}),
    "qwen3_moe": ("mlp", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
}


class WeightsError(ValueError):
    """A folder whose weights do not fit the model; the text says which and why."""


@torch.no_grad()
def load_huggingface(transformer, folder, device=None):
    """Fill a Transformer (wrapped, sharded, one stage or whole) from a folder; meta parameters are made on `device`.

    Also does `read_config`.
    """
    folder = Path(folder)
    config = read_config(transformer, folder)
    model = _find_transformer(transformer)
    if any(parameter.is_meta for parameter in transformer.parameters()):
        transformer.to_empty(device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
    weight_files = _WeightFiles(folder)
    for wrapped, parameter in transformer.named_parameters():
        name = get_full_name(wrapped)
        sources = _list_source_tensors(model.tied.get(name, name), config, model.model)
        if name == "head.weight" and config.get("tie_word_embeddings") and sources[0] not in weight_files.places:
            sources = [OUTER["embed.weight"]]
        parts = [weight_files.read_tensor(source, name) for source in sources]
        value = torch.stack(parts).transpose(1, 2) if ".experts." in name else parts[0]
        value = _pad_to_parameter(value, parameter, name, sources[0])
        fill_parameter(parameter, value.to(parameter.device, parameter.dtype))
    _check_all_taken(weight_files, model, folder)


def read_config(transformer, folder):
    """Take what settings.json does not tell (rotary base, epsilon) from the folder's config.json, and check the rest.

    Call it also when the weights themselves come from a checkpoint of a run that began with this folder.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise WeightsError(f"{path}: not there; init_from must be a local folder of a Hugging Face model")
    config = json.loads(path.read_text("utf-8"))
    model = _find_transformer(transformer)
    _check_config(config, model.model, path)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    model.theta = float(config.get("rope_theta") or rope.get("rope_theta") or 10_000.0)
    model.scaling = _build_frequency_scaling(rope, path)
    for part in model.modules():
        if isinstance(part, RMSNorm):
            part.eps = config.get("rms_norm_eps", 1e-6)
    return config


def _check_config(config, model, path):
    family = config.get("model_type")
    if family not in FAMILIES:
        raise WeightsError(f"{path}: model_type={family!r} is not one of {', '.join(FAMILIES)}")
    for key, field in SIZES.items():
        size = model
        for step in field.split("."):
            size = size and size[step]
        if config.get(key) is not None and config[key] != size:
            raise WeightsError(f"{path}: {key}={config[key]}, but model.{field}={size}")
    fixed = {"activation": "swiglu", "norm": "rmsnorm", "positions": "rotary", "norms_per_layer": 2, "mla": None}
    for field, value in fixed.items():
        if model[field] != value:
            raise WeightsError(f"{path}: a {family} has model.{field}={value}, the plan's model has {model[field]!r}")
    if config.get("hidden_act", "silu") != "silu":
        raise WeightsError(f"{path}: hidden_act={config['hidden_act']!r}; only silu is read")
    if model["tied_embeddings"] and not config.get("tie_word_embeddings", False):
        raise WeightsError(f"{path}: tie_word_embeddings is false, but model.tied_embeddings is true")
    if config.get("norm_topk_prob") is False:
        raise WeightsError(f"{path}: norm_topk_prob=false; here the weights of a token's experts add up to 1")
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if (model["window"] or {}).get("tokens") != window:
        size = (model["window"] or {}).get("tokens")
        raise WeightsError(f"{path}: sliding_window={window}, but model.window.tokens={size}")


def _build_frequency_scaling(rope, path):
    """The mapping of rotary frequencies that stretches the context, as a function; None: none."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return lambda frequencies: frequencies / rope["factor"]
    if kind != "llama3":
        raise WeightsError(f"{path}: rope_scaling of type {kind!r} is not one of default, linear, llama3")
    low, high, length = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]

    def scale_llama3(frequencies):
        # Waves that fit more than `high` times into the length stay, those that fit less than `low` times stretch.
        turns = length * frequencies / (2 * math.pi)
        weight = ((turns - low) / (high - low)).clamp(0, 1)
        return weight * frequencies + (1 - weight) * frequencies / rope["factor"]

    return scale_llama3


def _list_source_tensors(name, config, model):
    """The tensors in the folder that make up one parameter."""
    if name in OUTER:
        return [OUTER[name]]
    if not name.startswith("layers."):
        raise WeightsError(f"{name}: a {config['model_type']} has no such weights; the plan's model is of another kind")
    _, layer, inner = name.split(".", 2)
    part, _, kind = inner.rpartition(".")
    start = f"model.layers.{layer}."
    block, names = EXPERTS.get(config["model_type"], (None, {}))
    if block and part == "mlp.router" and kind == "weight":
        return [f"{start}{block}.gate.weight"]
    if block and part == "mlp.experts" and kind in names:
        return [f"{start}{block}.experts.{i}.{names[kind]}.weight" for i in range(model["moe"]["experts"])]
    if part not in INNER:
        raise WeightsError(f"{name}: a {config['model_type']} has no such weights; the plan's model is of another kind")
    return [f"{start}{INNER[part]}.{kind}"]


def _pad_to_parameter(value, parameter, name, source):
    """The value in the parameter's shape; rows that pad the vocabulary are zeros."""
    rows = parameter.shape[0] - value.shape[0]
    if name in ("embed.weight", "head.weight") and rows > 0 and value.shape[1:] == parameter.shape[1:]:
        return torch.cat([value, value.new_zeros(rows, *value.shape[1:])])
    if value.shape != parameter.shape:
        raise WeightsError(f"{source}: has shape {list(value.shape)}, but {name} is {list(parameter.shape)}")
    return value


def _check_all_taken(weight_files, transformer, folder):
    """Refuse weights of this stage's layers that the model has no place for: its function would be another."""
    prefixes = tuple(f"model.layers.{layer}." for layer in transformer.layers)
    for source in weight_files.places:
        if (
            source.startswith(prefixes)
            and source not in weight_files.taken
            and not source.endswith("rotary_emb.inv_freq")
        ):
            raise WeightsError(f"{folder}: {source} has no place in the plan's model (model.bias, model.qk_norm?)")


def _find_transformer(module):
    return next(part for part in module.modules() if hasattr(part, "tied"))


class _WeightFiles:
    """The tensors of a folder; each file is opened when first needed."""

    def __init__(self, folder):
        self.folder, self.open, self.taken = folder, {}, set()
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            self.places = json.loads(index.read_text("utf-8"))["weight_map"]
        else:
            files = sorted(path.name for path in folder.glob("*.safetensors"))
            self.places = {name: file for file in files for name in self._open_file(file).keys()}  # noqa: SIM118 (no mapping)
        if not self.places:
            raise WeightsError(f"{folder}: has no .safetensors file; other formats are not read")

    def _open_file(self, name):
        from safetensors import safe_open  # only fine-tuning needs it

        if name not in self.open:
            if not (self.folder / name).is_file():
                raise WeightsError(f"{self.folder / name}: named in the index but not there")
            self.open[name] = safe_open(self.folder / name, framework="pt")
        return self.open[name]

    def read_tensor(self, source, name):
        """One whole tensor."""
        if source not in self.places:
            raise WeightsError(f"{self.folder}: has no tensor {source}, which {name} needs")
        self.taken.add(source)
        return self._open_file(self.places[source]).get_tensor(source)
