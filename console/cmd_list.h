/* cmd_list.h: every subcommand's entry, one line each; included by cmd.c and by the files that define them. */
#ifndef RANKSCOPE_CONSOLE_CMD_LIST_H
#define RANKSCOPE_CONSOLE_CMD_LIST_H

#include "console/cmd.h"

extern const struct cmd_entry cmd_attach_entry;
extern const struct cmd_entry cmd_audit_entry;
extern const struct cmd_entry cmd_bench_entry;
extern const struct cmd_entry cmd_calibrate_entry;
extern const struct cmd_entry cmd_chat_entry;
extern const struct cmd_entry cmd_completion_entry;
extern const struct cmd_entry cmd_devices_entry;
extern const struct cmd_entry cmd_engine_entry;
extern const struct cmd_entry cmd_logits_entry;
extern const struct cmd_entry cmd_man_entry;
extern const struct cmd_entry cmd_perplexity_entry;
extern const struct cmd_entry cmd_ps_entry;
extern const struct cmd_entry cmd_quantize_entry;
extern const struct cmd_entry cmd_serve_entry;
extern const struct cmd_entry cmd_stage_entry;
extern const struct cmd_entry cmd_stage_lua_entry;
extern const struct cmd_entry cmd_stop_entry;
extern const struct cmd_entry cmd_synth_entry;
extern const struct cmd_entry cmd_tokens_entry;
extern const struct cmd_entry cmd_top_entry;
extern const struct cmd_entry cmd_version_entry;

#endif
