// Kernels that do one thing wrong each, for the tests of the runner; and some that do nothing wrong.

extern "C" __global__ void fill(float* x, int count, float value) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) x[i] = value;
}

extern "C" __global__ void read_beyond(const float* x, float* out, int at) { out[0] = x[at]; }

extern "C" __global__ void add_one(const float* const* tables, int count) {
    for (int k = 0; k < 2; ++k)
        for (int i = threadIdx.x; i < count; i += blockDim.x) const_cast<float*>(tables[k])[i] += 1.0f;
}

struct Pair {
    unsigned long long addresses[2];
    long long count;
};
extern "C" __global__ void add_one_to_both(const __grid_constant__ Pair pair) {
    for (int k = 0; k < 2; ++k)
        for (int i = threadIdx.x; i < pair.count; i += blockDim.x) reinterpret_cast<float*>(pair.addresses[k])[i] += 1.0f;
}

extern "C" __global__ void misaligned(const float* x, double* out) { out[0] = *reinterpret_cast<const double*>(x + 1); }

extern "C" __global__ void divergent_barrier(float* x) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    x[threadIdx.x] = 1.0f;
}

extern "C" __global__ void early_exit(float* x) {
    if (threadIdx.x == 5) return;
    __syncthreads();
    x[threadIdx.x] = 1.0f;
}

extern "C" __global__ void dead_lane(float* x) {
    if (threadIdx.x == 3) return;
    x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
}

extern "C" __global__ void stranger_to_the_mask(float* x) {
    x[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 1);
}

extern "C" __global__ void read_beyond_the_mask(float* x) {
    if (threadIdx.x < 16) x[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 16);
}

extern "C" __global__ void different_masks(float* x) {
    const unsigned mask = threadIdx.x < 16 ? 0xffffffffu : 0xffff0000u;
    x[threadIdx.x] = __shfl_xor_sync(mask, x[threadIdx.x], 1);
}

extern "C" __global__ void deadlock(float* x) {
    if (threadIdx.x == 0) __syncwarp();
    __syncthreads();
    x[threadIdx.x] = 1.0f;
}

extern "C" __global__ void unwritten_shared(float* x) {
    __shared__ float part[64];
    if (threadIdx.x != 7) part[threadIdx.x] = 1.0f;
    __syncthreads();
    x[threadIdx.x] = part[threadIdx.x];
}

extern "C" __global__ void beyond_shared(float* x, int at) {
    __shared__ float part[64];
    part[threadIdx.x + at] = 1.0f;
    __syncthreads();
    x[threadIdx.x] = part[threadIdx.x + at];
}

extern "C" __global__ void read_before_written(float* x) {
    __shared__ float part[64];
    part[threadIdx.x] = 1.0f;
    x[threadIdx.x] = part[63 - threadIdx.x];
}

extern "C" __global__ void written_before_read(float* x) {
    __shared__ float part[64];
    for (int turn = 0; turn < 2; ++turn) {
        part[threadIdx.x] = static_cast<float>(turn);
        __syncthreads();
        x[threadIdx.x] = part[63 - threadIdx.x];
    }
}

extern "C" __global__ void within_a_warp(float* x) {
    __shared__ float part[64];
    part[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    x[threadIdx.x] = part[threadIdx.x ^ 31];
}

extern "C" __global__ void across_warps(float* x) {
    __shared__ float part[64];
    part[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    x[threadIdx.x] = part[threadIdx.x ^ 32];
}

extern "C" __global__ void votes(int* out) {
    const int count = __syncthreads_count(threadIdx.x % 3 == 0);
    const int all = __syncthreads_and(threadIdx.x < 64), most = __syncthreads_and(threadIdx.x < 63);
    const int any = __syncthreads_or(threadIdx.x == 9), none = __syncthreads_or(threadIdx.x > 63);
    const unsigned ballot = __ballot_sync(0xffffffffu, threadIdx.x % 2);
    if (threadIdx.x == 40) out[0] = count, out[1] = all, out[2] = most, out[3] = any, out[4] = none, out[5] = ballot;
}

extern "C" __global__ void shuffles(int* out) {
    const int lane = threadIdx.x % 32, row = blockDim.x;
    out[threadIdx.x] = __shfl_up_sync(0xffffffffu, lane, 1);
    out[row + threadIdx.x] = __shfl_down_sync(0xffffffffu, lane, 2, 8);
    out[2 * row + threadIdx.x] = __shfl_sync(0xffffffffu, lane, 3, 16);
}

extern "C" __global__ void last_block(const int* x, int* partial, unsigned* arrived, int* total) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = x[blockIdx.x];
        __threadfence();
        last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int sum = 0;
        for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b];
        *total = sum;
    }
}

extern "C" __global__ void atomics(int* x) {
    atomicAdd(&x[0], 2);
    atomicMax(&x[1], static_cast<int>(threadIdx.x));
    atomicMin(&x[2], -static_cast<int>(threadIdx.x));
    atomicOr(&x[3], 1 << threadIdx.x % 8);
    if (atomicCAS(&x[4], 0, 1) == 0) x[5] += 1;
}

extern "C" __global__ void sum_of_blocks(int* total) {
    if (threadIdx.x == 0) *total += 1;
}

extern "C" __global__ void atomic_beyond(unsigned* flag, int at) { atomicOr(flag + at, 1u); }
