#pragma once
// Integers out of range: one is kept in four words, until the host reads from the device anyway.

#include "common.cuh"

namespace mg {

enum Found { flagged, value_found, least, end, found_count };

// Of all that are out of range, in this launch and in later ones, the first to come here is kept, with its range.
__device__ __forceinline__ void keep_found(unsigned long long* found, long long value, long long low, long long high) {
    if (atomicCAS(&found[flagged], 0ull, 1ull) == 0ull) {
        found[value_found] = static_cast<unsigned long long>(value);
        found[least] = static_cast<unsigned long long>(low);
        found[end] = static_cast<unsigned long long>(high);
    }
}

}  // namespace mg
