#include "fs/xattr_list.h"

#include <errno.h>
#include <string.h>
#include <sys/xattr.h>

struct xattr {
    struct xattr *next;
    size_t name_bytes; /* with the NUL */
    size_t size;
    char *value; /* follows the name */
    char name[];
};

struct xattr_list {
    struct xattr *first;
    size_t count, names_bytes, values_bytes;
};

void xattr_list_destroy(struct xattr_list *list)
{
    if (!list)
        return;
    struct xattr *next;
    for (struct xattr *xattr = list->first; xattr; xattr = next) {
        next = xattr->next;
        free(xattr);
    }
    free(list);
}

/* Where the pointer to the attribute is, or to be. */
static struct xattr **find(struct xattr_list *list, const char *name)
{
    struct xattr **link = &list->first;
    while (*link && strcmp((*link)->name, name) != 0)
        link = &(*link)->next;
    return link;
}

static const struct xattr *find_const(const struct xattr_list *list, const char *name)
{
    const struct xattr *xattr = list ? list->first : NULL;
    while (xattr && strcmp(xattr->name, name) != 0)
        xattr = xattr->next;
    return xattr;
}

errint_t xattr_list_set(struct xattr_list **list, const char *name, const void *value, size_t size,
                        int flags)
{
    size_t name_bytes = strlen(name) + 1;
    if (name_bytes == 1 || name_bytes - 1 > XATTR_LIST_NAME_MAX)
        return -ERANGE;
    if (size > XATTR_LIST_VALUE_MAX_BYTES)
        return -E2BIG;
    if (flags & ~(XATTR_CREATE | XATTR_REPLACE))
        return -EINVAL;

    const struct xattr *old = find_const(*list, name);
    if (old && (flags & XATTR_CREATE))
        return -EEXIST;
    if (!old && (flags & XATTR_REPLACE))
        return -ENODATA;

    size_t names_bytes = (*list ? (*list)->names_bytes : 0) + (old ? 0 : name_bytes);
    size_t values_bytes = (*list ? (*list)->values_bytes : 0) - (old ? old->size : 0) + size;
    if (names_bytes > XATTR_LIST_NAMES_MAX_BYTES ||
        names_bytes + values_bytes > XATTR_LIST_MAX_BYTES)
        return -ENOSPC;

    struct xattr *xattr = malloc(sizeof(*xattr) + name_bytes + size);
    if (!xattr)
        return -ENOMEM;
    if (!*list && !(*list = calloc(1, sizeof(**list)))) {
        free(xattr);
        return -ENOMEM;
    }
    xattr->name_bytes = name_bytes;
    xattr->size = size;
    xattr->value = xattr->name + name_bytes;
    memcpy(xattr->name, name, name_bytes);
    if (size)
        memcpy(xattr->value, value, size);

    struct xattr **link = find(*list, name);
    (*list)->count += *link == NULL;
    xattr->next = *link ? (*link)->next : NULL;
    free(*link);
    *link = xattr;
    (*list)->names_bytes = names_bytes;
    (*list)->values_bytes = values_bytes;
    return 0;
}

size_t xattr_list_bytes(const struct xattr_list *list)
{
    return list ? list->names_bytes + list->values_bytes + list->count * XATTR_LIST_KEEPING_BYTES
                : 0;
}

errint_t xattr_list_remove(struct xattr_list *list, const char *name)
{
    struct xattr **link = list ? find(list, name) : NULL;
    if (!link || !*link)
        return -ENODATA;

    struct xattr *xattr = *link;
    *link = xattr->next;
    list->count--;
    list->names_bytes -= xattr->name_bytes;
    list->values_bytes -= xattr->size;
    free(xattr);
    return 0;
}

ssize_t xattr_list_get(const struct xattr_list *list, const char *name, void *value, size_t size)
{
    const struct xattr *xattr = find_const(list, name);
    if (!xattr)
        return -ENODATA;
    if (size && xattr->size > size)
        return -ERANGE;
    if (size && xattr->size)
        memcpy(value, xattr->value, xattr->size);
    return (ssize_t)xattr->size;
}

ssize_t xattr_list_names(const struct xattr_list *list, bool trusted, char *names, size_t size)
{
    size_t length = 0;
    for (const struct xattr *xattr = list ? list->first : NULL; xattr; xattr = xattr->next) {
        if (!trusted && strncmp(xattr->name, "trusted.", strlen("trusted.")) == 0)
            continue;
        if (size && length + xattr->name_bytes > size)
            return -ERANGE;
        if (size)
            memcpy(names + length, xattr->name, xattr->name_bytes);
        length += xattr->name_bytes;
    }
    return (ssize_t)length;
}
