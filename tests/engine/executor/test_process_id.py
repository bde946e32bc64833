import os
import subprocess
import sys

from engine.executor.process_id import own_process_id


def test_processes_that_see_each_other_have_one_space_and_two_pids() -> None:
    code = "from engine.executor.process_id import own_process_id; print(*own_process_id())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, space = child.stdout.split()
    own = own_process_id()
    assert (own.pid, own.space) == (os.getpid(), space)
    assert int(pid) != own.pid
