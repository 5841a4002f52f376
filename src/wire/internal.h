/* What the files of wire/ share: reading and writing JSON fields and binary tails. */
#ifndef BATON_WIRE_INTERNAL_H
#define BATON_WIRE_INTERNAL_H

#include "wire/wire.h"

#include <jansson.h>

/* A message being read: its JSON, what is left of its tail, and its name for errors. */
struct wire_reader {
    const char *name;
    json_t *root;
    const uint8_t *tail;
    uint32_t tail_left;
};
enum status reader_open(const struct wire_frame *f, enum wire_type type,
                        struct wire_reader *r) WARN_UNUSED;
/* Gives s back unless a tail was left over; frees the JSON. */
enum status reader_close(struct wire_reader *r, enum status s) WARN_UNUSED;

/* Fields of an object. Absent fields leave *out as it is unless `required`. */
enum status read_u32(const struct wire_reader *r, const json_t *object, const char *field,
                     bool required, uint32_t *out) WARN_UNUSED;
enum status read_i64(const struct wire_reader *r, const json_t *object, const char *field,
                     bool required, int64_t *out) WARN_UNUSED;
enum status read_hex64(const struct wire_reader *r, const json_t *object, const char *field,
                       bool required, uint64_t *out) WARN_UNUSED;
enum status read_double(const struct wire_reader *r, const json_t *object, const char *field,
                        double *out) WARN_UNUSED;
enum status read_bool(const struct wire_reader *r, const json_t *object, const char *field,
                      bool *out) WARN_UNUSED;
/* Copied into out with its NUL; longer strings are refused. */
enum status read_string(const struct wire_reader *r, const json_t *object, const char *field,
                        bool required, char *out, size_t size) WARN_UNUSED;
enum status read_node_id(const struct wire_reader *r, const json_t *object, const char *field,
                         char out[NODE_ID_BYTES]) WARN_UNUSED;
enum status read_digest(const struct wire_reader *r, const json_t *object, const char *field,
                        uint8_t out[REQUEST_DIGEST_BYTES]) WARN_UNUSED;
enum status read_key(const struct wire_reader *r, const json_t *object, struct request_key *key,
                     uint32_t *attempt) WARN_UNUSED;
enum status read_status(const struct wire_reader *r, const json_t *object, const char *field,
                        enum status *out) WARN_UNUSED;
/* Arrays of the tail, copied. n comes from the JSON: checked against what the tail has before
 * anything is allocated. */
enum status read_u32s(struct wire_reader *r, struct arena *a, uint64_t n,
                      uint32_t **out) WARN_UNUSED;
enum status read_bytes(struct wire_reader *r, struct arena *a, uint64_t n, char **out) WARN_UNUSED;
enum status read_logprobs(struct wire_reader *r, const json_t *object, struct arena *a, uint32_t n,
                          bool *has, struct logprob_rows *out) WARN_UNUSED;

/* The plain form of CRC-32C, without the inversions at its ends: crc goes in and comes out as it
 * is. */
uint32_t crc32c_bytewise(uint32_t crc, const uint8_t *p, size_t len);

json_t *hex64_json(uint64_t v);
json_t *digest_json(const uint8_t digest[REQUEST_DIGEST_BYTES]);
void put_key(json_t *object, const struct request_key *key, uint32_t attempt);
void append_u32s(struct buffer *b, const uint32_t *v, size_t n);
void append_f32s(struct buffer *b, const float *v, size_t n);
/* Adds "n_top" to object and the rows to tail. */
void append_logprobs(json_t *object, struct buffer *tail, const struct logprob_rows *rows,
                     uint32_t n);
/* Takes root (NULL: out of memory) and writes the frame. */
enum status write_frame(struct buffer *out, enum wire_type type, json_t *root,
                        const struct buffer *tail) WARN_UNUSED;
enum status write_frame_text(struct buffer *out, enum wire_type type, const char *json,
                             size_t json_len, const struct buffer *tail) WARN_UNUSED;

#endif
