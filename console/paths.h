/* paths.h: where files of ours are. All results are the caller's to free(). One thread (reads the environment). */
#ifndef RANKSCOPE_CONSOLE_PATHS_H
#define RANKSCOPE_CONSOLE_PATHS_H

#include <stdbool.h>

#define PATHS_SHIPPED_MODEL "tiny-glm5-q4.gguf"

/* A file of the installed data, such as "lua/templates/init.lua": in RANKSCOPE_DATADIR if that is set (and only there), else beside the
 * source when this program runs from its build tree, else in the installed data folder. NULL when it is in none of them. */
char *paths_data(const char *name);

/* The model that comes with the program; NULL when it is not there. */
char *paths_shipped_model(void);

/* Whether a path names the shipped model (by its file name: a copy is as good). */
bool paths_is_shipped(const char *model);

/* A file in the user's state folder (XDG_STATE_HOME/rankscope/NAME), whose folders are made with mode 0700. NULL when there is no home or
 * the folder cannot be made. */
char *paths_state(const char *name);

/* A file in the user's configuration folder (XDG_CONFIG_HOME/rankscope/NAME), which may not be there. NULL when there is no home. */
char *paths_config(const char *name);

/* "~/x" with the home folder put in; otherwise a copy. */
char *paths_expand(const char *path);

/* A file that somebody named: the home folder put in, and from the root on, since an engine may run in another folder. A relative name that is not
 * there but comes with the program, such as "scripts/story.lua", is that; one that is neither stays as it was typed. */
char *paths_file(const char *typed);

#endif
