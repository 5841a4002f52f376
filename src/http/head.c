/* One request's head. llhttp is strict about framing (a length given twice, or beside chunks, is
 * refused); what it lets pass and other readers of the same bytes may take differently is refused
 * here, before it sees them: line ends that are not CRLF, folded lines, NULs. */
#include "http/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum head_scan head_scan(const char *data, size_t from, size_t len, size_t *end)
{
    for (size_t i = from; i < len; i++) {
        char ch = data[i];

        if (ch == '\0')
            return HEAD_BAD;
        if (i > 0 && data[i - 1] == '\r' && ch != '\n')
            return HEAD_BAD;
        if (ch != '\n')
            continue;
        if (i == 0 || data[i - 1] != '\r')
            return HEAD_BAD;
        if (i >= 3 && data[i - 2] == '\n') {
            *end = i + 1;
            return HEAD_WHOLE;
        }
        if (i + 1 < len && strchr(" \t:", data[i + 1]) != NULL)
            return HEAD_BAD; /* a folded line, or a header without a name; NUL is in there, too */
    }
    return HEAD_PARTIAL;
}

/* ---- llhttp's callbacks: all spans lie in x->head, so they are kept as pointers ---- */

static void extend(char **start, size_t *len, const char *at, size_t length)
{
    if (*start == NULL)
        *start = (char *)at;
    *len = (size_t)(at + length - *start);
}

static int on_url(llhttp_t *p, const char *at, size_t length)
{
    struct http_conn *c = p->data;

    extend(&c->x->target, &c->x->target_len, at, length);
    return 0;
}

static int on_header_field(llhttp_t *p, const char *at, size_t length)
{
    struct http_conn *c = p->data;
    struct http_exchange *x = c->x;
    struct http_header *h;

    if (c->headers_done)
        return 0; /* a trailer */
    if (x->n_headers == 0 || x->headers[x->n_headers - 1].value != NULL) {
        if (x->n_headers == x->max_headers) {
            x->too_many_headers = true;
            return -1;
        }
        x->n_headers++;
    }
    h = &x->headers[x->n_headers - 1];
    extend(&h->name, &h->name_len, at, length);
    return 0;
}

static int on_header_value(llhttp_t *p, const char *at, size_t length)
{
    struct http_conn *c = p->data;
    struct http_header *h;

    if (c->headers_done)
        return 0;
    if (c->x->n_headers == 0)
        return -1;
    h = &c->x->headers[c->x->n_headers - 1];
    extend(&h->value, &h->value_len, at, length);
    return 0;
}

static int on_headers_complete(llhttp_t *p)
{
    struct http_conn *c = p->data;

    c->headers_done = true;
    c->x->keep_alive = llhttp_should_keep_alive(p);
    c->x->content_length = (p->flags & F_CONTENT_LENGTH) ? p->content_length : 0;
    return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t length)
{
    struct http_conn *c = p->data;
    struct buffer *body = &c->x->body;

    if (length > c->server->limits.max_body_bytes - body->len) {
        c->body_too_large = true;
        return -1;
    }
    buffer_append(body, at, length);
    return body->failed ? -1 : 0;
}

static int on_message_complete(llhttp_t *p)
{
    struct http_conn *c = p->data;

    c->message_done = true;
    return HPE_PAUSED; /* what follows belongs to the next request */
}

const llhttp_settings_t http_parser_settings = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

/* ---- what the head says ---- */

static enum status set_method(struct http_exchange *x, unsigned method)
{
    switch (method) {
    case HTTP_HEAD:
        x->is_head = true;
        x->method = HTTP_METHOD_GET;
        break;
    case HTTP_GET:
        x->method = HTTP_METHOD_GET;
        break;
    case HTTP_POST:
        x->method = HTTP_METHOD_POST;
        break;
    case HTTP_PUT:
        x->method = HTTP_METHOD_PUT;
        break;
    case HTTP_DELETE:
        x->method = HTTP_METHOD_DELETE;
        break;
    case HTTP_PATCH:
        x->method = HTTP_METHOD_PATCH;
        break;
    case HTTP_OPTIONS:
        x->is_options = true;
        break;
    default:
        return fail(STATUS_METHOD_NOT_ALLOWED, "method %s is not served",
                    llhttp_method_name((llhttp_method_t)method));
    }
    return STATUS_OK;
}

