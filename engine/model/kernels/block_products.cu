// Products of activations in bfloat16 with weights that have exactly the values of a GGUF file, for GPUs from compute
// capability 8.0 on. Compiled at run time, for one format at a time and without headers
// (engine/model/kernels/block_products.py).
//
// A tile is 16 outputs, a step is 64 inputs. Of a step, a warp's lane (g = lane / 4, t = lane % 4) holds the quants of
// the outputs g and g + 8 for the inputs 16 m + 4 t + 2 r + {0, 1}, m = 0..3, r = 0..1. So 16 inputs with the same m
// are one matrix instruction (m16n8k16): its sums over quants are exact up to the rounding of float32, because quants
// are integers of at most 8 bits, which bfloat16 holds. The sums of a group are then multiplied by the group's scale.
//
// A row of the result does not depend on the other rows, nor on how many there are: the order of its sums is fixed.

typedef unsigned int word;
typedef unsigned short half_bits;

#define STEP 64
#define TILE 16
#define WARPS 8
#define LANES 32

// Kinds of scales: a float16 number for each group; an integer for each group and a float16 factor for 256 inputs; the
// exponent of a power of two for each group.
#define HALVES 0
#define INTEGERS 1
#define POWERS 2

#ifndef SIMULATED
__device__ __forceinline__ float of_half(half_bits h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

// Fused multiply-add of two bfloat16 numbers at once.
__device__ __forceinline__ word fma_pair(word a, word b, word c) {
    word d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

__device__ __forceinline__ void multiply(float (&c)[4], const word (&a)[4], word b0, word b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float of_bits(word bits) { return __uint_as_float(bits); }
__device__ __forceinline__ word to_bits(float f) { return __float_as_uint(f); }
#endif

struct __align__(16) Words4 { word at[4]; };
struct __align__(8) Words2 { word at[2]; };

__device__ __forceinline__ half_bits to_bfloat16(float f) {
    word bits = to_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (half_bits)((bits >> 16) | 0x40);  // not a number
    return (half_bits)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ __forceinline__ float of_bfloat16(half_bits h) { return of_bits((word)h << 16); }

// The weights of a layer, in the layout of engine/model/products/card_blocks.py.
struct Planes {
    const word* low;             // (tiles, steps, 32, 4): the lower 4 bits of quants
    const word* high;            // (tiles, steps, 32, HIGH): the upper HIGH bits of quants
    const signed char* scales;   // INTEGERS: (tiles, steps, 16, groups), or twice as many with least
                                 // HALVES: float16 (tiles, steps, 16, groups or 2 groups)
                                 // POWERS: bytes (tiles, steps, 16, groups)
    const half_bits* factors;    // INTEGERS: (tiles, steps / 4, 16, 1 or 2)
};

template <int HIGH, int GROUP, int SCALE, bool LEAST>
struct Step {
    static const int GROUPS = STEP / GROUP;
    Words4 low;
    word high[HIGH ? HIGH : 1];
    float scale[2][GROUPS], least[2][GROUPS];

    __device__ __forceinline__ void load(const Planes& from, long long at, long long steps, int lane) {
        low = ((const Words4*)from.low)[at * LANES + lane];
        const word* more = from.high + (at * LANES + lane) * HIGH;
        if (HIGH == 4) {
            Words4 found = *(const Words4*)more;
            for (int i = 0; i < HIGH; i++) high[i] = found.at[i];
        } else if (HIGH == 2) {
            Words2 found = *(const Words2*)more;
            for (int i = 0; i < HIGH; i++) high[i] = found.at[i];
        } else if (HIGH == 1) {
            high[0] = *more;
        }
        const int count = LEAST ? 2 * GROUPS : GROUPS, size = SCALE == HALVES ? 2 * count : count;
        const long long tile = at / steps, step = at % steps;
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            const int row = lane / 4 + 8 * upper;
            const signed char* first = from.scales + (at * TILE + row) * size;
            word packed[size < 4 ? 1 : size / 4];  // the group's numbers, least ones last
            if (size == 2) {
                packed[0] = *(const half_bits*)first;
            } else {
#pragma unroll
                for (int i = 0; i < size / 4; i++) packed[i] = ((const word*)first)[i];
            }
            float factor = 0.0f, of_least = 0.0f;
            if (SCALE == INTEGERS) {
                const long long place = (tile * (steps / 4) + step / 4) * TILE + row;
                if (LEAST) {
                    const word both = ((const word*)from.factors)[place];
                    factor = of_half((half_bits)both), of_least = of_half((half_bits)(both >> 16));
                } else {
                    factor = of_half(from.factors[place]);
                }
            }
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                scale[upper][group] = number(packed, group, factor);
                // Formats with float16 numbers add the second number to each weight, all others subtract it.
                const float second = LEAST ? number(packed, (LEAST ? GROUPS : 0) + group, of_least) : 0.0f;
                least[upper][group] = SCALE == HALVES ? -second : second;
            }
        }
    }

    // The number at an index of the packed numbers of a row.
    static __device__ __forceinline__ float number(const word* packed, int index, float factor) {
        if (SCALE == HALVES) return of_half((half_bits)(packed[index / 2] >> (16 * (index % 2))));
        const word byte = (packed[index / 4] >> (8 * (index % 4))) & 0xffu;
        if (SCALE == INTEGERS) return factor * (float)(signed char)byte;
        return of_bits(byte ? byte << 23 : 0x00400000u);  // 2 to the power of (byte - 127)
    }

    // Two neighbouring quants of an output as bfloat16 numbers. `negated` is the number that is added to 128 + quant.
    __device__ __forceinline__ word pair(int upper, int m, int r, word negated) const {
        const int at = (m / 2) * 2 + upper, n = (m % 2) * 2 + r, place = 4 * at + n;
        word quants = (low.at[at] >> (4 * n)) & 0x000f000fu;
        if (SCALE == POWERS) {  // a sign, two bits of exponent and one of mantissa, as a tiny bfloat16 number
            word tiny = ((quants & 0x00080008u) << 12) | ((quants & 0x00070007u) << 6);
            return fma_pair(tiny, 0x7e807e80u, 0x80008000u);
        }
        if (HIGH) {
            const int each = HIGH ? 16 / HIGH : 16, shift = (place % each) * HIGH - 4;
            word bits = high[place / each];
            bits = shift < 0 ? bits << (shift < 0 ? -shift : 0) : bits >> (shift < 0 ? 0 : shift);
            quants |= bits & ((((1u << HIGH) - 1u) << 4) * 0x00010001u);
        }
        if (HIGH == 4) {  // bfloat16 holds 128 + 7 bits: the eighth decides whether 128 or 256 is subtracted
            word above = (~quants & 0x00800080u) | 0xc300c300u;
            return fma_pair((quants & 0x007f007fu) | 0x43004300u, 0x3f803f80u, above);
        }
        return fma_pair(quants | 0x43004300u, 0x3f803f80u, negated);
    }
};

// Multiply x (rows, inputs) by the weights of the tiles from `first_tile` on. Of out, `outputs` columns are written, at
// a distance of `stride` numbers between rows; in float32 if `wide`, else in bfloat16. `bias` (outputs) and `before`
// (like out) are added if not null.
template <int HIGH, int GROUP, int SCALE, bool LEAST, int COLUMNS>
__device__ __forceinline__ void product(
    Planes planes, const half_bits* x, void* out, const half_bits* bias, const half_bits* before,
    int rows, int inputs, int outputs, int steps, int stride, word negated, int wide, long long first_tile = 0) {
    __shared__ float sums[WARPS][COLUMNS][LANES][4];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, g = lane / 4, t = lane % 4;
    float sum[COLUMNS][4];
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
        for (int i = 0; i < 4; i++) sum[column][i] = 0.0f;
    const word ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    const int per_group = GROUP / 16;
#pragma unroll 2
    for (int step = warp; step < steps; step += WARPS) {
        Step<HIGH, GROUP, SCALE, LEAST> own;
        own.load(planes, (first_tile + blockIdx.x) * steps + step, steps, lane);
        Words2 given[COLUMNS][4];
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            const int row = 8 * column + g;
#pragma unroll
            for (int m = 0; m < 4; m++) {
                const int input = step * STEP + 16 * m + 4 * t;
                given[column][m].at[0] = given[column][m].at[1] = 0u;
                if (row < rows && input < inputs) given[column][m] = *(const Words2*)(x + (long long)row * inputs + input);
            }
        }
#pragma unroll
        for (int group = 0; group < STEP / GROUP; group++) {
            word weights[GROUP / 16][4];
#pragma unroll
            for (int part = 0; part < per_group; part++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    weights[part][i] = own.pair(i % 2, group * per_group + part, i / 2, negated);
#pragma unroll
            for (int column = 0; column < COLUMNS; column++) {
                float part_sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, of_x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int part = 0; part < per_group; part++) {
                    const Words2& pairs = given[column][group * per_group + part];
                    multiply(part_sum, weights[part], pairs.at[0], pairs.at[1]);
                    if (LEAST) multiply(of_x, ones, pairs.at[0], pairs.at[1]);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sum[column][i] += own.scale[i / 2][group] * part_sum[i];
                    if (LEAST) sum[column][i] -= own.least[i / 2][group] * of_x[i];
                }
            }
        }
    }
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
        for (int i = 0; i < 4; i++) sums[warp][column][lane][i] = sum[column][i];
    __syncthreads();
    for (int at = threadIdx.x; at < TILE * 8 * COLUMNS; at += WARPS * LANES) {
        const int output = at % TILE, row = at / TILE, index = blockIdx.x * TILE + output;
        if (row >= rows || index >= outputs) continue;
        const int from = 4 * (output % 8) + (row % 8) / 2, i = 2 * (output / 8) + row % 2;
        float whole = 0.0f;
        for (int part = 0; part < WARPS; part++) whole += sums[part][row / 8][from][i];
        if (bias) whole += of_bfloat16(bias[index]);
        const long long place = (long long)row * stride + index;
        if (before) whole += of_bfloat16(before[place]);
        if (wide)
            ((float*)out)[place] = whole;
        else
            ((half_bits*)out)[place] = to_bfloat16(whole);
    }
}

// Write the weights of the outputs `ids` (count), or of all `count` outputs if ids is null, to out (count, inputs): in
// float32 if `wide`, else in bfloat16. A warp writes a step of one output, or of a whole tile.
template <int HIGH, int GROUP, int SCALE, bool LEAST>
__device__ __forceinline__ void expanded(
    Planes planes, const long long* ids, void* out, int count, int inputs, int steps, word negated, int wide) {
    const int lane = threadIdx.x % LANES, step = blockIdx.x * WARPS + threadIdx.x / LANES, g = lane / 4, t = lane % 4;
    if (step >= steps) return;
    const long long id = ids ? ids[blockIdx.y] : (long long)blockIdx.y * TILE;
    if (ids && g != id % 8) return;
    Step<HIGH, GROUP, SCALE, LEAST> own;
    own.load(planes, id / TILE * steps + step, steps, lane);
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
        const long long row = ids ? (long long)blockIdx.y : id + g + 8 * upper;
        if (row >= count || (ids && upper != id % TILE / 8)) continue;
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int input = step * STEP + 16 * m + 4 * t + 2 * r, group = 16 * m / GROUP;
                if (input >= inputs) continue;
                const word both = own.pair(upper, m, r, negated);
                const float first = own.scale[upper][group] * of_bits(both << 16) - own.least[upper][group];
                const float second = own.scale[upper][group] * of_bits(both & 0xffff0000u) - own.least[upper][group];
                const long long place = row * inputs + input;
                if (wide) {
                    ((float*)out)[place] = first;
                    ((float*)out)[place + 1] = second;
                } else {
                    ((word*)out)[place / 2] = to_bfloat16(first) | (word)to_bfloat16(second) << 16;
                }
            }
    }
}

