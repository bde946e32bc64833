import logging
import subprocess
import sys

from tests import ROOT

CODE = """
import logging
from engine.executor.process_log import log_to_standard_error
log_to_standard_error("rank 0")
log_to_standard_error("rank 0")
logging.getLogger("engine.worker").info("graphs_captured done=%d", 3)
logging.getLogger("engine.worker").debug("nothing")
logging.getLogger("other").info("nothing")
"""


def test_lines_of_ours_are_written_once_with_the_name_of_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    [line] = done.stderr.splitlines()
    assert line.startswith("INFO ")
    assert line.endswith(" rank 0 -- graphs_captured done=3")
    assert not logging.getLogger("engine").handlers
