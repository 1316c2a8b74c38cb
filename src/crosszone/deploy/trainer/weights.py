"""Weights: first values that depend only on the seed, a parameter's name and its shape.

So a model starts the same whole, sharded (DTensor) or split into stages, and on any device: values come from integer
arithmetic on the place of an element, not from a generator whose stream depends on who draws.
"""

import hashlib
import math

import torch
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
    transformer = next(part for part in module.modules() if hasattr(part, "tied"))
    for name, parameter in module.named_parameters():
        full = get_full_name(name)
        fill_parameter(
            parameter, _make_values(parameter, transformer.tied.get(full, full), seed, transformer.model["layers"])
        )
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
