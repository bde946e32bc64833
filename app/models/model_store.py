"""Finds the folder of a model: the embedded one, a local one, one in a bucket or in the hub.

`python -m app.models.model_store embedded|PATH|URL|HUB_ID` prints the folder.
"""

import argparse
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

from app.models import bucket, embedded
from app.models.cache_folder import default_cache
from app.models.embedded import EMBEDDED
from app.models.manifest import FILE_NAME, damaged_files
from engine.errors import ConfigError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# neither pickled weights nor code, which could run when loaded
_TEXT_FILES = ("*.json", "*.jinja", "tokenizer.model")
_ALL_FILES = ("*.safetensors", *_TEXT_FILES)


def resolve(
    model: str, cache: Path, *, revision: str | None = None, with_weights: bool = True
) -> Path:
    """Return the local folder of `model`, fetching what is needed of it.

    Processes of one node that ask for the same model fetch each file once.

    Args:
        model: "embedded", a local folder, the URL of one in a bucket, or a hub id; a folder that
            exists comes before a hub id.
        cache: where the embedded model and those of buckets are kept; hub models lie in the hub's
            own cache.
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
    files = _ALL_FILES if with_weights else _TEXT_FILES
    if bucket.is_url(model):
        what = "all" if with_weights else "texts"
        return bucket.fetch(model, cache.expanduser(), lambda name: _fits(name, files), what)
    if is_local(model):
        if not local.is_dir():
            raise ConfigError(f"model {model!r} is a file; give the folder that holds config.json")
        return local.resolve()
    if model == EMBEDDED:
        return embedded.ensure(cache.expanduser())
    if not _HUB_ID.fullmatch(model):
        raise ConfigError(f"model {model!r}: there is no such folder, and it is not a hub id")
    return _fetch_from_hub(model, revision, files)


def is_local(model: str) -> bool:
    """Whether a model is a folder of this machine, which nobody fetches."""
    return not (model == EMBEDDED or bucket.is_url(model)) and Path(model).expanduser().exists()


def commit_of(model: str, folder: Path) -> str | None:
    """Return the commit of a hub model whose folder was resolved; None if it is not of the hub."""
    return folder.name if _is_of_hub(model) and _COMMIT.fullmatch(folder.name) else None


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


def _fetch_from_hub(repo_id: str, revision: str | None, files: tuple[str, ...]) -> Path:
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
