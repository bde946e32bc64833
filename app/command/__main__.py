"""The command `pagoda`, also `python -m app.command`."""

import argparse
import sys

from app.command import environment, serve


def main(arguments: list[str] | None = None) -> int:
    """Run the subcommand on the command line; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="pagoda",
        description="Serves large language models on Ray Serve with a paged KV cache.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve.add_command(commands)
    environment.add_command(commands)
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))


if __name__ == "__main__":
    sys.exit(main())
