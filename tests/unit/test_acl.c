/*
 * ACLs as data, and how an inode's mode follows them: random ACLs, valid and broken, against a
 * model that is written as the standard's draft reads, and what Linux does at the edges.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <endian.h>
#include <errno.h>

#include "fs/acl.h"
#include "fs/inode_acl.h"

#define ROUNDS 200000

static int touches;

void inode_touch_locked(struct inode *inode, unsigned int which)
{
    (void)inode;
    assert_int_equal(which, INODE_TOUCH_CTIME);
    touches++;
}

/* -- the model --------------------------------------------------------------------------------- */

enum { OWNER = 1, USER = 2, GROUP = 4, NAMED_GROUP = 8, MASK = 0x10, OTHER = 0x20 };

struct entry {
    uint16_t tag, permissions;
    uint32_t id;
};

struct model {
    size_t count;
    struct entry entries[ACL_ENTRIES_MAX + 1];
};

static size_t put(const struct model *model, uint32_t version, unsigned char *bytes)
{
    uint32_t header = htole32(version);
    memcpy(bytes, &header, 4);
    for (size_t i = 0; i < model->count; i++) {
        uint16_t tag = htole16(model->entries[i].tag);
        uint16_t permissions = htole16(model->entries[i].permissions);
        uint32_t id = htole32(model->entries[i].id);
        memcpy(bytes + 4 + 8 * i, &tag, 2);
        memcpy(bytes + 6 + 8 * i, &permissions, 2);
        memcpy(bytes + 8 + 8 * i, &id, 4);
    }
    return 4 + 8 * model->count;
}

/* Reads one entry after the other, as a grammar: owner user* group named-group* mask? other. */
static bool model_is_valid(const struct model *model)
{
    size_t i = 0, named = 0, masks = 0;

    for (size_t n = 0; n < model->count; n++)
        if (model->entries[n].permissions > 7)
            return false;
#define AT(wanted) (i < model->count && model->entries[i].tag == (wanted))
    if (!AT(OWNER))
        return false;
    i++;
    for (; AT(USER); i++, named++)
        if (model->entries[i].id == UINT32_MAX)
            return false;
    if (!AT(GROUP))
        return false;
    i++;
    for (; AT(NAMED_GROUP); i++, named++)
        if (model->entries[i].id == UINT32_MAX)
            return false;
    if (AT(MASK)) {
        i++;
        masks++;
    }
    if (!AT(OTHER))
        return false;
#undef AT
    return i + 1 == model->count && (named == 0 || masks == 1);
}

static struct entry *model_find(struct model *model, uint16_t tag)
{
    for (size_t i = 0; i < model->count; i++)
        if (model->entries[i].tag == tag)
            return &model->entries[i];
    return NULL;
}

/* What the group's permission bits stand for. */
static struct entry *model_group(struct model *model)
{
    struct entry *mask = model_find(model, MASK);
    return mask ? mask : model_find(model, GROUP);
}

static mode_t model_mode(struct model *model)
{
    return (mode_t)(model_find(model, OWNER)->permissions * 0100 +
                    model_group(model)->permissions * 010 + model_find(model, OTHER)->permissions);
}

