#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common.h"

// about 50 us of waiting awake: longer than between two kernels, shorter than between two steps
enum { NUM_SPINS = 2000, LINE = 64 };

// of an item of rows: about a microsecond, which is what it takes to share one
enum { LEAST_COST = 4096, MOST_HALVINGS = 4 };

// `state` of a team: bit 0 says whether there may be items left, the next bits how many threads are
// at it, the rest counts works, so that each thread joins a work once
enum { OPEN = 1, JOINED = 2, NEXT_WORK = 1 << 16 };

struct member {
    struct team *team;
    int64_t thread;
    void *scratch;
    size_t scratch_bytes;
};

struct team {
    int64_t num_threads;
    pthread_t *threads;
    struct member *members;
    work work;
    const void *argument;
    int64_t num_items;
    pthread_mutex_t mutex;
    pthread_cond_t begun;
    atomic_int is_closing, is_short;
    // each in a line of its own, since threads write them all the time
    _Alignas(LINE) atomic_int_fast64_t next_item;
    _Alignas(LINE) atomic_uint_fast64_t state;
    _Alignas(LINE) atomic_int num_asleep;
};

INLINE void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

INLINE uint64_t number_of_work(uint64_t state) { return state / NEXT_WORK; }

int64_t take_item(struct team *team) {
    const int64_t item = atomic_fetch_add(&team->next_item, 1);
    return item < team->num_items ? item : -1;
}

// Takes items until there are none.
static void do_items(struct team *team, int64_t thread) {
    for (int64_t item; (item = take_item(team)) >= 0;)
        team->work(team->argument, team, item, thread);
}

// Waits until there is another work than the one seen last, or the team closes.
static void wait_for_work(struct team *team, uint64_t seen) {
    for (int i = 0; i < NUM_SPINS; i++, relax())
        if (number_of_work(atomic_load(&team->state)) != seen) return;
    pthread_mutex_lock(&team->mutex);
    atomic_fetch_add(&team->num_asleep, 1);
    while (number_of_work(atomic_load(&team->state)) == seen && !atomic_load(&team->is_closing))
        pthread_cond_wait(&team->begun, &team->mutex);
    atomic_fetch_sub(&team->num_asleep, 1);
    pthread_mutex_unlock(&team->mutex);
}

static void *serve(void *argument) {
    const struct member *member = argument;
    struct team *team = member->team;
    uint64_t seen = 0;
    while (!atomic_load(&team->is_closing)) {
        wait_for_work(team, seen);
        uint64_t state = atomic_load(&team->state);
        // a work that is done before this thread wakes is not waited for by anybody
        if (!(state & OPEN)) {
            seen = number_of_work(state);
        } else if (atomic_compare_exchange_strong(&team->state, &state, state + JOINED)) {
            seen = number_of_work(state);
            do_items(team, member->thread);
            atomic_fetch_sub(&team->state, JOINED);
        }
    }
    return NULL;
}

void share(struct team *team, work work, const void *argument, int64_t num_items) {
    if (team->num_threads == 1 || num_items < 2) {
        for (int64_t item = 0; item < num_items; item++) work(argument, team, item, 0);
        return;
    }
    team->work = work;
    team->argument = argument;
    team->num_items = num_items;
    atomic_store(&team->next_item, 0);
    const uint64_t number = number_of_work(atomic_load(&team->state)) + 1;
    atomic_store(&team->state, number * NEXT_WORK | OPEN);
    if (atomic_load(&team->num_asleep)) {
        pthread_mutex_lock(&team->mutex);
        pthread_cond_broadcast(&team->begun);
        pthread_mutex_unlock(&team->mutex);
    }
    do_items(team, 0);
    atomic_fetch_and(&team->state, ~(uint64_t)OPEN);
    // until those who joined are done; one of them may need this core
    for (int i = 1; atomic_load(&team->state) % NEXT_WORK; i++, relax())
        if (i % NUM_SPINS == 0) sched_yield();
}

