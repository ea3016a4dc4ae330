/* rcmd_notebook.c: /exp, /bisect, /claim, /retest, /notebook, /triage, /weights: what they do is lua/commands.lua's business, on the console's Lua state. */
#include "config.h"

#include "console/rcmd_list.h"
#include "console/rcmd_lua.h"

static enum rs_result exec(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    return rcmd_lua_call(con, self->name, args, err);
}

const struct rcmd_entry rcmd_exp_entry = {
    .name = "exp",
    .group = RCMD_CAUSES,
    .args = "FACTOR=LEVEL,LEVEL... [repeats=N] [: QUESTION; QUESTION...]",
    .summary = "try every combination and say which factor matters",
    .help = "Factors are patch slots, mode, ranks and numerics; the first level of each is what the others are held against. All arms run on the loaded "
            "model, in turns; what they change is put back. The result is kept in the notebook. Ctrl-C stops it.\n"
            "Example: /exp slot_order=slot,file mla=absorbed,off mode=eager,graph : What is the capital of France?",
    .complete = RCMD_COMPLETE_LEVELS,
    .exec = exec,
};

const struct rcmd_entry rcmd_bisect_entry = {
    .name = "bisect",
    .group = RCMD_CAUSES,
    .args = "[SLOT=IMPL...] [: QUESTION]",
    .summary = "find the smallest set of patches that changes the answer",
    .help = "Without patches: those that are set now. An answer is bad when its tokens are not those that the model gives with all slots at their defaults.",
    .complete = RCMD_COMPLETE_CONFIG,
    .exec = exec,
};

const struct rcmd_entry rcmd_claim_entry = {
    .name = "claim",
    .group = RCMD_CAUSES,
    .lists = true,
    .args = "[add STATEMENT; QUESTION; ANSWER; CONFIG: right|wrong; ...]",
    .summary = "list claims, or record one with the steps that establish it",
    .help = "A step is a configuration (slot=impl ..., or default) and whether the answer to the question must then be right or wrong. Steps are run when the "
            "claim is made and by /retest.\n"
            "Example: /claim add the attention op is to blame; What is the capital of France?; The capital of France is Paris.; default: wrong; mla=off: right",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "add",
    .exec = exec,
};

const struct rcmd_entry rcmd_retest_entry = {
    .name = "retest",
    .group = RCMD_CAUSES,
    .args = "[ID|all]",
    .summary = "run claims again under the present configuration",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "all",
    .exec = exec,
};

const struct rcmd_entry rcmd_notebook_entry = {
    .name = "notebook",
    .group = RCMD_CAUSES,
    .lists = true,
    .args = "[FILE.md | task|done|hypothesis|resolve ...]",
    .summary = "claims, hypotheses, tasks, experiments: write down, export",
    .help = "/notebook shows everything, /notebook FILE.md writes it to a file. /notebook task TEXT, /notebook done ID, /notebook hypothesis TEXT, "
            "/notebook resolve ID supported|refuted|superseded|open.",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "task|done|hypothesis|resolve",
    .exec = exec,
};

const struct rcmd_entry rcmd_weights_entry = {
    .name = "weights",
    .group = RCMD_MODEL,
    .lists = true,
    .args = "[list [GLOB] | load GLOB from FILE.gguf]",
    .summary = "take tensors of the loaded model from another file",
    .help = "load replaces every tensor whose name matches GLOB by that of the same name in another model file, between two steps. Types may differ, shapes "
            "may not. It is a patch like others: /patch revert takes it back, /patch list shows it. list shows what tensors there are and where they come from.\n"
            "Example: /weights load blk.3.ffn_down* from other.gguf",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "list|load",
    .exec = exec,
};

const struct rcmd_entry rcmd_triage_entry = {
    .name = "triage",
    .group = RCMD_CAUSES,
    .args = "[PROMPT]",
    .summary = "find the op that makes the output bad",
    .help = "Checks what eliminates most per second first: health, hyper-parameters, every op against the reference on its own inputs, ranks, cache, eager "
            "against graph, other implementations. Ends with a verdict and what it rests on.",
    .exec = exec,
};
