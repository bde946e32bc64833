"""Finds the folder of a model: the embedded one, a local one, one in a bucket or in the hub.

What is published in another form than safetensors and tokenizer.json is converted into the cache.
`python -m app.models.model_store embedded|PATH|URL|HUB_ID` prints the folder.
"""

import argparse
import re
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from app.models import bucket, embedded
from app.models.cache_folder import default_cache
from app.models.checkpoint import has_weights
from app.models.conversion.converted import converted
from app.models.conversion.gguf_reader import SUFFIX, all_parts
from app.models.embedded import EMBEDDED
from app.models.manifest import FILE_NAME, damaged_files
from engine.errors import ConfigError

_NAME = r"[A-Za-z0-9][\w.-]*"
# a GGUF file may be named behind the repository that has it
_HUB_ID = re.compile(rf"({_NAME}(?:/{_NAME})?)|({_NAME}/{_NAME})/([\w./-]+\.gguf)")
# the name of a snapshot, or of what was converted from one
_COMMIT = re.compile(r"([0-9a-f]{40})(-.+)?")
# no code, which could run when loaded
_TEXT_FILES = ("*.json", "*.jinja", "*.model", "merges.txt")
_ALL_FILES = ("*.safetensors", *_TEXT_FILES)
# fetched where there are no safetensors
_PICKLED_FILES = ("pytorch_model*.bin",)


def resolve(
    model: str, cache: Path, *, revision: str | None = None, with_weights: bool = True
) -> Path:
    """Return the local folder of `model`, fetching what is needed of it.

    Processes of one node that ask for the same model fetch each file once.

    Args:
        model: "embedded", a local folder or GGUF file, the URL of one in a bucket, or a hub id,
            with the name of a GGUF file behind it if that is wanted; what exists here comes before
            a hub id.
        cache: where the embedded model, those of buckets and converted ones are kept; hub models
            lie in the hub's own cache.
        revision: branch, tag or commit of a hub model.
        with_weights: False where configuration and tokenizer are enough.

    Raises:
        ConfigError: if there is no such model or it cannot be fetched.
    """
    local = Path(model).expanduser()
    if revision is not None and not _is_of_hub(model):
        raise ConfigError(
            f"revision {revision!r} is for models of the hub, and model {model!r} is none; leave "
            "it out"
        )
    cache = cache.expanduser()
    if model == EMBEDDED:
        return embedded.ensure(cache)
    if is_local(model):
        found = local.resolve()
        if found.is_file() and found.suffix != SUFFIX:
            raise ConfigError(
                f"model {model!r} is a file; give the folder that holds config.json, or a GGUF file"
            )
    elif bucket.is_url(model):
        found = _fetch_from_bucket(model, cache, with_weights)
    else:
        found = _fetch_from_hub(model, revision, with_weights)
    return converted(found, cache, with_weights=with_weights)


def is_local(model: str) -> bool:
    """Whether a model is a folder or file of this machine, which nobody fetches.

    Raises:
        ConfigError: if it lies where this user may not look.
    """
    if model == EMBEDDED or bucket.is_url(model):
        return False
    try:
        return Path(model).expanduser().exists()
    except PermissionError as error:
        raise ConfigError(
            f"model {model!r} cannot be looked at: {error.strerror}; let the user that runs the "
            "server read it and enter the folders above it"
        ) from error


def commit_of(model: str, folder: Path) -> str | None:
    """Return the commit of a hub model whose folder was resolved; None if it is not of the hub."""
    match = _COMMIT.fullmatch(folder.name)
    return match[1] if match and _is_of_hub(model) else None


def verify(folder: Path) -> None:
    """Compare every byte of a folder with its manifest, if it has one.

    Raises:
        ConfigError: naming the files that differ.
    """
    if (folder / FILE_NAME).exists() and (damaged := damaged_files(folder, full=True)):
        raise ConfigError(
            f"{folder}: {', '.join(damaged)} changed; delete the folder to rebuild it"
        )


def _is_of_hub(model: str) -> bool:
    return not (model == EMBEDDED or bucket.is_url(model) or is_local(model))


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _fetch_from_bucket(url: str, cache: Path, with_weights: bool) -> Path:
    if url.endswith(SUFFIX):
        folder_url, _, name = url.rpartition("/")
        parts = (all_parts(name),)
        return bucket.fetch(folder_url, cache, lambda n: _fits(n, parts), name, needed=name) / name

    def fetch(files: tuple[str, ...], what: str) -> Path:
        return bucket.fetch(url, cache, lambda name: _fits(name, files), what)

    return _with_weights(fetch, with_weights)


def _fetch_from_hub(model: str, revision: str | None, with_weights: bool) -> Path:
    match = _HUB_ID.fullmatch(model)
    if not match:
        raise ConfigError(f"model {model!r}: there is no such folder, and it is not a hub id")
    repo_id, repo_of_file, file = match.groups()
    if file:
        return _snapshot(repo_of_file, revision, (all_parts(file),)) / file
    return _with_weights(lambda files, _: _snapshot(repo_id, revision, files), with_weights)


def _with_weights(fetch: Callable[[tuple[str, ...], str], Path], with_weights: bool) -> Path:
    """Fetch a folder's texts or all of it, with pickled weights only where it has no others.

    Args:
        fetch: takes patterns of files, and a word for them.
    """
    if not with_weights:
        return fetch(_TEXT_FILES, "texts")
    folder = fetch(_ALL_FILES, "all")
    return folder if has_weights(folder) else fetch((*_TEXT_FILES, *_PICKLED_FILES), "pickled")


def _snapshot(repo_id: str, revision: str | None, files: tuple[str, ...]) -> Path:
    # slow to import and not needed for the embedded model
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(files)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"model {repo_id!r}: there is no such folder, it is not in the hub's cache, and the "
            f"Hugging Face hub did not give it ({reason:.300}); check the name, the revision, the "
            "network and, for a private model, HF_TOKEN; or set 'model' to 'embedded' or a local "
            "folder"
        ) from error


def main() -> int:
    """Print the folder of the model named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m app.models.model_store", description=__doc__)
    parser.add_argument("model", help="'embedded', a local folder, a URL or a hub id")
    parser.add_argument("--revision", help="branch, tag or commit of a hub model")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="cache folder")
    parser.add_argument(
        "--verify", action="store_true", help="compare every byte with the manifest"
    )
    arguments = parser.parse_args()
    try:
        folder = resolve(arguments.model, arguments.cache, revision=arguments.revision)
        if arguments.verify:
            verify(folder)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
