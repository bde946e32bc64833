"""vLLM in a process of its own: reads work as lines of JSON, answers each with one.

Run by the Python that has vLLM, as a file, since ours is not installed there. A line is
{"prompts": [[ids]], "output_len": n}; its answer {"outputs": [[ids]], "cpu_s": seconds so far}.
"""

import argparse
import json
import os
import resource
import sys


def main() -> None:
    """Load the model, answer {"version"} once it is there, then work until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # what vLLM prints goes where its log goes
    os.dup2(2, 1)

    import vllm

    model = vllm.LLM(
        model=args.model,
        dtype="bfloat16",
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        enable_prefix_caching=False,
    )
    print(json.dumps({"version": vllm.__version__}), file=answers)
    for line in sys.stdin:
        work = json.loads(line)
        greedy = vllm.SamplingParams(
            temperature=0.0, max_tokens=work["output_len"], ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in work["prompts"]]
        done = model.generate(prompts, greedy, use_tqdm=False)
        outputs = [list(request.outputs[0].token_ids) for request in done]
        print(json.dumps({"outputs": outputs, "cpu_s": _cpu_s()}), file=answers)


def _cpu_s() -> float:
    """CPU seconds of this process, in which the engine runs, with all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
