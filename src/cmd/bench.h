/* What the files of `baton bench` share: the limits of the machine, decoding through the
 * engine, and hand-offs. */
#ifndef BATON_CMD_BENCH_H
#define BATON_CMD_BENCH_H

#include "cmd/cmd.h"
#include "net/tls.h"

enum { BENCH_MAX_REPEATS = 100 };

/* What a test had to do at least, and how long the machine would take at its limits: the slower of
 * reading the bytes and of doing the operations. */
struct bench_limit {
    bool by_bytes;  /* reading takes longer */
    double work;    /* bytes or operations of the whole test */
    double seconds; /* at the limit */
};

/* Limits as measured, each once. Zeroed is valid, for one compute. */
struct bench_probes {
    double peak[COMPUTE_N_UNITS];
    double read[8];
    uint64_t read_bytes[8];
    uint32_t n_read;
};

/* n tokens of each of n_sequences from depth on: in steps of chunk tokens (prefill), or one by one
 * (decode). */
enum status bench_limit_prefill(struct bench_probes *p, const struct loaded *l, uint32_t depth,
                                uint32_t n, uint32_t chunk, struct bench_limit *out) WARN_UNUSED;
enum status bench_limit_decode(struct bench_probes *p, const struct loaded *l, uint32_t depth,
                               uint32_t n, uint32_t n_sequences,
                               struct bench_limit *out) WARN_UNUSED;

/* n tokens of each of n_sequences through the engine, sampled: tokens a second, and the share of
 * the time that the engine computes outside the model (plan, pages, sampling, detokenising). */
enum status bench_engine(const struct loaded *l, uint32_t n, uint32_t n_sequences, double *speed,
                         double *own_share) WARN_UNUSED;

/* TLS for a decode node (0) and its prefill node (1), of an authority made for them; nothing of it
 * stays in the file system. Owner: the caller. */
enum status bench_certificates(struct tls_context *contexts[2]) WARN_UNUSED;
/* The KV of n_tokens between two processes, as a hand-off and as a plain copy; prints a table. Must
 * be called before this process has threads. */
enum status bench_transfer(const char *model, uint32_t n_tokens, uint32_t n_rounds) WARN_UNUSED;

#endif
