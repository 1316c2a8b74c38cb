"""Data: which samples a step trains on.

    for inputs, targets in iter_batches(run, first_step=1): # [b, s] int64 each, on run.device
        ...                                                 # run.micro_batches of them make a step of this replica

Sample number n of the run is the same whatever the layout: step k takes the samples from (k - 1) x global_batch on, and
the replicas take their shares of them in dp order. So a resumed run goes on with the samples it would have had, and a
run with other degrees or uneven micro-batches sees the same samples in every step.

Sources (`--data`): none: synthetic phrases that a model learns quickly; a `.bin` file of token ids (uint16, or uint32
where the vocabulary needs it or an adjacent `.json` says {"dtype": "uint32"}); text (`.txt`, `.md`, `.jsonl` with a
"text" field, or a folder of them) through `--tokenizer tokenizer.json`. An encoder gets masked tokens to guess.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from run import Refusal, TrainerRun

IGNORED = -100  # Target of a token that does not count, as in `model.compute_loss`
TEXT = (".txt", ".md", ".jsonl")
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
MASKS = ("[MASK]", "<mask>")
# Tokens checked against the vocabulary before the first step; each batch is checked as it comes.
LOOKED_AT = 1 << 22


def iter_batches(run: TrainerRun, first_step: int = 1) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Micro-batches of this rank's replica from a step on, without end: (inputs, targets), [b, s] int64.

    Data that cannot be used are refused here, not when the first one is asked for.
    """
    source = open_source(run)
    return (
        read_micro_batch(run, source, step, number)
        for step in itertools.count(first_step)
        for number in range(run.micro_batches)
    )


