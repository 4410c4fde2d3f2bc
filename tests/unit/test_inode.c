/*
 * The table of inodes: references, the kernel's lookups, and many threads at once. Buffers are
 * stood in for by counters, so that a leak or a double free of one shows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>

#include "fs/inode.h"
#include "fs/xattr_list.h"

/* -- buffers that only count ------------------------------------------------------------------- */

struct buffer {
    uint64_t id;
};

static _Atomic long buffers_alive;
static bool buffers_fail;

struct buffer *buffer_create(struct device *device, uint64_t id)
{
    (void)device;
    struct buffer *buffer = buffers_fail ? NULL : calloc(1, sizeof(*buffer));
    if (!buffer) {
        errno = ENOMEM;
        return NULL;
    }
    buffer->id = id;
    buffers_alive++;
    return buffer;
}

void buffer_destroy(struct buffer *buffer)
{
    if (!buffer)
        return;
    buffers_alive--;
    free(buffer);
}

void buffer_get_report(struct buffer *buffer, struct buffer_report *report)
{
    (void)buffer;
    *report = (struct buffer_report){.length_bytes = 5000, .resident_bytes = 8192};
}

static int trims;

void buffer_trim(struct buffer *buffer)
{
    (void)buffer;
    trims++;
}

static struct inode *make(struct inode_table *table, mode_t mode)
{
    return inode_create(table, NULL, mode, 1, 2, 0, S_ISLNK(mode) ? "target" : NULL);
}

/* -- one thread -------------------------------------------------------------------------------- */

static void lives_as_long_as_it_is_referenced(void **state)
{
    (void)state;
    struct inode_table *table = inode_table_create(0);
    struct inode *inode = make(table, S_IFREG | 0644);
    uint64_t ino = inode->ino;

    assert_true(ino >= INODE_FIRST_FREE);
    assert_ptr_equal(inode_table_find(table, ino), inode);
    inode_lookup_added(inode);
    inode_lookup_added(inode);
    inode_unref(table, inode, 1); /* the creator's */
    assert_ptr_equal(inode_table_get(table, ino), inode);
    inode_forget(table, inode, 2);
    assert_ptr_equal(inode_table_find(table, ino), inode);
    assert_int_equal(buffers_alive, 1);
    inode_unref(table, inode, 1); /* of get */
    assert_null(inode_table_find(table, ino));
    assert_null(inode_table_get(table, ino));
    assert_int_equal(buffers_alive, 0);
    assert_int_equal(inode_table_count(table), 0);
    inode_table_destroy(table);
}

static void forgets_no_more_than_was_looked_up(void **state)
{
    (void)state;
    struct inode_table *table = inode_table_create(0);
    struct inode *root = inode_create_root(table, 0755, 0, 0);

    assert_int_equal(root->ino, INODE_ROOT);
    inode_forget(table, root, 1);
    inode_lookup_added(root);
    inode_forget(table, root, 1000);
    assert_ptr_equal(inode_table_find(table, INODE_ROOT), root);
    assert_int_equal(root->refs, 1);
    inode_table_destroy(table);
}

static void no_more_files_are_made_than_there_may_be(void **state)
{
    (void)state;
    struct inode_table *table = inode_table_create(3);
    struct inode *first = make(table, S_IFREG | 0644), *second = make(table, S_IFDIR | 0755);
    uint64_t max, left;

    inode_table_get_limit(table, &max, &left);
    assert_int_equal(max, 3);
    assert_int_equal(left, 1);
    errno = 0;
    assert_null(make(table, S_IFLNK | 0777)); /* with its target it is more than one */
    assert_int_equal(errno, ENOSPC);
    assert_int_equal(inode_charge_locked(first, 1000), 0);
    assert_int_equal(inode_charge_locked(second, 25), -ENOSPC);
    assert_int_equal(inode_charge_locked(second, 24), 0);
    inode_table_get_limit(table, &max, &left);
    assert_int_equal(left, 0);
    inode_unref(table, first, 1);
    inode_uncharge_locked(second, 24);
    inode_table_get_limit(table, &max, &left);
    assert_int_equal(left, 2);
    inode_unref(table, second, 1);
    inode_table_get_limit(table, &max, &left);
    assert_int_equal(left, 3);
    inode_table_destroy(table);
}

