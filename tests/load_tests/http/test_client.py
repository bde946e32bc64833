import pytest

from load_tests.http.client import Target, count_tokens


@pytest.mark.parametrize(
    ("event", "total"),
    [
        ({"choices": [{"text": ""}], "usage": {"completion_tokens": 9}}, 9),
        ({"choices": [{"text": "ab", "token_ids": [1, 2, 3]}]}, 8),
        ({"choices": [{"text": "ab", "token_ids": []}]}, 5),
        ({"choices": [{"text": "ab"}]}, 6),
        ({"choices": [{"text": ""}], "usage": None}, 5),
        ({"choices": []}, 5),
    ],
)
def test_tokens_are_counted_by_usage_then_ids_then_chunks(
    event: dict[str, object], total: int
) -> None:
    assert count_tokens(event, 5) == total


def test_the_key_is_sent_only_when_there_is_one() -> None:
    assert "Authorization" not in Target(url="u", model="m").headers
    assert Target(url="u", model="m", api_key="k").headers["Authorization"] == "Bearer k"
