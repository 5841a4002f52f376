#include "net/certificate.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

enum { SLACK_S = 3600 }; /* clocks of two hosts may differ */

static enum status openssl_failed(void)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());

    return fail(STATUS_INTERNAL, "OpenSSL: %s", reason ? reason : "it does not say why");
}

/* ---- PEM ---- */

static enum status append_pem(BIO *bio, int written, struct buffer *out)
{
    char *data;
    const long len = BIO_get_mem_data(bio, &data);

    if (written != 1 || len <= 0)
        return openssl_failed();
    buffer_append(out, data, (size_t)len);
    return buffer_status(out);
}

static enum status write_pair(X509 *cert, EVP_PKEY *key, struct buffer *out_cert,
                              struct buffer *out_key)
{
    BIO *c = BIO_new(BIO_s_mem()), *k = BIO_new(BIO_s_secmem());
    enum status status = c && k ? STATUS_OK : openssl_failed();

    if (status == STATUS_OK)
        status = append_pem(c, PEM_write_bio_X509(c, cert), out_cert);
    if (status == STATUS_OK)
        status =
            append_pem(k, PEM_write_bio_PrivateKey(k, key, NULL, NULL, 0, NULL, NULL), out_key);
    BIO_free(c);
    BIO_free(k);
    return status;
}

struct authority {
    X509 *cert;
    EVP_PKEY *key;
};

static void authority_close(struct authority *a)
{
    X509_free(a->cert);
    EVP_PKEY_free(a->key);
}

static enum status authority_open(const char *cert, const char *key, struct authority *out)
{
    BIO *c = BIO_new_mem_buf(cert, -1), *k = BIO_new_mem_buf(key, -1);
    struct authority a = {.cert = PEM_read_bio_X509(c, NULL, NULL, NULL),
                          .key = PEM_read_bio_PrivateKey(k, NULL, NULL, (char *)"")};

    BIO_free(c);
    BIO_free(k);
    if (!a.cert || !a.key || X509_check_private_key(a.cert, a.key) != 1 ||
        X509_check_ca(a.cert) != 1) {
        authority_close(&a);
        return fail(STATUS_USAGE, "this is no authority's certificate with its key");
    }
    *out = a;
    return STATUS_OK;
}

/* ---- certificates ---- */

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;

    X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    const bool added = e && X509_add_ext(cert, e, -1) == 1;
    X509_EXTENSION_free(e);
    return added;
}

static bool add_serial(X509 *cert)
{
    unsigned char bytes[16];
    BIGNUM *n;

    if (RAND_bytes(bytes, sizeof bytes) != 1)
        return false;
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    n = BN_bin2bn(bytes, sizeof bytes, NULL);
    const bool added = n && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(cert));
    BN_free(n);
    return added;
}

/* What all have in common. issuer NULL: its own. */
static X509 *begin(const char *organisation, const char *common_name, EVP_PKEY *key, X509 *issuer,
                   int64_t from_s, int64_t until_s)
{
    X509 *cert = X509_new();
    X509_NAME *name = cert ? X509_get_subject_name(cert) : NULL;

    if (cert && X509_set_version(cert, X509_VERSION_3) && add_serial(cert) &&
        X509_gmtime_adj(X509_getm_notBefore(cert), (long)from_s) &&
        X509_gmtime_adj(X509_getm_notAfter(cert), (long)until_s) && X509_set_pubkey(cert, key) &&
        X509_NAME_add_entry_by_txt(name, "O", MBSTRING_UTF8, (const unsigned char *)organisation,
                                   -1, -1, 0) &&
        X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)common_name,
                                   -1, -1, 0) &&
        X509_set_issuer_name(cert, issuer ? X509_get_subject_name(issuer) : name))
        return cert;
    X509_free(cert);
    return NULL;
}

enum status certificate_make_authority(const char *cluster, int64_t days, struct buffer *out_cert,
                                       struct buffer *out_key)
{
    char common_name[80];
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = NULL;
    enum status status;

    ERR_clear_error();
    snprintf(common_name, sizeof common_name, "%.50s authority", cluster);
    if (key)
        cert = begin("baton", common_name, key, NULL, -SLACK_S, days * 86400);
    if (cert && add_extension(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
        add_extension(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign") &&
        add_extension(cert, cert, NID_subject_key_identifier, "hash") &&
        X509_sign(cert, key, EVP_sha256()))
        status = write_pair(cert, key, out_cert, out_key);
    else
        status = openssl_failed();
    X509_free(cert);
    EVP_PKEY_free(key);
    return status;
}

static enum status issue(const char *authority_cert, const char *authority_key,
                         const char *common_name, const char *alternative_names, int64_t from_s,
                         int64_t until_s, struct buffer *out_cert, struct buffer *out_key)
{
    struct authority a;
    EVP_PKEY *key;
    X509 *cert = NULL;
    enum status status;

    ERR_clear_error();
    TRY(authority_open(authority_cert, authority_key, &a));
    key = EVP_EC_gen("P-256");
    if (key)
        cert = begin("baton", common_name, key, a.cert, from_s, until_s);
    if (cert && add_extension(cert, a.cert, NID_basic_constraints, "critical,CA:FALSE") &&
        add_extension(cert, a.cert, NID_key_usage, "critical,digitalSignature") &&
        add_extension(cert, a.cert, NID_ext_key_usage, "serverAuth,clientAuth") &&
        add_extension(cert, a.cert, NID_subject_alt_name, alternative_names) &&
        add_extension(cert, a.cert, NID_authority_key_identifier, "keyid") &&
        X509_sign(cert, a.key, EVP_sha256()))
        status = write_pair(cert, key, out_cert, out_key);
    else
        status = openssl_failed();
    X509_free(cert);
    EVP_PKEY_free(key);
    authority_close(&a);
    return status;
}

enum status certificate_issue(const char *authority_cert, const char *authority_key,
                              const struct net_identity *who, int64_t from_s, int64_t until_s,
                              struct buffer *cert, struct buffer *key)
{
    char uri[192], names[200];

    TRY(net_identity_write(who, uri));
    snprintf(names, sizeof names, "URI:%s", uri);
    return issue(authority_cert, authority_key, who->node_id, names, from_s, until_s, cert, key);
}

enum status certificate_issue_server(const char *authority_cert, const char *authority_key,
                                     const char *names, int64_t days, struct buffer *cert,
                                     struct buffer *key)
{
    struct buffer list = {0};
    enum status status = STATUS_OK;

    for (const char *at = names; *at && status == STATUS_OK;) {
        const size_t len = strcspn(at, ",");
        char name[128], address[16];
        if (len == 0 || len >= sizeof name ||
            strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-*:") <
                len) {
            status = fail(STATUS_USAGE, "\"%s\" is no list of host names and addresses", names);
            break;
        }
        snprintf(name, sizeof name, "%.*s", (int)len, at);
        buffer_printf(&list, "%s%s:%s", list.len ? "," : "",
                      inet_pton(AF_INET, name, address) == 1 ||
                              inet_pton(AF_INET6, name, address) == 1
                          ? "IP"
                          : "DNS",
                      name);
        at += len + (at[len] == ',');
    }
    if (status == STATUS_OK)
        status = list.len ? buffer_status(&list) : fail(STATUS_USAGE, "no host name is given");
    if (status == STATUS_OK)
        status = issue(authority_cert, authority_key, "baton", list.data, -SLACK_S, days * 86400,
                       cert, key);
    buffer_deinit(&list);
    return status;
}
