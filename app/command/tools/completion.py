"""`pagoda completion`: completions of commands and flags for a shell."""

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda completion`."""
    parser.description = (
        "Print completions for a shell. For bash: `pagoda completion bash > "
        "~/.local/share/bash-completion/completions/pagoda`."
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(arguments: argparse.Namespace) -> int:
    """Print the script; return the exit code."""
    import shtab

    from app.command.parser import make_parser

    sys.stdout.write(shtab.complete(make_parser(), shell=arguments.shell) + "\n")
    return 0
