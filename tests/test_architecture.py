"""Reads the imports of every file and checks them against ARCHITECTURE.md."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from functools import cache
from graphlib import TopologicalSorter

import pytest

from tests import ROOT

# bytes of a file in git
LARGEST_FILE = 1 << 20
SHARED = {"engine.types", "engine.config", "engine.errors", "engine.integers"}
# package -> what of ours it may import beside itself and SHARED; "engine" are its other modules
MAY_IMPORT = {
    "kernels": set[str](),
    "engine.types": set[str](),
    "engine.architectures": set[str](),
    "engine.model": {"engine", "engine.architectures", "kernels"},
    "engine.worker": {"engine.model", "kernels"},
    "engine.core": set[str](),
    "engine.executor": {"engine.core", "engine.worker"},
    "engine.runtime": {"engine.core", "engine.executor"},
    "engine": {"engine.architectures"},
    "app": {"engine", "engine.architectures", "engine.runtime"},
    "load_tests": {
        "engine", "engine.architectures", "engine.core", "engine.executor", "engine.model",
        "engine.runtime", "engine.worker", "kernels",
    },
    # what `load_tests path` has served
    "load_tests.path.application": {"app"},
}  # fmt: skip
# package of load_tests -> which of the others it may import; "shared" are the modules at the top
LOAD_TESTS_MAY_IMPORT = {
    "shared": set[str](),
    "traffic": {"shared"},
    "http": {"shared", "traffic"},
    "simulator": {"shared", "traffic"},
    "bench": {"http", "shared", "simulator", "traffic"},
    "faults": {"bench", "shared"},
    "monitoring": {"bench", "faults", "http", "overload", "shared", "traffic"},
    "overload": {"bench", "faults", "shared"},
    "paper": {"shared", "simulator", "traffic"},
    "path": {"bench", "faults", "http", "overload", "shared", "traffic"},
    "whatif": {"paper", "shared", "simulator", "traffic"},
}
# package or module of app -> which of the others it may import
APP_MAY_IMPORT = {
    "limits": set[str](),
    "text": set[str](),
    "grammars": {"limits"},
    "models": set[str](),
    "recorder": set[str](),
    "protocol": {"grammars", "limits", "text"},
    "settings": {"limits", "models", "protocol"},
    "generation": {"grammars", "limits", "protocol", "settings", "text"},
    "ui": set[str](),
    "telemetry": {"ui"},
    "http": {"generation", "limits", "protocol", "telemetry", "text", "ui"},
    "serve": {"recorder", "telemetry"},
    "preflight": {"models", "recorder", "serve", "settings"},
    "command": {"limits", "models", "preflight", "settings", "text"},
    "main": {
        "generation", "http", "models", "preflight", "protocol", "recorder", "serve", "settings",
        "telemetry", "text", "ui",
    },
}  # fmt: skip
MAX_MODULES = 14
# kernels know nothing of the engine, not even its types; the types rest on nothing
WITHOUT_SHARED = {"kernels", "engine.types"}
# packages that are imported whole: which module holds what is their own business
IMPORTED_WHOLE = {"engine.types"}
# modules that only these packages may import
ONLY_IN = {
    "ray.serve": {"app"},
    "starlette": {"app"},
    "pydantic": {"app"},
    "tokenizers": {"app"},
    "jinja2": {"app"},
    "prometheus_client": {"app"},
    "opentelemetry": {"app"},
}
STANDARD_LIBRARY_ONLY = ("engine/core/", "engine/architectures/", "engine/types/",
                         "engine/config/", "engine/errors.py", "engine/integers.py",
                         "engine/model_config.py", "engine/model_files.py")  # fmt: skip
READS_ENVIRONMENT = {
    "app/command/environment.py",
    "app/models/cache_folder.py",
    # CUDA has no other way
    "engine/executor/visible_gpus.py",
}
# what can run code that came with data
FORBIDDEN = {
    "pickle": r"\b(import|from) (pickle|cloudpickle|ray\.cloudpickle|dill|marshal|shelve)\b",
    "eval or exec": r"(?<![\w.])(eval|exec)\(",
    "torch.load": r"\btorch\.load\b",
    "trust_remote_code": r"\btrust_remote_code\b",
    "Ray Data, which unpickles what it reads": r"\bray\.data\b",
}
# the one place that reads pickled weights, and how
READS_PICKLES = "app/models/conversion/pickled_weights.py"
SAFE_LOAD = re.compile(r"\btorch\.load\([^()]*\bweights_only=True\b")
SERVED = ("app", "engine", "kernels")
OURS = (*SERVED, "load_tests")


def sources(*packages: str) -> list[str]:
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def module_of(name: str, modules: Collection[str]) -> str:
    """The module that an imported name is or lies in, or an empty string if it is not ours."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def package_of(module: str) -> str:
    """The longest entry of MAY_IMPORT that the module lies in, or an empty string."""
    names = [name for name in MAY_IMPORT if f"{module}.".startswith(f"{name}.")]
    return max(names, key=len, default="")


