#include "config.h"

#include "console/paths.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "console/buf.h"

static char *if_there(const char *folder, const char *name)
{
    char *path = xasprintf("%s/%s", folder, name);
    if (access(path, R_OK) == 0)
        return path;
    free(path);
    return NULL;
}

/* The folder that this program lies in; caller frees, NULL: not known. */
static char *program_folder(void)
{
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return NULL;
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash == NULL)
        return NULL;
    *slash = '\0';
    return xstrdup(exe);
}

/* A build tree has the file that configure left there. */
static bool in_build_tree(void)
{
    char *folder = program_folder(), *path = folder != NULL ? if_there(folder, "config.status") : NULL;
    bool found = path != NULL;
    free(path);
    free(folder);
    return found;
}

/* An installation that was moved, or unpacked from a bundle: DIR/bin/rankscope and DIR/share/rankscope. */
static char *beside_program(const char *name)
{
    char *folder = program_folder(), *path = NULL;
    if (folder != NULL) {
        char *data = xasprintf("%s/../share/rankscope", folder);
        path = if_there(data, name);
        free(data);
    }
    free(folder);
    return path;
}

char *paths_data(const char *name)
{
    const char *env = getenv("RANKSCOPE_DATADIR");
    if (env != NULL && *env != '\0')
        return if_there(env, name);
    char *path = in_build_tree() ? if_there(SRCDIR, name) : NULL;
    if (path == NULL)
        path = beside_program(name);
    return path != NULL ? path : if_there(PKGDATADIR, name);
}

char *paths_shipped_model(void)
{
    return paths_data("models/" PATHS_SHIPPED_MODEL);
}

bool paths_is_shipped(const char *model)
{
    const char *slash = strrchr(model, '/');
    return strcmp(slash != NULL ? slash + 1 : model, PATHS_SHIPPED_MODEL) == 0;
}

/* mkdir -p for the user alone. */
static bool make_folders(char *path)
{
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char c = *p;
        *p = '\0';
        bool bad = mkdir(path, 0700) != 0 && errno != EEXIST;
        *p = c;
        if (bad)
            return false;
        if (c == '\0')
            return true;
    }
}

char *paths_state(const char *name)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *folder;
    if (xdg != NULL && xdg[0] == '/')
        folder = xasprintf("%s/rankscope", xdg);
    else if (home != NULL && home[0] == '/')
        folder = xasprintf("%s/.local/state/rankscope", home);
    else
        return NULL;
    char *path = make_folders(folder) ? xasprintf("%s/%s", folder, name) : NULL;
    free(folder);
    return path;
}

char *paths_config(const char *name)
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (xdg != NULL && xdg[0] == '/')
        return xasprintf("%s/rankscope/%s", xdg, name);
    return home != NULL && home[0] == '/' ? xasprintf("%s/.config/rankscope/%s", home, name) : NULL;
}

char *paths_expand(const char *path)
{
    const char *home = getenv("HOME");
    if (path[0] == '~' && (path[1] == '/' || path[1] == '\0') && home != NULL)
        return xasprintf("%s%s", home, path + 1);
    return xstrdup(path);
}

char *paths_file(const char *typed)
{
    char *path = paths_expand(typed), *found = NULL, *here;
    if (path[0] == '/')
        return path;
    if (access(path, F_OK) != 0)
        found = path[0] != '.' ? paths_data(path) : NULL;
    else if ((here = getcwd(NULL, 0)) != NULL) { /* links stay: what belongs to a file lies beside its name */
        found = xasprintf("%s/%s", here, path);
        free(here);
    }
    if (found == NULL)
        return path;
    free(path);
    return found;
}
