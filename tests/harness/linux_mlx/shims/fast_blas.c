/* cblas_sgemm with the results of the reference BLAS, which MLX's wheel for Linux has, to the bit.
 *
 * Each element is the same sum in the same order, without fused operations; only the elements are
 * computed next to each other. Any number of rows gives the same rows.
 */

#include <stdlib.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, LANES = 8, COLUMNS = 32 };

typedef float lanes __attribute__((vector_size(4 * LANES)));

/* COLUMNS elements of a row, from `k` elements of `a`, `step` apart, and `k` packed rows. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static void sums(float *into, const float *a, long step, const lanes *packed, int k, float by)
{
    enum { VECTORS = COLUMNS / LANES };
    lanes *result = (lanes *)into, sum[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        sum[v] = result[v];
    for (int l = 0; l < k; l++, a += step, packed += VECTORS)
        for (int v = 0; v < VECTORS; v++)
            sum[v] += by * *a * packed[v];
    for (int v = 0; v < VECTORS; v++)
        result[v] = sum[v];
}

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    if (order != ROW_MAJOR) {
        cblas_sgemm(ROW_MAJOR, trans_b, trans_a, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);
        return;
    }
    long of_row = trans_a == NO_TRANS ? lda : 1, of_sum = trans_a == NO_TRANS ? 1 : lda;
    int at_end = trans_b != NO_TRANS; /* the reference scales a finished sum, or each summand */
    float *packed = aligned_alloc(64, sizeof(float) * COLUMNS * ((size_t)k + 1));
    for (int first = 0; first < n; first += COLUMNS) {
        int width = n - first < COLUMNS ? n - first : COLUMNS;
        for (int l = 0; l < k; l++)
            for (int j = 0; j < COLUMNS; j++) {
                const float *from = at_end ? b + (long)(first + j) * ldb + l : b + (long)l * ldb + first + j;
                packed[l * COLUMNS + j] = j < width ? *from : 0;
            }
        for (int i = 0; i < m; i++) {
            float row[COLUMNS] __attribute__((aligned(64))) = {0};
            float *of_c = c + (long)i * ldc + first;
            for (int j = 0; j < width && !at_end && beta != 0; j++)
                row[j] = beta == 1 ? of_c[j] : beta * of_c[j];
            sums(row, a + i * of_row, of_sum, (const lanes *)packed, k, at_end ? 1 : alpha);
            for (int j = 0; j < width; j++) {
                float value = at_end ? alpha * row[j] : row[j];
                of_c[j] = at_end && beta != 0 ? value + beta * of_c[j] : value;
            }
        }
    }
    free(packed);
}
