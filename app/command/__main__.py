"""The command `pagoda`, also `python -m app.command`."""

import sys

from app.command.parser import make_parser


def main(arguments: list[str] | None = None) -> int:
    """Run the subcommand on the command line; return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    parsed = make_parser(given).parse_args(given)
    try:
        return int(parsed.run(parsed))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # who read this has seen enough; nothing is to be flushed into the pipe at the end
        sys.stdout = None
        return 0


if __name__ == "__main__":
    sys.exit(main())
