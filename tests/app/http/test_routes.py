import subprocess
import sys

import pytest

from tests.app.api.server import MAX_MODEL_LEN, MODEL, in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script

# numpy is in every ingress in any case, by Ray Serve
HEAVY = ("torch", "transformers", "ray")


@pytest.mark.parametrize("module", ["app.http.routes", "app.text.tokenizer"])
def test_the_http_layer_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(("served", "shown"), [(48, 48), (None, MAX_MODEL_LEN)])
async def test_a_context_is_shown_as_long_as_it_is_served(served: int | None, shown: int) -> None:
    """The replicas may have clipped it; the model's own stands in while none answers."""
    client = FakeEngineClient([Script(tokens=[5])], served_len=served)
    async with in_process(make_app(client)) as http:
        [listed] = (await http.get("/v1/models")).json()["data"]
        assert listed["max_model_len"] == shown
        assert (await http.get(f"/v1/models/{MODEL}")).json() == listed