def read_micro_batch(
    run: TrainerRun, source: SyntheticSource | TokenFile, step: int, number: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Micro-batch `number` of a step on this rank's replica."""
    size, shares = run.strategy["micro_batch"], run.strategy["replica_micro_batches"]
    before = sum(shares[: run.coordinates["dp"]]) + number
    first = (step - 1) * run.job["global_batch"] + before * size
    samples = np.stack([source.sample(index) for index in range(first, first + size)])
    if samples.max() >= run.model["vocab"]:
        raise Refusal(format_token_error(source.name, int(samples.max()), run.model["vocab"]), this_machine=True)
    if run.model["kind"] == "encoder":
        pairs = [mask_tokens(run, source.mask, first + row, sample[:-1]) for row, sample in enumerate(samples)]
        inputs, targets = np.stack([pair[0] for pair in pairs]), np.stack([pair[1] for pair in pairs])
    else:
        inputs, targets = samples[:, :-1], samples[:, 1:]
    return tuple(move_to_device(array, run.device) for array in (inputs, targets))  # type: ignore[return-value]


def move_to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The array as a tensor there; from pinned memory, so that the copy does not hold up the GPU."""
    tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def mask_tokens(run: TrainerRun, mask: int, index: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A sample with some tokens to guess: 80 % of them masked, 10 % replaced, 10 % left (BERT).

    Every sample has as many, so that the mean over a micro-batch is the mean over its samples.
    """
    random = np.random.default_rng([run.seed, 2, index])
    chosen = random.permutation(len(tokens))[: max(1, round(run.training["mask_share"] * len(tokens)))]
    inputs, targets = tokens.copy(), np.full_like(tokens, IGNORED)
    targets[chosen] = tokens[chosen]
    draws = random.random(len(chosen))
    inputs[chosen[draws < 0.8]] = mask
    replaced = chosen[draws >= 0.9]
    inputs[replaced] = random.integers(0, run.model["vocab"], len(replaced))
    return inputs, targets


class SyntheticSource:
    """Phrases of a small fixed collection in random order: no file, and there is something to learn."""

    name = "synthetic data"

    def __init__(self, run: TrainerRun) -> None:
        self.seed, self.length, vocab = run.seed, run.job["seq_len"] + 1, run.model["vocab"]
        self.mask = vocab - 1
        random = np.random.default_rng([run.seed, 0])
        # A few frequent tokens, as in language: the first steps learn those, later ones the phrases.
        weights = 1 / np.arange(1, min(vocab, 64) + 1)
        self.phrases = random.choice(len(weights), size=(32, 16), p=weights / weights.sum()).astype(np.int64)

    def sample(self, index: int) -> np.ndarray:
        """The tokens of one sample, one more than the sequence has."""
        random = np.random.default_rng([self.seed, 1, index])
        chosen = random.integers(0, len(self.phrases), -(-self.length // self.phrases.shape[1]))
        return self.phrases[chosen].reshape(-1)[: self.length]


class TokenFile:
    """A file of token ids, read where needed; each pass over it has an order of its own."""

    def __init__(self, run: TrainerRun, path: Path, mask: int | None = None) -> None:
        self.name, self.seed, self.length = str(path), run.seed, run.job["seq_len"]
        vocab, batch = run.model["vocab"], run.job["global_batch"]
        self.mask = vocab - 1 if mask is None else mask
        dtype = read_token_dtype(path, vocab)
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise Refusal(
                f"{path} has {size} bytes, no whole number of {dtype.name} tokens; {DTYPE_ADVICE}", this_machine=True
            )
        tokens = size // dtype.itemsize
        self.samples = max(0, (tokens - 1) // self.length)
        if self.samples < batch:
            needed = batch * self.length + 1
            raise Refusal(
                f"{path} has {tokens:,} tokens; one step of {batch} samples x {self.length} tokens needs {needed:,}: "
                "give more data or plan with a smaller global_batch or seq_len",
                this_machine=True,
            )
        # Mapped, not read: ranks of a node share the pages, and a corpus may be larger than the memory.
        self.tokens = np.memmap(path, dtype=dtype, mode="r")
        largest = int(self.tokens[:LOOKED_AT].max())
        if largest >= vocab:
            raise Refusal(format_token_error(self.name, largest, vocab), this_machine=True)

    def sample(self, index: int) -> np.ndarray:
        """The tokens of one sample, one more than the sequence has."""
        epoch, place = divmod(index, self.samples)
        first = shuffle_index(place, self.samples, hash_numbers(self.seed, epoch)) * self.length
        return self.tokens[first : first + self.length + 1].astype(np.int64)


DTYPE_ADVICE = 'write {"dtype": "uint16"} or "uint32" into a .json file of the same name'


def format_token_error(name: str, token: int, vocab: int) -> str:
    """What to say about a token that the model does not know."""
    return (
        f"{name} holds token id {token}, the model's vocabulary ends at {vocab - 1}; use the tokenizer the model was "
        f"planned with, or {DTYPE_ADVICE}"
    )


def read_token_dtype(path: Path, vocab: int) -> np.dtype[Any]:
    """Type of the ids in a .bin file: as the .json beside it says, else the smallest that holds the vocabulary."""
    dtype_file = path.with_suffix(".json")
    if dtype_file.exists():
        try:
            name = json.loads(dtype_file.read_text(encoding="utf-8"))["dtype"]
            if name in ("uint16", "uint32"):
                return np.dtype(name)
        except (ValueError, KeyError, TypeError):
            name = "nothing"
        raise Refusal(f"{dtype_file} gives {name} as dtype; uint16 and uint32 can be read", this_machine=True)
    return np.dtype(np.uint16 if vocab <= 1 << 16 else np.uint32)


def open_source(run: TrainerRun) -> SyntheticSource | TokenFile:
    """Where samples come from; a `Refusal` where that cannot be. All ranks call it together."""
    if run.data["path"] is None:
        return SyntheticSource(run)
    path, mask = run.run_agreed(lambda: prepare_tokens(run, Path(run.data["path"])))
    return run.run_agreed(lambda: TokenFile(run, path, mask))


def prepare_tokens(run: TrainerRun, path: Path) -> tuple[Path, int | None]:
    """The .bin file with the tokens, made from text if need be, and the mask token if the tokenizer has one."""
    if not path.exists():
        raise Refusal(f"the data {path} is not on this machine; give --data PATH, or leave it out", this_machine=True)
    if path.suffix == ".bin":
        return path, None
    files = sorted(file for file in path.rglob("*") if file.suffix in TEXT) if path.is_dir() else [path]
    if not files or any(file.suffix not in TEXT for file in files):
        raise Refusal(
            f"{path} holds no {', '.join(TEXT)} file and is no .bin file; give --data one of these", this_machine=True
        )
    tokenizer = open_tokenizer(run)
    cache = run.out / f"tokens-{hash_sources(run, files)}.bin"
    if run.local_rank == 0 and not cache.exists():
        encode_texts(tokenizer, files, cache)
    while not run.distributed and not cache.exists():
        time.sleep(0.1)  # Without torch.distributed this is how the other ranks of a node wait for the first.
    ids = (tokenizer.token_to_id(name) for name in MASKS)
    return cache, next((token_id for token_id in ids if token_id is not None), None)


def open_tokenizer(run: TrainerRun) -> Any:
    """The tokenizer of the settings."""
    path = run.data["tokenizer"]
    if path is None:
        raise Refusal("text needs a tokenizer: give --tokenizer tokenizer.json, or --data a .bin file of token ids")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise Refusal("text needs the tokenizers library: pip install tokenizers", this_machine=True) from None
    if not Path(path).is_file():
        raise Refusal(
            f"the tokenizer {path} is not on this machine; give --tokenizer tokenizer.json", this_machine=True
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises plain Exception.
        raise Refusal(f"{path} is no tokenizer.json ({error})", this_machine=True) from None
    if tokenizer.get_vocab_size() > run.model["vocab"]:
        token_count = tokenizer.get_vocab_size()
        raise Refusal(
            f"the tokenizer {path} has {token_count} tokens, the model {run.model['vocab']}; use the model's own"
        )
    return tokenizer


def encode_texts(tokenizer: Any, files: Iterable[Path], cache: Path) -> None:
    """Write the token ids of all texts, a document's end after each, so that the next start finds them."""
    ids = (tokenizer.token_to_id(name) for name in ENDS)
    end = next((token_id for token_id in ids if token_id is not None), None)
    wide = tokenizer.get_vocab_size() > 1 << 16
    part = cache.with_name(f"{cache.name}.{uuid.uuid4().hex}")
    with part.open("wb") as written:
        for document in iter_documents(files):
            tokens = tokenizer.encode(document, add_special_tokens=False).ids + ([] if end is None else [end])
            written.write(np.array(tokens, dtype=np.uint32 if wide else np.uint16).tobytes())
    cache.with_suffix(".json").write_text(json.dumps({"dtype": "uint32" if wide else "uint16"}), encoding="utf-8")
    part.replace(cache)


def iter_documents(files: Iterable[Path]) -> Iterator[str]:
    """The texts: a .txt or .md file is one, a line of a .jsonl file is one."""
    for file in files:
        try:
            if file.suffix != ".jsonl":
                yield file.read_text(encoding="utf-8")
                continue
            with file.open(encoding="utf-8") as lines:
                yield from (json.loads(line)["text"] for line in lines if line.strip())
        except (ValueError, KeyError, TypeError) as error:
            raise Refusal(
                f'{file} is not UTF-8 text, or a line of it has no "text" ({error})', this_machine=True
            ) from None


def hash_sources(run: TrainerRun, files: Iterable[Path]) -> str:
    """Changes when a text or the tokenizer does."""
    sources = [Path(run.data["tokenizer"]), *files]
    stats = [[str(source), source.stat().st_size, source.stat().st_mtime_ns] for source in sources]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()[:16]


def shuffle_index(index: int, size: int, key: int) -> int:
    """Where a shuffle of `size` things puts number `index`, without making the shuffle.

    A Feistel network of four rounds is a permutation of a power of four; numbers beyond `size` are sent on until one
    lies inside.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        high_bits, low_bits = index >> half, index & mask
        for turn in range(4):
            high_bits, low_bits = low_bits, high_bits ^ (hash_numbers(key, turn, low_bits) & mask)
        index = high_bits << half | low_bits
        if index < size:
            return index


def hash_numbers(*numbers: int) -> int:
    """A number that looks random and depends on these alone."""
    text = b"".join(number.to_bytes(8, "little") for number in numbers)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
