"""Model: an architecture, as far as training time and memory depend on it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Strict, model_validator

from crosszone.inputs.value import Count, Flag, Name, Value, refuse

GATED = frozenset({"swiglu", "geglu", "reglu"})

Layers = Annotated[int, Strict(), Field(ge=1, le=10_000)]
Width = Annotated[int, Strict(), Field(ge=1, le=1_000_000)]
Vocabulary = Annotated[int, Strict(), Field(ge=1, le=100_000_000)]
Extra = Annotated[int, Strict(), Field(ge=0, le=1_000_000)]


class Mla(Value):
    """Multi-head latent attention (DeepSeek-V2): queries and keys/values through low-rank projections."""

    q_lora_rank: Width | None = None
    """Rank of the query projection; null: queries are projected directly."""
    kv_lora_rank: Width
    """Rank of the joint key/value projection."""
    qk_nope_head_dim: Width
    """Width of a query/key head without rotary position."""
    qk_rope_head_dim: Width
    """Width of its part with rotary position (the key part is shared by all heads)."""
    v_head_dim: Width
    """Width of a value head."""


class Window(Value):
    """Sliding-window attention: a token sees the last `tokens` tokens."""

    tokens: Count
    """Tokens a windowed layer sees."""
    full_every: Layers | None = None
    """One layer in this many sees everything; null: every layer is windowed."""


class Mamba(Value):
    """Mamba-2 layers: a state-space model in the form of state-space duality (arXiv 2405.21060)."""

    heads: Annotated[int, Strict(), Field(ge=1, le=100_000)]
    """Heads; their width altogether is the inner width of the layer (often twice the residual width)."""
    head_dim: Width
    """Width of a head."""
    state: Width
    """Width of the state that a head keeps for each of its channels."""
    groups: Count = 1
    """Groups of heads that share the input and output projections of the state (B and C)."""
    conv: Width = 4
    """Tokens that the causal convolution before the state-space model sees."""
    chunk: Width = 128
    """Tokens of a chunk: quadratic form inside it, states passed on from chunk to chunk."""
    conv_bias: Flag = True
    """The convolution has a bias."""
    proj_bias: Flag = False
    """The projections in and out have a bias."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heads % self.groups:
            legal = max(g for g in range(1, self.groups + 1) if self.heads % g == 0)
            raise refuse("mamba_heads_over_groups", self.groups, heads=self.heads, groups=self.groups, legal=legal)
        return self

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def state_projections(self) -> int:
        """Width of B and C of all groups."""
        return 2 * self.groups * self.state


