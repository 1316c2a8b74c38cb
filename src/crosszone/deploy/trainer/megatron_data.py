r"""Makes training data ready for Megatron-LM: megatron-data/tokens.bin and .idx, which `--data-path` names.

    MEGATRON_PATH=... python3 megatron_data.py                       # the data that settings.json names
    MEGATRON_PATH=... python3 megatron_data.py --data corpus.jsonl --tokenizer tokenizer.json

Run it once where all nodes see the result, or on every node. It takes what the other trainers take:
- a `.bin` file of token ids (uint16, or uint32 where the vocabulary needs it or an adjacent `.json` says
  {"dtype": "uint32"});
- text (`.txt`, `.md`, `.jsonl` with a "text" field, or a folder of them) through a tokenizer.json; a document is a
  line of `.jsonl`, or a whole file, and ends with the tokenizer's end of text, where it has one;
- a data set that Megatron-LM's own tools made (NAME.bin with NAME.idx beside it): linked, not copied.

A large corpus is quicker through many processes of Megatron-LM itself, whose result is taken as the third kind:
    python3 "$MEGATRON_PATH/tools/preprocess_data.py" --input corpus.jsonl --output-prefix corpus --append-eod \
        --tokenizer-type HuggingFaceTokenizer --tokenizer-model FOLDER --workers 32
    python3 megatron_data.py --data corpus_text_document
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TARGET = Path("megatron-data/tokens")
TEXT = (".txt", ".md", ".jsonl")
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
PIECE = 1 << 20  # Tokens of a piece of a file without documents: the index counts them in 32 bits
SMALL = 65_500  # Vocabularies below this fit 16 bits, as Megatron-LM decides it


def main(argv: list[str]) -> None:
    """Write the data set."""
    args = parse_arguments(argv)
    settings = json.loads(Path(args.settings).read_text(encoding="utf-8"))
    vocab = settings["model"]["vocab"]
    source_name = args.data or settings["data"]["path"]
    if source_name is None:
        sys.exit("no data are named: generate the bundle with --set data=PATH, or use --data PATH")
    data, tokenizer = Path(source_name), args.tokenizer or settings["data"]["tokenizer"]
    if not data.exists() and not get_index_path(data).exists():
        sys.exit(f"{data} is not there")
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    if get_index_path(data).exists():
        link_dataset(data)
        return
    documents = iter_token_pieces(data, vocab) if data.suffix == ".bin" else iter_encoded_documents(data, tokenizer)
    tokens, count = write_dataset(documents, vocab)
    print(f"{TARGET}: {tokens:,} tokens in {count:,} documents")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="megatron_data.py", description="Make data ready for Megatron-LM.")
    parser.add_argument("settings", nargs="?", default="settings.json", help="settings.json of the bundle")
    parser.add_argument("--data", help="token .bin, text file or folder (default: what settings.json names)")
    parser.add_argument("--tokenizer", help="tokenizer.json, for text (default: what settings.json names)")
    return parser.parse_args(argv)


def get_index_path(data: Path) -> Path:
    """The index that a data set of Megatron-LM has beside it."""
    return data.with_suffix(".idx") if data.suffix == ".bin" else Path(f"{data}.idx")


def link_dataset(data: Path) -> None:
    """Name a data set that is ready already."""
    prefix = data.with_suffix("") if data.suffix == ".bin" else data
    for end in (".bin", ".idx"):
        link_path = Path(f"{TARGET}{end}")
        link_path.unlink(missing_ok=True)
        link_path.symlink_to(Path(f"{prefix}{end}").resolve())
    print(f"{TARGET}: linked to {prefix}")


def iter_token_pieces(path: Path, vocab: int) -> Iterator[np.ndarray]:
    """A file of token ids in pieces."""
    dtype_file = path.with_suffix(".json")
    dtype_name = json.loads(dtype_file.read_text(encoding="utf-8")).get("dtype") if dtype_file.is_file() else None
    dtype = np.dtype(dtype_name or ("uint16" if vocab <= 2**16 else "uint32"))
    if path.stat().st_size % dtype.itemsize:
        sys.exit(f"{path} is no whole number of {dtype.name} tokens; say their type in {dtype_file.name}")
    tokens = np.memmap(path, dtype=dtype, mode="r")
    for start in range(0, len(tokens), PIECE):
        yield np.asarray(tokens[start : start + PIECE])


def iter_encoded_documents(path: Path, tokenizer: str | None) -> Iterator[np.ndarray]:
    """Documents of text as token ids."""
    if tokenizer is None:
        sys.exit(f"{path} is text: name a tokenizer with --tokenizer tokenizer.json")
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    end = next((token_id for name in ENDS if (token_id := encoder.token_to_id(name)) is not None), None)
    for text in iter_texts(path):
        ids = encoder.encode(text).ids
        if ids:
            yield np.asarray([*ids, *([] if end is None or ids[-1] == end else [end])])


def iter_texts(path: Path) -> Iterator[str]:
    """The documents of a file or folder."""
    files = sorted(file for file in path.rglob("*") if file.suffix in TEXT) if path.is_dir() else [path]
    if not files:
        sys.exit(f"{path} holds no {', '.join(TEXT)}")
    for file in files:
        if file.suffix != ".jsonl":
            yield file.read_text(encoding="utf-8")
            continue
        with file.open(encoding="utf-8") as lines:
            yield from (json.loads(line)["text"] for line in lines if line.strip())


def write_dataset(documents: Iterator[np.ndarray], vocab: int) -> tuple[int, int]:
    """Write a data set with Megatron-LM's own builder; both files appear once they are whole."""
    builder = import_indexed_dataset().IndexedDatasetBuilder
    half = Path(f"{TARGET}.{os.getpid()}")
    dataset = builder(f"{half}.bin", dtype=np.uint16 if vocab < SMALL else np.int32)
    total = count = 0
    for document in documents:
        if int(document.max(initial=0)) >= vocab:
            sys.exit(f"token {int(document.max())} is beyond the model's vocabulary of {vocab}")
        dataset.add_document(document, [len(document)])
        total, count = total + len(document), count + 1
    if not count:
        sys.exit("there are no tokens in it")
    dataset.finalize(f"{half}.idx")
    for end in (".bin", ".idx"):
        os.replace(f"{half}{end}", f"{TARGET}{end}")
    return total, count


def import_indexed_dataset() -> Any:
    """Megatron-LM's module of indexed data sets: of MEGATRON_PATH, else the installed megatron-core."""
    checkout = os.environ.get("MEGATRON_PATH")
    if checkout:
        sys.path.insert(0, checkout)
    try:
        return importlib.import_module("megatron.core.datasets.indexed_dataset")
    except ImportError as error:
        sys.exit(f"megatron.core is not there ({error}): set MEGATRON_PATH to a checkout of NVIDIA/Megatron-LM")


if __name__ == "__main__":
    main(sys.argv[1:])