static void numbers_are_not_used_again(void **state)
{
    (void)state;
    struct inode_table *table = inode_table_create(0);
    uint64_t last = 0;

    for (int i = 0; i < 1000; i++) {
        struct inode *inode = make(table, S_IFIFO | 0600);
        assert_true(inode->ino > last);
        last = inode->ino;
        inode_unref(table, inode, 1);
    }
    inode_table_destroy(table);
}

static void creation_that_fails_leaves_nothing(void **state)
{
    (void)state;
    struct inode_table *table = inode_table_create(0);

    buffers_fail = true;
    assert_null(make(table, S_IFREG | 0644));
    assert_int_equal(errno, ENOMEM);
    buffers_fail = false;
    assert_null(make(table, 0644));
    assert_int_equal(errno, EINVAL);
    assert_int_equal(inode_table_count(table), 0);
    inode_table_destroy(table);
}

static void millions_of_lookups_and_forgets_leave_nothing(void **state)
{
    (void)state;
    struct inode_table *table = inode_table_create(0);
    enum { FILES = 1000 };
    struct inode *inodes[FILES];
    unsigned int seed = 1;

    for (int i = 0; i < FILES; i++)
        inodes[i] = make(table, i % 2 ? S_IFREG | 0644 : S_IFDIR | 0755);
    for (int i = 0; i < 3000000; i++) {
        struct inode *inode = inodes[rand_r(&seed) % FILES];
        assert_ptr_equal(inode_table_find(table, inode->ino), inode);
        inode_lookup_added(inode);
        if (inode->lookups > 10)
            inode_forget(table, inode, inode->lookups);
    }
    for (int i = 0; i < FILES; i++) {
        inode_forget(table, inodes[i], inodes[i]->lookups);
        assert_int_equal(inodes[i]->refs, 1);
        inode_unref(table, inodes[i], 1);
    }
    assert_int_equal(inode_table_count(table), 0);
    assert_int_equal(buffers_alive, 0);
    inode_table_destroy(table);
}

static void destroying_the_table_destroys_what_is_left(void **state)
{
    (void)state;
    struct inode_table *table = inode_table_create(0);
    static const mode_t types[] = {S_IFREG, S_IFDIR, S_IFLNK, S_IFSOCK, S_IFCHR};

    for (int i = 0; i < 5000; i++) {
        struct inode *inode = make(table, types[i % 5] | 0600);
        assert_non_null(inode);
        assert_int_equal(xattr_list_set(&inode->xattrs, "user.a", "1", 1, 0), 0);
    }
    assert_int_equal(inode_table_count(table), 5000);
    inode_table_destroy(table);
    assert_int_equal(buffers_alive, 0);
}

static void stat_tells_what_the_inode_is(void **state)
{
    (void)state;
    struct inode_table *table = inode_table_create(0);
    struct stat st;

    struct inode *file = make(table, S_IFREG | 04755);
    file->nlink = 3;
    inode_stat(file, &st);
    assert_int_equal(st.st_mode, S_IFREG | 04755);
    assert_int_equal(st.st_ino, file->ino);
    assert_int_equal(st.st_nlink, 3);
    assert_int_equal(st.st_uid, 1);
    assert_int_equal(st.st_gid, 2);
    assert_int_equal(st.st_size, 5000);
    assert_int_equal(st.st_blocks, 16);
    assert_int_equal(st.st_mtim.tv_nsec, file->mtime.tv_nsec);

    struct inode *link = make(table, S_IFLNK | 0777);
    inode_stat(link, &st);
    assert_int_equal(st.st_size, 6);
    assert_int_equal(st.st_blocks, 0);

    struct inode *directory = make(table, S_IFDIR | 0755);
    directory->entries = 1;
    inode_stat(directory, &st);
    assert_int_equal(st.st_nlink, 2);
    assert_true(st.st_size > 0);
    inode_table_destroy(table);
}

