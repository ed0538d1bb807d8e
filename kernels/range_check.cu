// Whether integers lie in a range. What does not is kept in `found` until the host reads from the device anyway.

#include "found.cuh"

namespace {

// Every x has to lie in [low, high), or be `allowed`. Of all that do not, in this launch and in later ones, one is kept.
template <typename T>
__device__ void check(const T* x, long long count, long long low, long long high, long long allowed,
                      unsigned long long* found) {
    for (long long i = mg::first_element(); i < count; i += mg::element_stride()) {
        const long long value = x[i];
        if ((value >= low && value < high) || value == allowed) continue;
        mg::keep_found(found, value, low, high);
    }
}

}  // namespace

#define RANGE_CHECK(NAME, T)                                                                                      \
    extern "C" __global__ void range_check_##NAME(const T* x, long long count, long long low, long long high,     \
                                                  long long allowed, unsigned long long* found) {                 \
        check(x, count, low, high, allowed, found);                                                               \
    }

RANGE_CHECK(int64, long long)
RANGE_CHECK(int32, int)
RANGE_CHECK(int16, short)
RANGE_CHECK(int8, signed char)
RANGE_CHECK(uint8, unsigned char)
