/* Any template over a conversation: an error or a text whose pieces cover it. The input is the
 * template; a NUL byte in it ends it, and what follows is the user's content. */
#include "text/text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static json_t *conversation(const uint8_t *content, size_t len)
{
    static const char rest[] = "{\"tools\": [{\"type\": \"function\", \"function\": {\"name\": "
                               "\"f\", \"parameters\": {\"properties\": {\"a\": "
                               "{\"type\": \"string\", \"n\": 1.5}}}}}], "
                               "\"add_generation_prompt\": true, \"none\": null, \"l\": [3, 1, 2]}";
    json_t *variables = json_loads(rest, 0, NULL), *text = json_stringn((const char *)content, len);

    if (!text)
        text = json_string("caf\xc3\xa9 <|im_end|> x");
    json_object_set_new(variables, "messages",
                        json_pack("[{s:s,s:s},{s:s,s:o}]", "role", "system", "content", "You are.",
                                  "role", "user", "content", text));
    return variables;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data, 0, size);
    size_t len = end ? (size_t)(end - data) : size;
    struct chat_template *t;
    struct prompt_piece *pieces = NULL;
    struct buffer out = {0};
    uint32_t n_pieces = 0, covered = 0;

    if (size > 20000 || chat_template_parse((const char *)data, len, &t) != STATUS_OK)
        return 0;
    json_t *variables = conversation(end ? end + 1 : data, end ? size - len - 1 : 0);
    if (chat_template_render(t, NULL, variables, &out, &pieces, &n_pieces) == STATUS_OK) {
        for (uint32_t i = 0; i < n_pieces; i++) {
            if (pieces[i].start != covered || pieces[i].len == 0)
                abort();
            covered += pieces[i].len;
        }
        if (covered != out.len)
            abort();
    }
    free(pieces);
    buffer_deinit(&out);
    json_decref(variables);
    chat_template_destroy(&t);
    return 0;
}
