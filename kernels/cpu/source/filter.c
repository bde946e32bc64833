// Top-k, top-p and min-p without sorting the vocabulary: a histogram over the distance to the
// largest logit finds the bin in which a limit falls, and only that bin is sorted.
#include "common.h"
#include "team.h"

enum { NUM_BINS = 2048, BINS_PER_NAT = 64 };  // the last bin takes all that is 32 nats below

struct candidate {
    float value;
    int32_t token;
};

// tokens in the order (value descending, token ascending) up to and including this one are kept
struct cut {
    struct candidate last;
    double mass;
};

struct row {
    const float *scaled;
    float *probs;     // exp(scaled - top)
    uint16_t *bins;   // of each token
    struct candidate *sorted;
    int64_t vocab;
    int64_t counts[NUM_BINS];
    double masses[NUM_BINS];
};

static int compare(const void *left, const void *right) {
    const struct candidate *a = left, *b = right;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    return a->token < b->token ? -1 : 1;
}

static void fill_bins(struct row *row) {
    float top = row->scaled[0];
    for (int64_t i = 1; i < row->vocab; i++) top = fmaxf(top, row->scaled[i]);
    for (int64_t i = 0; i < row->vocab; i++) {
        const float below = top - row->scaled[i];
        const float bin = fminf(below * BINS_PER_NAT, NUM_BINS - 1);
        row->probs[i] = below > 87.0f ? 0.0f : fast_exp(-below);
        row->bins[i] = (uint16_t)(int32_t)bin;
    }
    memset(row->counts, 0, sizeof row->counts);
    memset(row->masses, 0, sizeof row->masses);
    for (int64_t i = 0; i < row->vocab; i++) {
        row->counts[row->bins[i]]++;
        row->masses[row->bins[i]] += row->probs[i];
    }
}

static int64_t sort_bin(const struct row *row, int64_t bin) {
    int64_t count = 0;
    for (int64_t i = 0; i < row->vocab; i++)
        if (row->bins[i] == bin)
            row->sorted[count++] = (struct candidate){row->scaled[i], (int32_t)i};
    qsort(row->sorted, (size_t)count, sizeof *row->sorted, compare);
    return count;
}

// The last token of the shortest prefix with max_count tokens or at least max_mass of probability.
static struct cut find_cut(const struct row *row, int64_t max_count, double max_mass) {
    struct cut cut = {.mass = 0};
    int64_t count = 0, bin = 0, last = NUM_BINS - 1;
    // rounding may leave the mass just short of its limit: then the last bin with tokens decides
    while (row->counts[last] == 0) last--;
    for (; bin < last; bin++) {
        if (count + row->counts[bin] >= max_count || cut.mass + row->masses[bin] >= max_mass) break;
        count += row->counts[bin];
        cut.mass += row->masses[bin];
    }
    const int64_t in_bin = sort_bin(row, bin);
    for (int64_t i = 0; i < in_bin; i++) {
        cut.last = row->sorted[i];
        cut.mass += row->probs[cut.last.token];
        if (++count >= max_count || cut.mass >= max_mass) break;
    }
    return cut;
}

static void filter_row(float *scaled, struct row *row, int64_t top_k, double top_p, float min_p) {
    const double all = DBL_MAX;
    const int64_t max_count = top_k > 0 && top_k < row->vocab ? top_k : row->vocab;
    fill_bins(row);
    struct cut cut = {.last = {-FLT_MAX, INT32_MAX}, .mass = 0};
    if (max_count < row->vocab)
        cut = find_cut(row, max_count, all);
    else
        for (int64_t bin = 0; bin < NUM_BINS; bin++) cut.mass += row->masses[bin];
    if (top_p < 1) cut = find_cut(row, max_count, top_p * cut.mass);
    const float excluded = float_of_bits(0xFF800000);  // -inf
    for (int64_t i = 0; i < row->vocab; i++) {
        const float x = scaled[i];
        const int before = x > cut.last.value || (x == cut.last.value && i <= cut.last.token);
        scaled[i] = before && row->probs[i] >= min_p ? x : excluded;
    }
}

struct filters {
    float *scaled;
    const int32_t *top_k;
    const float *top_p, *min_p;
    int64_t vocab;
};

static void filter_one(const void *argument, struct team *team, int64_t s, int64_t thread) {
    const struct filters *const f = argument;
    const size_t n = (size_t)f->vocab;
    struct row *const row = scratch_of(
        team, thread,
        sizeof *row + n * (sizeof *row->sorted + sizeof *row->probs + sizeof *row->bins));
    if (!row) return;
    row->sorted = (struct candidate *)(row + 1);
    row->probs = (float *)(row->sorted + n);
    row->bins = (uint16_t *)(row->probs + n);
    row->vocab = f->vocab;
    row->scaled = f->scaled + s * f->vocab;
    filter_row(f->scaled + s * f->vocab, row, f->top_k[s], f->top_p[s], f->min_p[s]);
}

// Sets what the filters exclude from scaled [num_rows, vocab] to -inf; the limits are columns
// [num_rows]. Returns 0, or -1 when memory is short.
EXPORT int64_t filter(struct team *team, float *scaled, const int32_t *top_k, const float *top_p,
                      const float *min_p, int64_t num_rows, int64_t vocab) {
    const struct filters filters = {scaled, top_k, top_p, min_p, vocab};
    share(team, filter_one, &filters, num_rows);
    return is_short(team) ? -1 : 0;
}
