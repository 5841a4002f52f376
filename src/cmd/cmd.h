/* cmd: the programs. The only place that exits, and the only one that wires rooms together. */
#ifndef BATON_CMD_CMD_H
#define BATON_CMD_CMD_H

#include "compute/compute.h"
#include "format/gguf.h"
#include "model/model.h"
#include "text/text.h"

#include <stdbool.h>
#include <stdint.h>

enum { EXIT_FAULT = 1, EXIT_USAGE = 2 };

/* Each takes the arguments behind its name and returns the exit status. */
int cmd_serve(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_cluster(int argc, char **argv);

/* Physical cores in the affinity mask, capped by the cgroup's quota; at least 1. */
uint32_t host_threads(void);
/* Memory that the cgroup (or the machine) allows this process, in bytes; a child of --roles counts
 * its share of it (the variable BATON_MEMORY_SHARE says among how many). */
uint64_t host_memory_bytes(void);

/* A model, ready to compute: what run, score, bench and serve all need. */
struct loaded {
    struct gguf *file;
    struct vocabulary *vocabulary;
    struct compute *compute;
    struct model *model;
    struct model_limits limits;
    uint8_t model_digest[REQUEST_DIGEST_BYTES], tokenizer_digest[REQUEST_DIGEST_BYTES];
    uint8_t numerics_digest[REQUEST_DIGEST_BYTES];
    double load_ms;
};
enum status load_model(const char *path, uint32_t n_threads, uint32_t max_rows,
                       uint32_t max_logit_rows, struct loaded *out) WARN_UNUSED;
/* What a router reads: metadata, tokenizer and template, no weights. */
enum status load_vocabulary(const char *path, struct loaded *out) WARN_UNUSED;
void unload_model(struct loaded *l);

/* n_slots sequences of context_tokens each, within kv_bytes (0: a quarter of the memory at most).
 * context_given: a context that does not fit is an error, else it is lowered. */
struct kv_plan {
    uint32_t context_tokens, n_pages;
};
enum status plan_kv(const struct model_limits *limits, int64_t context_tokens, bool context_given,
                    uint32_t n_slots, uint64_t kv_bytes, struct kv_plan *out) WARN_UNUSED;

#endif
