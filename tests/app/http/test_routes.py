import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "ray", "numpy")


@pytest.mark.parametrize("module", ["app.http.routes", "app.text.tokenizer"])
def test_the_http_layer_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
