#pragma once
// Several arrays as one argument of a kernel, which travels with the launch: no table has to be copied to the device.

#include "vector.cuh"

namespace mg {

constexpr int most_pieces = 48;

// Array p has sizes[p] elements at addresses[p]; its part in a common array begins at offsets[p]. It is cut into chunks
// of `chunk` elements, of which its first is number firsts[p] among those of all.
struct Pieces {
    unsigned long long addresses[most_pieces];
    long long offsets[most_pieces], sizes[most_pieces], firsts[most_pieces];
    long long count, chunks, chunk;
};

// Calls body(piece, first element, elements) for each chunk that falls to this block.
template <typename Body> __device__ __forceinline__ void each_chunk(const Pieces& pieces, Body body) {
    int p = 0;
    for (long long c = blockIdx.x; c < pieces.chunks; c += gridDim.x) {
        while (p + 1 < pieces.count && pieces.firsts[p + 1] <= c) ++p;
        const long long start = (c - pieces.firsts[p]) * pieces.chunk, left = pieces.sizes[p] - start;
        body(p, start, left < pieces.chunk ? left : pieces.chunk);
    }
}

}  // namespace mg
