// Dropout whose mask is the output of Philox 4x64-10, the same bits as numpy.random.Philox gives.
//
// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11. A block of the generator is four 64-bit words, the
// cipher of a counter under a key. Each element takes 16 bits, the lowest of a word first: it is kept where they are at
// least `threshold`. The mask is not stored, the backward pass draws it again.

#include "vector.cuh"

namespace {

using Word = unsigned long long;

struct Words {
    Word at[4];
};

// Round constants of the paper: two multipliers, and what is added to the key after each round.
constexpr Word multiplier0 = 0xD2E7470EE14C6C93ull, multiplier1 = 0xCA5A826395121157ull;
constexpr Word weyl0 = 0x9E3779B97F4A7C15ull, weyl1 = 0xBB67AE8584CAA73Bull;

__device__ __forceinline__ Words philox(Words counter, Word key0, Word key1) {
    for (int round = 0; round < 10; ++round) {
        const Word high0 = __umul64hi(multiplier0, counter.at[0]), low0 = multiplier0 * counter.at[0];
        const Word high1 = __umul64hi(multiplier1, counter.at[2]), low1 = multiplier1 * counter.at[2];
        counter = {{high1 ^ counter.at[1] ^ key0, low1, high0 ^ counter.at[3] ^ key1, low0}};
        key0 += weyl0;
        key1 += weyl1;
    }
    return counter;
}

__device__ __forceinline__ Words plus(Words counter, Word blocks) {
    Word carry = blocks;
    for (int i = 0; i < 4; ++i) {
        counter.at[i] += carry;
        carry = counter.at[i] < carry;
    }
    return counter;
}

constexpr int per_word = 4, per_block = 16;  // elements

// Where a generator stands: the counter of the last block that it drew, its key, and that block, whose last words may
// still be waiting to be used.
struct State {
    Words counter;
    Word key0, key1;
    Words drawn;
    int waiting;
    bool is_moved;  // then the block drawn has to be drawn again

    // Block number b from here, b = -1 the one drawn.
    __device__ __forceinline__ Words block(long long b) const {
        return b < 0 && !is_moved ? drawn : philox(plus(counter, static_cast<Word>(b + 1)), key0, key1);
    }
};

// What a graph, which is launched again and again, knows of a generator is in device memory: its counter, its key, and
// how many words wait.
enum Live { live_counter, live_key = 4, live_waiting = 6, live_words };

// Where that generator stands once it has given so many words.
__device__ __forceinline__ State moved(const Word* live, Word words) {
    State state = {{{live[0], live[1], live[2], live[3]}}, live[live_key], live[live_key + 1], {}, 0, true};
    const Word waiting = live[live_waiting], blocks = (words + 3 - waiting) / 4;
    state.counter = plus(state.counter, blocks);
    state.waiting = static_cast<int>(waiting + 4 * blocks - words);
    return state;
}

// y[i] = x[i] * scale where element i is kept, x[i] * 0 where it is not.
template <typename T>
__device__ void drop(const T* x, T* y, long long count, const State& state, unsigned threshold, double scale) {
    using A = mg::compute_t<T>;
    const A kept = A(scale);
    const bool wide = mg::aligned<per_word>(x) && mg::aligned<per_word>(y);
    const long long head = state.waiting * per_word;  // elements of the words that wait
    for (long long b = mg::first_element() - 1; head + b * per_block < count; b += mg::element_stride()) {
        const Words words = state.block(b);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const long long i = head + b * per_block + w * per_word;
            if (i < 0) continue;
            const auto factor = [&](int k) { return (words.at[w] >> (16 * k) & 0xffffu) >= threshold ? kept : A(0); };
            if (wide && i + per_word <= count) {
                mg::Vector<T, per_word> values = mg::load<T, per_word>(x, i);
                for (int k = 0; k < per_word; ++k) values.at[k] = mg::narrow<T>(mg::widen(values.at[k]) * factor(k));
                mg::store<T, per_word>(y, i, values);
            } else {
                for (int k = 0; k < per_word && i + k < count; ++k)
                    y[i + k] = mg::narrow<T>(mg::widen(x[i + k]) * factor(k));
            }
        }
    }
}

__device__ void draw(Word* out, long long count, const State& state) {
    const long long head = state.waiting;
    for (long long b = mg::first_element() - 1; head + b * 4 < count; b += mg::element_stride()) {
        const Words words = state.block(b);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const long long i = head + b * 4 + w;
            if (0 <= i && i < count) out[i] = words.at[w];
        }
    }
}

}  // namespace

// A state by value, so that nothing has to be copied to the device; or live, where that is not null, so many words on.
#define STATE_PARAMETERS                                                                                           \
    Word c0, Word c1, Word c2, Word c3, Word key0, Word key1, Word d0, Word d1, Word d2, Word d3, int waiting,     \
        const Word *live, Word words_on
#define STATE \
    (live ? moved(live, words_on) : State{{{c0, c1, c2, c3}}, key0, key1, {{d0, d1, d2, d3}}, waiting, false})

#define DROPOUT(NAME, T)                                                                                 \
    extern "C" __global__ void dropout_##NAME(const T* x, T* y, long long count, STATE_PARAMETERS,       \
                                              unsigned threshold, double scale) {                        \
        drop(x, y, count, STATE, threshold, scale);                                                      \
    }

DROPOUT(f32, float)
DROPOUT(f64, double)
DROPOUT(f16, __half)
DROPOUT(bf16, __nv_bfloat16)

// The words themselves.
extern "C" __global__ void philox_words(Word* words, long long count, STATE_PARAMETERS) { draw(words, count, STATE); }

// A live state, set by one thread; and moved on.
extern "C" __global__ void philox_set(Word* live, Word c0, Word c1, Word c2, Word c3, Word key0, Word key1,
                                      Word waiting) {
    if (threadIdx.x != 0 || blockIdx.x != 0) return;
    const Word values[live_words] = {c0, c1, c2, c3, key0, key1, waiting};
    for (int i = 0; i < live_words; ++i) live[i] = values[i];
}
extern "C" __global__ void philox_move(Word* live, Word words) {
    if (threadIdx.x != 0 || blockIdx.x != 0) return;
    const State state = moved(live, words);
    for (int i = 0; i < 4; ++i) live[live_counter + i] = state.counter.at[i];
    live[live_waiting] = static_cast<Word>(state.waiting);
}
