/* As much of cmocka as the kernel tests use, for processors whose cmocka is not at hand (cross
 * compiled, run by an emulator). The first failure ends the program. */
#ifndef BATON_TESTS_KERNEL_SHIM_CMOCKA_H
#define BATON_TESTS_KERNEL_SHIM_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*test)(void **state);
};

#define cmocka_unit_test(function)                                                                 \
    {                                                                                              \
#function, function                                                                        \
    }
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    shim_run(tests, sizeof(tests) / sizeof((tests)[0]))

#define print_message printf

#define shim_check(holds, text)                                                                    \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            printf("%s:%d: error: %s\n", __FILE__, __LINE__, text);                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define fail_msg(...)                                                                              \
    do {                                                                                           \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        exit(1);                                                                                   \
    } while (0)
#define assert_true(a) shim_check(a, #a)
#define assert_false(a) shim_check(!(a), "not " #a)
#define assert_null(a) shim_check((a) == NULL, #a " is NULL")
#define assert_non_null(a) shim_check((a) != NULL, #a " is not NULL")
#define assert_int_equal(a, b) shim_check((a) == (b), #a " == " #b)
#define assert_string_equal(a, b) shim_check(strcmp(a, b) == 0, #a " == " #b)
#define assert_memory_equal(a, b, n) shim_check(memcmp(a, b, n) == 0, #a " has the bytes of " #b)
#define assert_memory_not_equal(a, b, n)                                                           \
    shim_check(memcmp(a, b, n) != 0, #a " has not the bytes of " #b)

static inline int shim_run(const struct CMUnitTest *tests, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *state = NULL;
        printf("[ RUN      ] %s\n", tests[i].name);
        fflush(stdout);
        tests[i].test(&state);
        printf("[       OK ] %s\n", tests[i].name);
    }
    printf("[  PASSED  ] %zu test(s).\n", n);
    return 0;
}

#endif