static void privileges_are_dropped(void **state)
{
    (void)state;
    struct inode_table *table = inode_table_create(0);
    static const struct {
        mode_t before;
        enum inode_author author;
        mode_t after_chown, after_write;
    } cases[] = {
        {S_IFREG | 06755, INODE_AUTHOR_IN_GROUP, 0755, 0755},
        {S_IFREG | 02755, INODE_AUTHOR_IN_GROUP, 0755, 0755},
        {S_IFREG | 06745, INODE_AUTHOR_IN_GROUP, 02745, 02745},
        {S_IFREG | 06745, INODE_AUTHOR_OTHER, 0745, 0745},
        {S_IFREG | 06755, INODE_AUTHOR_PRIVILEGED, 0755, 06755},
        {S_IFREG | 06745, INODE_AUTHOR_PRIVILEGED, 02745, 06745},
        {S_IFREG | 01644, INODE_AUTHOR_OTHER, 01644, 01644},
        {S_IFDIR | 06755, INODE_AUTHOR_OTHER, 06755, 06755},
    };
    for (size_t n = 0; n < 2 * ARRAY_SIZE(cases); n++) {
        size_t i = n / 2;
        bool chown = n % 2;
        struct inode *inode = make(table, cases[i].before);
        if (!chown && S_ISDIR(inode->type))
            continue;
        xattr_list_set(&inode->xattrs, "security.capability", "c", 1, 0);
        xattr_list_set(&inode->xattrs, "user.a", "1", 1, 0);
        if (chown)
            inode_drop_privileges_locked(inode, cases[i].author);
        else
            inode_modified(inode, cases[i].author);
        assert_int_equal(inode->mode, chown ? cases[i].after_chown : cases[i].after_write);
        assert_int_equal(xattr_list_get(inode->xattrs, "user.a", NULL, 0), 1);
        assert_int_equal(xattr_list_get(inode->xattrs, "security.capability", NULL, 0),
                         S_ISDIR(inode->type) ? 1 : -ENODATA);
    }
    inode_table_destroy(table);
}

static void atime_is_kept_as_with_relatime_or_always(void **state)
{
    (void)state;
    struct inode_table *table = inode_table_create(0);
    struct inode *inode = make(table, S_IFREG | 0644);

    inode->mtime.tv_sec -= 20;
    inode->ctime.tv_sec -= 20;
    inode->atime.tv_sec -= 10;
    struct timespec before = inode->atime;
    inode_accessed(inode, false);
    assert_memory_equal(&inode->atime, &before, sizeof(before));
    inode_accessed(inode, true);
    assert_true(inode->atime.tv_sec > before.tv_sec);
    inode->atime = before;

    inode_touch(inode, INODE_TOUCH_MTIME | INODE_TOUCH_CTIME);
    assert_true(inode->mtime.tv_sec > before.tv_sec);
    inode_accessed(inode, false);
    assert_true(inode->atime.tv_sec > before.tv_sec);

    inode->mtime.tv_sec -= 200000;
    inode->ctime.tv_sec -= 200000;
    inode->atime.tv_sec -= 100000;
    before = inode->atime;
    inode_accessed(inode, false);
    assert_true(inode->atime.tv_sec > before.tv_sec);
    inode_table_destroy(table);
}

/* -- many threads ------------------------------------------------------------------------------ */

#define THREADS       8
#define THREAD_ROUNDS 20000
#define SHARED_INODES 16

struct shared {
    struct inode_table *table;
    struct inode *inodes[SHARED_INODES];
    _Atomic bool stop;
};

static void touch_and_stat(struct inode *inode, void *data)
{
    struct stat st;
    (void)data;
    inode_touch(inode, INODE_TOUCH_MTIME);
    inode_stat(inode, &st);
    if (st.st_ino != inode->ino)
        abort();
}

static void *walk(void *argument)
{
    struct shared *shared = argument;
    while (!shared->stop)
        inode_table_walk(shared->table, touch_and_stat, NULL);
    return NULL;
}

