"""The compiled module (csrc/native.cpp). Addresses are `Tensor.data_ptr()`, unchecked."""

from collections.abc import Sequence

class Tape:
    def run(self) -> None: ...
    def __len__(self) -> int: ...

class SuffixTrie:
    def __init__(self, depth: int, latest: bool = False, /) -> None: ...
    def begin(self) -> int: ...
    def append(self, sequence: int, tokens: Sequence[int], /) -> None: ...
    def end(self, sequence: int, /) -> None: ...
    def remove(self, sequence: int, count: int, /) -> bool: ...
    def count(self, tokens: Sequence[int], /) -> int: ...
    def guess(
        self, sequence: int, most: int, factor: float, offset: float, min_prob: float, /
    ) -> tuple[list[int], list[float], float, int]: ...
    def guess_after(
        self, tokens: Sequence[int], most: int, factor: float, offset: float, min_prob: float, /
    ) -> tuple[list[int], list[float], float, int]: ...
    def branch(
        self, sequence: int, most: int, factor: float, offset: float, min_prob: float, /
    ) -> tuple[list[int], list[int], list[float], float]: ...
    def branch_after(
        self, tokens: Sequence[int], most: int, factor: float, offset: float, min_prob: float, /
    ) -> tuple[list[int], list[int], list[float], float]: ...
    def lookup(self, sequence: int, least: int, most: int, longest: int, /) -> list[int]: ...
    @property
    def bytes(self) -> int: ...

def record(tape: Tape | None, /) -> None: ...
def embed(weight: int, tokens: int, out: int, rows: int, row_bytes: int, /) -> None: ...
def rms_norm(
    x: int,
    residual: int,
    weight: int,
    out: int,
    rows: int,
    width: int,
    eps: float,
    plus_one: bool,
    bf16: bool,
    /,
) -> None: ...
def layer_norm(
    x: int, residual: int, weight: int, bias: int, out: int, rows: int, width: int, eps: float, bf16: bool, /
) -> None: ...
def head_norm(
    qkv: int,
    q_weight: int,
    k_weight: int,
    rows: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    eps: float,
    plus_one: bool,
    bf16: bool,
    /,
) -> None: ...
def rotary_store(
    qkv: int,
    positions: int,
    slots: int,
    cos_sin: int,
    q_out: int,
    key_cache: int,
    value_cache: int,
    rows: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    block_size: int,
    bf16: bool,
    /,
) -> None: ...
def attention(
    q: int,
    key_cache: int,
    value_cache: int,
    tables: int,
    row_request: int,
    first: int,
    last: int,
    extra_offsets: int,
    extra_slots: int,
    out: int,
    rows: int,
    max_blocks: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int,
    scale: float,
    cap: float,
    bf16: bool,
    /,
) -> None: ...
def act_mul(gate_up: int, out: int, rows: int, width: int, activation: int, bf16: bool, /) -> None: ...
def activate(x: int, rows: int, width: int, activation: int, bf16: bool, /) -> None: ...
def add_bias(x: int, bias: int, rows: int, width: int, bf16: bool, /) -> None: ...
def add_embedding(x: int, weight: int, index: int, rows: int, width: int, bf16: bool, /) -> None: ...
def scale(x: int, factor: float, rows: int, width: int, bf16: bool, /) -> None: ...
def soft_cap(x: int, cap: float, rows: int, width: int, /) -> None: ...
def route(
    scores: int, experts: int, weights: int, rows: int, count: int, chosen: int, normalise: bool, /
) -> None: ...
def expert_linear(
    x: int,
    experts: int,
    weights: list[int],
    out: int,
    rows: int,
    copies: int,
    inputs: int,
    outputs: int,
    stride: int,
    kind: int,
    bf16: bool,
    /,
) -> None: ...
def mix_experts(x: int, weights: int, out: int, rows: int, chosen: int, width: int, bf16: bool, /) -> None: ...
def linear(
    x: int,
    weight: int,
    out: int,
    rows: int,
    inputs: int,
    outputs: int,
    stride: int,
    kind: int,
    bf16: bool,
    float_out: bool,
    /,
) -> None: ...
def set_prefetching(few_rows: int, ahead: int, blocks: int, /) -> None: ...
def packed_bytes(inputs: int, kind: int, /) -> int: ...
def pack(stored: int, out: int, outputs: int, inputs: int, kind: int, /) -> None: ...
def quantise(numbers: int, out: int, rows: int, blocks: int, kind: int, numbers_kind: int, /) -> None: ...
def unpack(weight: int, tokens: int, out: int, rows: int, inputs: int, kind: int, bf16: bool, /) -> None: ...
def process(scores: int, temperatures: int, min_p: int, top_k: int, top_p: int, rows: int, vocab: int, /) -> None: ...
def draw(
    scores: int,
    temperatures: int,
    min_p: int,
    top_k: int,
    top_p: int,
    seeds: int,
    positions: int,
    out: int,
    ids: int,
    probs: int,
    rows: int,
    vocab: int,
    /,
) -> None: ...
def branch(
    scores: int,
    temperatures: int,
    min_p: int,
    top_k: int,
    top_p: int,
    seeds: int,
    positions: int,
    out: int,
    ids: int,
    probs: int,
    rows: int,
    vocab: int,
    children: int,
    /,
) -> None: ...
def grow(
    tokens: int,
    probs: int,
    worth: int,
    out: int,
    out_worth: int,
    origin: int,
    chosen: int,
    slots: int,
    above: int,
    below: int,
    drafts: int,
    rows: int,
    children: int,
    wide: int,
    depth: int,
    /,
) -> None: ...
def gumbel(seed: int, position: int, out: int, vocab: int, /) -> None: ...
def copy_slots(
    src_slots: int,
    dst_slots: int,
    key_cache: int,
    value_cache: int,
    count: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    element_bytes: int,
    /,
) -> None: ...
def philox(counter: list[int], key: list[int], /) -> list[int]: ...
def probe_read(address: int, bytes: int, ahead: int, /) -> float: ...
def probe_multiply(bf16: bool, rounds: int, /) -> float: ...
def isa() -> str: ...
def isas() -> list[str]: ...
def set_isa(name: str, /) -> None: ...
def set_threads(threads: int, /) -> None: ...
def threads() -> int: ...
