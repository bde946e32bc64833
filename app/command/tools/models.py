"""`pagoda models`: what of models is kept on this machine."""

import argparse
import shutil
import sys
from pathlib import Path

from app.models.cache_folder import default_cache
from app.models.manifest import FILE_NAME
from engine.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda models`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("list", help="list what was fetched or converted into the cache")
    fetch = actions.add_parser("fetch", help="fetch and convert a model; print its folder")
    fetch.add_argument("model", help="embedded, a folder, a URL or a hub id")
    fetch.add_argument("--revision", help="branch, tag or commit of a hub model")
    verify = actions.add_parser("verify", help="compare every byte of a cached model")
    verify.add_argument("name", nargs="?", help="as `list` shows it (default: all)")
    remove = actions.add_parser("rm", help="delete a cached model")
    remove.add_argument("name", help="as `list` shows it")
    for action in (show, fetch, verify, remove):
        action.add_argument("--cache", type=Path, default=default_cache(), help="cache folder")


def run(arguments: argparse.Namespace) -> int:
    """Do what is asked with models; return the exit code."""
    try:
        return int(_ACTIONS[arguments.action](arguments))
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _list(arguments: argparse.Namespace) -> int:
    for folder in _folders(arguments.cache):
        num_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        sys.stdout.write(f"{folder.name:<50} {num_bytes / 1e6:>10,.0f} MB\n")
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    from app.models.model_store import resolve

    folder = resolve(arguments.model, arguments.cache, revision=arguments.revision)
    sys.stdout.write(f"{folder}\n")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from app.models.model_store import verify

    folders = _folders(arguments.cache) if arguments.name is None else [_find(arguments)]
    for folder in folders:
        has_manifest = (folder / FILE_NAME).exists()
        verify(folder)
        sys.stdout.write(f"{folder.name} {'is whole' if has_manifest else 'has no manifest'}\n")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    shutil.rmtree(_find(arguments))
    return 0


def _find(arguments: argparse.Namespace) -> Path:
    folders = {folder.name: folder for folder in _folders(arguments.cache)}
    if arguments.name not in folders:
        known = ", ".join(folders) or "there is none"
        raise ConfigError(f"no cached model is called {arguments.name!r}; known are: {known}")
    return folders[arguments.name]


def _folders(cache: Path) -> list[Path]:
    parent = cache.expanduser() / "models"
    found = parent.iterdir() if parent.is_dir() else ()
    # what is being built has a name with a dot in front
    return sorted(path for path in found if path.is_dir() and not path.name.startswith("."))


_ACTIONS = {"list": _list, "fetch": _fetch, "verify": _verify, "rm": _remove}
