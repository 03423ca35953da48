// Runs the kernels of block_products.cu on the processor: every thread of a block is a fiber, and a matrix instruction
// exchanges its numbers when all 32 lanes of a warp have come to it. Compiled together with the kernels for tests alone.
#include <cstring>
#include <ucontext.h>

#define SIMULATED
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct Place { int x, y, z; };
static Place threadIdx, blockIdx;

static const int THREADS = 256, WARP = 32, STACK = 1 << 16;
enum State { READY, AT_WARP, AT_BLOCK, ENDED };
static ucontext_t home, fibers[THREADS];
static State states[THREADS];
static void (*body)(void*);
static void* given;

static void wait_at(State state) {
    const int me = threadIdx.x;
    states[me] = state;
    swapcontext(&fibers[me], &home);
}

static void begin() {
    body(given);
    states[threadIdx.x] = ENDED;
}

static void __syncthreads() { wait_at(AT_BLOCK); }

static void run_block() {
    static char stacks[THREADS * STACK];
    for (int i = 0; i < THREADS; i++) {
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = &stacks[i * STACK];
        fibers[i].uc_stack.ss_size = STACK;
        fibers[i].uc_link = &home;
        makecontext(&fibers[i], begin, 0);
        states[i] = READY;
    }
    for (bool alive = true; alive;) {
        alive = false;
        for (int i = 0; i < THREADS; i++)
            if (states[i] == READY) {
                threadIdx.x = i;
                swapcontext(&home, &fibers[i]);
                alive = true;
            }
        bool all = true;
        for (int first = 0; first < THREADS; first += WARP) {
            bool here = true;
            for (int i = first; i < first + WARP; i++) here = here && states[i] == AT_WARP;
            for (int i = first; here && i < first + WARP; i++) states[i] = READY, alive = true;
        }
        for (int i = 0; i < THREADS; i++) all = all && (states[i] == AT_BLOCK || states[i] == ENDED);
        for (int i = 0; all && i < THREADS; i++)
            if (states[i] == AT_BLOCK) states[i] = READY, alive = true;
    }
}

template <typename Work>
static void run_grid(int wide, int high, Work work) {
    body = [](void* of) { (*(Work*)of)(); };
    given = &work;
    for (blockIdx.y = 0; blockIdx.y < high; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < wide; blockIdx.x++) run_block();
}

static float of_bits(unsigned bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static unsigned to_bits(float f) {
    unsigned bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static float of_half(unsigned short h) {
    _Float16 f;
    memcpy(&f, &h, 2);
    return f;
}

static unsigned short rounded(double exact) {
    unsigned bits = to_bits((float)exact);
    return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static float upper(unsigned pair) { return of_bits(pair & 0xffff0000u); }
static float lower(unsigned pair) { return of_bits(pair << 16); }

static unsigned fma_pair(unsigned a, unsigned b, unsigned c) {
    unsigned first = rounded((double)lower(a) * lower(b) + lower(c));
    return first | (unsigned)rounded((double)upper(a) * upper(b) + upper(c)) << 16;
}

// mma.sync.aligned.m16n8k16 as the PTX manual lays out its fragments.
static void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    static unsigned left[THREADS][4], right[THREADS][2];
    const int me = threadIdx.x, warp = me / WARP * WARP, g = me % WARP / 4, t = me % 4;
    memcpy(left[me], a, sizeof a);
    right[me][0] = b0, right[me][1] = b1;
    wait_at(AT_WARP);
    for (int i = 0; i < 4; i++) {
        const int row = g + i / 2 * 8, column = 2 * t + i % 2;
        for (int k = 0; k < 16; k++) {
            unsigned one = left[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            unsigned other = right[warp + column * 4 + k % 8 / 2][k / 8];
            c[i] += k % 2 ? upper(one) * upper(other) : lower(one) * lower(other);
        }
    }
    wait_at(AT_WARP);
}

#include "block_products.cu"

extern "C" void simulated_product(
    int columns, int tiles, const word* low, const word* high, const signed char* scales, const half_bits* factors,
    const half_bits* x, void* out, const half_bits* bias, const half_bits* before, int rows, int inputs, int outputs,
    int steps, int stride, word negated, int wide) {
    auto kernel = columns == 1 ? product_1 : columns == 2 ? product_2 : product_4;
    run_grid(tiles, 1, [=] {
        kernel(low, high, scales, factors, x, out, bias, before, rows, inputs, outputs, steps, stride, negated, wide);
    });
}

extern "C" void simulated_expansion(
    int wide_grid, int units, const word* low, const word* high, const signed char* scales, const half_bits* factors,
    const long long* ids, void* out, int count, int inputs, int steps, word negated, int wide) {
    run_grid(wide_grid, units, [=] {
        expanded_rows(low, high, scales, factors, ids, out, count, inputs, steps, negated, wide);
    });
}

extern "C" void simulated_choice(
    int tiles, int places, const word* low, const word* high, const signed char* scales, const half_bits* factors,
    const long long* chosen, const half_bits* x, void* out, const half_bits* bias, int each, int inputs, int outputs,
    int tiles_of_matrix, int steps, int stride, word negated, int wide) {
    run_grid(tiles, places, [=] {
        product_chosen(
            low, high, scales, factors, chosen, x, out, bias, each, inputs, outputs, tiles_of_matrix, steps, stride,
            negated, wide);
    });
}
