/* cmd/tokenize: the subcommand's entry. Returns the exit status: 0, 1 failure, 2 usage. */
#ifndef BATON_CMD_TOKENIZE_H
#define BATON_CMD_TOKENIZE_H

int cmd_tokenize(int argc, char **argv);

#endif
