from pathlib import Path

from load_tests.bench.peers.measures import Order
from tests.load_tests.bench.peers.settings import MEASURES, knobs


def test_orders_survive_the_way(tmp_path: Path) -> None:
    order = Order(knobs=knobs(tmp_path), measures=tuple(MEASURES))
    order.write(tmp_path / "order.json")
    assert Order.read(tmp_path / "order.json") == order
