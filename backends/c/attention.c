/* Attention in C99, on a little-endian machine:
 *   cc -O2 -std=c99 -o attention backends/c/attention.c -lm
 *   mha-conformance run --command ./attention
 * The line protocol is spec/protocol.md; what is read of JSON is what its messages hold. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AXES 64

/* JSON: a value is a pointer to its first character. */

static const char *blank(const char *p) { return p + strspn(p, " \t\r\n,:"); }

static const char *after(const char *p) { /* the end of a value */
    int depth = 0;
    do {
        if (*p == '"') {
            for (p++; *p && *p != '"'; p++) p += *p == '\\' && p[1];
            p += *p != 0;
        } else if (*p == '{' || *p == '[') depth++, p++;
        else if (*p == '}' || *p == ']') depth--, p++;
        else p += depth ? 1 : strcspn(p, ",:}] \t\r\n");
    } while (depth > 0 && *p);
    return p;
}

static int same(const char *p, const char *word) { /* whether a value is a string, which has no escapes */
    return *p == '"' && !strncmp(p + 1, word, strlen(word)) && p[1 + strlen(word)] == '"';
}

static const char *member(const char *object, const char *name) { /* the value of a member, or NULL */
    for (const char *p = blank(object + 1); *p == '"';) {
        const char *value = blank(after(p));
        if (same(p, name)) return value;
        p = blank(after(value));
    }
    return NULL;
}

static const char *stranger(const char *object, const char *const *known) { /* the first member not known */
    for (const char *p = object ? blank(object + 1) : ""; *p == '"'; p = blank(after(blank(after(p))))) {
        int found = 0;
        for (int k = 0; known[k]; k++) found |= same(p, known[k]);
        if (!found) return p;
    }
    return NULL;
}

/* Arrays. */

static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

typedef struct {
    int rank;
    long shape[AXES], count;
    double *data; /* every dtype, widened */
} Array;

static long size(const Array *a, int from_end) { return a->rank < from_end ? 1 : a->shape[a->rank - from_end]; }

static int decode(const char *entry, Array *a) { /* 0 where there is none, or one that cannot be read */
    if (!entry) return 0;
    const char *dtype = member(entry, "dtype"), *shape = member(entry, "shape"), *text = member(entry, "data");
    const int whole = same(dtype, "int64"), half = same(dtype, "int32");
    const size_t width = whole || same(dtype, "float64") ? 8 : half || same(dtype, "float32") ? 4 : same(dtype, "bool");
    if (!width) return 0;
    a->rank = 0, a->count = 1;
    for (const char *p = blank(shape + 1); *p != ']' && a->rank < AXES; p = blank(after(p)))
        a->count *= a->shape[a->rank++] = atol(p);
    unsigned char *bytes = malloc(a->count * width + 3), *end = bytes;
    a->data = malloc((a->count + 1) * sizeof(double));
    for (text++; *text != '"'; text += 4) {
        unsigned long bits = 0;
        for (int k = 0; k < 4; k++)
            bits = bits << 6 | (text[k] == '=' ? 0 : (unsigned long)(strchr(DIGITS, text[k]) - DIGITS));
        for (int k = 2; k >= 0; k--) *end++ = bits >> 8 * k & 255;
    }
    for (long i = 0; i < a->count; i++) {
        float narrow;
        int64_t integer;
        int32_t number;
        if (whole) memcpy(&integer, bytes + 8 * i, 8), a->data[i] = (double)integer;
        else if (half) memcpy(&number, bytes + 4 * i, 4), a->data[i] = number;
        else if (width == 8) memcpy(a->data + i, bytes + 8 * i, 8);
        else if (width == 4) memcpy(&narrow, bytes + 4 * i, 4), a->data[i] = narrow;
        else a->data[i] = bytes[i];
    }
    free(bytes);
    return 1;
}

static void print_base64(const double *data, long count, int wide) {
    const size_t width = wide ? 8 : 4, total = count * width;
    unsigned char *bytes = calloc(total + 3, 1);
    for (long i = 0; i < count; i++) {
        const float narrow = (float)data[i];
        memcpy(bytes + i * width, wide ? (const void *)(data + i) : (const void *)&narrow, width);
    }
    for (size_t i = 0; i < total; i += 3) {
        const unsigned long bits = bytes[i] << 16 | bytes[i + 1] << 8 | bytes[i + 2];
        for (int k = 0; k < 4; k++) putchar(i + k > total ? '=' : DIGITS[bits >> (18 - 6 * k) & 63]);
    }
    free(bytes);
}

/* Attention, in double precision. */

static int allowed(const Array *mask, const Array *q, long b, long h, long i, long j) {
    long place = 0, stride = 1, index[AXES] = {j, i, h}; /* from the last axis to the first */
    if (!mask->data) return 1;
    for (int axis = 3; axis < q->rank; axis++) index[axis] = b % size(q, axis + 1), b /= size(q, axis + 1);
    for (int axis = 0; axis < mask->rank; stride *= size(mask, ++axis))
        place += size(mask, axis + 1) == 1 ? 0 : index[axis] * stride;
    return mask->data[place] != 0;
}

