from dataclasses import dataclass, field, fields

from engine.config.documented import bounds_of, doc_of, documented


@dataclass
class _Options:
    bounded: int = field(default=1, metadata=documented("how many", ge=1, lt=4))
    free: int = field(default=1, metadata=documented("any"))


def test_a_field_carries_its_meaning_and_its_range() -> None:
    bounded, free = fields(_Options)
    assert (doc_of(bounded), bounds_of(bounded)) == ("how many", {"ge": 1, "lt": 4})
    assert (doc_of(free), bounds_of(free)) == ("any", {})
