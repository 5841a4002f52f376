/* base/random: unpredictable numbers for ids, epochs and seeds. What the model samples never comes
 * from here. */
#ifndef BATON_BASE_RANDOM_H
#define BATON_BASE_RANDOM_H

#include <stdint.h>

uint64_t random_u64(void);

#endif
