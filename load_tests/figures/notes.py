"""What a reader must know about a figure: where ours differs from the paper's, and why."""

NOTES: dict[str, tuple[str, ...]] = {
    "2": (
        "Means over three seeds, as in figure 13. Filled slots hold a token, reserved ones will, "
        "internal ones were set aside and never will, external ones are lost by rounding, and free "
        "ones belong to nobody, which the paper counts as external. Of the paged system internal "
        "is what last blocks have left.",
    ),
    "12": (
        "12a to 12c, FasterTransformer: it answers a batch when its last sequence ends, so a "
        "request with one or two output tokens has a normalized latency of many seconds however "
        "small the load: with ShareGPT on OPT-13B the mean is 0.26 s per token at 0.05 req/s, the "
        "median 0.033. It crosses 0.3 s long before its queue grows, which makes the factors over "
        "it too large; the rows at 1 s per token, the top of the paper's plots, compare queues.",
        "12c, Orca: OPT-175B with ShareGPT gains less than in the paper although its batch does "
        "not: under overload 105 sequences against 48 (Oracle) and 26 (Max). A step of the "
        "modelled system with 105 sequences takes 100 ms, with 48 it takes 71: the software's 0.27 "
        "ms per sequence, fitted to figure 13, grows with the batch.",
        "12b, 12c: our larger models sustain more than the last rates that the authors ran for "
        "some curves: their software on several cards cost more than the two all-reduces per layer "
        "that the model of the step adds.",
    ),
    "13": (
        "Means over three seeds, which differ by 7 % for the paged system with ShareGPT: 2 req/s "
        "is just above what it sustains, so the batch follows the lengths that happen to be drawn.",
    ),
    "14": (
        "14c, 14f: gains over Orca (Oracle) are smaller than the paper's, and in short traces do "
        "not grow with the number of sequences; over the paper's hour they do. Memory is not the "
        "reason that 2.3 at width 6 is not reached: under overload at width 6 the paged "
        "system has 260 to 290 sequences in its batch and Orca (Oracle) 73. The time of the step "
        "is: its software part, 0.27 ms per sequence, was fitted to requests of one sequence and "
        "makes up half of a step with 250 beams, so that a larger batch gains little. With that "
        "time charged once per request (traces of 120 s) the gain grows from 1.55 at width 2 to at "
        "least 1.95 at width 6, where Orca's curve has not turned yet. Orca's sequences copy the "
        "prompt of their request here; the paper's compute it once for each.",
    ),
    "15": (
        "The share of beams that are replaced in a step, 0.10 for Alpaca and 0.01 for ShareGPT, is "
        "fitted to panel b; panel a is a prediction. The paper tells of ShareGPT in its text only.",
    ),
    "16": (
        "Lengths of the translations are an estimate (31 tokens in, 44 out), as the test set is "
        "not shipped; --translation FILE takes recorded ones.",
        "16b: the model of the step charges every sequence with reading the whole prefix, shared "
        "or not: 160 sequences of about 400 positions take 58 ms of a step, more than the weights, "
        "which is why the longer prefix gains less than in the paper.",
    ),
    "17": (
        "Lengths are those of another tokenizer's ShareGPT rounds, of which 64 % have prompts cut "
        "to 1024 tokens; shorter ones leave the Orcas 10 % apart and let Orca (Oracle) hold 7.7 "
        "requests at once instead of 7. The paged system holds 13, 1.7 times as many, and prefills "
        "again what it preempts: that leaves 1.4 to 1.6 times the rate.",
    ),
    "18": (
        "Memory alone: what small blocks cost the attention kernel is not modelled, so sizes below "
        "16 are not judged. Figure 18a needs a GPU and is not simulated.",
    ),
    "19": (
        "19a is computed: copies of keys or values of one layer at 25 GB/s, each 5 us at least (an "
        "estimate), against the modelled prefill. Recomputing 256 tokens takes 41 ms in this "
        "model, swapping large blocks out and in 17 ms at the full rate of the bus, so "
        "recomputation is slower by more than the paper's 20 %. It takes a measurement on a GPU to "
        "tell what real copies reach.",
    ),
}
