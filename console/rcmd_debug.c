/* rcmd_debug.c: looking inside: taps, watchpoints, breakpoints, comparisons. What resumes the engine is here, because an answer may wait for it; the rest is
 * lua/commands.lua's business. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/chat.h"
#include "console/fail.h"
#include "console/rcmd_list.h"
#include "console/rcmd_lua.h"

static enum rs_result by_lua(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    return rcmd_lua_call(con, self->name, args, err);
}

static enum rs_result exec_go(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    json_t *a = json_object();
    if (*args != '\0') {
        char *end;
        long n = strtol(args, &end, 10);
        if (*end != '\0' || n < 1) {
            json_decref(a);
            return rcmd_usage(self, err);
        }
        json_object_set_new(a, "n", json_integer(n));
    }
    snprintf(con->again, sizeof con->again, "/%s %.10s", self->name, args);
    return chat_go_on(con, self->name, a, err);
}

const struct rcmd_entry rcmd_continue_entry = {
    .name = "continue", .also = "c cont", .group = RCMD_DEBUGGER, .args = "", .summary = "let a stopped engine run on", .exec = exec_go,
};
const struct rcmd_entry rcmd_step_entry = {
    .name = "step", .also = "s", .group = RCMD_DEBUGGER, .args = "[N]", .summary = "run the next op, or N, and stop again",
    .help = "Runs the next op, or N, and stops again. While the engine is held, an empty line repeats /step, /next or /continue.", .exec = exec_go,
};
const struct rcmd_entry rcmd_next_entry = {
    .name = "next", .also = "n", .group = RCMD_DEBUGGER, .args = "", .summary = "run to the first op of the next layer", .exec = exec_go,
};
const struct rcmd_entry rcmd_where_entry = {
    .name = "where", .group = RCMD_DEBUGGER, .args = "", .summary = "where the engine is stopped", .exec = by_lua,
};
const struct rcmd_entry rcmd_tap_entry = {
    .name = "tap",
    .group = RCMD_FIGURES,
    .lists = true,
    .args = "[SITES] [stats|hash|values N|save FILE.npy] [rank R]",
    .summary = "keep statistics of what ops write, or show what was kept",
    .help = "SITES is a glob, as in blk.*.attn.out, or a bare name: allreduce is *.allreduce. Steps stay graphs and tokens the same. /tap alone shows the last step of every tapped site; /untap takes taps "
            "away. save writes the whole tensor of the next step that is shown.",
    .complete = RCMD_COMPLETE_SITES,
    .later = "stats|hash|values|save|rank",
    .exec = by_lua,
};
const struct rcmd_entry rcmd_untap_entry = {
    .name = "untap", .group = RCMD_FIGURES, .args = "[SITES]", .summary = "take taps away", .complete = RCMD_COMPLETE_SITES, .exec = by_lua,
};
const struct rcmd_entry rcmd_watch_entry = {
    .name = "watch",
    .group = RCMD_FIGURES,
    .lists = true,
    .args = "[SITES if CONDITION [stop] | del [ID]]",
    .summary = "watch for trouble in what ops write",
    .help = "CONDITION: nan, inf, allzero, constant, absmax>X, drift>X, rankdiff. A hit is told here; with stop it holds the engine. /watch alone lists them.",
    .complete = RCMD_COMPLETE_SITES,
    .words = "del",
    .later = "if|nan|inf|allzero|constant|absmax>|drift>|rankdiff|stop|rank",
    .exec = by_lua,
};
const struct rcmd_entry rcmd_break_entry = {
    .name = "break",
    .also = "b",
    .group = RCMD_DEBUGGER,
    .lists = true,
    .args = "[SITES [before|after] [if COND] [rank R] | del [ID]]",
    .summary = "stop at ops",
    .help = "SITES is a glob, as in blk.2.*, or a bare name: allreduce is *.allreduce. COND is an expression over step, pos, token, rows, prompt, layer, op, rank, min, max, absmax, mean, rms, zeros, nan, inf. Steps run eager while a "
            "breakpoint is armed. While the engine is stopped: /where, /print, /poke, /step, /next, /continue. /break alone lists them.",
    .complete = RCMD_COMPLETE_SITES,
    .words = "del",
    .later = "before|after|if|rank",
    .exec = by_lua,
};
const struct rcmd_entry rcmd_print_entry = {
    .name = "print",
    .also = "p",
    .group = RCMD_DEBUGGER,
    .lists = true,
    .args = "[SITE[RANK][ROWS:COLS]]",
    .summary = "what an op has written",
    .help = "While a step is held, /print alone shows what the last op wrote, /print mla what the last op of that name did. As in /print blk.0.attn.out, /print blk.0.attn.out[1] for rank 1, /print blk.0.attn.out[][0:2:0:8] for rows 0 and 1, columns 0 to 7. "
            "A part that is named so is shown whole, else the first rows and columns are; outside of a step, what the last step left there.",
    .complete = RCMD_COMPLETE_SITE,
    .exec = by_lua,
};
const struct rcmd_entry rcmd_poke_entry = {
    .name = "poke",
    .group = RCMD_DEBUGGER,
    .args = "SITE[RANK][ROWS:COLS] VALUE",
    .summary = "overwrite a tensor while the engine is stopped",
    .help = "Every value of the part gets VALUE: a number, nan, inf or -inf. Works while a breakpoint holds the engine inside a step.",
    .complete = RCMD_COMPLETE_SITE,
    .exec = by_lua,
};
const struct rcmd_entry rcmd_diff_entry = {
    .name = "diff",
    .group = RCMD_CAUSES,
    .lists = true,
    .args = "A B [-p PROMPT]",
    .summary = "run two configurations on the same tokens and compare every op",
    .help = "A and B: settings and patches joined by commas, or default, or file:PATH for a dump: /diff mode=eager mode=graph; /diff default matmul=f32,cache=f32.",
    .complete = RCMD_COMPLETE_CONFIG,
    .words = "default",
    .exec = by_lua,
};
const struct rcmd_entry rcmd_replay_entry = {
    .name = "replay",
    .group = RCMD_CAUSES,
    .args = "[PROMPT]",
    .summary = "every op against the reference on its own inputs",
    .exec = by_lua,
};
const struct rcmd_entry rcmd_lens_entry = {
    .name = "lens", .group = RCMD_FIGURES, .lists = true, .args = "[PROMPT]", .summary = "what the model would say after each layer", .exec = by_lua,
};
const struct rcmd_entry rcmd_experts_entry = {
    .name = "experts", .group = RCMD_FIGURES, .lists = true, .args = "[PROMPT]", .summary = "which experts the routers choose, and how evenly", .exec = by_lua,
};
