import time

from load_tests.simulator.clocks import LiveClock, VirtualClock


def test_clocks_pass_over_times_without_work() -> None:
    virtual, wall = VirtualClock(), LiveClock(time.perf_counter)
    virtual.spend(2.0)
    virtual.skip_to(100.0)
    wall.spend(50.0)
    assert virtual.now_s() == 100.0
    assert wall.now_s() < 50.0
    wall.skip_to(1000.0)
    assert 1000.0 <= wall.now_s() < 1050.0
    before = wall.now_s()
    wall.skip_to(1.0)
    assert wall.now_s() >= before
