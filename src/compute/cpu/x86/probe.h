/* The limits of a core: a dense stream of one instruction, and reading. The file that includes this
 * says CHAINS, more than any latency times the pipes, and PROBE_REGISTER, the constraint of its
 * vectors.
 */
#define OPAQUE(v) __asm__("" : "+" PROBE_REGISTER(v))
#define USE(v)                                                                                     \
    __asm__ volatile("" : : PROBE_REGISTER(v)) /* or the compiler would leave it all out */

/* One round of a stream: the factor is made opaque each time, or the compiler would multiply once.
 */
#define ROUND(sum, chain)                                                                          \
    UNROLL for (int i = 0; i < CHAINS; i++)                                                        \
    {                                                                                              \
        OPAQUE(x);                                                                                 \
        sum[i] = chain;                                                                            \
        OPAQUE(sum[i]);                                                                            \
    }

/* Reading: so many streams side by side, which the CPU's prefetcher follows all, or one with
 * prefetches so many bytes ahead. On Zen 3 a core reads DRAM 1.2 to 1.7 times as fast in streams.
 */
#define READ_STREAMS 4
#define READ_AHEAD 2048