int64_t threads_of(const struct team *team) { return team->num_threads; }

// Rows are shared by halves: each thread gets an equal item of the first half, then of half of the
// rest, and so on, the last rest being shared as a whole. So most rows follow each other, and threads
// that began later, or were interrupted, end with the others but for one of the last items.
struct rows_to_do {
    rows_work work;
    const void *argument;
    int64_t num_rows, num_parts, num_halvings;
};

static int64_t first_row(const struct rows_to_do *all, int64_t item) {
    const int64_t halving = item / all->num_parts, rest = all->num_rows >> halving;
    const int64_t left = halving < all->num_halvings ? rest / 2 : 0;
    if (halving > all->num_halvings) return all->num_rows;
    return all->num_rows - rest + (rest - left) * (item % all->num_parts) / all->num_parts;
}

static void do_rows(const void *argument, struct team *team, int64_t item, int64_t thread) {
    (void)team, (void)thread;
    const struct rows_to_do *const all = argument;
    all->work(all->argument, first_row(all, item), first_row(all, item + 1));
}

void share_rows(struct team *team, rows_work work, const void *argument, int64_t num_rows,
                int64_t cost) {
    const int64_t worth = num_rows * cost / LEAST_COST;
    const int64_t most = worth < num_rows ? worth : num_rows;
    struct rows_to_do rows = {work, argument, num_rows, most, 0};
    if (rows.num_parts > team->num_threads) rows.num_parts = team->num_threads;
    if (rows.num_parts < 2) {
        work(argument, 0, num_rows);
        return;
    }
    while (rows.num_halvings < MOST_HALVINGS && most >> (rows.num_halvings + 1) >= rows.num_parts)
        rows.num_halvings++;
    share(team, do_rows, &rows, rows.num_parts * (rows.num_halvings + 1));
}

void *scratch_of(struct team *team, int64_t thread, size_t bytes) {
    struct member *const member = &team->members[thread];
    if (bytes > member->scratch_bytes) {
        free(member->scratch);
        member->scratch = aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);
        member->scratch_bytes = member->scratch ? bytes : 0;
    }
    if (!member->scratch) atomic_store(&team->is_short, 1);
    return member->scratch;
}

int is_short(struct team *team) { return atomic_exchange(&team->is_short, 0); }

static void free_team(struct team *team) {
    free(team->threads);
    free(team->members);
    free(team);
}

// Starts a thread that leaves signals to those of the program.
static int start(struct team *team, int64_t thread) {
    team->members[thread] = (struct member){.team = team, .thread = thread};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int status =
        pthread_create(&team->threads[thread], NULL, serve, &team->members[thread]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

// Ends the threads and frees everything; no work may be going on.
EXPORT int64_t team_close(struct team *team) {
    pthread_mutex_lock(&team->mutex);
    atomic_store(&team->is_closing, 1);
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->mutex);
    for (int64_t i = 1; i < team->num_threads; i++) pthread_join(team->threads[i], NULL);
    for (int64_t i = 0; i < team->num_threads; i++) free(team->members[i].scratch);
    pthread_cond_destroy(&team->begun);
    pthread_mutex_destroy(&team->mutex);
    free_team(team);
    return 0;
}

// Starts num_threads - 1 threads, since the caller of `share` is one too, or as many as the system
// gives; *opened is NULL when memory is short.
EXPORT int64_t team_open(struct team **opened, int64_t num_threads) {
    struct team *const team = *opened = aligned_alloc(LINE, sizeof *team);
    if (!team) return -1;
    memset(team, 0, sizeof *team);
    team->threads = calloc((size_t)num_threads, sizeof *team->threads);
    team->members = calloc((size_t)num_threads, sizeof *team->members);
    if (!team->threads || !team->members) {
        free_team(team);
        *opened = NULL;
        return -1;
    }
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->begun, NULL);
    team->num_threads = 1;
    while (team->num_threads < num_threads && !start(team, team->num_threads)) team->num_threads++;
    return 0;
}