static void *create_and_forget(void *argument)
{
    struct shared *shared = argument;
    unsigned int seed = (unsigned int)monotonic_ns();

    for (int i = 0; i < THREAD_ROUNDS; i++) {
        struct inode *inode = make(shared->table, i % 3 ? S_IFREG | 0644 : S_IFDIR | 0755);
        inode_lookup_added(inode);
        if (inode_table_find(shared->table, inode->ino) != inode)
            abort();

        struct inode *other = shared->inodes[rand_r(&seed) % SHARED_INODES];
        struct inode *found = inode_table_get(shared->table, other->ino);
        if (found != other)
            abort();
        inode_lookup_added(other);
        inode_unref(shared->table, other, 1);
        touch_and_stat(other, NULL);
        inode_forget(shared->table, other, 1);

        /* May already be gone, or going. */
        found = inode_table_get(shared->table, inode->ino - (uint64_t)(rand_r(&seed) % 8));
        if (found) {
            touch_and_stat(found, NULL);
            inode_unref(shared->table, found, 1);
        }
        inode_unref(shared->table, inode, 1);
        inode_forget(shared->table, inode, 1);
    }
    return NULL;
}

static void threads_leave_nothing(void **state)
{
    (void)state;
    struct shared shared = {.table = inode_table_create(0)};
    pthread_t threads[THREADS], walker;

    for (int i = 0; i < SHARED_INODES; i++)
        shared.inodes[i] = make(shared.table, S_IFREG | 0644);
    assert_int_equal(pthread_create(&walker, NULL, walk, &shared), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, create_and_forget, &shared), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    shared.stop = true;
    pthread_join(walker, NULL);

    assert_int_equal(inode_table_count(shared.table), SHARED_INODES);
    for (int i = 0; i < SHARED_INODES; i++) {
        assert_int_equal(shared.inodes[i]->refs, 1);
        assert_int_equal(shared.inodes[i]->lookups, 0);
        inode_unref(shared.table, shared.inodes[i], 1);
    }
    assert_int_equal(buffers_alive, 0);
    inode_table_destroy(shared.table);
}

static void memory_goes_with_a_file_that_has_neither_name_nor_opener(void **state)
{
    (void)state;
    struct inode_table *table = inode_table_create(0);
    struct inode *inode = make(table, S_IFREG | 0644);

    trims = 0;
    assert_false(inode_table_settle(table));
    inode->nlink = 1;
    inode_lookup_added(inode); /* O_PATH, say */
    inode_opened(table, inode, true);
    inode_opened(table, inode, false);
    inode_closed(table, inode, true);
    assert_int_equal(trims, 1);
    inode->nlink = 0;
    inode_unlinked(table, inode);
    assert_false(inode->orphaned); /* the reader still has it */
    inode_closed(table, inode, false);
    assert_true(inode->orphaned);
    inode_unref(table, inode, 1);
    assert_true(inode_table_settle(table)); /* in vain: the kernel holds it */
    inode_opened(table, inode, true);       /* again, through /proc/self/fd */
    assert_false(inode->orphaned);
    inode_closed(table, inode, true);
    assert_true(inode->orphaned);
    assert_int_equal(trims, 1);
    assert_int_equal(buffers_alive, 1);
    inode_forget(table, inode, 1);
    assert_int_equal(buffers_alive, 0);
    uint64_t before = monotonic_ns();
    inode_table_settle(table);
    assert_true(monotonic_ns() - before < 40 * 1000 * 1000); /* none left to wait for */
    inode_table_destroy(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lives_as_long_as_it_is_referenced),
        cmocka_unit_test(forgets_no_more_than_was_looked_up),
        cmocka_unit_test(no_more_files_are_made_than_there_may_be),
        cmocka_unit_test(numbers_are_not_used_again),
        cmocka_unit_test(creation_that_fails_leaves_nothing),
        cmocka_unit_test(millions_of_lookups_and_forgets_leave_nothing),
        cmocka_unit_test(destroying_the_table_destroys_what_is_left),
        cmocka_unit_test(stat_tells_what_the_inode_is),
        cmocka_unit_test(privileges_are_dropped),
        cmocka_unit_test(atime_is_kept_as_with_relatime_or_always),
        cmocka_unit_test(memory_goes_with_a_file_that_has_neither_name_nor_opener),
        cmocka_unit_test(threads_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