@cache
def imports(path: str) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively"
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return found


def forbidden_imports(importer: str, imported: str) -> str | None:
    """Say why a module of ours may not import another module, or return None."""
    package, target = package_of(importer), package_of(imported)
    for name, owners in ONLY_IN.items():
        if f"{imported}.".startswith(f"{name}.") and package not in owners:
            return f"only {', '.join(owners)} may import {name}"
    if not target or target == package:
        return None
    if target in IMPORTED_WHOLE and "." in imported.removeprefix(f"{target}."):
        return f"{target} hands out what its modules hold"
    shared = any(f"{imported}.".startswith(f"{name}.") for name in SHARED)
    if shared and package not in WITHOUT_SHARED:
        return None
    return None if target in MAY_IMPORT[package] else f"{package} may not import {target}"


def load_tests_package(module: str) -> str:
    """The package of load_tests that a module of it lies in."""
    _, _, inside = module.partition(".")
    package = inside.partition(".")[0]
    return package if package in LOAD_TESTS_MAY_IMPORT else "shared"


def crosses_load_tests(importer: str, imported: str) -> bool:
    """Whether a module of load_tests imports one from a package that it may not import."""
    if not imported.startswith("load_tests."):
        return False
    package, target = load_tests_package(importer), load_tests_package(imported)
    return target not in {package, *LOAD_TESTS_MAY_IMPORT[package]}


def test_imports_follow_the_arrows() -> None:
    found = {
        (path, name): forbidden_imports(module_name(path), name)
        for path in sources(*OURS)
        for name in imports(path)
    }
    assert not {where: reason for where, reason in found.items() if reason}


def test_packages_of_load_tests_follow_the_arrows() -> None:
    assert not [
        (path, name)
        for path in sources("load_tests")
        for name in imports(path)
        if crosses_load_tests(module_name(path), name)
    ]


def test_packages_of_load_tests_are_all_known_and_in_no_circle() -> None:
    found = {path.parent.name for path in (ROOT / "load_tests").glob("*/__init__.py")}
    assert found == LOAD_TESTS_MAY_IMPORT.keys() - {"shared"}
    TopologicalSorter(LOAD_TESTS_MAY_IMPORT).prepare()
    assert crosses_load_tests("load_tests.traffic.trace", "load_tests.simulator.replay")
    assert crosses_load_tests("load_tests.report", "load_tests.whatif.report")
    assert crosses_load_tests("load_tests.paper", "load_tests.whatif.questions.run")
    assert not crosses_load_tests("load_tests.http.report", "load_tests.report.Report")


def crosses_app(importer: str, imported: str) -> bool:
    """Whether a module of app imports one from a package of app that it may not import."""
    if not imported.startswith("app."):
        return False
    package, target = (name.split(".")[1] for name in (importer, imported))
    return target not in {package, *APP_MAY_IMPORT[package]}


def test_packages_of_app_follow_the_arrows() -> None:
    assert not [
        (path, name)
        for path in sources("app")
        if path != "app/__init__.py"
        for name in imports(path)
        if crosses_app(module_name(path), name)
    ]


