"""Prints what the card can do at most, from a process that leaves its memory free again."""

import json
from contextlib import suppress
from dataclasses import asdict

import torch

from load_tests.card import datasheet, measure_ceilings

if __name__ == "__main__":
    limits = {"measured": asdict(measure_ceilings())}
    # a card without a datasheet is compared with itself alone
    with suppress(ValueError):
        limits["datasheet"] = asdict(datasheet(torch.cuda.get_device_name()))
    print(json.dumps(limits))
