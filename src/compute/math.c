/* Our own mathematics in double: multiplications, additions and one division only, so that every
 * host has the same bits. */
#include "compute/internal.h"

static double bits_double(uint64_t u)
{
    double x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static uint64_t double_bits(double x)
{
    uint64_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

/* To nearest even for |x| < 2^51. */
static double round_even(double x)
{
    return (x + 0x1.8p52) - 0x1.8p52;
}

#define LN2_HIGH 0x1.62e42fee00000p-1 /* so short that its product with an exponent is exact */
#define LN2_LOW 0x1.a39ef35793c76p-33

double compute_ln(double x)
{
    int64_t e = 0;

    if (x < 0x1p-1022) { /* denormal */
        x *= 0x1p54;
        e = -54;
    }
    uint64_t u = double_bits(x);
    e += (int64_t)(u >> 52) - 1023;
    double m = bits_double((u & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    /* ln m = 2 atanh(t), t = (m - 1)/(m + 1), |t| < 0.1716 */
    double t = (m - 1) / (m + 1), t2 = t * t, sum = 0;
    for (int i = 23; i >= 3; i -= 2)
        sum = (sum + 1.0 / i) * t2;
    return (double)e * LN2_HIGH + (2 * t + (2 * t * sum + (double)e * LN2_LOW));
}

double compute_exp(double x)
{
    if (x < -745)
        return 0;
    if (x > 709)
        x = 709;
    double n = round_even(x * LOG2_E);
    double r = (x - n * LN2_HIGH) - n * LN2_LOW;
    double sum = 1;
    for (int i = 14; i >= 1; i--)
        sum = 1 + sum * r / i;
    int64_t e = (int64_t)n;
    if (e < -1021)
        return sum * bits_double((uint64_t)(e + 54 + 1023) << 52) * 0x1p-54;
    return sum * bits_double((uint64_t)(e + 1023) << 52);
}

/* pi/2 in three parts, the first two so short that their products with a quadrant number below 2^20
 * are exact. */
#define PI_2_A 0x1.921fb54400000p+0
#define PI_2_B 0x1.0b4611a600000p-34
#define PI_2_C 0x1.3198a2e037073p-69

/* 1/(i (i - 1)) */
static const double inverse[18] = {
    [2] = 1.0 / 2,    [3] = 1.0 / 6,    [4] = 1.0 / 12,   [5] = 1.0 / 20,
    [6] = 1.0 / 30,   [7] = 1.0 / 42,   [8] = 1.0 / 56,   [9] = 1.0 / 72,
    [10] = 1.0 / 90,  [11] = 1.0 / 110, [12] = 1.0 / 132, [13] = 1.0 / 156,
    [14] = 1.0 / 182, [15] = 1.0 / 210, [16] = 1.0 / 240, [17] = 1.0 / 272,
};

void compute_sin_cos(double x, double *sin_out, double *cos_out)
{
    double n = round_even(x * 0x1.45f306dc9c883p-1);
    double r = ((x - n * PI_2_A) - n * PI_2_B) - n * PI_2_C;
    double r2 = r * r, s = 0, c = 0;

    for (int i = 17; i >= 3; i -= 2)
        s = (s + 1) * -(r2 * inverse[i]);
    for (int i = 16; i >= 2; i -= 2)
        c = (c + 1) * -(r2 * inverse[i]);
    s = r + r * s;
    c = 1 + c;
    switch ((int64_t)n & 3) {
    case 0:
        *sin_out = s;
        *cos_out = c;
        break;
    case 1:
        *sin_out = c;
        *cos_out = -s;
        break;
    case 2:
        *sin_out = -s;
        *cos_out = -c;
        break;
    default:
        *sin_out = -c;
        *cos_out = s;
    }
}

float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3FF;

    if (e == 31)
        return bits_float(sign | 0x7F800000u | m << 13);
    if (e == 0) /* m * 2^-24, exact */
        return bits_float(sign | float_bits((float)m * 0x1p-24f));
    return bits_float(sign | (e + 112) << 23 | m << 13);
}

uint16_t float_to_half(float x)
{
    uint32_t u = float_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFF;

    if (a < 0x38800000u) { /* below 2^-14: a multiple of 2^-24, rounded by the addition of 0.5 */
        float shifted = bits_float(a) + 0.5f;
        return (uint16_t)(sign | (float_bits(shifted) - 0x3F000000u));
    }
    uint32_t rounded = a + 0xFFF + (a >> 13 & 1);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}
