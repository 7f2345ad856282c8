/* Steps of DP-SGD and DP-Adam of a linear model on 0/1 features; see linear_training.py. */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* The places of each record's ones, and its class as a sign. */
typedef struct {
    const int32_t *starts;
    const uint8_t *columns;
    const int8_t *signs;
    int32_t n;
} Rows;

/* The model and the optimizer: d numbers each, the intercept last. */
typedef struct {
    float *weights;
    double *first, *second;
    double decays[2];
} State;

void train(const Rows *data, State *state, int32_t *order, int d, int batch, double rate, double clip,
           double noise_std, int hinge, int adam, int64_t steps, const uint32_t *picks,
           const float *noise) {
    float *w = state->weights, g[256];
    for (int64_t step = 0; step < steps; step++, picks += batch, noise += d) {
        for (int j = 0; j < batch; j++) { /* without replacement: the first places, shuffled */
            int32_t place = j + (int32_t)((picks[j] * (uint64_t)(data->n - j)) >> 32);
            int32_t i = order[place];
            order[place] = order[j];
            order[j] = i;
            __builtin_prefetch(data->columns + data->starts[i]);
        }
        memset(g, 0, sizeof g);
        for (int j = 0; j < batch; j++) {
            int32_t i = order[j], begin = data->starts[i], end = data->starts[i + 1];
            float score = w[d - 1], y = data->signs[i], slope;
            for (int32_t k = begin; k < end; k++) score += w[data->columns[k]];
            if (hinge) slope = y * score < 1 ? -y : 0;
            else slope = -y / (1 + expf(y * score));
            float norm = fabsf(slope) * sqrtf(end - begin + 1);
            if (norm > clip) slope *= clip / norm;
            for (int32_t k = begin; k < end; k++) g[data->columns[k]] += slope;
            g[d - 1] += slope;
        }
        state->decays[0] *= .9;
        state->decays[1] *= .999;
        for (int k = 0; k < d; k++) {
            double mean = (g[k] + noise_std * noise[k]) / batch;
            if (adam) {
                state->first[k] = .9 * state->first[k] + .1 * mean;
                state->second[k] = .999 * state->second[k] + .001 * mean * mean;
                mean = state->first[k] / (1 - state->decays[0]) /
                       (sqrt(state->second[k] / (1 - state->decays[1])) + 1e-8);
            }
            w[k] -= rate * mean;
        }
    }
}
