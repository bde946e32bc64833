"""Request rates of the paper's experiments.

They are those of the paper's authors (https://github.com/sosp-ae-39/sosp-ae-astra), with more where
the knee of a curve would lie between few.
"""

from load_tests.figures.definitions import System, Workload

Rates = dict[System, tuple[float, ...]]

# by data set, then by model
BASIC: dict[Workload, tuple[Rates, Rates, Rates]] = {
    "sharegpt": (
        {
            "paged": (1.0, 1.25, 1.5, 1.75, 1.9, 2.0, 2.25, 2.5),
            "orca_oracle": (0.5, 0.75, 1.0, 1.25, 1.5),
            "orca_pow2": (0.25, 0.5, 0.75, 0.9, 1.05),
            "orca_max": (0.2, 0.4, 0.5, 0.75, 0.9),
            "faster_transformer": (0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35),
        },
        {
            "paged": (0.4, 0.6, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5),
            "orca_oracle": (0.2, 0.3, 0.4, 0.5, 0.6, 0.75),
            "orca_pow2": (0.1, 0.2, 0.25, 0.35, 0.45, 0.6),
            "orca_max": (0.1, 0.2, 0.3, 0.4),
            "faster_transformer": (0.01, 0.03, 0.05, 0.1, 0.2),
        },
        {
            "paged": (1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.25, 3.6, 4.0),
            "orca_oracle": (0.8, 1.0, 1.2, 1.5, 1.8, 2.2, 2.6),
            "orca_pow2": (0.5, 0.75, 1.0, 1.25, 1.5, 1.8, 2.1),
            "orca_max": (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.8),
            "faster_transformer": (0.01, 0.1, 0.2, 0.3, 0.5),
        },
    ),
    "alpaca": (
        {
            "paged": (20.0, 22.5, 25.0, 27.5, 29.0, 31.5, 34.0),
            "orca_oracle": (15.0, 18.0, 20.0, 22.0, 24.0),
            "orca_pow2": (7.5, 10.0, 12.5, 15.0, 18.0),
            "orca_max": (2.0, 3.0, 4.0, 5.0),
            "faster_transformer": (0.1, 0.5, 1.0, 1.5, 2.0, 3.0),
        },
        {
            "paged": (11.0, 13.0, 15.0, 17.0, 20.0, 23.0, 26.0),
            "orca_oracle": (6.0, 7.5, 9.0, 10.5, 12.0, 14.0, 16.0),
            "orca_pow2": (3.0, 4.0, 5.0, 6.0, 7.0, 8.5, 10.0),
            "orca_max": (0.25, 0.75, 1.25, 2.0),
            "faster_transformer": (0.1, 0.3, 0.6, 1.0),
        },
        {
            "paged": (15.0, 17.0, 19.0, 20.5, 22.0, 25.0, 28.0),
            "orca_oracle": (15.0, 17.0, 19.0, 20.5, 22.0, 25.0, 28.0),
            "orca_pow2": (10.0, 13.0, 16.0, 19.0, 22.0, 25.0),
            "orca_max": (1.25, 3.0, 5.0, 7.0, 9.0),
            "faster_transformer": (0.1, 0.5, 1.0, 2.0, 4.0),
        },
    ),
}
PARALLEL: dict[int, Rates] = {
    2: {
        "paged": (12.5, 14.0, 16.0, 18.0, 20.0),
        "orca_oracle": (10.0, 11.0, 12.0, 13.0, 14.0),
        "orca_pow2": (6.0, 8.0, 10.0, 12.0),
        "orca_max": (1.0, 1.5, 2.0, 2.5),
    },
    4: {
        "paged": (6.0, 7.5, 9.0, 10.5, 12.0),
        "orca_oracle": (4.0, 5.0, 6.0, 7.5, 9.0),
        "orca_pow2": (2.0, 3.0, 4.0, 6.0),
        "orca_max": (0.1, 0.4, 0.7, 1.0),
    },
    6: {
        "paged": (4.0, 5.0, 6.0, 7.5, 9.0),
        "orca_oracle": (2.0, 3.0, 4.0, 5.0, 6.0),
        "orca_pow2": (1.0, 2.0, 3.0, 4.5),
        "orca_max": (0.1, 0.3, 0.6, 1.0),
    },
}
BEAM: dict[int, Rates] = {
    2: {
        "paged": (10.0, 12.0, 14.0, 16.0, 19.0),
        "orca_oracle": (6.0, 7.5, 9.0, 11.0, 13.0),
        "orca_pow2": (3.0, 5.0, 7.0, 9.0),
        "orca_max": (0.5, 1.0, 1.5, 2.0),
    },
    4: {
        "paged": (6.0, 7.5, 9.0, 11.0),
        "orca_oracle": (3.0, 4.0, 5.0, 6.0, 7.0),
        "orca_pow2": (1.0, 2.0, 3.0, 4.5),
        "orca_max": (0.1, 0.4, 0.7, 1.0),
    },
    6: {
        "paged": (4.0, 5.5, 7.0, 8.5),
        "orca_oracle": (1.0, 2.0, 3.0, 4.5),
        "orca_pow2": (0.5, 1.0, 2.0, 3.0),
        "orca_max": (0.1, 0.4, 0.7, 1.0),
    },
}
PREFIX: dict[Workload, Rates] = {
    "translation_1": {
        "paged": (24.0, 32.0, 40.0, 45.0, 48.0, 52.0),
        "orca_oracle": (16.0, 20.0, 24.0, 28.0, 32.0),
    },
    "translation_5": {
        "paged": (16.0, 24.0, 28.0, 32.0, 36.0, 40.0, 44.0, 48.0),
        "orca_oracle": (4.0, 6.0, 8.0, 10.0, 13.0),
    },
}
CHAT: Rates = {
    "paged": (0.1, 0.4, 0.6, 0.8, 1.0, 1.1),
    "orca_oracle": (0.1, 0.3, 0.4, 0.5, 0.6, 0.7),
    "orca_pow2": (0.1, 0.3, 0.4, 0.5, 0.6, 0.7),
    "orca_max": (0.1, 0.3, 0.4, 0.5, 0.6, 0.7),
}
