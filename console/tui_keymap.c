#include "config.h"

#include "console/tui_keymap.h"

#include <stddef.h>

const struct tui_binding tui_keymap[] = {
    /* Special places first: the first row that fits wins. */
    {TUI_IN_OVERLAY, "Escape", TUI_DO_CLOSE, 0, "close this", "close"},
    {TUI_IN_OVERLAY, "q", TUI_DO_CLOSE, 0, NULL, NULL},
    {TUI_IN_OVERLAY, "Enter", TUI_DO_CLOSE, 0, NULL, NULL},
    {TUI_IN_OVERLAY, "F1", TUI_DO_CLOSE, 0, NULL, NULL},
    {TUI_IN_OVERLAY, "?", TUI_DO_CLOSE, 0, NULL, NULL},
    {TUI_IN_OP, "b", TUI_DO_BREAK, 0, "stop the engine after this op in every step, or let it run", "break"},
    {TUI_IN_OP, "t", TUI_DO_TAP, 0, "observe its output in every step, or stop that", "tap"},
    {TUI_IN_OVERLAY, "Down", TUI_DO_MOVE, 1, "down and up", "scroll"},
    {TUI_IN_OVERLAY, "j", TUI_DO_MOVE, 1, NULL, NULL},
    {TUI_IN_OVERLAY, "Up", TUI_DO_MOVE, -1, NULL, NULL},
    {TUI_IN_OVERLAY, "k", TUI_DO_MOVE, -1, NULL, NULL},
    {TUI_IN_OVERLAY, "PageDown", TUI_DO_PAGE, 1, NULL, NULL},
    {TUI_IN_OVERLAY, "PageUp", TUI_DO_PAGE, -1, NULL, NULL},
    {TUI_IN_OVERLAY, "Home", TUI_DO_HOME, 0, NULL, NULL},
    {TUI_IN_OVERLAY, "End", TUI_DO_END, 0, NULL, NULL},

    {TUI_HELD, "s", TUI_DO_GO, 0, "run one op", "step"},
    {TUI_HELD, "n", TUI_DO_GO, 1, "run to the first op of the next layer", "next"},
    {TUI_HELD, "c", TUI_DO_GO, 2, "run on", "continue"},

    {TUI_IN_COPY, "Space", TUI_DO_SELECT_MARK, 0, "the part begins here (V: whole lines)", "begin"},
    {TUI_IN_COPY, "v", TUI_DO_SELECT_MARK, 0, NULL, NULL},
    {TUI_IN_COPY, "V", TUI_DO_SELECT_MARK, 1, NULL, NULL},
    {TUI_IN_COPY, "Enter", TUI_DO_SELECT_TAKE, 0, "copy it to the clipboard of the terminal", "copy"},
    {TUI_IN_COPY, "y", TUI_DO_SELECT_TAKE, 0, NULL, NULL},
    {TUI_IN_COPY, "Right", TUI_DO_SELECT_CHAR, 1, "a character on and back", NULL},
    {TUI_IN_COPY, "l", TUI_DO_SELECT_CHAR, 1, NULL, NULL},
    {TUI_IN_COPY, "Left", TUI_DO_SELECT_CHAR, -1, NULL, NULL},
    {TUI_IN_COPY, "h", TUI_DO_SELECT_CHAR, -1, NULL, NULL},
    {TUI_IN_COPY, "w", TUI_DO_SELECT_WORD, 1, "a word on and back", NULL},
    {TUI_IN_COPY, "b", TUI_DO_SELECT_WORD, -1, NULL, NULL},
    {TUI_IN_COPY, "Home", TUI_DO_SELECT_EDGE, -1, "to the beginning and end of the line", NULL},
    {TUI_IN_COPY, "0", TUI_DO_SELECT_EDGE, -1, NULL, NULL},
    {TUI_IN_COPY, "End", TUI_DO_SELECT_EDGE, 1, NULL, NULL},
    {TUI_IN_COPY, "$", TUI_DO_SELECT_EDGE, 1, NULL, NULL},
    {TUI_IN_COPY, "Escape", TUI_DO_SELECT_END, 0, "leave it", "leave"},
    {TUI_IN_COPY, "q", TUI_DO_SELECT_END, 0, NULL, NULL},

    {TUI_LOOKS, "q", TUI_DO_QUIT, 0, "leave (Ctrl-C too)", "leave"},
    {TUI_LOOKS, "C-d", TUI_DO_QUIT, 0, NULL, NULL},
    {TUI_LOOKS, "Escape", TUI_DO_PROMPT, 0, "all panels again", NULL},

    {TUI_IN_TEXT, "v", TUI_DO_SELECT, 0, "choose a part to copy", "select"},
    {TUI_IN_CHAT, "f", TUI_DO_FOLD, 0, "fold or unfold what was thought", "fold"},
    {TUI_IN_CHAT, "y", TUI_DO_COPY, 0, "copy the last answer to the clipboard of the terminal", "copy"},
    {TUI_IN_TEXT, "/", TUI_DO_SEARCH, 0, "search", "search"},
    {TUI_IN_TEXT, "n", TUI_DO_NEXT_MATCH, -1, "next match upwards", NULL},
    {TUI_IN_TEXT, "N", TUI_DO_PREVIOUS_MATCH, 1, "next match downwards", NULL},
    {TUI_IN_OPS, "Enter", TUI_DO_OPEN_OP, 0, "open the op: inputs, outputs, ranks, values", "open"},
    {TUI_IN_OPS, "b", TUI_DO_BREAK, 0, "stop the engine after this op in every step, or let it run", "break"},
    {TUI_IN_OPS, "t", TUI_DO_TAP, 0, "observe its output in every step, or stop that", "tap"},
    {TUI_IN_OPS, "s", TUI_DO_SORT, 0, "sort by another column", "sort"},
    {TUI_IN_OPS, "/", TUI_DO_FILTER, 0, "show only what holds a word", "filter"},
    {TUI_IN_PATCHES, "Right", TUI_DO_OTHER_IMPL, 1, "choose another implementation", "choose"},
    {TUI_IN_PATCHES, "l", TUI_DO_OTHER_IMPL, 1, NULL, NULL},
    {TUI_IN_PATCHES, "Left", TUI_DO_OTHER_IMPL, -1, NULL, NULL},
    {TUI_IN_PATCHES, "h", TUI_DO_OTHER_IMPL, -1, NULL, NULL},
    {TUI_IN_PATCHES, "Enter", TUI_DO_SWAP, 0, "swap it in, live", "swap"},
    {TUI_IN_PATCHES, "r", TUI_DO_REVERT, 0, "go back one generation", "revert"},

    {TUI_IN_REQUESTS, "x", TUI_DO_STOP_REQUEST, 0, "stop the request that is selected", "stop"},

    {TUI_IN_PANEL, "Down", TUI_DO_MOVE, 1, "down and up", NULL},
    {TUI_IN_PANEL, "j", TUI_DO_MOVE, 1, NULL, NULL},
    {TUI_IN_PANEL, "Up", TUI_DO_MOVE, -1, NULL, NULL},
    {TUI_IN_PANEL, "k", TUI_DO_MOVE, -1, NULL, NULL},
    {TUI_IN_PANEL, "PageDown", TUI_DO_PAGE, 1, "a page down and up", NULL},
    {TUI_IN_PANEL, "PageUp", TUI_DO_PAGE, -1, NULL, NULL},
    {TUI_IN_PANEL, "Home", TUI_DO_HOME, 0, "to the beginning and to the end", NULL},
    {TUI_IN_PANEL, "g", TUI_DO_HOME, 0, NULL, NULL},
    {TUI_IN_PANEL, "End", TUI_DO_END, 0, NULL, NULL},
    {TUI_IN_PANEL, "G", TUI_DO_END, 0, NULL, NULL},
    {TUI_IN_PANEL, "Escape", TUI_DO_PROMPT, 0, "back to the line of input", "input"},
    {TUI_IN_PANEL, "q", TUI_DO_PROMPT, 0, NULL, NULL},
    {TUI_IN_PANEL, "i", TUI_DO_PROMPT, 0, NULL, NULL},
    {TUI_IN_PANEL, ":", TUI_DO_COMMAND, 0, "type a command", NULL},
    {TUI_IN_PANEL, "Tab", TUI_DO_NEXT_PANEL, 0, "next panel", "next"},
    {TUI_IN_PANEL, "1", TUI_DO_PANEL, 1, "the panel of that number", NULL},
    {TUI_IN_PANEL, "2", TUI_DO_PANEL, 2, NULL, NULL},
    {TUI_IN_PANEL, "3", TUI_DO_PANEL, 3, NULL, NULL},
    {TUI_IN_PANEL, "4", TUI_DO_PANEL, 4, NULL, NULL},
    {TUI_IN_PANEL, "5", TUI_DO_PANEL, 5, NULL, NULL},
    {TUI_IN_PANEL, "6", TUI_DO_PANEL, 6, NULL, NULL},
    {TUI_IN_PANEL, "7", TUI_DO_PANEL, 7, NULL, NULL},
    {TUI_IN_PANEL, "8", TUI_DO_PANEL, 8, NULL, NULL},
    {TUI_IN_PANEL, "9", TUI_DO_PANEL, 9, NULL, NULL},
    {TUI_IN_PANEL, "z", TUI_DO_ZOOM, 0, "this panel alone, and back", "zoom"},
    {TUI_IN_PANEL, "+", TUI_DO_GROW, 0, "make the panel larger or smaller", NULL},
    {TUI_IN_PANEL, "-", TUI_DO_SHRINK, 0, NULL, NULL},
    {TUI_IN_PANEL, "p", TUI_DO_PRESET, 0, "next arrangement", NULL},
    {TUI_IN_PANEL, "T", TUI_DO_THEME, 0, "next theme", NULL},
    {TUI_IN_PANEL, "B", TUI_DO_PLOTS, 0, "plots in braille, blocks or ASCII", NULL},
    {TUI_IN_PANEL, "Space", TUI_DO_FREEZE, 0, "freeze the figures, and go on", "freeze"},
    {TUI_IN_PANEL, "?", TUI_DO_HELP, 0, "this help", NULL},

    {TUI_IN_PROMPT, "Escape", TUI_DO_PANELS, 0, "to the panels", "panels"},
    {TUI_IN_PROMPT, "PageUp", TUI_DO_PAGE, -1, "scroll the chat", NULL},
    {TUI_IN_PROMPT, "PageDown", TUI_DO_PAGE, 1, NULL, NULL},
    {TUI_ANYWHERE, "F1", TUI_DO_HELP, 0, "this help", "help"},
    {TUI_ANYWHERE, "F2", TUI_DO_PRESET, 0, "next arrangement", "arrange"},
    {TUI_ANYWHERE, "F3", TUI_DO_ZOOM, 0, "zoom the panel, and back", NULL},
    {TUI_ANYWHERE, "F4", TUI_DO_FOLD, 0, "fold or unfold what was thought", NULL},
    {TUI_ANYWHERE, "F5", TUI_DO_GO, 2, "when the engine is stopped: run on; to the next layer; one op", NULL},
    {TUI_ANYWHERE, "F6", TUI_DO_GO, 1, NULL, NULL},
    {TUI_ANYWHERE, "F7", TUI_DO_GO, 0, NULL, NULL},
    {TUI_ANYWHERE, "F12", TUI_DO_TOGGLE, 0, "to the plain console, and back (Ctrl-X Ctrl-A too)", "plain"},
    {TUI_ANYWHERE, "S-Tab", TUI_DO_PREVIOUS_PANEL, 0, "previous panel", NULL},
    {TUI_ANYWHERE, "C-l", TUI_DO_REPAINT, 0, "paint the screen anew", NULL},
    {TUI_ANYWHERE, "M-1", TUI_DO_PANEL, 1, "(Alt and a digit) the panel of that number, from the line of input too", NULL},
    {TUI_ANYWHERE, "M-2", TUI_DO_PANEL, 2, NULL, NULL},
    {TUI_ANYWHERE, "M-3", TUI_DO_PANEL, 3, NULL, NULL},
    {TUI_ANYWHERE, "M-4", TUI_DO_PANEL, 4, NULL, NULL},
    {TUI_ANYWHERE, "M-5", TUI_DO_PANEL, 5, NULL, NULL},
    {TUI_ANYWHERE, "M-6", TUI_DO_PANEL, 6, NULL, NULL},
    {TUI_ANYWHERE, "M-7", TUI_DO_PANEL, 7, NULL, NULL},
    {TUI_ANYWHERE, "M-8", TUI_DO_PANEL, 8, NULL, NULL},
    {TUI_ANYWHERE, "M-9", TUI_DO_PANEL, 9, NULL, NULL},
    {0, NULL, TUI_DO_NOTHING, 0, NULL, NULL},
};

const char *tui_keymap_where(unsigned where)
{
    switch (where) {
    case TUI_IN_OVERLAY: return "in a window like this";
    case TUI_IN_COPY: return "while a part is chosen to copy";
    case TUI_IN_OP: return "in an op that is open";
    case TUI_LOOKS: return "in a console that only looks";
    case TUI_HELD: return "in panels, while the engine is stopped";
    case TUI_IN_CHAT: return "in Chat";
    case TUI_IN_TEXT: return "in Chat and Log";
    case TUI_IN_LOG: return "in Log";
    case TUI_IN_RANKS: return "in Ranks";
    case TUI_IN_ALLREDUCE: return "in All-reduce";
    case TUI_IN_STEP: return "in Step";
    case TUI_IN_CUSTOM: return "in the notebook and panels of scripts";
    case TUI_IN_REQUESTS: return "in Requests";
    case TUI_IN_OPS: return "in Ops";
    case TUI_IN_PATCHES: return "in Patches";
    case TUI_IN_PANEL: return "in every panel";
    case TUI_IN_PROMPT: return "in the line of input";
    default: return "everywhere";
    }
}
