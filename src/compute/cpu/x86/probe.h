/* A dense stream of one instruction, for the limits of a core. The file that includes this says
 * CHAINS, more than any latency times the pipes, and PROBE_REGISTER, the constraint of its vectors.
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

/* Stretches that are read side by side: as fast as this memory goes, for the CPU's prefetcher
 * follows them all. From one of them a core reads 0.6 to 0.8 times as fast (Zen 3). */
#define READ_STREAMS 4
