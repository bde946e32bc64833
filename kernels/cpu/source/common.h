// Element type, conversions and the few functions of the math library that must vectorise.
//
// Every file is compiled once per element type: with -DELEMENT_BF16 tensors hold bfloat16, else
// float. Arithmetic is in float; a result is rounded once, when it is stored. Strides count
// elements.
// -DPORTABLE leaves out what is written for one instruction set, as on a CPU without any of them.
#pragma once

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

INLINE float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#ifdef ELEMENT_BF16
typedef uint16_t element;

INLINE float widen(element x) { return float_of_bits((uint32_t)x << 16); }

// Rounds to nearest, ties to even.
INLINE element narrow(float x) {
    uint32_t bits = bits_of_float(x);
    return (element)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
#else
typedef float element;

INLINE float widen(element x) { return x; }
INLINE element narrow(float x) { return x; }
#endif

// What a norm multiplies element i by, kept as float or as element.
INLINE float gain_at(const void *gains, int is_wide, int64_t i) {
    return is_wide ? ((const float *)gains)[i] : widen(((const element *)gains)[i]);
}

// e**x within 2 units in the last place: 2**n times a polynomial of the remainder in
// [-ln(2)/2, ln(2)/2]. Saturates at 2**-126 and 2**127.
INLINE float fast_exp(float x) {
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = rintf(x * 1.44269504f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p * r, r, r) + 1.0f;
    return p * float_of_bits((uint32_t)((int32_t)n + 127) << 23);
}

// ln(x) of a positive normal x within 2 units in the last place (polynomial of Cephes' logf).
INLINE float fast_log(float x) {
    // split x into 2**n * m with m in [sqrt(1/2), sqrt(2))
    int32_t shifted = (int32_t)bits_of_float(x) - 0x3F3504F3;
    float n = (float)(shifted >> 23);
    float m = float_of_bits((uint32_t)((shifted & 0x7FFFFF) + 0x3F3504F3)) - 1.0f;
    float p = 7.0376836292e-2f;
    p = fmaf(p, m, -1.1514610310e-1f);
    p = fmaf(p, m, 1.1676998740e-1f);
    p = fmaf(p, m, -1.2420140846e-1f);
    p = fmaf(p, m, 1.4249322787e-1f);
    p = fmaf(p, m, -1.6668057665e-1f);
    p = fmaf(p, m, 2.0000714765e-1f);
    p = fmaf(p, m, -2.4999993993e-1f);
    p = fmaf(p, m, 3.3333331174e-1f);
    float square = m * m;
    float r = fmaf(n, -2.12194440e-4f, p * square * m);
    r = fmaf(square, -0.5f, r);
    return fmaf(n, 0.693359375f, m + r);
}
