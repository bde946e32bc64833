"""Long work leaves the event loop, short work does not fill it."""

import asyncio
import threading

from app.text.offload import MAX_INLINE, NUM_THREADS, Offload

HERE = threading.current_thread


async def test_work_beyond_the_size_is_done_in_another_thread() -> None:
    offload = Offload()
    assert await offload.run(MAX_INLINE, HERE) is threading.current_thread()
    assert await offload.run(MAX_INLINE + 1, HERE) is not threading.current_thread()


async def test_the_event_loop_has_its_turn_while_short_work_adds_up() -> None:
    offload, order = Offload(), list[str]()
    asyncio.get_running_loop().call_soon(order.append, "loop")
    for _ in range(10):
        await offload.run(MAX_INLINE // 4, lambda: order.append("work"))
    assert "loop" in order
    assert order.index("loop") <= 5


async def test_few_pieces_of_long_work_are_done_at_once() -> None:
    offload, gate = Offload(), threading.Event()
    running, most = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == NUM_THREADS:
                gate.set()
        gate.wait(5)
        with lock:
            running -= 1

    size = MAX_INLINE + 1
    await asyncio.gather(*(offload.run(size, work) for _ in range(3 * NUM_THREADS)))
    assert most == NUM_THREADS
