/* Chat templates as the rest of the program sees them: parsed once, rendered for each request,
 * tokenized with each byte's origin in mind. */
#include "text/internal.h"
#include "text/jinja.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum status chat_template_parse(const char *source, size_t len, struct chat_template **out)
{
    struct chat_template *t = memory_alloc(1, sizeof *t);
    struct token *tokens;
    enum status status = STATUS_NO_MEMORY;

    if (!t)
        return STATUS_NO_MEMORY;
    TRY_GOTO(done, jinja_lex(&t->arena, source, len, &tokens));
    TRY_GOTO(done, jinja_parse(t, tokens));
    *out = t;
    return STATUS_OK;
done:
    chat_template_destroy(&t);
    return status;
}

void chat_template_destroy(struct chat_template **pt)
{
    if (!*pt)
        return;
    arena_deinit(&(*pt)->arena);
    free(*pt);
    *pt = NULL;
}

enum status chat_template_render(const struct chat_template *t, const struct vocabulary *v,
                                 const struct json_t *variables, struct buffer *out,
                                 struct prompt_piece **pieces, uint32_t *n_pieces)
{
    return jinja_render(t, v, variables, (int64_t)time(NULL), out, pieces, n_pieces);
}

enum status chat_prompt_encode(const struct vocabulary *v, const struct json_t *variables,
                               uint32_t max_ids, uint32_t **ids, uint32_t *n_ids)
{
    struct prompt_piece *pieces = NULL;
    struct buffer text = {0};
    uint32_t n_pieces;
    struct id_list list = {*ids, *n_ids, *n_ids, max_ids};
    enum status status;

    if (v->template_error)
        return fail(STATUS_BAD_TEMPLATE, "%s", v->template_error);
    if (!v->chat_template)
        return fail(STATUS_BAD_TEMPLATE, "the model has no chat template");
    TRY_GOTO(done, chat_template_render(v->chat_template, v, variables, &text, &pieces, &n_pieces));
    status = encode_text(v, text.data, text.len, true, pieces, n_pieces, &list);
    *ids = list.ids; /* growing may have moved it, whatever came of it */
    if (status == STATUS_OK)
        *n_ids = list.n;
done:
    free(pieces);
    buffer_deinit(&text);
    return status;
}
