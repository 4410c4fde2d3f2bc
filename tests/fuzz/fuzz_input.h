/* What fuzz_requests makes of the fuzzer's bytes: numbers, names and values that often fit. */
#ifndef RESIDENTFS_TESTS_FUZZ_INPUT_H
#define RESIDENTFS_TESTS_FUZZ_INPUT_H

#include <endian.h>
#include <errno.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/util.h"

#define REQUIRE(condition) \
    do {                   \
        if (!(condition))  \
            abort();       \
    } while (0)

#define NAME_BYTES       1025 /* of FUSE, with the zero byte */
#define XATTR_NAME_BYTES (NAME_BYTES + 8)
#define VALUE_BYTES      (65536 + 256)

struct input {
    const uint8_t *at, *end;
};

/* Little endian; zeros past the end. */
static inline uint64_t take(struct input *input, unsigned int bytes)
{
    uint64_t value = 0;

    for (unsigned int i = 0; i < bytes && input->at < input->end; i++)
        value |= (uint64_t)*input->at++ << (8 * i);
    return value;
}

/* How many there were, MOST at most. */
static inline size_t take_bytes(struct input *input, char *bytes, size_t most)
{
    size_t count = MIN(most, (size_t)(input->end - input->at));

    if (count > 0)
        memcpy(bytes, input->at, count);
    input->at += count;
    return count;
}

static inline uint64_t take_offset(struct input *input)
{
    switch (take(input, 1) % 8) {
    case 0:
        return 0;
    case 1:
        return take(input, 1);
    case 2:
        return take(input, 2);
    case 3:
        return take(input, 3);
    case 4:
        return take(input, 1) * 2 * MIB + (uint64_t)(int8_t)take(input, 1);
    case 5:
        return INT64_MAX - take(input, 3);
    case 6:
        return take(input, 4) << 12;
    default:
        return take(input, 8);
    }
}

static inline char *take_name(struct input *input, char name[NAME_BYTES])
{
    static const char *const names[] = {".",     "..",     ".resident", "status",
                                        "flush", "budget", "log",       "buffers"};
    uint8_t kind = (uint8_t)take(input, 1);

    if (kind < 128) { /* few, so that they are met again */
        name[0] = (char)('a' + kind % 12);
        name[1] = '\0';
    } else if (kind < 160) {
        strcpy(name, names[kind % ARRAY_SIZE(names)]);
    } else if (kind < 176) { /* as long as they may be, and longer */
        size_t length = kind < 168 ? 252 + kind % 8 : NAME_BYTES - 1;
        memset(name, 'x', length);
        name[length] = '\0';
    } else {
        name[take_bytes(input, name, kind % 16)] = '\0';
    }
    return name;
}

static inline char *take_xattr_name(struct input *input, char name[XATTR_NAME_BYTES])
{
    static const char *const names[] = {"user.a",
                                        "user.b",
                                        "user.",
                                        "trusted.a",
                                        "security.capability",
                                        "system.posix_acl_access",
                                        "system.posix_acl_default",
                                        "user.resident.state",
                                        "user.resident.resident_bytes",
                                        "user.resident.device",
                                        "user.resident.socket",
                                        "user.resident.none"};
    uint8_t kind = (uint8_t)take(input, 1);

    if (kind < 224)
        return strcpy(name, names[kind % ARRAY_SIZE(names)]);
    strcpy(name, "user.");
    take_name(input, name + strlen(name));
    return name;
}

static inline size_t put_acl_entry(char *value, size_t length, uint16_t tag, uint16_t permissions,
                                   uint32_t id)
{
    const struct posix_acl_xattr_entry entry = {htole16(tag), htole16(permissions), htole32(id)};

    memcpy(value + length, &entry, sizeof(entry));
    return length + sizeof(entry);
}

/* An ACL that is right but for what the bytes say, or as many entries as there may be and more; its
 * length. */
static inline size_t take_acl(struct input *input, char *value)
{
    static const uint16_t tags[] = {ACL_USER_OBJ, ACL_USER, ACL_GROUP_OBJ,
                                    ACL_GROUP,    ACL_MASK, ACL_OTHER};
    const struct posix_acl_xattr_header header = {htole32(POSIX_ACL_XATTR_VERSION)};
    size_t count = take(input, 1), length = sizeof(header);

    memcpy(value, &header, sizeof(header));
    if (count >= 240) {
        length = put_acl_entry(value, length, ACL_USER_OBJ, 7, ACL_UNDEFINED_ID);
        for (uint32_t i = 0; i < count + 260; i++)
            length = put_acl_entry(value, length, ACL_USER, 7, i);
        count = 3;
    }
    for (size_t i = 0; i < count % 16; i++) {
        uint8_t what = (uint8_t)take(input, 1);
        uint16_t tag = tags[what % 8 % ARRAY_SIZE(tags)];
        bool is_named = tag == ACL_USER || tag == ACL_GROUP;

        length =
            put_acl_entry(value, length, tag, what >> 3, is_named ? what >> 6 : ACL_UNDEFINED_ID);
    }
    return length;
}

/* Its length. */
static inline size_t take_value(struct input *input, char value[VALUE_BYTES])
{
    uint8_t kind = (uint8_t)take(input, 1);

    if (kind < 96)
        return take_acl(input, value);
    if (kind < 192)
        return take_bytes(input, value, kind - 96);
    memset(value, kind, VALUE_BYTES);
    return kind < 224 ? take(input, 2) : 65536 + take(input, 1);
}

#endif
