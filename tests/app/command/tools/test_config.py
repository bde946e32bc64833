import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from app.command.__main__ import main
from tests import ROOT

FILE = str(ROOT / "serve_config.yaml")


def write(folder: Path, name: str, **args: object) -> str:
    content = yaml.safe_load(Path(FILE).read_text())
    content["applications"][0]["args"] |= args
    path = folder / name
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_every_option_is_shown_with_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", FILE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'model: "embedded"' in lines
    assert "block_size: 16  # default" in lines
    assert main(["config", "show", FILE, "--changed"]) == 0
    assert "default" not in capsys.readouterr().out


def test_files_that_differ_are_compared_by_what_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # what is set to its default is no difference
    same, other = write(tmp_path, "a", block_size=16), write(tmp_path, "b", block_size=32)
    assert main(["config", "diff", FILE, same]) == 0
    assert main(["config", "diff", FILE, other]) == 1
    assert capsys.readouterr().out == "pagoda.block_size: 16 -> 32\n"


def test_the_schema_takes_the_file_and_no_other_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    args = yaml.safe_load(Path(FILE).read_text())["applications"][0]["args"]
    jsonschema.validate(args, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(args | {"modle": "x"}, schema)


def test_a_file_that_cannot_be_served_is_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, missing = write(tmp_path, "a", modle="x"), str(tmp_path / "none")
    assert main(["config", "check", bad, missing]) == 1
    errors = capsys.readouterr().err
    assert "did you mean 'model'" in errors
    assert f"{missing} does not exist" in errors


def test_flags_of_vllm_become_a_file_that_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["vllm", "serve", "org/name", "--port", "9000", "--max-num-seqs=8"]
    assert main(["config", "from-vllm", "--base", FILE, *words]) == 0
    path = tmp_path / "made.yaml"
    path.write_text(capsys.readouterr().out)
    assert main(["config", "show", "--changed", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ['model: "org/name"', "max_num_seqs: 8"]
    assert yaml.safe_load(path.read_text())["http_options"]["port"] == 9000
    assert main(["config", "from-vllm", "--base", FILE, "m", "--api-key", "sk-1"]) == 1
    out, err = capsys.readouterr()
    assert "api_keys_file" in err
    assert "sk-1" not in out + err
