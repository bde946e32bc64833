from app.command.start.log_lines import read_line
from app.command.start.progress import StartProgress, StartStage

ENGINE = "(ServeReplica:pagoda:Engine pid=1) INFO 2026-11-29 22:44:13,978 pagoda_Engine x -- "
RANK = "(RankActor pid=2) INFO 2026-11-29 22:44:13,978 rank 0 -- "


def stages(*lines: str) -> list[StartStage]:
    progress = StartProgress()
    return [stage for line in lines for stage in progress.stages(read_line(line))]


def test_a_start_on_a_cpu_has_ray_an_engine_and_weights() -> None:
    found = stages(
        "2026-11-29 22:43:07,669\tINFO worker.py:2029 -- Started a local Ray instance. View",
        f"{ENGINE}weights_loading source=files bytes=100000000 of=269000000",
        f"{ENGINE}weights_loaded source=files ranks=1 bytes=269000000 seconds=4.9",
    )
    assert [(stage.name, stage.is_over) for stage in found] == [
        ("Ray", True),
        ("engine", False),
        ("engine", True),
        ("weights", False),
        ("weights", True),
    ]
    assert (found[3].done, found[3].total, found[3].unit) == (100.0, 269.0, "MB")
    assert found[4].detail == "loaded in 4.9 s"


def test_dummy_weights_are_called_so_and_kernels_are_none() -> None:
    _, drawing, drawn, compiling = stages(
        f"{ENGINE}weights_loading source=dummy bytes=100000000 of=269000000",
        f"{ENGINE}weights_loaded source=dummy ranks=2 bytes=269000000 seconds=0.4",
        f"{RANK}kernels_compiling",
    )
    assert (drawing.name, drawing.detail) == ("weights", "dummy")
    assert (drawn.detail, drawn.is_over) == ("dummy, drawn in 0.4 s", True)
    assert (compiling.name, compiling.detail, compiling.is_over) == ("kernels", "compiling", False)


def test_graphs_and_kernels_count_and_end_once() -> None:
    found = stages(
        f"{RANK}kernels_compiled done=10 of=10 tokens=192 deterministic=True s=3.0",
        f"{RANK}graphs_captured done=20 of=40 s=1.0",
        f"{RANK}graphs_captured done=40 of=40 s=2.0",
        # another rank
        f"{RANK}graphs_captured done=20 of=40 s=1.5",
        f"{RANK}graphs_captured done=40 of=40 s=2.5",
    )
    assert [(stage.name, stage.done, stage.is_over) for stage in found] == [
        ("kernels", 10.0, True),
        ("graphs", 20.0, False),
        ("graphs", 40.0, True),
    ]


def test_numbers_that_are_none_and_lines_of_others_say_nothing() -> None:
    assert stages(f"{ENGINE}weights_loading bytes=? of=? seconds=2.0", "graphs_captured") == []
