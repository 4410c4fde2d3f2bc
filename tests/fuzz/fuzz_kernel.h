/* What fuzz_requests takes the kernel to know: it follows from the replies, which are checked. */
#ifndef RESIDENTFS_TESTS_FUZZ_KERNEL_H
#define RESIDENTFS_TESTS_FUZZ_KERNEL_H

#include <linux/fuse.h>
#include <sys/uio.h>

#include "fs/inode.h"
#include "tests/fuzz/fuzz_input.h"

#define REQUESTS_MAX 400
#define NODES_MAX    (REQUESTS_MAX + INODE_FIRST_FREE)
#define REPLY_MAX    (1 << 20)
/* Newer than the oldest kernel's header that this is built with. */
#define OPCODE_TMPFILE 51
#define OPCODE_STATX   52

struct node {
    uint64_t number, lookups;
};

struct opened {
    uint64_t handle, node;
    bool is_directory;
};

/* As the kernel sees it. */
static struct {
    struct node nodes[NODES_MAX];
    size_t nodes_count;
    struct opened opened[REQUESTS_MAX];
    size_t opened_count;
    bool extended_setxattr;

    /* The request under way. */
    uint64_t unique, node;
    uint32_t opcode;
    size_t capacity; /* of what it asked for; READ and the like */
    bool replied, refuses;
    int32_t error;
    char *message;
    size_t length;
} kernel;

static void node_found(uint64_t number)
{
    size_t i = 0;

    while (i < kernel.nodes_count && kernel.nodes[i].number != number)
        i++;
    if (i == kernel.nodes_count) {
        REQUIRE(kernel.nodes_count < NODES_MAX);
        kernel.nodes[kernel.nodes_count++] = (struct node){.number = number};
    }
    kernel.nodes[i].lookups++;
}

static void node_opened(uint64_t node, uint64_t handle, bool is_directory)
{
    kernel.opened[kernel.opened_count++] =
        (struct opened){.handle = handle, .node = node, .is_directory = is_directory};
}

static void listing_received(const char *bytes, size_t length)
{
    struct fuse_direntplus entry;

    for (size_t at = 0; at < length;) {
        REQUIRE(length - at >= FUSE_NAME_OFFSET_DIRENTPLUS);
        memcpy(&entry, bytes + at, FUSE_NAME_OFFSET_DIRENTPLUS);
        size_t whole = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET_DIRENTPLUS + entry.dirent.namelen);
        REQUIRE(entry.dirent.namelen > 0 || entry.dirent.ino >= INODE_FIRST_FREE);
        REQUIRE(whole <= length - at);
        if (entry.entry_out.nodeid)
            node_found(entry.entry_out.nodeid);
        at += whole;
    }
}

/* Of a reply without an error. */
static void reply_received(const char *bytes, size_t length)
{
    struct fuse_entry_out entry;
    struct fuse_open_out open;

    switch (kernel.opcode) {
    case FUSE_LOOKUP:
    case FUSE_MKNOD:
    case FUSE_MKDIR:
    case FUSE_SYMLINK:
    case FUSE_LINK:
    case FUSE_CREATE:
    case OPCODE_TMPFILE:
        REQUIRE(length >= sizeof(entry));
        memcpy(&entry, bytes, sizeof(entry));
        if (entry.nodeid)
            node_found(entry.nodeid);
        if (length > sizeof(entry)) {
            REQUIRE(length == sizeof(entry) + sizeof(open));
            memcpy(&open, bytes + sizeof(entry), sizeof(open));
            node_opened(entry.nodeid, open.fh, false);
        }
        break;
    case FUSE_OPEN:
    case FUSE_OPENDIR:
        REQUIRE(length == sizeof(open));
        memcpy(&open, bytes, sizeof(open));
        node_opened(kernel.node, open.fh, kernel.opcode == FUSE_OPENDIR);
        break;
    case FUSE_READDIRPLUS:
        REQUIRE(length <= kernel.capacity);
        listing_received(bytes, length);
        break;
    case FUSE_READ:
    case FUSE_READDIR:
        REQUIRE(length <= kernel.capacity);
        break;
    case FUSE_GETXATTR:
    case FUSE_LISTXATTR:
        REQUIRE(length <= (kernel.capacity ? kernel.capacity : sizeof(struct fuse_getxattr_out)));
        break;
    }
}

static ssize_t on_reply(int fd, struct iovec *parts, int count, void *userdata)
{
    static char bytes[REPLY_MAX];
    struct fuse_out_header header;
    size_t length = 0;

    (void)fd;
    (void)userdata;
    for (int i = 0; i < count; i++) {
        REQUIRE(parts[i].iov_len <= sizeof(bytes) - length);
        if (parts[i].iov_len > 0)
            memcpy(bytes + length, parts[i].iov_base, parts[i].iov_len);
        length += parts[i].iov_len;
    }
    REQUIRE(length >= sizeof(header));
    memcpy(&header, bytes, sizeof(header));
    REQUIRE(header.len == length);
    if (header.unique == 0) /* a notification */
        return (ssize_t)length;
    REQUIRE(header.unique == kernel.unique && !kernel.replied);
    REQUIRE(header.error <= 0 && header.error > -512);
    kernel.replied = true;
    kernel.error = header.error;
    if (kernel.refuses) {
        errno = ENOENT;
        return -1;
    }
    if (header.error == 0)
        reply_received(bytes + sizeof(header), length - sizeof(header));
    return (ssize_t)length;
}

#endif
