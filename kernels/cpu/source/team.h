// Threads that share the work of one kernel.
//
// A kernel cuts its work into items, each of which is computed in one way whoever does it, so that
// results have the same bits with any number of threads. The threads wait for the next work awake
// for a while, since the kernels of a step follow each other within microseconds, then asleep.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct team;

// Does one item; `thread` is below the number of threads, and no other has it meanwhile.
typedef void (*work)(const void *argument, struct team *team, int64_t item, int64_t thread);

// Does items 0..num_items, in any order, by all threads; returns when all are done. One caller at a
// time.
void share(struct team *team, work work, const void *argument, int64_t num_items);

// Takes another item for the thread that does one, which it begins while it ends the one before;
// -1 when there are none.
int64_t take_item(struct team *team);

int64_t threads_of(const struct team *team);

// Bytes for one thread, which has them until it asks for more, aligned to 64; NULL when there are
// none, which `is_short` tells once.
void *scratch_of(struct team *team, int64_t thread, size_t bytes);
int is_short(struct team *team);

// Does rows first..end.
typedef void (*rows_work)(const void *argument, int64_t first, int64_t end);

// Does rows 0..num_rows by all threads; few rows that cost little each, in operations on one vector
// of floats, are left to the caller.
void share_rows(struct team *team, rows_work work, const void *argument, int64_t num_rows,
                int64_t cost);
