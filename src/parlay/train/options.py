"""Options of a training run; imports nothing heavy, so that flags can be made from it."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from parlay.config.engine import Device
from parlay.errors import ConfigError, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Options of every method's training.

    Attributes:
        target: the model to draft for: a directory, a name on the hub, or that of an embedded model.
        data: a file of text or, ending in .jsonl, of JSON objects with `prompt` and `completion`, `messages`,
            `conversations`, or `text`; or a directory of such files. None, with `generate`, has a target that chats
            write the prompts too.
        output: directory of the head, made if need be; a run that was stopped continues from the files there.
        generate: how many responses the target writes first, to be learnt from in place of the data, which then are
            prompts; 0 learns from the data as they are.
        temperature: sampling temperature of those responses; several take turns.
        response_tokens: most tokens of such a response.
        epochs: how often every text is seen.
        max_steps: end after so many steps of the optimiser, if the epochs have not ended before.
        batch_size: texts a step.
        max_length: tokens a text; longer ones are cut into several.
        max_model_len: longest sequence that the target is to be served with, on which some rotary embeddings depend;
            None takes the model's limit.
        learning_rate: highest, after the warm-up.
        warmup: share of the steps in which the rate rises; then it falls to 0 as a cosine.
        weight_decay: weight decay of AdamW, on matrices only.
        clip: largest norm of a step's gradient.
        held_out: share of the text that is only measured on: documents (files, lines, conversations) with all that
            comes of them, or the end of one that is larger than this.
        evaluate_every: steps between two measurements on a part of that, and between two checkpoints.
        autocast: multiply in bfloat16; weights and optimiser stay in float32. None does where the processor has
            instructions for it.
        device: where the head is trained and responses are written, `cpu` or `cuda`. The target's states are computed
            there too, if transformers can load it. Models that run as a class of transformers write on the CPU.
        dtype: what the target computes in; `auto` takes the checkpoint's.
        seed: seed of the first weights, the order of texts, and the responses.
    """

    target: str
    output: str
    data: str | None = None
    generate: int = 0
    temperature: tuple[float, ...] = (0.8,)
    response_tokens: int = 256
    epochs: int = 1
    max_steps: int | None = None
    batch_size: int = 16
    max_length: int = 512
    max_model_len: int | None = None
    learning_rate: float = 1e-3
    warmup: float = 0.05
    weight_decay: float = 0.0
    clip: float = 1.0
    held_out: float = 0.02
    evaluate_every: int = 100
    autocast: bool | None = None
    device: Device = "cpu"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("target", "data", "output"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} must not be empty")
        if self.data is None and not self.generate:
            raise ConfigError("there is nothing to train on; give data, or have the target `generate` conversations")
        for name, least in (
            ("generate", 0),
            ("response_tokens", 1),
            ("epochs", 1),
            ("max_steps", 1),
            ("batch_size", 1),
            ("max_length", 16),
            ("max_model_len", 16),
            ("evaluate_every", 1),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value < 1 << 31:
                raise ConfigError(f"{name} must be at least {least} and below 2**31, not {shown(value)}")
        for name in ("learning_rate", "clip"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"{name} must be a number above 0, not {getattr(self, name)}")
        if not self.temperature:
            raise ConfigError("temperature must hold one number at least")
        for name, values in (("temperature", self.temperature), ("weight_decay", (self.weight_decay,))):
            for number in values:
                if not (isfinite(number) and number >= 0):
                    raise ConfigError(f"{name} must be a number of at least 0, not {number}")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup must be at least 0 and below 1, not {self.warmup}")
        if not 0 < self.held_out < 1:
            raise ConfigError(f"held_out must be above 0 and below 1, not {self.held_out}")
