"""How byte-level tokenizers cut a text into words, by the names that GGUF files have for that.

Source: llama.cpp's `llama-vocab.cpp`, which has the patterns of the models' own `tokenizer.json`.
"""

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


# Letters that are upper or lower case, and signs, as DeepSeek's first tokenizer lists them.
_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-"
    "\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90"
    "-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-"
    "\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
    "\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
# Scripts without spaces between words, as Trinity's tokenizer lists them.
_SCRIPTS = (
    "\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff"
)
_MARKED = (  # words that one sign of ASCII may begin
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_SIGNS = r"!-/:-~" "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_CJK = "\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff"


def _cased(after: str, digits: str, upper: str = _UPPER, lower: str = _LOWER, slash: str = "/") -> str:
    """Return a pattern of words that begin anew where a lower case letter is followed by an upper case one."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{before}{upper}*{lower}+{after}|{before}{upper}+{lower}*{after}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{slash}]*|{_SPACES}"


def _without_han(letters: str) -> str:
    return rf"{letters[:-1]}&&[^\p{{Han}}]]"


_GPT4O = _cased(rf"(?:{_CONTRACTIONS[:-1]})?", r"\p{N}{1,3}")
# By `tokenizer.ggml.pre`: patterns whose matches are cut out, one after another, of what the ones before left.
PATTERNS = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "llama-bpe": (rf"{_CONTRACTIONS}{_WORDS}|\p{{N}}{{1,3}}|{_REST}",),
    "qwen2": (rf"{_CONTRACTIONS}{_WORDS}|\p{{N}}|{_REST}",),
    "refact": (r"\p{N}", _GPT2),
    "tekken": (_cased("", r"\p{N}"),),
    "gpt-4o": (_GPT4O,),
    "kimi-k2": (
        r"[\p{Han}]+|"
        + _cased(f"(?:{_CONTRACTIONS[:-1]})?", r"\p{N}{1,3}", _without_han(_UPPER), _without_han(_LOWER), ""),
    ),
    "ufakzeka": (rf"{_WORDS}|\p{{N}}|{_REST}",),  # qwen2 without contractions
    "qwen35": (
        rf"{_CONTRACTIONS}[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
        rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    ),
    "seed-coder": (rf"{_CONTRACTIONS}{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",),
    "minicpm5": (r"\p{N}{1,3}", rf"{_CONTRACTIONS}{_WORDS}|\p{{N}}+|{_REST}"),
    "viking": (r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", r"\p{N}"),
    "superbpe": (r"\p{N}+", r"(?=([0-9]{3})+(?![0-9]))"),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{_LETTERS}]+",
        rf"\s?[{_SIGNS}]+",
        r"\s+\z",
        rf"[{_CJK}]+",
        r"\p{N}+",
    ),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        _MARKED,
    ),
    # Digits in threes from the right.
    "afmoe": (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", f"[{_SCRIPTS}]+", _MARKED),
    "tiny_aya": (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O),
    "laguna": (r"[^\n]+|\n+", rf"{_CONTRACTIONS}{_WORDS}|\p{{N}}|{_REST}"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", rf"[{_CJK}]+", r"\p{N}"),
}
SAME_AS = {
    alias: name
    for name, aliases in {
        "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4 glm5",
        "qwen2": "deepseek-r1-qwen megrez kormo f2llmv2 stablelm2 hunyuan solar-open grok-2",
        "gpt-2": "phi-2 mellum granite-docling mpt olmo jais trillion gigachat a.x-4.0 exaone4 modern-bert",
        "refact": "starcoder command-r smollm codeshell exaone minerva-7b mellum2",
        "deepseek-v3": "hunyuan-dense joyai-llm hy_v4",
        "gpt-4o": "llama4 kanana2 talkie minimax-m2",
        "tiny_aya": "cohere2moe",
    }.items()
    for alias in aliases.split()
}

# Llama 3 and Mistral Nemo begin a text with BOS where a file does not say, and keep a word that is a token as it is,
# whatever merges would make of it; the others only keep words.
BOS_FIRST = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
WHOLE_WORDS = (*BOS_FIRST, "glm4", "glm5", "minicpm5")


def splitter(name: str) -> pre_tokenizers.PreTokenizer:
    """Return what splits a text into words by one of `PATTERNS`, and turns their bytes into letters."""
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
