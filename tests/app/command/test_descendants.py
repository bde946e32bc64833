import subprocess
import sys

from tests import ROOT

# a grandchild that ignores SIGTERM and whose parent has ended
ADOPTING = """
import subprocess, sys
from app.command.descendants import adopt_orphans, descendants, end_descendants
adopt_orphans()
sleeper = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1); signal.pause()"
starter = (
    "import subprocess, sys\\n"
    "child = subprocess.Popen([sys.executable, '-uc', sys.argv[1]], stdout=subprocess.PIPE)\\n"
    "child.stdout.readline()"
)
subprocess.run([sys.executable, "-c", starter, sleeper], check=True)
found = descendants()
print(len(found), len(end_descendants(0.2)), len(descendants()), found[0].is_running())
"""


def test_orphans_are_adopted_and_what_ignores_its_end_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTING], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "0", "0", "False"]
