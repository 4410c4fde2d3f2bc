/*
 * What is open: each open file is in a list of the mount, so that those that the kernel never
 * releases (the connection ended first) can be freed at the end. The mutex covers the list only;
 * it is taken with no other lock held, and none but an inode's mutex is taken with it held.
 */
#ifndef RESIDENTFS_FS_HANDLE_H
#define RESIDENTFS_FS_HANDLE_H

#include <pthread.h>
#include <stddef.h>

/* The first member of what is listed. */
struct handle {
    struct handle *next, *previous; /* under the list's mutex */
};

struct handle_list {
    pthread_mutex_t mutex;
    struct handle *first;
};

static inline void handle_list_add(struct handle_list *list, struct handle *handle)
{
    pthread_mutex_lock(&list->mutex);
    handle->previous = NULL;
    handle->next = list->first;
    if (list->first)
        list->first->previous = handle;
    list->first = handle;
    pthread_mutex_unlock(&list->mutex);
}

static inline void handle_list_remove(struct handle_list *list, struct handle *handle)
{
    pthread_mutex_lock(&list->mutex);
    if (handle->previous)
        handle->previous->next = handle->next;
    else
        list->first = handle->next;
    if (handle->next)
        handle->next->previous = handle->previous;
    pthread_mutex_unlock(&list->mutex);
}

#endif
