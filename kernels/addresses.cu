// The addresses of matrices that lie in batches, for products that take a list of them.

#include "common.cuh"

namespace {

constexpr int most_arrays = 10;

}  // namespace

// table[a, o, i] = start + o * outer + i * inner of array a, in bytes, for o < outer_count and i < inner_count.
#define ARRAY(K) unsigned long long start##K, long long outer##K, long long inner##K
extern "C" __global__ void addresses_of_matrices(unsigned long long* table, int arrays, long long outer_count,
                                                 long long inner_count, ARRAY(0), ARRAY(1), ARRAY(2), ARRAY(3),
                                                 ARRAY(4), ARRAY(5), ARRAY(6), ARRAY(7), ARRAY(8), ARRAY(9)) {
    const unsigned long long starts[most_arrays] = {start0, start1, start2, start3, start4,
                                                    start5, start6, start7, start8, start9};
    const long long outer[most_arrays] = {outer0, outer1, outer2, outer3, outer4,
                                          outer5, outer6, outer7, outer8, outer9};
    const long long inner[most_arrays] = {inner0, inner1, inner2, inner3, inner4,
                                          inner5, inner6, inner7, inner8, inner9};
    const long long count = outer_count * inner_count;
    for (long long i = mg::first_element(); i < arrays * count; i += mg::element_stride()) {
        const long long array = i / count, place = i % count;
        const long long step = place / inner_count * outer[array] + place % inner_count * inner[array];
        table[i] = starts[array] + static_cast<unsigned long long>(step);
    }
}