def test_packages_of_app_are_all_known_and_in_no_circle() -> None:
    found = {path.split("/")[1].removesuffix(".py") for path in sources("app")}
    assert found - {"__init__"} == APP_MAY_IMPORT.keys()
    TopologicalSorter(APP_MAY_IMPORT).prepare()
    assert crosses_app("app.generation.generation", "app.http.tasks.until_disconnect")
    assert crosses_app("app.settings.config", "app.preflight.check")
    assert crosses_app("app.http.routes", "app.main")
    assert not crosses_app("app.http.routes", "app.generation.request.prepare")


def test_no_module_imports_itself_through_others() -> None:
    paths = {module_name(path): path for path in sources(*OURS)}
    found = {
        module: {module_of(name, paths) for name in imports(path)} - {"", module}
        for module, path in paths.items()
    }
    TopologicalSorter(found).prepare()


def test_folders_fit_on_a_screen() -> None:
    modules = [path for path in sources(*OURS, "tests") if not path.endswith("/__init__.py")]
    sizes = Counter(path.rpartition("/")[0] for path in modules)
    assert not {folder: size for folder, size in sizes.items() if size > MAX_MODULES}


def test_no_large_file_is_kept() -> None:
    """A package or a model that somebody added by accident stays in the history for good."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    kept = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert not [path for path in kept if path.is_file() and path.stat().st_size > LARGEST_FILE]


def test_the_rules_catch_what_they_are_for() -> None:
    for importer, imported in [
        ("engine.core.scheduler", "engine.worker.worker"),
        ("engine.worker.worker", "engine.core.engine"),
        ("engine.worker.worker", "engine.types.step.StepPlan"),
        ("engine.types.step", "engine.config.Device"),
        ("kernels.select", "engine.config.Device"),
        ("engine.model.decoder", "engine.worker"),
        ("engine.runtime.loop", "app.settings.config"),
        ("engine.executor.gang", "engine.model.decoder.Decoder"),
        ("app.main", "engine.core.engine.Engine"),
        ("load_tests.http", "app.settings.config"),
        ("engine.runtime.loop", "ray.serve"),
        ("engine.worker.worker", "pydantic.BaseModel"),
        ("engine.model_config", "engine.core.engine"),
    ]:
        assert forbidden_imports(importer, imported), (importer, imported)
    for importer, imported in [
        ("app.main", "engine.runtime.client.client"),
        ("engine.core.scheduler", "engine.types.StepPlan"),
        ("engine.types.output", "engine.types.memory.MemoryUsage"),
        ("engine.runtime.loop", "ray"),
        ("kernels.select", "torch"),
    ]:
        assert not forbidden_imports(importer, imported), (importer, imported)


def test_the_core_needs_only_the_standard_library() -> None:
    allowed = sys.stdlib_module_names | {"engine"}
    core = [path for path in sources("engine") if path.startswith(STANDARD_LIBRARY_ONLY)]
    assert core
    assert not [
        (path, name)
        for path in core
        for name in imports(path)
        if name.partition(".")[0] not in allowed
    ]


def test_environment_variables_are_read_in_three_files() -> None:
    reads = re.compile(r"\b(os\.environ|getenv|environb)\b")
    found = {path for path in sources(*SERVED) if reads.search((ROOT / path).read_text("utf-8"))}
    assert found <= set(READS_ENVIRONMENT)


def test_nothing_runs_code_that_came_with_data() -> None:
    found = []
    for path in sources(*SERVED):
        code = ast.unparse(ast.parse((ROOT / path).read_text("utf-8")))
        if path == READS_PICKLES:
            code = SAFE_LOAD.sub("", code)
        found += [(path, what) for what in FORBIDDEN if re.search(FORBIDDEN[what], code)]
    assert not found


def test_pickles_are_read_in_one_place_and_safely() -> None:
    code = ast.unparse(ast.parse((ROOT / READS_PICKLES).read_text("utf-8")))
    assert len(SAFE_LOAD.findall(code)) == 1
    assert not SAFE_LOAD.search("torch.load(path, weights_only=False)")
