// Paged attention of one layer: the step's K and V are written to their slots, then every query attends
// over its sequence's block table with an online softmax (Milakov and Gimelshein, 2018).
//
// Work is cut into tasks of (sequence, some queries, some K/V heads, a stretch of the keys they
// see); all query heads of a K/V head are rows of the same product. Where a stretch is not the
// whole, whoever finishes its last one adds the parts up.
#include "attention/worker.h"
#include "attention/writing.h"

namespace {

struct Shared {
    const Call* call;
    Plan plan;
    char* workers;  // one Worker's memory each
    int64_t worker_bytes;
    int64_t next_worker, next_task;
};

template <class Way, class Stored>
void run_task(const Shared& shared, const Task& task, const Task* following, char* memory,
              typename Way::Registers& registers) {
    const Call& call = *shared.call;
    Sizes sizes = sizes_of<Way>(call);
    Slope slope((call.logit_cap != 0 ? 1 : call.logit_scale) * TO_POWER);
    Worker<Way, Stored> worker{call, task, sizes, slope, Memory(call, sizes, memory), registers,
                               {}, 0};
    worker.attend(following);
    if (task.num_parts > 1) {
        worker.keep(task.first_part + task.part);
        int64_t* done = &call.finished[task.first_part];
        if (__atomic_add_fetch(done, 1, __ATOMIC_ACQ_REL) < task.num_parts) return;
        worker.add_parts();
    }
    worker.finish();
}

template <class Way, class Stored>
void run_tasks(void* argument) {
    Shared& shared = *(Shared*)argument;
    int64_t id = __atomic_fetch_add(&shared.next_worker, 1, __ATOMIC_RELAXED);
    char* memory = shared.workers + id * shared.worker_bytes;
    auto take = [&](Task* task) {
        int64_t index = __atomic_fetch_add(&shared.next_task, 1, __ATOMIC_RELAXED);
        return shared.plan.task(index, task);
    };
    typename Way::Registers registers;
    Task task, following;
    for (bool has = take(&task); has; task = following) {
        has = take(&following);
        run_task<Way, Stored>(shared, task, has ? &following : nullptr, memory, registers);
    }
}

constexpr int64_t MIN_PARALLEL_TOKENS = 128;

template <class Way, class Stored>
void run(Shared& shared) {
    const Call& call = *shared.call;
    int64_t writers = call.num_tokens < MIN_PARALLEL_TOKENS ? 1 : call.num_threads;
    Writing writing{&call, 0};
    if (call.key) in_parallel(writers, write_tokens<Stored>, &writing);
    in_parallel(smaller(call.num_threads, shared.plan.num_tasks), run_tasks<Way, Stored>, &shared);
}

#if QUIRE_HAS_TILES
typedef TileDot BF16Way;
#elif QUIRE_HAS_BF16_DOT
typedef Dot BF16Way;
#else
typedef Fma BF16Way;
#endif

}  // namespace

extern "C" int64_t quire_attend_scratch(const AttentionCall* given) {
    Call call{*given};
    return (call.is_bf16 ? lay_out<BF16Way>(call, nullptr) : lay_out<Fma>(call, nullptr)).num_bytes;
}

extern "C" int64_t quire_attend_most_scratch(const AttentionCall* given) {
    Call call{*given};
    return call.is_bf16 ? most_scratch<BF16Way>(call) : most_scratch<Fma>(call);
}

extern "C" int quire_attend(const AttentionCall* given) {
    Call call{*given};
    if (!call.is_inside()) return 1;
    Layout layout = call.is_bf16 ? lay_out<BF16Way>(call, call.scratch)
                                 : lay_out<Fma>(call, call.scratch);
    Shared shared{&call, layout.plan, layout.workers, layout.worker_bytes, 0, 0};
    if (call.is_bf16)
        run<BF16Way, bf16>(shared);
    else
        run<Fma, float>(shared);
    return 0;
}
