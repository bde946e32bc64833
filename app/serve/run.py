"""`serve run`, but the end of a start that fails is an end: exit code 1, and the reason.

Ray Serve keeps `serve run` alive when no application of the file could be started, and after other
errors lets it end with code 0. It takes the same arguments: `python -m app.serve.run FILE`, and one
more, `--own-ray`, for a Ray of its own without a dashboard, with `--dashboard` for one with it and
with `--gpus N` for one that must find as many GPUs, as without them Serve would wait for ever.
"""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Sequence

import ray
from ray import serve
from ray.serve import scripts
from ray.serve._private.constants import SERVE_NAMESPACE
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from engine.errors import ConfigError

LOOK_S = 0.5


class StartWatch:
    """Looks at the applications in a thread of its own, until all run or one has failed.

    Attributes:
        failure: why the start has failed; empty as long as it has not.
    """

    def __init__(self) -> None:
        self.failure = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="start", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no longer."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            applications = serve.status().applications if ray.is_initialized() else {}
            failed = {name: app for name, app in applications.items() if _has_failed(app)}
            if failed:
                self.failure = "; ".join(
                    f"application {name!r} cannot start: {reason_of(app)}"
                    for name, app in failed.items()
                )
                # as by Ctrl-C, which is what `serve run` waits for
                main_thread = threading.main_thread().ident
                assert main_thread is not None
                signal.pthread_kill(main_thread, signal.SIGINT)
                return
            if applications and all(map(_runs, applications.values())):
                return


def reason_of(application: ApplicationStatusOverview) -> str:
    """Why an application could not be started, in one line, without tracebacks."""
    messages = [application.message]
    messages += [each.message for each in application.deployments.values()]
    # the last of them that says anything is the closest to the cause
    lines = [line.strip() for message in messages for line in message.splitlines()]
    return next((line for line in reversed(lines) if line), "no reason is known")


def _has_failed(application: ApplicationStatusOverview) -> bool:
    return application.status == ApplicationStatus.DEPLOY_FAILED


def _runs(application: ApplicationStatusOverview) -> bool:
    return application.status == ApplicationStatus.RUNNING


def _start_ray(*, has_dashboard: bool, num_gpus: int) -> None:
    """Start a Ray for `serve run`, which would give it a dashboard whether anybody looks or not.

    Raises:
        ConfigError: if this machine has fewer GPUs than are needed.
    """
    ray.init("local", namespace=SERVE_NAMESPACE, include_dashboard=has_dashboard)
    if not num_gpus:
        return
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    found = int(resources.get("GPU", 0))
    if found < num_gpus:
        raise ConfigError(
            f"device 'cuda' needs {num_gpus} GPU here and Ray finds {found}; look at nvidia-smi "
            "and CUDA_VISIBLE_DEVICES, give a container its GPUs (docker run --gpus all), lower "
            "tensor_parallel_size, or set device to 'cpu'"
        )


def main(arguments: Sequence[str]) -> int:
    """Serve until Ctrl-C or an error; return the exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--own-ray", action="store_true")
    parser.add_argument("--dashboard", action="store_true")
    parser.add_argument("--gpus", type=int, default=0)
    options, words = parser.parse_known_args(arguments)
    # a shell that starts this in the background has it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watch = StartWatch()
    watch.start()
    started_s = time.monotonic()
    code = 0
    try:
        if options.own_ray:
            _start_ray(has_dashboard=options.dashboard, num_gpus=options.gpus)
        scripts.cli.main(["run", *words], standalone_mode=False)
    except SystemExit as end:
        # `serve run` ends in the same way after Ctrl-C and after an error of its own
        is_asked_for = not end.code and isinstance(end.__context__, KeyboardInterrupt)
        code = 0 if is_asked_for else 1
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        code = 1
    finally:
        watch.stop()
    if watch.failure:
        seconds = time.monotonic() - started_s
        sys.stderr.write(f"error: {watch.failure}; ended after {seconds:.0f} s\n")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
