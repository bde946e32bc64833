// Runs kernels one after the other, as they were called once.
#include "common.h"
#include "team.h"

enum { MOST_WHOLE = 18, MOST_REAL = 4 };

// A kernel, its arguments in their order, numbers with a fraction apart from addresses and others,
// and whether it returns a status.
struct call {
    void *kernel;
    int64_t has_status;
    int64_t whole[MOST_WHOLE];
    float real[MOST_REAL];
};

// On x86-64 and on 64-bit Arm a function finds its whole arguments in one place and those with a
// fraction in another, and looks at no more than it has: one form of call fits all kernels.
#if defined(__x86_64__) || defined(__aarch64__)
typedef int64_t kernel(struct team *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                       int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                       int64_t, int64_t, int64_t, float, float, float, float);

EXPORT int64_t can_run_calls(void) { return 1; }

// Returns 0, or the status of the first kernel that failed, after which none is called.
EXPORT int64_t run_calls(struct team *team, const struct call *calls, int64_t num_calls) {
    for (const struct call *call = calls; call < calls + num_calls; call++) {
        const int64_t *const w = call->whole;
        const float *const r = call->real;
        const int64_t status = ((kernel *)call->kernel)(
            team, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12],
            w[13], w[14], w[15], w[16], w[17], r[0], r[1], r[2], r[3]);
        if (call->has_status && status) return status;
    }
    return 0;
}
#else
EXPORT int64_t can_run_calls(void) { return 0; }

EXPORT int64_t run_calls(struct team *team, const struct call *calls, int64_t num_calls) {
    (void)team, (void)calls, (void)num_calls;
    return -1;
}
#endif
