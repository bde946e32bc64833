"""Finds the folder of a model: the embedded one, a local one, or one of the Hugging Face hub.

`python -m app.models.model_store embedded|PATH|HUB_ID` prints the folder.
"""

import argparse
import re
import sys
from pathlib import Path

from app.models import embedded
from app.models.cache_folder import default_cache
from app.models.embedded import EMBEDDED
from app.models.manifest import FILE_NAME, damaged_files
from engine.errors import ConfigError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# neither pickled weights nor code, which could run when loaded
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")


def resolve(model: str, cache: Path) -> Path:
    """Return the local folder of `model`, fetching it when that is needed.

    Args:
        model: "embedded", a local folder, or a hub id; a folder that exists comes first.
        cache: where the embedded model is kept; hub models lie in the hub's own cache.

    Raises:
        ConfigError: if there is no such model or it cannot be fetched.
    """
    local = Path(model).expanduser()
    if model != EMBEDDED and local.exists():
        if not local.is_dir():
            raise ConfigError(f"model {model!r} is a file; give the folder that holds config.json")
        return local.resolve()
    if model == EMBEDDED:
        return embedded.ensure(cache.expanduser())
    if not _HUB_ID.fullmatch(model):
        raise ConfigError(f"model {model!r}: there is no such folder, and it is not a hub id")
    return _fetch_from_hub(model)


def verify(folder: Path) -> None:
    """Compare every byte of a folder with its manifest, if it has one.

    Raises:
        ConfigError: naming the files that differ.
    """
    if (folder / FILE_NAME).exists() and (damaged := damaged_files(folder, full=True)):
        raise ConfigError(
            f"{folder}: {', '.join(damaged)} changed; delete the folder to rebuild it"
        )


def _fetch_from_hub(repo_id: str) -> Path:
    # slow to import and not needed for the embedded model
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, allow_patterns=list(_HUB_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"model {repo_id!r}: there is no such folder, it is not in the hub's cache, and the "
            f"Hugging Face hub did not give it ({reason:.300}); check the name, the network and, "
            "for a private model, HF_TOKEN; or set 'model' to 'embedded' or a local folder"
        ) from error


def main() -> int:
    """Print the folder of the model named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m app.models.model_store", description=__doc__)
    parser.add_argument("model", help="'embedded', a local folder or a hub id")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="cache folder")
    parser.add_argument(
        "--verify", action="store_true", help="compare every byte with the manifest"
    )
    arguments = parser.parse_args()
    try:
        folder = resolve(arguments.model, arguments.cache)
        if arguments.verify:
            verify(folder)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
