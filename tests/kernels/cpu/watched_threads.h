// Lets a test see how threads share kernels. Included before each of them.
#pragma once

#include <immintrin.h>
#include <stdatomic.h>

#include "../../../kernels/cpu/source/team.h"

#define SHOWN __attribute__((weak, visibility("default")))

// lines that were asked for
SHOWN atomic_int_fast64_t num_prefetches;
#define __builtin_prefetch(...) ((void)atomic_fetch_add(&num_prefetches, 1))

static void watch_rows(const void *argument, int64_t first, int64_t end) {
    ((int64_t *)argument)[first] = end - first;
}

// lengths[i] = rows of the item that begins with row i, if one does
SHOWN int64_t items_of_rows(struct team *team, int64_t *lengths, int64_t num_rows, int64_t cost) {
    share_rows(team, watch_rows, lengths, num_rows, cost);
    return 0;
}
