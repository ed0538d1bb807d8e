// Runs the threads of a launch, one at a time: block after block, each thread on a fiber that others can overtake where
// it waits. Reports what a GPU would hang on, or give no defined result for.

#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <ucontext.h>

#include "runtime.h"

namespace cpu {

Thread thread;

namespace {

constexpr size_t stack_bytes = 128 * 1024;
constexpr int max_masks = 8;  // different masks under which the lanes of one warp meet in a block

// A stack of its own. It runs thread after thread until one has to wait, and that one then keeps it.
struct Fiber {
    char* stack = static_cast<char*>(mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    bool started = false, waiting = false;
    jmp_buf place;
    ucontext_t start;
    Thread kept;               // of the waiting thread
    const char* where = "";

    ~Fiber() { munmap(stack, stack_bytes); }
};

// Lanes that meet under one mask. Two sets of values: a quick lane may bring its next one before all have read this one.
struct Meeting {
    unsigned mask, arrived, turn;
    uint64_t values[2][warp_size];
    std::vector<Fiber*> waiting;
};

struct Warp {
    unsigned alive;
    int count;
    Meeting meetings[max_masks];
};

Warp warps[max_warps];
std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Fiber*> idle, at_barrier, ready;
size_t first_ready;
std::vector<int> starts;  // numbers of the block's threads, in the order in which they start
size_t started;
int alive, exited;

int barrier_count, barrier_line, barrier_votes, barrier_result;
Vote barrier_vote;

Fiber* current;
jmp_buf scheduler;
void (*body)();
unsigned order;
std::mt19937 draw;
std::string error;

std::vector<Export>& exports() {
    static std::vector<Export> all;
    return all;
}

// --------------------------------------------------------------------------------------------------------- fibers

__attribute__((noinline)) void to_scheduler() {
    if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}

void wait_in(std::vector<Fiber*>& queue, const char* where) {
    current->waiting = true;
    current->kept = thread;
    current->where = where;
    queue.push_back(current);
    to_scheduler();
}

void wake(std::vector<Fiber*>& queue) {
    ready.insert(ready.end(), queue.begin(), queue.end());
    queue.clear();
}

void release_barrier() {
    if (barrier_count == 0 || barrier_count < alive) return;
    barrier_count = 0;
    barrier_result = barrier_vote == Vote::all ? barrier_votes == alive : barrier_votes;
    block_met();
    wake(at_barrier);
}

void begin_thread(int number) {
    const unsigned n = static_cast<unsigned>(number);
    const dim3 size = thread.block_size;
    thread.number = number;
    thread.index = {n % size.x, n / size.x % size.y, n / (size.x * size.y)};
}

void end_thread() {
    Warp& warp = warps[thread.warp()];
    alive--, exited++;
    warp.alive &= ~(1u << thread.lane());
    if (barrier_count) fail("a thread exited while others wait at __syncthreads() on line %d", barrier_line);
    for (int i = 0; i < warp.count; ++i)
        if (warp.meetings[i].arrived && (warp.meetings[i].mask >> thread.lane() & 1))
            fail("a lane exited that others wait for in a warp primitive");
}

void work() {
    for (;;) {
        do {
            begin_thread(starts[started++]);
            current->waiting = false;
            running = true;
            body();
            running = false;
            end_thread();
        } while (started < starts.size() && (order == 0 || ready.empty()));
        idle.push_back(current);
        to_scheduler();
    }
}

__attribute__((noinline)) void resume(Fiber* fiber) {
    current = fiber;
    if (fiber->waiting) {
        fiber->waiting = false;
        thread = fiber->kept;
        running = true;
    }
    if (_setjmp(scheduler)) {
        running = false;
        return;
    }
    if (fiber->started) _longjmp(fiber->place, 1);
    fiber->started = true;
    getcontext(&fiber->start);
    fiber->start.uc_stack.ss_sp = fiber->stack;
    fiber->start.uc_stack.ss_size = stack_bytes;
    fiber->start.uc_link = nullptr;
    makecontext(&fiber->start, work, 0);
    setcontext(&fiber->start);
}

// ------------------------------------------------------------------------------------------------- choosing a thread

// Order 0 goes breadth first: all threads start before one goes on. Order 1 goes depth first, so one warp runs ahead as
// far as it can. Others pick any thread.
bool start_another(bool can_start, bool can_go) {
    if (order == 0) return can_start;
    if (order == 1) return !can_go;
    return can_start && (!can_go || draw() % 4 == 0);
}

Fiber* next_ready() {
    if (order == 0) {
        Fiber* fiber = ready[first_ready++];
        if (first_ready == ready.size()) ready.clear(), first_ready = 0;
        return fiber;
    }
    if (order > 1) std::swap(ready[draw() % ready.size()], ready.back());
    Fiber* fiber = ready.back();
    ready.pop_back();
    return fiber;
}

Fiber* idle_fiber() {
    if (idle.empty()) {
        fibers.push_back(std::make_unique<Fiber>());
        idle.push_back(fibers.back().get());
    }
    Fiber* fiber = idle.back();
    idle.pop_back();
    return fiber;
}

void report_deadlock() {
    error = "deadlock: every live thread waits:";
    int listed = 0;
    for (auto& fiber : fibers)
        if (fiber->waiting && listed++ < 4)
            error += " thread " + std::to_string(fiber->kept.number) + " in " + fiber->where + ";";
}

void run_block() {
    started = first_ready = 0;
    alive = static_cast<int>(starts.size());
    exited = barrier_count = 0;
    ready.clear(), at_barrier.clear();
    for (int w = 0; w * warp_size < alive; ++w) {
        const int lanes = std::min(warp_size, alive - w * warp_size);
        warps[w].count = 0;
        warps[w].alive = lanes == warp_size ? ~0u : (1u << lanes) - 1;
    }
    begin_block();
    while (alive && error.empty()) {
        const bool can_start = started < starts.size(), can_go = first_ready < ready.size();
        if (!can_start && !can_go)
            report_deadlock();
        else
            resume(start_another(can_start, can_go) ? idle_fiber() : next_ready());
    }
    if (!error.empty()) fibers.clear(), idle.clear();  // half-run fibers are dropped; nothing on them is unwound
}

}  // namespace

// --------------------------------------------------------------------------------------------- called by the kernels

void fail(const char* format, ...) {
    running = false;
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char place[100];
    std::snprintf(place, sizeof place, " [block (%u, %u, %u), thread (%u, %u, %u)]", thread.block.x, thread.block.y,
                  thread.block.z, thread.index.x, thread.index.y, thread.index.z);
    error = std::string(text) + place;
    _longjmp(scheduler, 1);
}

bool on_stack(uintptr_t address) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(current->stack);
    return start <= address && address < start + stack_bytes;
}

int barrier(int predicate, Vote vote, int line) {
    running = false;
    if (barrier_count && barrier_line != line)
        fail("divergent __syncthreads(): line %d, while others wait on line %d", line, barrier_line);
    if (exited) fail("__syncthreads() on line %d after another thread of the block exited", line);
    if (!barrier_count) barrier_votes = 0;
    barrier_votes += predicate != 0;
    barrier_line = line;
    barrier_vote = vote;
    if (++barrier_count < alive)
        wait_in(at_barrier, "__syncthreads");
    else
        release_barrier();
    running = true;
    return barrier_vote == Vote::any ? barrier_result != 0 : barrier_result;
}

unsigned live_lanes() { return warps[thread.warp()].alive; }

const uint64_t* exchange(unsigned mask, uint64_t value, const char* who) {
    running = false;
    const int lane = thread.lane();
    Warp& warp = warps[thread.warp()];
    if (!(mask >> lane & 1)) fail("%s: the calling lane is not in its own mask %08x", who, mask);
    if (mask & ~warp.alive)
        fail("%s: mask %08x names lanes that exited or never existed (live: %08x)", who, mask, warp.alive);
    Meeting* meeting = nullptr;
    for (int i = 0; i < warp.count; ++i) {
        if (warp.meetings[i].mask == mask)
            meeting = &warp.meetings[i];
        else if (warp.meetings[i].arrived & mask)
            fail("%s: lanes of one warp meet under different masks", who);
    }
    if (!meeting) {
        if (warp.count == max_masks) fail("%s: more than %d masks in one warp", who, max_masks);
        meeting = &warp.meetings[warp.count++];
        meeting->mask = mask;
        meeting->arrived = meeting->turn = 0;
        meeting->waiting.clear();
    }
    uint64_t* values = meeting->values[meeting->turn & 1];
    values[lane] = value;
    meeting->arrived |= 1u << lane;
    if (meeting->arrived != mask) {
        wait_in(meeting->waiting, who);
    } else {
        meeting->arrived = 0;
        meeting->turn++;
        if (mask == warp.alive) warp_met(thread.warp());
        wake(meeting->waiting);
    }
    running = true;
    return values;
}

// -------------------------------------------------------------------------------------------------- called by Python

int run(const Launch& launch, void (*kernel)()) {
    thread.grid_size = {launch.grid[0], launch.grid[1], launch.grid[2]};
    thread.block_size = {launch.block[0], launch.block[1], launch.block[2]};
    body = kernel;
    order = launch.order;
    draw.seed(order);
    error.clear();
    starts.resize(launch.block[0] * launch.block[1] * launch.block[2]);
    for (size_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<int>(i);
    std::vector<unsigned> blocks(launch.grid[0] * launch.grid[1] * launch.grid[2]);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<unsigned>(i);
    if (order == 1) std::reverse(starts.begin(), starts.end()), std::reverse(blocks.begin(), blocks.end());
    if (order > 1) std::shuffle(blocks.begin(), blocks.end(), draw);
    for (unsigned block : blocks) {
        if (order > 1) std::shuffle(starts.begin(), starts.end(), draw);
        thread.block = {block % launch.grid[0], block / launch.grid[0] % launch.grid[1],
                        block / (launch.grid[0] * launch.grid[1])};
        run_block();
        if (!error.empty()) return 1;
    }
    return 0;
}

const char* last_error() { return error.c_str(); }

void add_export(const Export& kernel) { exports().push_back(kernel); }

}  // namespace cpu

#define CPU_API extern "C" __attribute__((visibility("default")))
CPU_API int cpu_count() { return static_cast<int>(cpu::exports().size()); }
CPU_API const char* cpu_name(int i) { return cpu::exports()[i].name; }
CPU_API const char* cpu_parameters(int i) { return cpu::exports()[i].parameters; }
CPU_API const char* cpu_error() { return cpu::last_error(); }
CPU_API int cpu_launch(int i, const cpu::Launch* launch, void** arguments, const cpu::Region* regions, int count) {
    cpu::set_regions(regions, count);
    return cpu::exports()[i].launch(*launch, arguments);
}