#define PRODUCT(COLUMNS) \
    extern "C" __global__ void __launch_bounds__(WARPS * LANES, 4 / COLUMNS) product_##COLUMNS( \
        const word* low, const word* high, const signed char* scales, const half_bits* factors, const half_bits* x, \
        void* out, const half_bits* bias, const half_bits* before, int rows, int inputs, int outputs, int steps, \
        int stride, word negated, int wide) { \
        product<HIGH_BITS, GROUP_SIZE, SCALE_KIND, HAS_LEAST, COLUMNS>( \
            Planes{low, high, scales, factors}, x, out, bias, before, rows, inputs, outputs, steps, stride, negated, \
            wide); \
    }

PRODUCT(1)
PRODUCT(2)
PRODUCT(4)

// Multiply rows of x (., inputs) by one of several matrices of `tiles` tiles each. The place p = 0.. multiplies the row
// p / each by the matrix chosen[p], and writes to the row p of out. `bias` (matrices, outputs) is added if not null.
extern "C" __global__ void __launch_bounds__(WARPS * LANES, 4) product_chosen(
    const word* low, const word* high, const signed char* scales, const half_bits* factors, const long long* chosen,
    const half_bits* x, void* out, const half_bits* bias, int each, int inputs, int outputs, int tiles, int steps,
    int stride, word negated, int wide) {
    const long long place = blockIdx.y, matrix = chosen[place];
    product<HIGH_BITS, GROUP_SIZE, SCALE_KIND, HAS_LEAST, 1>(
        Planes{low, high, scales, factors}, x + place / each * inputs, (char*)out + place * stride * (wide ? 4 : 2),
        bias ? bias + matrix * outputs : bias, nullptr, 1, inputs, outputs, steps, stride, negated, wide,
        matrix * tiles);
}

extern "C" __global__ void __launch_bounds__(WARPS * LANES) expanded_rows(
    const word* low, const word* high, const signed char* scales, const half_bits* factors, const long long* ids,
    void* out, int count, int inputs, int steps, word negated, int wide) {
    expanded<HIGH_BITS, GROUP_SIZE, SCALE_KIND, HAS_LEAST>(
        Planes{low, high, scales, factors}, ids, out, count, inputs, steps, negated, wide);
}
