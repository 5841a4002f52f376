/* baton: `baton COMMAND ...`; under the name baton-server it is `baton serve`. */
#include "cmd/cmd.h"
#include "cmd/inspect.h"
#include "cmd/tokenize.h"

#include "base/checked.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    bool name_included; /* its argv starts with its name */
    const char *help;
} commands[] = {
    {"serve", cmd_serve, false, "the server: hybrid, prefill, decode or router"},
    {"run", cmd_run, false, "answers one prompt on the terminal"},
    {"tokenize", cmd_tokenize, true, "text to ids, and back"},
    {"inspect", cmd_inspect, true, "what is in a model file, and the memory it takes"},
    {"score", cmd_score, false, "log-probabilities of given ids"},
    {"bench", cmd_bench, false, "prefill and decode speed"},
    {"cluster", cmd_cluster, false, "certificates for the nodes of a cluster"},
};

static int help(FILE *out, int code)
{
    fprintf(out,
            "baton %s: a language-model server whose heart is disaggregated serving\n\nusage: "
            "baton COMMAND [flags]\n\n",
            BATON_VERSION);
    for (size_t i = 0; i < ARRAY_LENGTH(commands); i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\nbaton COMMAND --help says more. A first run: make model, then\n"
                 "  baton serve -m models/SmolLM2-135M-Instruct.Q4_1.gguf\n");
    return code;
}

int main(int argc, char **argv)
{
    const char *program = strrchr(argv[0], '/');

    program = program ? program + 1 : argv[0];
    signal(SIGPIPE, SIG_IGN);
    if (!strcmp(program, "baton-server"))
        return cmd_serve(argc - 1, argv + 1);
    if (argc < 2)
        return help(stderr, EXIT_USAGE);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
        return help(stdout, 0);
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
        printf("baton %s\n", BATON_VERSION);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LENGTH(commands); i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 2 + commands[i].name_included,
                                   argv + 2 - commands[i].name_included);
    fprintf(stderr, "baton: unknown command %s\n\n", argv[1]);
    return help(stderr, EXIT_USAGE);
}
