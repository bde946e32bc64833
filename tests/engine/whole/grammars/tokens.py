"""A byte-level tokenizer for the tiny models, which have none."""

from collections.abc import Sequence
from pathlib import Path
from shutil import copytree

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.engine.model.tiny import VOCAB_SIZE, TinyModel

# the first ids
END_ID, OTHER_END_ID = 0, 1
_CORPUS = [
    '{"name": "x", "value": -12.5, "items": [true, false, null]}, ["a", "b"], {"a": {"b": 1}}'
]


def with_tokenizer(tiny: TinyModel, folder: Path) -> TinyModel:
    """The same model in a folder of its own, with a tokenizer of as many tokens."""
    if folder != tiny.folder:
        copytree(tiny.folder, folder, dirs_exist_ok=True)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = ["<|end|>", "<|other_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        show_progress=False,
        special_tokens=[AddedToken(name, normalized=False, special=True) for name in names],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(_CORPUS * 10, trainer)
    backend.save(str(folder / "tokenizer.json"))
    return TinyModel(folder, tiny.reference)


def text_of(model: TinyModel, tokens: Sequence[int]) -> str:
    """What tokens spell, control tokens left out."""
    text: str = Tokenizer.from_file(str(model.folder / "tokenizer.json")).decode(list(tokens))
    return text
