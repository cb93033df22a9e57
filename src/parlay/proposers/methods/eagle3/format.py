"""EAGLE-3's checkpoints: names of tensors and keys of the config, for serving, training and detection.

The authors' layout (github.com/SafeAILab/EAGLE, version 3), that of the `speculators` library, and what others put
into `eagle_config`.
"""

from collections.abc import Mapping
from typing import Any

from parlay.checkpoints.files import class_names

ARCHITECTURE = "LlamaForCausalLMEagle3"
EMBEDDING, OUTPUT = "embed_tokens.weight", "lm_head.weight"  # the head's own, where the target's are not used
OFFSETS, KNOWN = "d2t", "t2d"  # of a reduced vocabulary: from its ids to the target's, and which of these there are
FUSE, FUSE_BIAS, NORM = "fc.weight", "fc.bias", "norm.weight"
NORM_OF_ALL = "input_norm.weight"  # of all states that are read, side by side
# Norms of single states, by their present and their former names.
STATE_NORMS = (
    ("fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"),
    ("aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight"),
)
FIRST = ("midlayer.", "layers.0.")  # what names of the first layer's tensors begin with; the authors' comes first
STATE, TOKEN = "hidden_norm.weight", "input_layernorm.weight"  # norms of the first layer's two inputs
AFTER = "post_attention_layernorm.weight"

# Keys of the config. Layers that are read are listed at the top as counts of layers that have run; in `eagle_config`
# they name the last layer that has.
TAPS = "eagle_aux_hidden_state_layer_ids"
VOCAB = "draft_vocab_size"
TARGET_WIDTH = "target_hidden_size"


def matches(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint is such a head: its first layer reads twice the width that it writes."""
    if any("eagle3" in name.lower() for name in class_names(config)):
        return True
    for first in FIRST:
        query, output = (shapes.get(f"{first}self_attn.{name}_proj.weight", ()) for name in "qo")
        if len(query) == len(output) == 2 and query[1] == 2 * output[0]:
            return True
    return OFFSETS in shapes