/* Splits the target. An absolute one ("http://host/path", as through a proxy) loses what is in
 * front of its path. */
static enum status set_target(struct http_exchange *x)
{
    char *mark;

    if (x->target == NULL)
        return fail(STATUS_BAD_REQUEST, "the request has no target");
    x->target[x->target_len] = '\0';
    x->path = x->target;
    if (*x->path != '/' && strcmp(x->path, "*") != 0) {
        char *authority = strstr(x->path, "://");

        if (authority == NULL)
            return fail(STATUS_BAD_REQUEST, "the request's target is not a path");
        x->path = strpbrk(authority + 3, "/?");
        if (x->path == NULL || *x->path == '?')
            return fail(STATUS_BAD_REQUEST, "the request's target has no path");
    }
    x->query = "";
    mark = strchr(x->path, '#');
    if (mark != NULL)
        *mark = '\0';
    mark = strchr(x->path, '?');
    if (mark != NULL) {
        *mark = '\0';
        x->query = mark + 1;
    }
    return STATUS_OK;
}

enum status head_finish(struct http_exchange *x, const llhttp_t *parser)
{
    uint32_t n_hosts = 0;
    const char *value;

    for (uint32_t i = 0; i < x->n_headers; i++) {
        struct http_header *h = &x->headers[i];

        h->name[h->name_len] = '\0'; /* was ':' */
        if (h->value == NULL)
            h->value = "";
        else {
            while (h->value_len > 0 && strchr(" \t", h->value[h->value_len - 1]) != NULL)
                h->value_len--;
            h->value[h->value_len] = '\0'; /* was CR or a space */
        }
        n_hosts += strcasecmp(h->name, "host") == 0;
    }
    x->http10 = parser->http_major == 1 && parser->http_minor == 0;
    if (parser->http_major != 1 || parser->http_minor > 1)
        return fail(STATUS_BAD_REQUEST, "HTTP/%u.%u is not spoken here; HTTP/1.1 is",
                    parser->http_major, parser->http_minor);
    TRY(set_method(x, parser->method));
    TRY(set_target(x));
    if (n_hosts > 1 || (n_hosts == 0 && !x->http10))
        return fail(STATUS_BAD_REQUEST, "the request has %u Host headers; exactly one is required",
                    n_hosts);
    if (x->http10 && http_exchange_header(x, "transfer-encoding") != NULL)
        return fail(STATUS_BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding");
    value = http_exchange_header(x, "expect");
    if (value != NULL && !x->http10) {
        if (strcasecmp(value, "100-continue") != 0)
            return fail(STATUS_BAD_REQUEST, "the only expectation met is 100-continue");
        x->expect_continue = true;
    }
    value = http_exchange_header(x, "content-encoding");
    if (value != NULL && *value != '\0' && strcasecmp(value, "identity") != 0)
        return fail(STATUS_UNSUPPORTED_MEDIA,
                    "a body with Content-Encoding is not read; send it as it is");
    return STATUS_OK;
}

/* ---- routes ---- */

static bool path_fits(const char *pattern, const char *path)
{
    size_t len = strlen(pattern);

    if (len > 0 && pattern[len - 1] == '*')
        return strncmp(pattern, path, len - 1) == 0;
    return strcmp(pattern, path) == 0;
}

const struct http_route *route_find(const struct http_server *s, const struct http_exchange *x,
                                    char allowed[64])
{
    unsigned methods = 0;

    allowed[0] = '\0';
    for (uint32_t i = 0; i < s->n_routes; i++) {
        if (!path_fits(s->routes[i].path, x->path))
            continue;
        if (s->routes[i].methods & x->method)
            return &s->routes[i];
        methods |= s->routes[i].methods;
    }
    if (methods != 0)
        snprintf(allowed, 64, "%s%s%s%s%sOPTIONS", methods & HTTP_METHOD_GET ? "GET, HEAD, " : "",
                 methods & HTTP_METHOD_POST ? "POST, " : "",
                 methods & HTTP_METHOD_PUT ? "PUT, " : "",
                 methods & HTTP_METHOD_DELETE ? "DELETE, " : "",
                 methods & HTTP_METHOD_PATCH ? "PATCH, " : "");
    return NULL;
}
