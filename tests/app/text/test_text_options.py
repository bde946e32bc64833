import pytest

from app.text.text_options import TextOptions


@pytest.mark.parametrize(
    ("echo", "echoed", "beside", "expected"),
    [
        (False, 5, None, None),
        (False, 5, 0, 0),
        (True, None, None, None),
        (True, 2, None, 2),
        (True, 2, 5, 5),
        (True, 5, 2, 5),
        (True, None, 3, 3),
    ],
)
def test_the_engine_reports_what_either_list_needs(
    echo: bool, echoed: int | None, beside: int | None, expected: int | None
) -> None:
    options = TextOptions(echo=echo, num_logprobs=echoed, num_prompt_logprobs=beside)
    assert options.num_scored == expected