static void model_chmod(struct model *model, mode_t mode)
{
    model_find(model, OWNER)->permissions = (mode / 0100) % 8;
    model_group(model)->permissions = (mode / 010) % 8;
    model_find(model, OTHER)->permissions = mode % 8;
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void add(struct model *model, uint16_t tag, uint16_t permissions, uint32_t id)
{
    model->entries[model->count++] = (struct entry){tag, permissions, id};
}

static void make_valid(struct model *model, uint64_t *random)
{
    size_t users = next_random(random) % 4, groups = next_random(random) % 4;

    model->count = 0;
    add(model, OWNER, next_random(random) % 8, UINT32_MAX);
    for (size_t i = 0; i < users; i++)
        add(model, USER, next_random(random) % 8, next_random(random));
    add(model, GROUP, next_random(random) % 8, UINT32_MAX);
    for (size_t i = 0; i < groups; i++)
        add(model, NAMED_GROUP, next_random(random) % 8, next_random(random));
    if (users || groups || next_random(random) % 4 == 0)
        add(model, MASK, next_random(random) % 8, UINT32_MAX);
    add(model, OTHER, next_random(random) % 8, UINT32_MAX);
}

static void break_somewhere(struct model *model, uint64_t *random)
{
    static const uint16_t tags[] = {0, 1, 2, 3, 4, 8, 0x10, 0x20, 0x21, 0x40, 0x8001};
    size_t at = next_random(random) % model->count, with = next_random(random) % model->count;
    struct entry entry = model->entries[at];

    switch (next_random(random) % 6) {
    case 0:
        model->entries[at].tag = tags[next_random(random) % ARRAY_SIZE(tags)];
        break;
    case 1:
        model->entries[at].permissions = next_random(random) % 16;
        break;
    case 2:
        model->entries[at].id = UINT32_MAX;
        break;
    case 3:
        model->entries[at] = model->entries[with];
        model->entries[with] = entry;
        break;
    case 4:
        memmove(&model->entries[at], &model->entries[at + 1],
                (model->count - at - 1) * sizeof(entry));
        model->count--;
        break;
    default:
        memmove(&model->entries[with + 1], &model->entries[with],
                (model->count - with) * sizeof(entry));
        model->entries[with] = entry;
        model->count++;
    }
}

/* What has no name has no id, whatever was written there. */
static void forget_ids_of_unnamed(struct model *model)
{
    for (size_t i = 0; i < model->count; i++)
        if (!(model->entries[i].tag & (USER | NAMED_GROUP)))
            model->entries[i].id = UINT32_MAX;
}

static struct acl *parse_model(const struct model *model)
{
    unsigned char bytes[ACL_BYTES_MAX + 8];
    struct acl *acl;
    assert_int_equal(acl_parse(bytes, put(model, 2, bytes), &acl), 0);
    return acl;
}

static void assert_same(const struct acl *acl, const struct model *model)
{
    unsigned char expected[ACL_BYTES_MAX + 8], bytes[ACL_BYTES_MAX];
    size_t size = put(model, 2, expected);
    assert_int_equal(acl_bytes(acl), size);
    acl_serialise(acl, bytes);
    assert_memory_equal(bytes, expected, size);
}

/* -- tests ------------------------------------------------------------------------------------- */

static void random_acls_are_taken_if_and_only_if_they_are_valid(void **state)
{
    (void)state;
    unsigned char bytes[ACL_BYTES_MAX + 8];
    uint64_t random = 1;
    unsigned int valid = 0;
    struct model model;

    for (unsigned int round = 0; round < ROUNDS; round++) {
        make_valid(&model, &random);
        for (unsigned int breaks = next_random(&random) % 4; breaks && model.count; breaks--)
            break_somewhere(&model, &random);
        bool expected = model.count == 0 || model_is_valid(&model);
        struct acl *acl = NULL;
        errint_t error = acl_parse(bytes, put(&model, 2, bytes), &acl);
        assert_int_equal(error, expected ? 0 : -EINVAL);
        assert_int_equal(acl != NULL, expected && model.count > 0);
        if (acl) {
            valid++;
            forget_ids_of_unnamed(&model);
            assert_same(acl, &model);
        }
        free(acl);
    }
    assert_in_range(valid, ROUNDS / 4, ROUNDS - ROUNDS / 4);
}

static void garbage_is_refused(void **state)
{
    (void)state;
    unsigned char *bytes;
    uint64_t random = 2;
    struct acl *acl;

    for (unsigned int round = 0; round < ROUNDS; round++) {
        size_t size = next_random(&random) % 64;
        bytes = malloc(size + 1); /* of that size, so that reading past it shows */
        for (size_t i = 0; i < size; i++)
            bytes[i] = (unsigned char)next_random(&random);
        if (size >= 4 && round % 2)
            memcpy(bytes, "\2\0\0", 4);
        errint_t error = acl_parse(bytes, size, &acl);
        if (size < 4 || (size > 4 && round % 2))
            assert_int_equal(error, -EINVAL);
        else if (round % 2 == 0)
            assert_int_equal(error, -EOPNOTSUPP);
        else
            assert_int_equal(error, 0);
        assert_null(acl);
        free(bytes);
    }
}

static void odd_sizes_and_other_versions_are_refused(void **state)
{
    (void)state;
    unsigned char bytes[64];
    struct model model = {3, {{OWNER, 6, UINT32_MAX}, {GROUP, 4, 7}, {OTHER, 0, 9}}};
    size_t size = put(&model, 2, bytes);
    struct acl *acl;

    for (size_t length = 0; length < size; length++)
        assert_int_equal(acl_parse(bytes, length, &acl), length == 4 ? 0 : -EINVAL);
    put(&model, 1, bytes);
    assert_int_equal(acl_parse(bytes, size, &acl), -EOPNOTSUPP);
    put(&model, 3, bytes);
    assert_int_equal(acl_parse(bytes, size, &acl), -EOPNOTSUPP);
    put(&model, 0x00020002, bytes);
    assert_int_equal(acl_parse(bytes, size, &acl), -EOPNOTSUPP);

    acl = parse_model(&model);
    forget_ids_of_unnamed(&model);
    assert_same(acl, &model);
    free(acl);
}

static void as_many_entries_as_the_kernel_can_read(void **state)
{
    (void)state;
    unsigned char bytes[ACL_BYTES_MAX + 8];
    static struct model model;
    struct acl *acl;

    for (size_t count = ACL_ENTRIES_MAX; count <= ACL_ENTRIES_MAX + 1; count++) {
        model.count = 0;
        add(&model, OWNER, 7, UINT32_MAX);
        while (model.count < count - 3)
            add(&model, USER, 7, 1000 + (uint32_t)model.count);
        add(&model, GROUP, 7, UINT32_MAX);
        add(&model, MASK, 7, UINT32_MAX);
        add(&model, OTHER, 7, UINT32_MAX);
        size_t size = put(&model, 2, bytes);
        assert_int_equal(acl_parse(bytes, size, &acl), count > ACL_ENTRIES_MAX ? -E2BIG : 0);
        if (acl)
            assert_same(acl, &model);
        free(acl);
    }
}

static void the_mode_follows_the_acl_and_chmod_changes_the_acl(void **state)
{
    (void)state;
    uint64_t random = 3;
    struct model model;

    for (unsigned int round = 0; round < ROUNDS; round++) {
        make_valid(&model, &random);
        struct acl *acl = parse_model(&model);
        mode_t mode = next_random(&random) % 010000;

        assert_int_equal(acl_mode(acl, mode), (mode & 07000) | model_mode(&model));
        assert_int_equal(acl_is_mode(acl), model.count == 3);
        if (round % 2) {
            acl_set_mode(acl, mode);
            model_chmod(&model, mode);
            assert_int_equal(acl_mode(acl, 0), mode & 0777);
        } else {
            acl_restrict(acl, mode);
            model_chmod(&model, model_mode(&model) & mode);
        }
        assert_same(acl, &model);

        struct acl *copy = acl_copy(acl);
        acl_set_mode(acl, ~acl_mode(acl, 0) & 0777);
        assert_same(copy, &model);
        free(copy);
        free(acl);
    }
}

/* owner rwx, user 1 rwx, group r-x, mask rwx, others --- */
static const struct model extended = {
    5, {{OWNER, 7, ~0u}, {USER, 7, 1}, {GROUP, 5, ~0u}, {MASK, 7, ~0u}, {OTHER, 0, ~0u}}};
/* rw-r-xr-- */
static const struct model minimal = {3, {{OWNER, 6, ~0u}, {GROUP, 5, ~0u}, {OTHER, 4, ~0u}}};

static void an_access_acl_sets_the_mode(void **state)
{
    (void)state;
    struct inode inode = {.type = S_IFREG, .mode = 06600};

    touches = 0;
    assert_int_equal(inode_acl_set_locked(&inode, INODE_ACL_ACCESS, parse_model(&extended), false),
                     0);
    assert_int_equal(inode.mode, 06770);
    assert_same(inode_acl_locked(&inode, INODE_ACL_ACCESS), &extended);
    assert_null(inode_acl_locked(&inode, INODE_ACL_DEFAULT));

    inode_set_mode_locked(&inode, S_IFREG | 02640);
    assert_int_equal(inode.mode, 02640);
    struct model changed = extended;
    model_chmod(&changed, 0640);
    assert_same(inode_acl_locked(&inode, INODE_ACL_ACCESS), &changed);

    assert_int_equal(inode_acl_set_locked(&inode, INODE_ACL_ACCESS, parse_model(&minimal), false),
                     0);
    assert_int_equal(inode.mode, 02654);
    assert_null(inode_acl_locked(&inode, INODE_ACL_ACCESS));

    assert_int_equal(inode_acl_set_locked(&inode, INODE_ACL_ACCESS, parse_model(&extended), true),
                     0);
    assert_int_equal(inode.mode, 0770);
    inode.mode |= S_ISGID;
    assert_int_equal(inode_acl_set_locked(&inode, INODE_ACL_ACCESS, NULL, true), 0);
    assert_int_equal(inode.mode, 0770);
    assert_null(inode_acl_locked(&inode, INODE_ACL_ACCESS));
    assert_int_equal(touches, 4);
    inode_acls_finish(&inode.acls);
}

static void who_may_have_which_acl(void **state)
{
    (void)state;
    struct inode file = {.type = S_IFREG}, directory = {.type = S_IFDIR, .mode = 02700},
                 symlink = {.type = S_IFLNK};
    struct acl *acl = parse_model(&extended);

    touches = 0;
    assert_int_equal(inode_acl_set_locked(&file, INODE_ACL_DEFAULT, acl, false), -EACCES);
    assert_int_equal(inode_acl_set_locked(&symlink, INODE_ACL_ACCESS, acl, false), -EOPNOTSUPP);
    assert_int_equal(inode_acl_set_locked(&symlink, INODE_ACL_DEFAULT, acl, false), -EOPNOTSUPP);
    assert_int_equal(touches, 0);
    assert_int_equal(inode_acl_set_locked(&file, INODE_ACL_DEFAULT, NULL, false), 0);
    assert_int_equal(inode_acl_set_locked(&directory, INODE_ACL_DEFAULT, acl, false), 0);
    assert_int_equal(directory.mode, 02700);
    assert_same(inode_acl_locked(&directory, INODE_ACL_DEFAULT), &extended);
    assert_null(inode_acl_locked(&directory, INODE_ACL_ACCESS));
    /* A default one is kept even if a mode says it all. */
    assert_int_equal(
        inode_acl_set_locked(&directory, INODE_ACL_DEFAULT, parse_model(&minimal), false), 0);
    assert_same(inode_acl_locked(&directory, INODE_ACL_DEFAULT), &minimal);
    inode_acls_finish(&directory.acls);
    assert_null(inode_acl_locked(&directory, INODE_ACL_DEFAULT));
}

static void inherit(const struct inode *parent, mode_t umask, mode_t mode, mode_t expected_mode,
                    const struct model *access, const struct model *inherited)
{
    struct inode_acls acls;

    assert_int_equal(inode_acls_inherit_locked(parent, umask, &mode, &acls), 0);
    assert_int_equal(mode, expected_mode);
    assert_int_equal(acls.access_acl != NULL, access != NULL);
    assert_int_equal(acls.default_acl != NULL, inherited != NULL);
    if (access)
        assert_same(acls.access_acl, access);
    if (inherited)
        assert_same(acls.default_acl, inherited);
    inode_acls_finish(&acls);
}

static void new_files_inherit_the_default_acl_or_obey_the_umask(void **state)
{
    (void)state;
    struct inode parent = {.type = S_IFDIR, .mode = 0755};
    struct model restricted = extended;

    inherit(&parent, 027, S_IFREG | 06666, S_IFREG | 06640, NULL, NULL);
    inherit(&parent, 077, S_IFDIR | 01777, S_IFDIR | 01700, NULL, NULL);
    inherit(&parent, 07777, S_IFREG | 06666, S_IFREG | 06000, NULL, NULL);
    inherit(&parent, 077, S_IFLNK | 0777, S_IFLNK | 0777, NULL, NULL);

    inode_acl_set_locked(&parent, INODE_ACL_DEFAULT, parse_model(&extended), false);
    model_chmod(&restricted, 0640);
    restricted.entries[4].permissions = 0;
    inherit(&parent, 077, S_IFREG | 06644, S_IFREG | 06640, &restricted, NULL);
    inherit(&parent, 077, S_IFDIR | 02777, S_IFDIR | 02770, &extended, &extended);
    inherit(&parent, 077, S_IFLNK | 0777, S_IFLNK | 0777, NULL, NULL);

    inode_acl_set_locked(&parent, INODE_ACL_DEFAULT, parse_model(&minimal), false);
    inherit(&parent, 077, S_IFREG | 0666, S_IFREG | 0644, NULL, NULL);
    inherit(&parent, 077, S_IFDIR | 0777, S_IFDIR | 0654, NULL, &minimal);
    inode_acls_finish(&parent.acls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_acls_are_taken_if_and_only_if_they_are_valid),
        cmocka_unit_test(garbage_is_refused),
        cmocka_unit_test(odd_sizes_and_other_versions_are_refused),
        cmocka_unit_test(as_many_entries_as_the_kernel_can_read),
        cmocka_unit_test(the_mode_follows_the_acl_and_chmod_changes_the_acl),
        cmocka_unit_test(an_access_acl_sets_the_mode),
        cmocka_unit_test(who_may_have_which_acl),
        cmocka_unit_test(new_files_inherit_the_default_acl_or_obey_the_umask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
