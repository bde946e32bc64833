import json
import shlex
from dataclasses import replace
from pathlib import Path

from app.command.start.banner import Facts, banner, curl, short

FACTS = Facts(
    url="http://127.0.0.1:8000",
    host="127.0.0.1",
    model="SmolLM2-135M-Instruct",
    max_model_len=8192,
    max_num_seqs=64,
    has_chat=True,
    capacity_slots=23296,
    block_size=16,
)


def test_the_banner_says_where_what_fits_and_what_to_try() -> None:
    lines = banner(FACTS, 21.2)
    assert lines[:4] == [
        "Ready after 21 s",
        "  API   http://127.0.0.1:8000/v1    Page  http://127.0.0.1:8000/ui",
        "  Fits  23,296 KV tokens (1,456 blocks of 16): 2 full contexts of 8,192, 64 sequences at "
        "once",
        "  Keys  none: this machine only",
    ]
    assert lines[4].startswith("  Try   curl -s http://127.0.0.1:8000/v1/chat/completions ")
    assert len(lines) == 6


def test_a_page_that_is_switched_off_is_not_named() -> None:
    assert banner(replace(FACTS, has_page=False), 1.0)[1] == "  API   http://127.0.0.1:8000/v1"


def words(facts: Facts) -> list[str]:
    return shlex.split("\n".join(curl(facts)))


def test_the_command_is_one_that_a_shell_takes() -> None:
    facts = replace(FACTS, model="it's a\nmodel ü")
    found = words(facts)
    assert found[:3] == ["curl", "-s", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(found[-1]) == {
        "model": "it's a\nmodel ü",
        "messages": [{"role": "user", "content": "Hi!"}],
        "max_tokens": 64,
    }
    assert len(curl(facts)) == 2


def test_a_model_without_a_chat_template_gets_a_completion() -> None:
    found = words(replace(FACTS, has_chat=False))
    assert found[2].endswith("/v1/completions")
    assert json.loads(found[-1]) == {"model": FACTS.model, "prompt": "Hi!", "max_tokens": 64}


def test_keys_are_read_from_their_file_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "my keys"
    path.write_text("sk-secret\n")
    lines = "\n".join(banner(replace(FACTS, api_keys_file=path), 1.0))
    assert "$(head -n1 " in lines
    assert "sk-secret" not in lines


def test_a_server_that_is_open_to_all_says_so() -> None:
    assert "everyone who reaches 0.0.0.0" in "\n".join(banner(replace(FACTS, host="0.0.0.0"), 1.0))


def test_what_is_not_known_is_not_said() -> None:
    lines = banner(replace(FACTS, capacity_slots=0), 1.0)
    assert lines[2] == "  Fits  contexts of up to 8,192 tokens, 64 sequences at once"
    assert banner(replace(FACTS, num_replicas=2), 1.0)[2].endswith("in each of 2 replicas")


def test_paths_are_short() -> None:
    assert short(Path.home() / "a" / "b") == "~/a/b"
    assert short(Path("/etc/x")) == "/etc/x"
