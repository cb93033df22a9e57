"""The compiled module (csrc/native.cpp). Addresses are `Tensor.data_ptr()`, unchecked."""

class Tape:
    def run(self) -> None: ...
    def __len__(self) -> int: ...

def record(tape: Tape | None, /) -> None: ...
def embed(weight: int, tokens: int, out: int, rows: int, row_bytes: int, /) -> None: ...
def rms_norm(
    x: int, residual: int, weight: int, out: int, rows: int, width: int, eps: float, bf16: bool, /
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
    scale: float,
    bf16: bool,
    /,
) -> None: ...
def act_mul(gate_up: int, out: int, rows: int, width: int, activation: int, bf16: bool, /) -> None: ...
def linear(
    x: int, weight: int, out: int, rows: int, inputs: int, outputs: int, bf16: bool, float_out: bool, /
) -> None: ...
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
    rows: int,
    vocab: int,
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
