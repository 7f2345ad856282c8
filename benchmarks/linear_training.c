/* DP-SGD and DP-Adam of a linear model on 0/1 features; see linear_training.py. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t s[4]; /* xoshiro256+ */
static uint32_t kn[128];
static float wn[128], fn[128]; /* ziggurat of Marsaglia and Tsang */

static uint64_t next(void) {
    uint64_t result = s[0] + s[3], t = s[1] << 17;
    s[2] ^= s[0]; s[3] ^= s[1]; s[1] ^= s[2]; s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return result;
}

static double uniform(void) { return ((next() >> 11) + 0.5) * 0x1p-53; }

static void tables(void) {
    double dn = 3.442619855899, tn = dn, vn = 9.91256303526217e-3, q = vn / exp(-.5 * dn * dn);
    kn[0] = (uint32_t)((dn / q) * 2147483648.0); kn[1] = 0;
    wn[0] = q / 2147483648.0; wn[127] = dn / 2147483648.0;
    fn[0] = 1; fn[127] = exp(-.5 * dn * dn);
    for (int i = 126; i >= 1; i--) {
        dn = sqrt(-2 * log(vn / dn + exp(-.5 * dn * dn)));
        kn[i + 1] = (uint32_t)((dn / tn) * 2147483648.0);
        tn = dn;
        fn[i] = exp(-.5 * dn * dn); wn[i] = dn / 2147483648.0;
    }
}

static double normal(void) {
    for (;;) {
        uint64_t bits = next();
        int32_t h = (int32_t)(bits >> 32);
        int i = (bits >> 20) & 127;
        if ((uint32_t)llabs((long long)h) < kn[i]) return h * (double)wn[i];
        if (i == 0) {
            double x, y;
            do { x = -log(uniform()) / 3.442619855899; y = -log(uniform()); } while (y + y < x * x);
            return h > 0 ? 3.442619855899 + x : -3.442619855899 - x;
        }
        double x = h * (double)wn[i];
        if (fn[i] + uniform() * (fn[i - 1] - fn[i]) < exp(-.5 * x * x)) return x;
    }
}

/* Rows: the places of a record's ones. d: features and the intercept, which comes last. */
typedef struct { const int32_t *starts; const uint8_t *columns; const int8_t *signs; int32_t n; } Rows;

static float score(const Rows *rows, int32_t i, const float *w, int d) {
    float total = w[d - 1];
    for (int32_t k = rows->starts[i]; k < rows->starts[i + 1]; k++) total += w[rows->columns[k]];
    return total;
}

void train(const Rows *data, const Rows *test, int d, int lot, double rate, double clip,
           double noise, int hinge, int adam, const int64_t *checkpoints, int count,
           const uint64_t *seed, double *accuracies) {
    float w[256] = {0}, g[256];
    double first[256] = {0}, second[256] = {0}, p1 = 1, p2 = 1;
    int32_t *order = malloc(data->n * sizeof(int32_t));
    tables();
    memcpy(s, seed, sizeof s);
    for (int32_t i = 0; i < data->n; i++) order[i] = i;
    for (int64_t step = 0, k = 0; k < count;) {
        memset(g, 0, sizeof g);
        for (int j = 0; j < lot; j++) {
            int32_t place = j + (int32_t)(((next() >> 32) * (uint64_t)(data->n - j)) >> 32);
            int32_t i = order[place];
            order[place] = order[j];
            order[j] = i;
            __builtin_prefetch(data->columns + data->starts[i]);
        }
        for (int j = 0; j < lot; j++) {
            int32_t i = order[j];
            float f = score(data, i, w, d), y = data->signs[i], c;
            if (hinge) c = y * f < 1 ? -y : 0; else c = -y / (1 + expf(y * f));
            float norm = fabsf(c) * sqrtf(data->starts[i + 1] - data->starts[i] + 1);
            if (norm > clip) c *= clip / norm;
            for (int32_t m = data->starts[i]; m < data->starts[i + 1]; m++) g[data->columns[m]] += c;
            g[d - 1] += c;
        }
        p1 *= .9; p2 *= .999;
        for (int m = 0; m < d; m++) {
            double mean = (g[m] + noise * normal()) / lot;
            if (adam) {
                first[m] = .9 * first[m] + .1 * mean;
                second[m] = .999 * second[m] + .001 * mean * mean;
                mean = first[m] / (1 - p1) / (sqrt(second[m] / (1 - p2)) + 1e-8);
            }
            w[m] -= rate * mean;
        }
        for (step++; k < count && step == checkpoints[k]; k++) {
            int right = 0;
            for (int32_t i = 0; i < test->n; i++) {
                float f = score(test, i, w, d);
                right += isfinite(f) && (f > 0) == (test->signs[i] > 0);
            }
            accuracies[k] = (double)right / test->n;
        }
    }
    free(order);
}
