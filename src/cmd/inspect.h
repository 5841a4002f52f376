/* cmd/inspect: the subcommand's entry. Returns the exit status: 0, 1 failure, 2 usage. */
#ifndef BATON_CMD_INSPECT_H
#define BATON_CMD_INSPECT_H

int cmd_inspect(int argc, char **argv);

#endif
