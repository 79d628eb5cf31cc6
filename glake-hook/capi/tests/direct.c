/* A program that uses glake.h, as PyTorch does. */
#include "../glake.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    glake_stats stats;
    assert(glake_install() == 0 && glake_install() == 0);
    assert(glake_get_stats(0, &stats) == 0 && stats.n_live == 0);
    void *a = glake_malloc(1000, 0, NULL), *b = glake_malloc(40 << 20, 1, NULL);
    assert(a && b && glake_owns(a) && glake_owns(b) && !glake_owns(&stats));
    assert(glake_malloc(0, 0, NULL) == NULL && glake_malloc(-1, 0, NULL) == NULL);
    assert(glake_get_stats(1, &stats) == 0 && stats.requested_bytes == 40 << 20 && stats.n_live == 1);
    glake_record_stream(b, (void *)2);
    glake_free(b, 40 << 20, 1, NULL);
    assert(glake_trim(1, 0) >= 40 << 20);
    assert(glake_limit(0, 8 << 20) == 0);
    assert(strcmp(glake_error(), "") == 0);
    assert(glake_malloc(9 << 20, 0, NULL) == NULL && strstr(glake_error(), "out of memory: 9437184 bytes"));
    assert(glake_record(0, "/nowhere/at/all") == -1 && glake_record_end() == -1);
    glake_free(a, 1000, 0, NULL);
    glake_free(NULL, 0, 0, NULL);
    glake_free(a, 1000, 0, NULL);
    assert(strstr(glake_error(), "freed before"));
    assert(glake_malloc(100, 7, NULL) == NULL);
    assert(glake_get_stats(0, &stats) == 0 && stats.n_live == 0 && stats.n_allocations == 1);
    printf("ok\n");
    return 0;
}
