"""Small tokenizers for tests, trained or spelled out."""

import io
import json
from functools import cache
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from app.text.tokenizer import Tokenizer
from app.text.vocabulary import Vocabulary

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_CORPUS = [
    "The quick brown fox jumps over the lazy dog. It costs 12.50 euros, or 13 dollars.",
    "tick-tock-go! one twenty three\n\n  indented\ttext user assistant system",
    "Größe naïve 東京 서울 ไทย 👨‍👩‍👧 €5",
] * 20


@cache
def byte_level_backend() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        special_tokens=[AddedToken(text, normalized=False, special=True) for text in CONTROL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(_CORPUS, trainer)
    return backend


@cache
def metaspace_backend() -> Backend:
    """In the manner of LLaMA 2: spaces as U+2581, unknown characters as bytes, a BOS in front."""
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    # trained on words, or it would learn whole sentences
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("▁?[^▁]+"), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
    )
    backend.train_from_iterator(_CORPUS[:40], trainer)
    backend.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend


NORMALIZERS = {
    "none": None,
    "nfc": normalizers.NFC(),
    "nfkc": normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    "strip": normalizers.Strip(),
    "prepend": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
}
PRE_TOKENIZERS = {
    "byte level": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "byte level, prefixed": pre_tokenizers.ByteLevel(add_prefix_space=True),
    **{
        f"metaspace {scheme} {split}": pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
        for scheme in ("first", "always", "never")
        for split in (False, True)
    },
}


@cache
def small_backend(normalizer: str, pre_tokenizer: str) -> Backend:
    """A tokenizer of parts of the two tables, without control tokens."""
    is_byte_level = pre_tokenizer.startswith("byte")
    backend = Backend(models.BPE(byte_fallback=not is_byte_level))
    if normalizer != "none":
        backend.normalizer = NORMALIZERS[normalizer]
    # trained on words, or it would learn whole sentences
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(" ?[^ ]+"), "isolated")
    if is_byte_level:
        backend.pre_tokenizer = PRE_TOKENIZERS[pre_tokenizer]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if is_byte_level else []
    trainer = trainers.BpeTrainer(
        vocab_size=450, show_progress=False, initial_alphabet=alphabet, special_tokens=[]
    )
    if not is_byte_level:
        trainer.special_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    corpus = _CORPUS if is_byte_level else [text.replace(" ", "▁") for text in _CORPUS]
    backend.train_from_iterator(corpus, trainer)
    backend.pre_tokenizer = PRE_TOKENIZERS[pre_tokenizer]
    spelled = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.ByteLevel() if is_byte_level else decoders.Sequence(spelled)
    return backend


def chatml_tokenizer() -> Tokenizer:
    return Tokenizer(byte_level_backend(), {"eos_token": "<|im_end|>"}, CHATML)


def lossy_backend(kind: str) -> Backend:
    """A tokenizer that cannot hold U+0004 and the first byte of U+46131.

    Args:
        kind: "bytes" like the embedded one; "dropped" and "unknown" have characters without bytes.
    """
    if kind == "bytes":
        description = json.loads(byte_level_backend().to_str())
        vocabulary = description["model"]["vocab"]
        for byte in (0x04, 0xF1):
            vocabulary[f"unused {byte}"] = vocabulary.pop(_byte_level(bytes([byte])))
        return Backend.from_str(json.dumps(description))
    backend = Backend(models.BPE(unk_token="<unk>" if kind == "unknown" else None))
    backend.decoder = decoders.Fuse()
    backend.train_from_iterator(
        _CORPUS, trainers.BpeTrainer(show_progress=False, special_tokens=["<unk>"])
    )
    return backend


def llama2_tokenizer() -> Tokenizer:
    return Tokenizer(metaspace_backend(), {"bos_token": "<s>", "eos_token": "</s>"}, None)


def spelled_vocabulary(*pieces: str | bytes, special: tuple[str, ...] = ()) -> Vocabulary:
    """Make a vocabulary in which token i stands for piece i; control tokens come after them."""
    spelled = {
        _byte_level(piece.encode() if isinstance(piece, str) else piece): index
        for index, piece in enumerate(pieces)
    }
    backend = Backend(models.WordLevel(spelled, unk_token="?"))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special))
    return Vocabulary(backend)


def _byte_level(piece: bytes) -> str:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(b) if b in printable else chr(256 + moved.index(b)) for b in piece)


def trained_sentencepiece(vocab_size: int, **options: Any) -> bytes:
    """A model as the LLaMA family has it: BPE with bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello the dog", "the hedge showed the dog", "two dogs"] * 5),
        model_writer=model,
        vocab_size=vocab_size,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()
