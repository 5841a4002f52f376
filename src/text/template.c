/* Chat templates as the rest of the program sees them: parsed once, rendered for each request,
 * tokenized with each byte's origin in mind. */
#include "base/checked.h"
#include "text/internal.h"
#include "text/jinja.h"

#include <jansson.h>
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

/* What a chat has in Hugging Face's apply_chat_template() even when nobody gave it: None, not
 * undefined. Owner: the caller. NULL without memory. */
static json_t *with_defaults(const json_t *variables)
{
    static const char *const names[] = {"tools", "documents"};
    json_t *all = json_copy((json_t *)(uintptr_t)variables);

    for (size_t i = 0; all && i < ARRAY_LENGTH(names); i++)
        if (!json_object_get(all, names[i]))
            json_object_set_new(all, names[i], json_null());
    return all;
}

enum status chat_prompt_encode(const struct vocabulary *v, const struct json_t *variables,
                               uint32_t max_ids, uint32_t **ids, uint32_t *n_ids)
{
    struct prompt_piece *pieces = NULL;
    struct buffer text = {0};
    uint32_t n_pieces;
    struct id_list list = {*ids, *n_ids, *n_ids, max_ids};
    json_t *all = NULL;
    enum status status;

    if (v->template_error)
        return fail(STATUS_BAD_TEMPLATE, "%s", v->template_error);
    if (!v->chat_template)
        return fail(STATUS_BAD_TEMPLATE, "the model has no chat template");
    all = with_defaults(variables);
    if (!all)
        return fail(STATUS_NO_MEMORY, "no memory for a template's variables");
    TRY_GOTO(done, chat_template_render(v->chat_template, v, all, &text, &pieces, &n_pieces));
    status = encode_text(v, text.data, text.len, true, pieces, n_pieces, &list);
    *ids = list.ids; /* growing may have moved it, whatever came of it */
    if (status == STATUS_OK)
        *n_ids = list.n;
done:
    json_decref(all);
    free(pieces);
    buffer_deinit(&text);
    return status;
}
