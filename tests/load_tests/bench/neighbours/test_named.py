import json

from load_tests.bench.neighbours.named import NUM_BYTES, PREFIXES, named


def test_there_are_thirty_of_them_within_the_size_of_a_body() -> None:
    requests = list(named(100, 7))
    assert len({request.name for request in requests}) == len(requests) >= 30
    assert max(len(request.made().body) for request in requests) < NUM_BYTES + 1000
    assert [request.copies for request in requests].count(7) == 1


def test_a_prefix_has_its_name() -> None:
    [prefix] = [request for request in named(100, 7) if request.path == PREFIXES]
    assert json.loads(prefix.made().body)["name"] == "a"
