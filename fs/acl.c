#include "fs/acl.h"

#include <endian.h>
#include <errno.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <string.h>

#define PERMISSIONS (ACL_READ | ACL_WRITE | ACL_EXECUTE)
#define NAMED       (ACL_USER | ACL_GROUP)
#define REQUIRED    (ACL_USER_OBJ | ACL_GROUP_OBJ | ACL_OTHER)
#define ALL_TAGS    (REQUIRED | NAMED | ACL_MASK)

struct acl_entry {
    uint16_t tag; /* one bit of ALL_TAGS */
    uint16_t permissions;
    uint32_t id; /* of a named user or group */
};

struct acl {
    size_t count;
    struct acl_entry entries[];
};

_Static_assert(ACL_BYTES_MAX == sizeof(struct posix_acl_xattr_header) +
                                    ACL_ENTRIES_MAX * sizeof(struct posix_acl_xattr_entry),
               "the format of the attribute");

/* Linux takes the same user or group twice, too; the first entry counts. */
static bool is_valid(const struct acl *acl)
{
    unsigned int seen = 0, previous = 0;

    for (size_t i = 0; i < acl->count; i++) {
        const struct acl_entry *entry = &acl->entries[i];
        unsigned int tag = entry->tag;
        bool is_named = (tag & NAMED) != 0;

        if (!tag || (tag & ~(unsigned int)ALL_TAGS) || (tag & (tag - 1)))
            return false;
        /* The values of the tags are in the order that entries must have. */
        if (tag < previous || (tag == previous && !is_named))
            return false;
        if (entry->permissions & ~PERMISSIONS)
            return false;
        if (is_named && entry->id == (uint32_t)ACL_UNDEFINED_ID)
            return false;
        seen |= tag;
        previous = tag;
    }
    return (seen & REQUIRED) == REQUIRED && (!(seen & NAMED) || (seen & ACL_MASK));
}

static struct acl *acl_alloc(size_t count)
{
    struct acl *acl = malloc(sizeof(*acl) + count * sizeof(acl->entries[0]));
    if (acl)
        acl->count = count;
    return acl;
}

errint_t acl_parse(const void *bytes, size_t size, struct acl **out)
{
    struct posix_acl_xattr_header header;
    struct posix_acl_xattr_entry entry;
    const char *at = bytes;

    *out = NULL;
    if (size < sizeof(header))
        return -EINVAL;
    memcpy(&header, at, sizeof(header));
    at += sizeof(header);
    size -= sizeof(header);
    if (le32toh(header.a_version) != POSIX_ACL_XATTR_VERSION)
        return -EOPNOTSUPP;
    if (size % sizeof(entry))
        return -EINVAL;
    size_t count = size / sizeof(entry);
    if (count == 0)
        return 0;
    if (count > ACL_ENTRIES_MAX)
        return -E2BIG;

    cleanup_free struct acl *acl = acl_alloc(count);
    if (!acl)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++, at += sizeof(entry)) {
        memcpy(&entry, at, sizeof(entry));
        uint16_t tag = le16toh(entry.e_tag);
        acl->entries[i] = (struct acl_entry){
            .tag = tag,
            .permissions = le16toh(entry.e_perm),
            .id = tag & NAMED ? le32toh(entry.e_id) : (uint32_t)ACL_UNDEFINED_ID,
        };
    }
    if (!is_valid(acl))
        return -EINVAL;
    *out = steal_pointer(&acl);
    return 0;
}

size_t acl_bytes(const struct acl *acl)
{
    return sizeof(struct posix_acl_xattr_header) +
           acl->count * sizeof(struct posix_acl_xattr_entry);
}

void acl_serialise(const struct acl *acl, void *bytes)
{
    const struct posix_acl_xattr_header header = {.a_version = htole32(POSIX_ACL_XATTR_VERSION)};
    char *at = bytes;

    memcpy(at, &header, sizeof(header));
    at += sizeof(header);
    for (size_t i = 0; i < acl->count; i++) {
        const struct posix_acl_xattr_entry entry = {
            .e_tag = htole16(acl->entries[i].tag),
            .e_perm = htole16(acl->entries[i].permissions),
            .e_id = htole32(acl->entries[i].id),
        };
        memcpy(at, &entry, sizeof(entry));
        at += sizeof(entry);
    }
}

struct acl *acl_copy(const struct acl *acl)
{
    struct acl *copy = acl_alloc(acl->count);
    if (copy)
        memcpy(copy->entries, acl->entries, acl->count * sizeof(acl->entries[0]));
    return copy;
}

bool acl_is_mode(const struct acl *acl)
{
    for (size_t i = 0; i < acl->count; i++)
        if (!(acl->entries[i].tag & REQUIRED))
            return false;
    return true;
}

/* Where in a mode an entry's permissions are, as a shift; negative: nowhere. */
static int place_in_mode(const struct acl *acl, const struct acl_entry *entry)
{
    switch (entry->tag) {
    case ACL_USER_OBJ:
        return 6;
    case ACL_GROUP_OBJ:
        return acl_is_mode(acl) ? 3 : -1;
    case ACL_MASK:
        return 3;
    case ACL_OTHER:
        return 0;
    default:
        return -1;
    }
}

mode_t acl_mode(const struct acl *acl, mode_t mode)
{
    mode &= ~(mode_t)0777;
    for (size_t i = 0; i < acl->count; i++) {
        int place = place_in_mode(acl, &acl->entries[i]);
        if (place >= 0)
            mode |= (mode_t)acl->entries[i].permissions << place;
    }
    return mode;
}

void acl_set_mode(struct acl *acl, mode_t mode)
{
    for (size_t i = 0; i < acl->count; i++) {
        int place = place_in_mode(acl, &acl->entries[i]);
        if (place >= 0)
            acl->entries[i].permissions = (mode >> place) & PERMISSIONS;
    }
}

void acl_restrict(struct acl *acl, mode_t mode)
{
    acl_set_mode(acl, acl_mode(acl, 0) & mode);
}
