"""Faults of the KV pool and of the memory that it gets."""

from engine.worker.block_copy_time import measure_block_copy_s
from engine.worker.kv_pool import KVPool, _check_room, _may_come_first
from engine.worker.memory_budget import MemoryBudget, share_out
from engine.worker.swap_arena import SharedMemory
from tests.mutation.mutant import Fault

POOL_FAULTS = [
    Fault(
        what="blocks come back from the wrong slots",
        function=KVPool.swap_in,
        old="self.arena.blocks, sources, self.kv, targets",
        new="self.arena.blocks, sources[::-1], self.kv, targets",
        noticed_by="test_blocks_that_were_swapped_out_come_back_where_they_are_wanted",
    ),
    Fault(
        what="blocks leave for the slots of their own ids",
        function=KVPool.swap_out,
        old="self.kv, sources, self.arena.blocks, targets",
        new="self.kv, sources, self.arena.blocks, [block % 3 for block in sources]",
        noticed_by="test_blocks_that_were_swapped_out_come_back_where_they_are_wanted",
    ),
    Fault(
        what="checksums are not compared",
        function=KVPool.swap_in,
        old="(headers != expected).any(1)",
        new="(headers[:, :4] != expected[:, :4]).any(1)",
        noticed_by="test_a_slot_that_holds_another_block_or_a_changed_one_is_noticed",
    ),
    Fault(
        what="keys are not compared",
        function=KVPool.swap_in,
        old="(headers != expected).any(1)",
        new="(headers[:, 4:] != expected[:, 4:]).any(1)",
        noticed_by="test_a_slot_that_holds_another_block_or_a_changed_one_is_noticed",
    ),
    Fault(
        what="a step writes a block that is still on its way out",
        function=KVPool.protect,
        old="self._runtime.wait_for(_taken",
        new="list(_taken",
        noticed_by="test_steps_wait_for_copies_of_blocks_that_they_write_and_for_no_others",
    ),
    Fault(
        what="a block comes back over one that is still on its way out",
        function=KVPool.swap_in,
        old="_taken(self._leaving, targets) + ",
        new="",
        noticed_by="test_steps_wait_for_copies_of_blocks_that_they_write_and_for_no_others",
    ),
    Fault(
        what="a block comes back from a slot that is still written",
        function=KVPool.swap_in,
        old=" + _taken(self._arriving, sources)",
        new="",
        noticed_by="test_blocks_come_back_after_their_slots_were_written",
    ),
    Fault(
        what="a copied block gets the contents of the wrong side",
        function=KVPool.move,
        old="plan.copy_sources, plan.copy_destinations",
        new="plan.copy_destinations, plan.copy_sources",
        noticed_by="test_blocks_are_swapped_out_before_others_take_their_place",
    ),
    Fault(
        what="blocks come back before those in their places have left",
        function=_may_come_first,
        old="set(plan.swap_in_destinations).isdisjoint(plan.swap_out_sources) and ",
        new="",
        noticed_by="test_blocks_are_swapped_out_before_others_take_their_place",
    ),
    Fault(
        what="blocks come back before their slots are written",
        function=_may_come_first,
        old=" and set(",
        new=" or set(",
        noticed_by="test_what_a_plan_saves_it_may_bring_back_at_once",
    ),
    Fault(
        what="the view of shared memory is not kept",
        function=SharedMemory.take,
        old="alias.view = self._view",
        new="pass",
        noticed_by="test_shared_memory_keeps_its_view",
    ),
    Fault(
        what="a pool that just holds the longest sequence is refused",
        function=_check_room,
        old="num_slots >= longest",
        new="num_slots > longest",
        noticed_by="test_a_pool_that_one_sequence_just_fits_is_enough",
    ),
    Fault(
        what="every rank allocates all heads",
        function=KVPool.__init__,
        old="model.kv_heads_per_rank(parallel.size)",
        new="model.num_kv_heads",
        noticed_by="test_rank_holds_its_share_of_the_heads",
    ),
    Fault(
        what="the swap space is counted in bytes of one layer",
        function=KVPool.__init__,
        old="(config.swap_bytes or 0) // block_bytes",
        new="(config.swap_bytes or 0) // (block_bytes // model.num_layers)",
        noticed_by="test_the_swap_space_holds_whole_blocks",
    ),
    Fault(
        what="the pool takes the memory of a step's activations",
        function=share_out,
        old="- memory.used - activations - graphs",
        new="- memory.used - graphs",
        noticed_by="test_the_pool_takes_what_weights_and_steps_leave",
    ),
    Fault(
        what="graphs have only the memory of a prefill",
        function=share_out,
        old="max(activations, runtime.peak_bytes(warm_up.decode))",
        new="activations",
        noticed_by="test_graphs_share_the_memory_of_the_largest_step",
    ),
    Fault(
        what="a budget without any block is accepted",
        function=share_out,
        old="if blocks <= 0:",
        new="if False:",
        noticed_by="test_a_fraction_that_leaves_nothing_is_refused",
    ),
    Fault(
        what="the table of lengths leaves out the longest one",
        function=MemoryBudget.lines,
        old="num_tokens // max_model_len",
        new="num_tokens // length",
        noticed_by="test_the_table_says_how_many_sequences_fit",
    ),
    Fault(
        what="a copy costs what two of them take",
        function=measure_block_copy_s,
        old="(2 * len(slots))",
        new="num_blocks",
        noticed_by="test_the_cost_is_that_of_one_block_in_one_direction",
    ),
    Fault(
        what="the round that makes the pages counts",
        function=measure_block_copy_s,
        old="range(1 + _NUM_ROUNDS)][1:]",
        new="range(_NUM_ROUNDS)]",
        noticed_by="test_the_cost_is_that_of_one_block_in_one_direction",
    ),
]
