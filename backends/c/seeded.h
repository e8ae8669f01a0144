/* The elements of a seeded operand of the vectors, before its boxes (spec/vectors.md). */
#include <math.h>
#include <stdint.h>

static uint64_t seeded_mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t seeded_word(uint64_t seed, uint64_t i) { return seeded_mix(seeded_mix(seed) + i); }

static double seeded_number(uint64_t seed, uint64_t i, int bits, int power) {
    int64_t whole = (int64_t)(seeded_word(seed, i) >> (63 - bits)) - ((int64_t)1 << bits);
    return ldexp((double)whole, power - bits);
}

static int seeded_shown(uint64_t seed, uint64_t i, unsigned share) { return (seeded_word(seed, i) >> 56) < share; }