class Moe(Value):
    """Mixture of experts in place of the dense MLP."""

    experts: Annotated[int, Strict(), Field(ge=2, le=100_000)]
    """Routed experts of a layer."""
    top_k: Count
    """Routed experts a token visits."""
    ffn_hidden: Width
    """Width of one routed expert."""
    shared_experts: Extra = 0
    """Experts every token visits."""
    shared_ffn_hidden: Width = Field(default_factory=lambda checked: checked.get("ffn_hidden", 1))
    """Width of one shared expert; default: as a routed one."""
    shared_gate: Flag = False
    """The shared experts' output is scaled by a learned gate."""
    latent: Width | None = None
    """Width that tokens are projected to before routed experts and back from after them (LatentMoE); null: hidden."""
    first_dense: Extra = 0
    """The first layers keep a dense MLP."""
    every: Layers = 1
    """After them, one layer in this many is MoE."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_k > self.experts:
            raise refuse("top_k_over_experts", self.top_k, top_k=self.top_k, experts=self.experts)
        return self


class Model(Value):
    """An architecture: layers, widths, heads, experts, vocabulary.

    Model(layers=32, hidden=4096, ffn_hidden=11008, heads=32, vocab=32000)                     LLaMA-2-7B
    Model(layers=32, hidden=4096, ffn_hidden=14336, heads=32, kv_heads=8, vocab=128256)        LLaMA-3-8B
    """

    name: Name = "custom"
    """What to call it; a catalogue name stands for the whole architecture."""
    kind: Literal["decoder", "encoder"] = "decoder"
    """decoder: causal attention; encoder: every token sees every token (BERT)."""
    layers: Layers
    """Transformer layers."""
    hidden: Width
    """Width of the residual stream."""
    heads: Annotated[int, Strict(), Field(ge=1, le=10_000)]
    """Query heads of a layer."""
    # Defaults follow from the fields checked so far; a wrong one is reported by itself, so any legal number will do.
    kv_heads: Annotated[int, Strict(), Field(ge=1, le=10_000)] = Field(
        default_factory=lambda checked: checked.get("heads", 1)
    )
    """Key/value heads; default: as many as heads (MHA). Fewer: GQA; 1: MQA."""
    head_dim: Width = Field(default_factory=lambda checked: max(1, checked.get("hidden", 1) // checked.get("heads", 1)))
    """Width of a head; default: hidden / heads."""
    ffn_hidden: Width
    """Width of the dense MLP (for a model of MoE layers only: of one expert)."""
    vocab: Vocabulary
    """Tokens in the vocabulary."""
    vocab_padded_to: Vocabulary | None = None
    """Rows of the embedding table when it is padded; null: as many as tokens."""
    max_seq_len: Annotated[int, Strict(), Field(ge=1, le=100_000_000)] | None = None
    """Longest sequence it was made for: rows of the position table when positions are learned."""
    activation: Literal["gelu", "relu", "squared-relu", "silu", "swiglu", "geglu", "reglu"] = "swiglu"
    """MLP kind: gelu, relu, squared-relu, silu have two matrices; swiglu, geglu, reglu are gated and have three."""
    positions: Literal["rotary", "learned", "alibi", "none"] = "rotary"
    """How positions enter; only learned ones have parameters."""
    norm: Literal["rmsnorm", "layernorm", "layernorm-no-bias"] = "rmsnorm"
    """Normalisation: layernorm has a weight and a bias per channel, the others a weight."""
    norms_per_layer: Annotated[int, Strict(), Field(ge=0, le=8)] = 2
    """Norms of the residual width in a layer."""
    final_norm: Flag = True
    """A norm after the last layer."""
    embedding_norm: Flag = False
    """A norm after the embedding (BLOOM, BERT)."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """Norms on queries and keys: per head, or over the full width."""
    bias: tuple[Literal["qkv", "out", "mlp", "head", "router"], ...] = ()
    """Linear layers that have a bias."""
    tied_embeddings: Flag = False
    """The output head is the embedding table."""
    embedding_width: Width = Field(default_factory=lambda checked: checked.get("hidden", 1))
    """Width of the embedding; other than hidden, it is projected in and out (OPT-350M)."""
    mla: Mla | None = None
    """Latent attention in place of plain key/value heads."""
    window: Window | None = None
    """Sliding-window attention."""
    moe: Moe | None = None
    """Experts in place of the dense MLP."""
    pattern: Annotated[str, Strict(), Field(pattern=r"^[M*E-]+$", max_length=10_000)] | None = None
    """Blocks of a hybrid, a layer each: M Mamba-2, * attention, - MLP, E experts; null: attention, then MLP."""
    mamba: Mamba | None = None
    """Mamba-2 layers of a hybrid."""
    mtp_layers: Annotated[int, Strict(), Field(ge=0, le=100)] = 0
    """Layers of multi-token prediction after the last one, each with a head and a loss of its own (DeepSeek-V3: 1)."""
    mtp_shared: Flag = False
    """They are one layer that is passed through several times (Nemotron 3)."""
    attention_sinks: Flag = False
    """One learned sink per head and layer (GPT-OSS)."""
    parallel_residual: Flag = False
    """Attention and MLP read the same input (GPT-J, Falcon): one tensor-parallel reduction less per layer."""
    token_types: Extra = 0
    """Rows of the token-type table (BERT: 2)."""
    pooler: Flag = False
    """A dense layer on the first token (BERT)."""
    mlm_head: Flag = False
    """A dense layer, a norm and a vocabulary bias before the tied head (BERT)."""

    @model_validator(mode="before")
    @classmethod
    def _fill_hybrid(cls, data: Any) -> Any:
        """A hybrid's blocks have one norm each; what a pattern has no block for needs no width."""
        pattern = data.get("pattern") if isinstance(data, dict) else None
        if not isinstance(pattern, str):
            return data
        unused = {"norms_per_layer": 1} | ({} if "*" in pattern else {"heads": 1})
        moe = data.get("moe")
        width = moe.get("ffn_hidden", 1) if isinstance(moe, dict) else 1
        return unused | ({} if "-" in pattern else {"ffn_hidden": width}) | {"layers": len(pattern)} | data

    @model_validator(mode="before")
    @classmethod
    def _check_head_width(cls, data: Any) -> Any:
        # before the default of head_dim rounds hidden / heads down without notice
        if isinstance(data, dict) and "head_dim" not in data and "mla" not in data:
            hidden, heads = data.get("hidden"), data.get("heads")
            if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads:
                raise refuse("hidden_over_heads", hidden, hidden=hidden, heads=heads, legal=hidden // heads * heads)
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heads % self.kv_heads:
            legal = max(k for k in range(1, self.kv_heads + 1) if self.heads % k == 0)
            raise refuse("heads_over_kv_heads", self.kv_heads, heads=self.heads, kv_heads=self.kv_heads, legal=legal)
        if self.vocab_padded_to is not None and self.vocab_padded_to < self.vocab:
            raise refuse("vocab_padded_below", self.vocab_padded_to, vocab=self.vocab)
        if self.positions == "learned" and self.max_seq_len is None:
            raise refuse("learned_needs_length")
        if self.moe and self.moe.first_dense > self.layers:
            raise refuse("first_dense_over_layers", self.moe.first_dense, layers=self.layers)
        if self.pattern is not None:
            self._check_pattern(self.pattern)
        elif self.mamba:
            raise refuse("mamba_without_pattern", at=("pattern",))
        if self.moe and self.moe_layers == 0:
            every, dense = self.moe.every, self.moe.first_dense
            raise refuse("no_moe_layer", at=("moe",), every=every, first_dense=dense, layers=self.layers)
        return self

    def _check_pattern(self, pattern: str) -> None:
        if len(pattern) != self.layers:
            raise refuse("pattern_length", len(pattern), at=("pattern",), layers=self.layers, blocks=len(pattern))
        for letter, field in {"M": "mamba", "E": "moe"}.items():
            if letter in pattern and getattr(self, field) is None:
                raise refuse("pattern_lacks", letter, at=(field,), letter=letter, key=field)
            if letter not in pattern and getattr(self, field) is not None:
                raise refuse("pattern_unused", at=("pattern",), letter=letter, key=field)
        for field, is_set in {"window": self.window, "moe.first_dense": self.moe and self.moe.first_dense}.items():
            if is_set:
                raise refuse("pattern_excludes", at=("pattern",), key=field)

    @property
    def gated(self) -> bool:
        """The MLP has a gate, so three matrices."""
        return self.activation in GATED

    @property
    def causal(self) -> bool:
        """A token sees only earlier ones."""
        return self.kind == "decoder"

    @property
    def embedding_rows(self) -> int:
        """Rows of the embedding table, padding included."""
        return self.vocab_padded_to or self.vocab

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head in the score product."""
        return self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim if self.mla else self.head_dim

    @property
    def v_head_dim(self) -> int:
        """Width of a value head."""
        return self.mla.v_head_dim if self.mla else self.head_dim

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        if self.pattern is not None:
            return self.pattern.count("E")
        return (self.layers - self.moe.first_dense) // self.moe.every if self.moe else 0

    @property
    def mlp_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.layers - self.moe_layers if self.pattern is None else self.pattern.count("-")

    @property
    def attention_layers(self) -> int:
        """Layers with attention."""
        return self.layers if self.pattern is None else self.pattern.count("*")

    @property
    def mamba_layers(self) -> int:
        """Mamba-2 layers."""
        return 0 if self.pattern is None else self.pattern.count("M")

    @property
    def mtp_distinct(self) -> int:
        """Layers of multi-token prediction that have weights of their own."""
        return min(self.mtp_layers, 1) if self.mtp_shared else self.mtp_layers

    @property
    def full_attention_layers(self) -> int:
        """Layers that see the whole sequence."""
        if self.window is None:
            return self.attention_layers
        return self.layers // self.window.full_every if self.window.full_every else 0

    @property
    def attention(self) -> Literal["mha", "gqa", "mqa", "mla"]:
        """The kind of attention by its key/value heads."""
        if self.mla:
            return "mla"
        if self.kv_heads == self.heads:
            return "mha"
        return "mqa" if self.kv_heads == 1 else "gqa"
