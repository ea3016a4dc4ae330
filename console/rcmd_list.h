/* rcmd_list.h: every console command's entry, one line each; included by rcmd.c and by the files that define them. */
#ifndef RANKSCOPE_CONSOLE_RCMD_LIST_H
#define RANKSCOPE_CONSOLE_RCMD_LIST_H

#include "console/rcmd.h"

extern const struct rcmd_entry rcmd_allreduce_entry;
extern const struct rcmd_entry rcmd_audit_entry;
extern const struct rcmd_entry rcmd_bind_entry;
extern const struct rcmd_entry rcmd_bisect_entry;
extern const struct rcmd_entry rcmd_branch_entry;
extern const struct rcmd_entry rcmd_break_entry;
extern const struct rcmd_entry rcmd_claim_entry;
extern const struct rcmd_entry rcmd_continue_entry;
extern const struct rcmd_entry rcmd_control_entry;
extern const struct rcmd_entry rcmd_copy_entry;
extern const struct rcmd_entry rcmd_detach_entry;
extern const struct rcmd_entry rcmd_diff_entry;
extern const struct rcmd_entry rcmd_exp_entry;
extern const struct rcmd_entry rcmd_experts_entry;
extern const struct rcmd_entry rcmd_fork_entry;
extern const struct rcmd_entry rcmd_health_entry;
extern const struct rcmd_entry rcmd_help_entry;
extern const struct rcmd_entry rcmd_info_entry;
extern const struct rcmd_entry rcmd_layout_entry;
extern const struct rcmd_entry rcmd_ledger_entry;
extern const struct rcmd_entry rcmd_lens_entry;
extern const struct rcmd_entry rcmd_load_entry;
extern const struct rcmd_entry rcmd_lua_entry;
extern const struct rcmd_entry rcmd_max_entry;
extern const struct rcmd_entry rcmd_min_p_entry;
extern const struct rcmd_entry rcmd_mode_entry;
extern const struct rcmd_entry rcmd_new_entry;
extern const struct rcmd_entry rcmd_next_entry;
extern const struct rcmd_entry rcmd_notebook_entry;
extern const struct rcmd_entry rcmd_open_entry;
extern const struct rcmd_entry rcmd_patch_entry;
extern const struct rcmd_entry rcmd_poke_entry;
extern const struct rcmd_entry rcmd_print_entry;
extern const struct rcmd_entry rcmd_quit_entry;
extern const struct rcmd_entry rcmd_ranks_entry;
extern const struct rcmd_entry rcmd_replay_entry;
extern const struct rcmd_entry rcmd_restart_entry;
extern const struct rcmd_entry rcmd_retest_entry;
extern const struct rcmd_entry rcmd_retry_entry;
extern const struct rcmd_entry rcmd_rewind_entry;
extern const struct rcmd_entry rcmd_run_entry;
extern const struct rcmd_entry rcmd_save_entry;
extern const struct rcmd_entry rcmd_seed_entry;
extern const struct rcmd_entry rcmd_serve_entry;
extern const struct rcmd_entry rcmd_set_entry;
extern const struct rcmd_entry rcmd_snapshot_entry;
extern const struct rcmd_entry rcmd_spec_entry;
extern const struct rcmd_entry rcmd_stats_entry;
extern const struct rcmd_entry rcmd_step_entry;
extern const struct rcmd_entry rcmd_system_entry;
extern const struct rcmd_entry rcmd_tap_entry;
extern const struct rcmd_entry rcmd_temp_entry;
extern const struct rcmd_entry rcmd_theme_entry;
extern const struct rcmd_entry rcmd_think_entry;
extern const struct rcmd_entry rcmd_top_k_entry;
extern const struct rcmd_entry rcmd_top_p_entry;
extern const struct rcmd_entry rcmd_triage_entry;
extern const struct rcmd_entry rcmd_untap_entry;
extern const struct rcmd_entry rcmd_watch_entry;
extern const struct rcmd_entry rcmd_weights_entry;
extern const struct rcmd_entry rcmd_where_entry;

#endif
