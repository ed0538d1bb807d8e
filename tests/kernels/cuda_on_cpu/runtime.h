#pragma once
// What the stand-in for CUDA asks of its scheduler and of its memory. The state of a launch is global: one at a time.

#include <cstddef>
#include <cstdint>
#include <cstring>

struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

namespace cpu {

constexpr int warp_size = 32, max_warps = 32;

// The indices of the running thread: the scheduler sets them at every switch.
struct Thread {
    uint3 index, block;
    dim3 block_size, grid_size;
    int number;  // within its block

    int lane() const { return number % warp_size; }
    int warp() const { return number / warp_size; }
};
extern Thread thread;

// Ends the launch with an error that names the running thread.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// ------------------------------------------------------------------------------------------------------- scheduler

enum class Vote { count, all, any };

int barrier(int predicate, Vote vote, int line);  // all threads of the block meet

// All lanes of the mask meet; the values that they brought, by lane. Valid until the next such call.
const uint64_t* exchange(unsigned mask, uint64_t value, const char* who);

unsigned live_lanes();  // of the running thread's warp

struct Launch {
    unsigned grid[3], block[3];
    unsigned order;   // of the threads: 0 forward, 1 backward, others shuffled by this seed
};

// Runs body once for each thread. Returns 0, or 1 and leaves a message.
int run(const Launch& launch, void (*body)());
const char* last_error();

// ---------------------------------------------------------------------------------------------------------- memory

// Memory that a kernel may touch: an array among its arguments, or reached by a table of addresses.
struct Region {
    uintptr_t start, stop;
    uint8_t* reads;  // for each byte how often it was read and written, at most 255; null where nobody asked
    uint8_t* writes;
    int* writers;    // for each byte the block that last wrote it, -1 at first; null where it is not watched
    int writable;
};
void set_regions(const Region* regions, int count);

void begin_block();    // shared memory holds nothing yet
void block_met();      // all threads of a block met: what they did before is ordered before what they do now
void warp_met(int warp);
void check_atomic(const void* address, size_t bytes);
bool on_stack(uintptr_t address);  // of the running thread
extern bool running;   // a thread of a kernel runs, rather than the scheduler

// --------------------------------------------------------------------------------------------------------- exports

struct Export {
    const char* name;
    const char* parameters;  // one code for each, separated by blanks
    int (*launch)(const Launch&, void** arguments);
};
void add_export(const Export& kernel);

}  // namespace cpu
