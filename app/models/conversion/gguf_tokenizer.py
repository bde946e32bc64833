"""Makes tokenizer.json and tokenizer_config.json of a GGUF file's metadata.

Source of the ways to cut text before pairs are merged: llama.cpp's src/llama-vocab.cpp.
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from app.models.conversion.gguf_reader import GgufModel
from engine.errors import ConfigError

_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "▁"
_DIGITS = "single digits"
_GPT2 = "GPT-2's"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"
_REST_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_SLASH}"
_GPT4O = (
    rf"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_REST_SLASH}"
)
# value of tokenizer.ggml.pre -> how text is cut
_CUTS = {
    **dict.fromkeys(("gpt-2", "olmo", "dolma", "mpt"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _QWEN2),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
}
# tokens that are whole words before any merge, and a BOS unless the file says otherwise
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")


def make_tokenizer(model: GgufModel) -> Tokenizer:
    """Make the tokenizer of a file.

    Raises:
        ConfigError: if it is of a kind that is not known.
    """
    kind = model.of_tokenizer("model")
    if kind == "gpt2":
        tokenizer = _byte_level(model)
    elif kind == "llama":
        tokenizer = _sentencepiece(model)
    else:
        raise ConfigError(f"{model.path} has a tokenizer of kind {kind!r}, only 'gpt2' and 'llama'")
    _add_whole_tokens(tokenizer, model)
    if _adds_bos(model):
        bos = model.need("tokenizer.ggml.bos_token_id")
        name = model.need("tokenizer.ggml.tokens")[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{name} $A", pair=f"{name} $A {name} $B", special_tokens=[(name, bos)]
        )
    return tokenizer


def tokenizer_config(model: GgufModel) -> dict[str, Any]:
    """Make the content of tokenizer_config.json: special tokens and chat templates."""
    tokens = model.need("tokenizer.ggml.tokens")
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    ids = {f"{ours}_token": model.of_tokenizer(f"{gguf}_token_id") for ours, gguf in names.items()}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": _adds_space(model),
        **{name: tokens[id] for name, id in ids.items() if id is not None},
        "model_max_length": model.of_model("context_length"),
        "clean_up_tokenization_spaces": False,
    }
    templates = dict(model.chat_templates())
    if templates.keys() == {"default"}:
        config["chat_template"] = templates["default"]
    elif templates:
        config["chat_template"] = [{"name": n, "template": t} for n, t in templates.items()]
    return config


def _adds_bos(model: GgufModel) -> bool:
    usual = model.of_tokenizer("model") == "llama" or model.of_tokenizer("pre") in _WHOLE_WORDS
    return bool(model.of_tokenizer("add_bos_token", usual))


def _adds_space(model: GgufModel) -> bool:
    return bool(model.of_tokenizer("add_space_prefix", model.of_tokenizer("model") == "llama"))


def _byte_level(model: GgufModel) -> Tokenizer:
    """BPE over bytes that are spelled as characters."""
    pre = model.of_tokenizer("pre")
    if pre not in _CUTS:
        raise ConfigError(
            f"{model.path} has a tokenizer that cuts text as {pre!r}; known are {', '.join(_CUTS)}"
        )
    tokens = model.need("tokenizer.ggml.tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in model.need("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _WHOLE_WORDS)
    )
    cut = _CUTS[pre]
    if cut == _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(cut)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(cut: str) -> pre_tokenizers.PreTokenizer:
    as_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if cut == _GPT2:
        return as_gpt2
    if cut == _DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), as_gpt2])
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(cut), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _sentencepiece(model: GgufModel) -> Tokenizer:
    """BPE by the scores of pieces; characters without a piece are bytes."""
    # some files spell pieces of spaces by spaces
    tokens = [_SPACE * len(t) if t.isspace() and set(t) == {" "} else t
              for t in model.need("tokenizer.ggml.tokens")]  # fmt: skip
    kinds = model.need("tokenizer.ggml.token_type")
    unknown = model.of_tokenizer("unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=_merges(tokens, model.need("tokenizer.ggml.scores"), kinds),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    back = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if _adds_space(model):
        # behind a token that is never cut, too, as llama.cpp does
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        back.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(back)
    return tokenizer


def _merges(
    tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]
) -> list[tuple[str, str]]:
    """List the pairs that make pieces: those of what users defined first, then by score."""
    ids = {t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != _CONTROL}

    def rank(token: str) -> tuple[bool, float, int]:
        index = ids[token]
        is_defined = kinds[index] == _USER_DEFINED
        return not is_defined, 0.0 if is_defined else -scores[index], index

    merges = []
    for token in sorted(ids, key=rank):
        cuts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pairs = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
        merges += sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _add_whole_tokens(tokenizer: Tokenizer, model: GgufModel) -> None:
    """Name the tokens that are never cut: those that control, and those that users defined."""
    tokens = model.need("tokenizer.ggml.tokens")
    kinds = model.need("tokenizer.ggml.token_type")
    known = tokenizer.get_vocab(with_added_tokens=False)
    whole = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED) and token in known
    ]
    # the order of ids is kept in tokenizer.json
    tokenizer.add_special_tokens([token for token in whole if token.special])
    tokenizer.add_tokens([token for token in whole if not token.special])
