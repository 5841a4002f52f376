#include "text/internal.h"

enum status chat_template_parse(const char *source, size_t len, struct chat_template **out)
{
    return fail(STATUS_BAD_TEMPLATE, "chat templates are not there yet");
}
void chat_template_destroy(struct chat_template **t)
{
    *t = NULL;
}
