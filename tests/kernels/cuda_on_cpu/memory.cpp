// Every load and store of a kernel comes by here: g++ puts the calls in, by -fsanitize=thread, and these functions take
// the place of its library. Reported are accesses outside the arguments, reads of shared memory that nothing wrote,
// races in shared memory (two threads touch a byte, one of them writes, and no barrier lies between), and bytes of the
// arguments that two blocks write other than by atomics.

#include <algorithm>
#include <vector>

#include <link.h>

#include "runtime.h"

// The library in memory, between symbols that the linker defines.
extern "C" {
extern char __ehdr_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
}

namespace cpu {

bool running = false;

namespace {

constexpr int nobody = -1, several = -2;  // several: threads of more than one warp

// An access to a byte of shared memory: by whom, and how often the block and the thread's warp had met before.
struct Access {
    int number = nobody;
    unsigned block_meetings = 0, warp_meetings = 0;
};
struct Byte {
    Access write, read;
};

thread_local volatile char some_shared;  // its use makes sure that there is such memory
uintptr_t shared_start, shared_stop;
std::vector<Byte> shared;
unsigned block_meetings, warp_meetings[max_warps];
std::vector<Region> regions;
size_t last_region;

uintptr_t at(const char* symbol) { return reinterpret_cast<uintptr_t>(symbol); }

// The library's thread-local memory: the __shared__ variables of its kernels.
int find_shared(dl_phdr_info* library, size_t, void*) {
    const uintptr_t first = library->dlpi_addr, own = at(__ehdr_start);
    if (first != own) return 0;
    for (int i = 0; i < library->dlpi_phnum; ++i)
        if (library->dlpi_phdr[i].p_type == PT_TLS) {
            shared_start = reinterpret_cast<uintptr_t>(library->dlpi_tls_data);
            shared_stop = shared_start + library->dlpi_phdr[i].p_memsz;
        }
    return 1;
}

bool ordered_before_now(const Access& access) {
    if (access.number == nobody || access.number == thread.number) return true;
    if (access.block_meetings < block_meetings) return true;
    return access.number >= 0 && access.number / warp_size == thread.warp() &&
           access.warp_meetings < warp_meetings[thread.warp()];
}

void touch_shared(Byte& byte, size_t offset, bool write) {
    if (!ordered_before_now(byte.write))
        fail("a race in shared memory, byte %zu: thread %d wrote it, and no barrier lies between", offset,
             byte.write.number);
    if (write && !ordered_before_now(byte.read))
        fail("a race in shared memory, byte %zu: it is written while others may still read it", offset);
    if (!write && byte.write.number == nobody) fail("a read of shared memory that nothing wrote, byte %zu", offset);
    const Access now = {thread.number, block_meetings, warp_meetings[thread.warp()]};
    if (write) {
        byte.write = now;
        return;
    }
    Access& last = byte.read;
    const bool same_time = last.number != nobody && last.block_meetings == block_meetings;
    const bool elsewhere = last.number == several || last.number / warp_size != thread.warp();
    last = now;
    if (same_time && elsewhere) last.number = several;
}

void own(const Region& region, size_t first, size_t bytes) {
    const int block = static_cast<int>(
        thread.block.x + thread.grid_size.x * (thread.block.y + thread.grid_size.y * thread.block.z));
    for (size_t i = first; i < first + bytes; ++i) {
        int& writer = region.writers[i];
        if (writer >= 0 && writer != block) fail("a race between blocks: block %d wrote byte %zu too", writer, i);
        writer = block;
    }
}

bool touch_region(const Region& region, uintptr_t address, size_t bytes, bool write, bool atomic) {
    if (address < region.start || address >= region.stop) return false;
    const char* verb = write ? "writes" : "reads";
    if (address + bytes > region.stop) fail("%s past the end of an array", verb);
    if (write && !region.writable) fail("writes into an array that is read-only");
    if (write && !atomic && region.writers) own(region, address - region.start, bytes);
    uint8_t* counts = write ? region.writes : region.reads;
    if (counts)
        for (size_t i = address - region.start; i < address - region.start + bytes; ++i)
            counts[i] += counts[i] < 255;
    return true;
}

bool touch_regions(uintptr_t address, size_t bytes, bool write, bool atomic) {
    if (last_region < regions.size() && touch_region(regions[last_region], address, bytes, write, atomic)) return true;
    for (last_region = 0; last_region < regions.size(); ++last_region)
        if (touch_region(regions[last_region], address, bytes, write, atomic)) return true;
    return false;
}

void check(const void* pointer, size_t bytes, bool write, bool atomic) {
    running = false;
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (shared_start <= address && address < shared_stop) {
        if (!atomic)
            for (size_t i = address - shared_start, end = i + bytes; i < end; ++i)
                touch_shared(shared[i], i, write);
    } else if (!on_stack(address) && !(at(__ehdr_start) <= address && address < at(_end)) &&
               !touch_regions(address, bytes, write, atomic)) {
        fail("%s outside its arrays", write ? "writes" : "reads");
    }
    running = true;
}

}  // namespace

void set_regions(const Region* given, int count) {
    regions.assign(given, given + count);
    last_region = 0;
    some_shared = 0;
    dl_iterate_phdr(find_shared, nullptr);
}

void begin_block() {
    shared.assign(shared_stop - shared_start, Byte());
    block_meetings = 0;
    std::fill(warp_meetings, warp_meetings + max_warps, 0u);
}

void block_met() { ++block_meetings; }

void warp_met(int warp) { ++warp_meetings[warp]; }

void check_atomic(const void* address, size_t bytes) { check(address, bytes, true, true); }

}  // namespace cpu

// -------------------------------------------------------------------------------------- what -fsanitize=thread calls

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
#define CPU_ACCESS(NAME, BYTES, WRITE) \
    void NAME(void* address) {         \
        if (cpu::running) cpu::check(address, BYTES, WRITE, false); \
    }
#define CPU_ACCESSES(BYTES)                                \
    CPU_ACCESS(__tsan_read##BYTES, BYTES, false)           \
    CPU_ACCESS(__tsan_write##BYTES, BYTES, true)           \
    CPU_ACCESS(__tsan_unaligned_read##BYTES, BYTES, false) \
    CPU_ACCESS(__tsan_unaligned_write##BYTES, BYTES, true)
CPU_ACCESSES(1)
CPU_ACCESSES(2)
CPU_ACCESSES(4)
CPU_ACCESSES(8)
CPU_ACCESSES(16)
void __tsan_read_range(void* address, size_t bytes) {
    if (cpu::running) cpu::check(address, bytes, false, false);
}
void __tsan_write_range(void* address, size_t bytes) {
    if (cpu::running) cpu::check(address, bytes, true, false);
}
}

// ------------------------------------------------------------------------- what -fsanitize=bounds,alignment calls

namespace {
struct Place {
    const char* file;
    unsigned line, column;
};
}  // namespace

extern "C" {
void __ubsan_handle_out_of_bounds(const Place* place, uintptr_t index) {
    cpu::fail("index %lld out of bounds at %s:%u", static_cast<long long>(index), place->file, place->line);
}
void __ubsan_handle_type_mismatch_v1(const Place* place, uintptr_t address) {
    cpu::fail("a misaligned access to %#zx at %s:%u", address, place->file, place->line);
}
}
