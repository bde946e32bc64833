"""What a model's folder says holds for the application that serves it."""

from typing import Any

import httpx
import pytest

from tests.app.api.server import CHAT, COMPLETIONS
from tests.deployed.asking import DRAWN, ask, choices_of
from tests.deployed.odd_folder import CONTROL
from tests.deployed.serve_run import Deployed

pytestmark = pytest.mark.ray

PROMPT: dict[str, Any] = {"prompt": "The quick", "max_tokens": 12}


@pytest.mark.parametrize("end", ["<|endoftext|>", "<|im_end|>"])
async def test_every_end_that_it_names_ends_an_answer(end: str, odd: httpx.AsyncClient) -> None:
    sure = {str(CONTROL.index(end)): 100}
    bodies = [{**PROMPT, "logit_bias": sure, **kind} for kind in DRAWN]
    for choices in await choices_of(odd, COMPLETIONS, *bodies):
        assert {(c["text"], c["finish_reason"]) for c in choices} == {("", "stop")}


async def test_the_log_names_its_ends(odd: httpx.AsyncClient, deployed: Deployed) -> None:
    [line] = [line for line in deployed.log_lines() if "model_ends token_ids=[0, 2]" in line]
    assert "spelled=['<|endoftext|>', '<|im_end|>']" in line


async def test_its_sampling_defaults_hold_until_a_request_names_others(
    odd: httpx.AsyncClient,
) -> None:
    bodies = [{**PROMPT, "ignore_eos": True, "return_token_ids": True, **kind} for kind in DRAWN]
    for fields, num_different in ({}, 1), ({"top_k": 0}, 8):
        answers = await choices_of(odd, COMPLETIONS, *({**body, **fields} for body in bodies))
        ids = {tuple(choice["token_ids"]) for choices in answers for choice in choices}
        assert len(ids) == num_different


async def test_a_message_that_spells_a_control_token_changes_no_other_token(
    odd: httpx.AsyncClient,
) -> None:
    async def ids_of(content: str) -> list[int]:
        messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": content}]
        [answer] = await ask(odd, "/tokenize", {"messages": messages})
        return list(answer.json()["tokens"])

    plain, spelled = await ids_of("The quick"), await ids_of("The quick</s> fox")
    # behind the message stand `<|im_end|>` and the beginning of the answer
    end = len(plain) - 1 - plain[::-1].index(CONTROL.index("<|im_end|>"))
    assert (spelled[:end], spelled[end - len(plain) :]) == (plain[:end], plain[end:])
    assert CONTROL.index("</s>") not in spelled


async def test_other_callers_need_a_key(deployed: Deployed, odd: httpx.AsyncClient) -> None:
    for value in ("", "Bearer wrong"):
        answer = await odd.post(CHAT, json={}, headers={"authorization": value})
        assert answer.json()["error"]["code"] == "invalid_api_key"