/* `last` holds the last key that query 0 may attend: one for all, or one for each batch entry. */
static double *attend(const Array *q, const Array *k, const Array *v, const Array *mask, double scale,
                      const Array *last) {
    const long heads = size(q, 3), rows = size(q, 2), width = size(q, 1), columns = size(k, 2), wide = size(v, 1);
    long batches = 1;
    for (int axis = 0; axis < q->rank - 3; axis++) batches *= q->shape[axis];
    double *output = calloc(batches * heads * rows * wide + 1, sizeof(double));
    double *weight = malloc((columns + 1) * sizeof(double));
    for (long at = 0; at < batches * heads * rows; at++) {
        const long i = at % rows, h = at / rows % heads, b = at / rows / heads;
        const long g = b * size(k, 3) + h / (heads / size(k, 3)); /* the key head of a group of query heads */
        const double end = i + last->data[last->count > 1 ? b : 0];
        double top = -INFINITY, total = 0, *row = output + at * wide;
        for (long j = 0; j < columns; j++) {
            weight[j] = -INFINITY;
            if (j > end || !allowed(mask, q, b, h, i, j)) continue;
            weight[j] = 0;
            for (long d = 0; d < width; d++)
                weight[j] += q->data[at * width + d] * k->data[(g * columns + j) * width + d];
            weight[j] *= scale;
            if (!(weight[j] <= top)) top = weight[j]; /* NaN wins, and stays */
        }
        for (long j = 0; j < columns; j++) {
            if (j > end || !allowed(mask, q, b, h, i, j)) weight[j] = 0;
            else total += weight[j] = exp(weight[j] - top);
        }
        for (long j = 0; j < columns; j++)
            for (long d = 0; d < wide; d++)
                if (j <= end && allowed(mask, q, b, h, i, j))
                    row[d] += weight[j] / total * v->data[(g * columns + j) * wide + d];
    }
    free(weight);
    return output;
}

static void run(const char *message) {
    static const char *const known[] = {"query", "key", "value", "mask", "scale", "is_causal", "q_offset", NULL};
    const char *inputs = member(message, "inputs"), *options = member(message, "options"), *id = member(message, "id");
    const char *strange = stranger(inputs, known);
    double open = INFINITY;
    Array q = {0}, k = {0}, v = {0}, mask = {0}, last = {.count = 1, .data = &open}, offsets = {0};
    printf("{\"id\":%.*s,", (int)(after(id) - id), id);
    if (!strange) strange = stranger(options, known);
    if (strange) printf("\"unsupported\":\"no %.*s\"}\n", (int)(after(strange) - strange - 2), strange + 1);
    else if (!decode(member(inputs, "query"), &q) || !decode(member(inputs, "key"), &k) ||
             !decode(member(inputs, "value"), &v) ||
             (member(inputs, "mask") && !decode(member(inputs, "mask"), &mask)) ||
             (member(inputs, "q_offset") && !decode(member(inputs, "q_offset"), &offsets)))
        printf("\"error\":\"an array is missing, or of a dtype that is not known here\"}\n");
    else {
        const char *given = member(options, "scale"), *causal = member(options, "is_causal");
        const char *offset = member(options, "q_offset"), *dtype = member(member(inputs, "query"), "dtype");
        if (causal && *causal == 't') {
            if (offsets.data) last = offsets;
            else open = offset ? atof(offset) : 0;
        }
        double *output = attend(&q, &k, &v, &mask, given ? atof(given) : 1 / sqrt(size(&q, 1)), &last);
        printf("\"outputs\":{\"output\":{\"dtype\":%.*s,\"shape\":[", (int)(after(dtype) - dtype), dtype);
        for (int axis = 0; axis < q.rank - 1; axis++) printf("%ld,", q.shape[axis]);
        printf("%ld],\"data\":\"", size(&v, 1));
        print_base64(output, q.count / size(&q, 1) * size(&v, 1), same(dtype, "float64"));
        printf("\"}}}\n");
        free(output);
    }
    free(q.data), free(k.data), free(v.data), free(mask.data), free(offsets.data);
}

int main(void) {
    char *line = NULL;
    size_t room = 0, length = 0;
    for (int c; (c = getchar()) != EOF;) {
        if (length + 1 >= room) line = realloc(line, room = 2 * room + 4096);
        line[length++] = (char)c, line[length] = 0;
        if (c != '\n') continue;
        length = 0;
        const char *cmd = member(line, "cmd"), *protocol = member(line, "protocol");
        if (cmd && same(cmd, "stop")) break;
        if (cmd && same(cmd, "run")) run(line);
        else if (!cmd || !same(cmd, "start") || !protocol || atoi(protocol) != 1)
            puts("{\"error\":\"this program knows start, run and stop of protocol 1\"}");
        else
            puts("{\"name\":\"c\",\"version\":null,\"dtypes\":[\"float64\",\"float32\"],\"accuracy\":\"fused\","
                 "\"features\":[\"mask\",\"is_causal\",\"q_offset\",\"scale\",\"gqa\",\"value_dim\",\"broadcast\",\"empty\"],"
                 "\"operations\":[\"scaled_dot_product_attention\"]}");
        fflush(stdout);
    }
    free(line);
    return 0;
}
