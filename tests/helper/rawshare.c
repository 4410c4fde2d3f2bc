/*
 * rawshare: speaks the share protocol by hand, and badly, for tests/share/hostile.t.
 *
 *   rawshare SUBJECT FILE [ARGUMENT [MORE]]
 *
 * FILE is on the mount. It is opened for reading and writing, if that is allowed. Prints "as
 * expected", or what was not.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/share/protocol.h"

#define DESCRIPTORS_MOST 253 /* that the kernel takes in a message */
#define ANSWER_SECONDS   20

static int file;
static const char *argument, *more;

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf(" (%s)\n", strerror(errno));
    exit(1);
}

/* -- talking ----------------------------------------------------------------------------------- */

static int try_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = ANSWER_SECONDS};
    ssize_t length =
        fgetxattr(file, SHARE_SOCKET_XATTR, address.sun_path, sizeof(address.sun_path) - 1);

    if (length < 0)
        fail("no " SHARE_SOCKET_XATTR);
    int one = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (one >= 0 && connect(one, (struct sockaddr *)&address, sizeof(address)) == 0)
        return one;
    close(one);
    return -1;
}

static int connected(void)
{
    int one = try_connect();
    if (one < 0)
        fail("cannot connect");
    return one;
}

/* COUNT times the same descriptor. False and errno. */
static bool send_bytes(int to, const void *bytes, size_t length, int descriptor, size_t count)
{
    char control[CMSG_SPACE(sizeof(int) * DESCRIPTORS_MOST)] __attribute__((aligned(8))) = {0};
    struct iovec data = {(void *)bytes, length};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

    if (count > 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * count);
        for (size_t i = 0; i < count; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &descriptor, sizeof(int));
    }
    return sendmsg(to, &message, MSG_NOSIGNAL) == (ssize_t)length;
}

/* False: the connection has ended. Descriptors of the reply are counted and closed. */
static bool receive(int from, struct share_reply *reply, size_t *count)
{
    char control[CMSG_SPACE(sizeof(int) * DESCRIPTORS_MOST)] __attribute__((aligned(8)));
    struct iovec data = {reply, sizeof(*reply)};
    struct msghdr message = {
        .msg_iov = &data,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = sizeof(control),
    };
    ssize_t length = recvmsg(from, &message, MSG_CMSG_CLOEXEC);

    *count = 0;
    if (length < 0 && errno == EAGAIN)
        fail("no answer within %d s", ANSWER_SECONDS);
    if (length <= 0)
        return false;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int one;
            memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            close(one);
            ++*count;
        }
    if (length != sizeof(*reply) || reply->magic != SHARE_MAGIC ||
        reply->version != SHARE_VERSION || !memchr(reply->message, 0, sizeof(reply->message)))
        fail("a reply of %zd bytes that is none", length);
    if (reply->error < 0 && !reply->message[0])
        fail("error %d without a word", reply->error);
    if (*count != (reply->error < 0 ? 0 : reply->chunk_count))
        fail("%zu descriptors with a reply of %u chunks", *count, reply->chunk_count);
    return true;
}

static void expect_end(int from, const char *what)
{
    struct share_reply reply;
    size_t count;
    if (receive(from, &reply, &count))
        fail("%s: the connection goes on", what);
    close(from);
}

/* The next reply has that error. */
static void expect(int from, int error, const char *what, struct share_reply *reply)
{
    size_t count;
    if (!receive(from, reply, &count))
        fail("%s: the connection ended", what);
    if (reply->error != error)
        fail("%s: %d (%s), not %d", what, reply->error, reply->message, error);
}

static struct share_request request_of(uint16_t operation)
{
    return (struct share_request){
        .magic = SHARE_MAGIC, .version = SHARE_VERSION, .operation = operation};
}

static void ask(int to, const struct share_request *request, int descriptor, size_t count,
                int error, const char *what)
{
    struct share_reply reply;
    if (!send_bytes(to, request, sizeof(*request), descriptor, count))
        fail("%s: cannot send", what);
    expect(to, error, what, &reply);
}

static int mapped(void)
{
    int one = connected();
    struct share_request request = request_of(SHARE_MAP);
    ask(one, &request, file, 1, 0, "map");
    return one;
}

/* -- subjects: messages ------------------------------------------------------------------------ */

/* What is not of the protocol: an error, and the connection ends. */
static void refused(const void *bytes, size_t length, size_t descriptors, int error,
                    const char *what)
{
    struct share_reply reply;
    int one = connected();
    if (!send_bytes(one, bytes, length, file, descriptors))
        fail("%s: cannot send", what);
    expect(one, error, what, &reply);
    expect_end(one, what);
}

static void sizes(void)
{
    static char bytes[60000];
    static const size_t lengths[] = {1, 2, 119, 121, 122, 240, 4096, 60000};
    struct share_request request = request_of(SHARE_MAP);

    memcpy(bytes, &request, sizeof(request));
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
        for (size_t descriptors = 0; descriptors < 3; descriptors++)
            refused(bytes, lengths[i], descriptors, -EPROTO, "a message of another size");
}

static void fields(void)
{
    struct share_request good = request_of(SHARE_MAP), bad = good;

    bad.magic ^= 1;
    refused(&bad, sizeof(bad), 1, -EPROTO, "another magic");
    bad = good;
    bad.version++;
    refused(&bad, sizeof(bad), 1, -EPROTONOSUPPORT, "a later version");
    bad.version = 0;
    refused(&bad, sizeof(bad), 1, -EPROTONOSUPPORT, "version 0");
    bad = good;
    bad.reserved = 1;
    refused(&bad, sizeof(bad), 1, -EPROTO, "reserved bytes");
    static const uint16_t operations[] = {0, 5, 6, 255, 256, 32768, 65535};
    for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++) {
        bad = good;
        bad.operation = operations[i];
        refused(&bad, sizeof(bad), 1, -EPROTO, "an unknown operation");
    }
    bad = request_of(SHARE_ATTACH);
    refused(&bad, sizeof(bad), 1, -EPROTO, "memory of kind 0");
    bad.memory_kind = 3;
    refused(&bad, sizeof(bad), 2, -EPROTO, "memory of kind 3");
}

static void descriptors(void)
{
    struct share_request request = request_of(SHARE_CHUNKS);

    refused(&request, sizeof(request), 1, -EPROTO, "chunks with a descriptor");
    request = request_of(SHARE_SYNC);
    refused(&request, sizeof(request), 1, -EPROTO, "sync with a descriptor");
    request = request_of(SHARE_MAP);
    refused(&request, sizeof(request), 2, -EPROTO, "map with two");
    request = request_of(SHARE_ATTACH);
    request.memory_kind = SHARE_MEMORY_IPC;
    refused(&request, sizeof(request), 0, -EPROTO, "attach with none");
    refused(&request, sizeof(request), 2, -EPROTO, "attach of an IPC handle with two");
    request.memory_kind = SHARE_MEMORY_DESCRIPTOR;
    refused(&request, sizeof(request), 1, -EPROTO, "attach of a descriptor with one");
    for (int i = 0; i < 40; i++) {
        int one = connected();
        if (!send_bytes(one, &request, sizeof(request), file, i % 2 ? 3 : DESCRIPTORS_MOST))
            fail("cannot send many descriptors");
        expect_end(one, "more descriptors than a request can have");
    }
}

/* A message without bytes that carries descriptors. */
static void nothing(void)
{
    for (int i = 0; i < 200; i++) {
        int one = connected();
        if (!send_bytes(one, "", 0, file, 2))
            fail("cannot send nothing");
        expect_end(one, "a message without bytes");
    }
}

static void garbage(void)
{
    static unsigned char bytes[512];

    srandom(4711);
    for (int i = 0; i < 500; i++) {
        int one = connected();
        struct share_reply reply;
        size_t count, length = i % 2 ? 120 : 1 + (size_t)random() % sizeof(bytes);
        for (size_t k = 0; k < length; k++)
            bytes[k] = (unsigned char)random();
        struct share_request request = request_of((uint16_t)(random() % 5));
        if (i % 4 == 3) /* a good head, then anything */
            memcpy(bytes, &request, 16);
        if (i % 4 == 3)
            memset(bytes + 12, 0, 4);
        if (!send_bytes(one, bytes, length, file, (size_t)random() % 3))
            fail("cannot send garbage");
        if (receive(one, &reply, &count) && reply.error == 0 && reply.operation != SHARE_MAP)
            fail("garbage is taken for operation %u", reply.operation);
        close(one);
    }
}

/* -- subjects: order --------------------------------------------------------------------------- */

static void order(void)
{
    struct share_request map = request_of(SHARE_MAP), chunks = request_of(SHARE_CHUNKS),
                         sync = request_of(SHARE_SYNC), attach = request_of(SHARE_ATTACH);
    int one = connected();

    chunks.length = UINT64_MAX;
    attach.memory_kind = SHARE_MEMORY_IPC;
    attach.length = 4096;
    ask(one, &chunks, -1, 0, -EINVAL, "chunks before map");
    ask(one, &sync, -1, 0, -EINVAL, "sync before map");
    ask(one, &map, -1, 0, -EINVAL, "map without a file");
    ask(one, &map, file, 1, 0, "map, after errors");
    ask(one, &map, file, 1, -EINVAL, "a second file");
    ask(one, &attach, file, 1, -EINVAL, "attach of a mapped file");
    ask(one, &map, -1, 0, 0, "map anew");
    ask(one, &sync, -1, 0, 0, "sync");
    close(one);
}

static void ranges(void)
{
    static const uint64_t odd[] = {0,         1,          4096,      2097151,
                                   2097152,   2097153,    1u << 30,  INT64_MAX - 1,
                                   INT64_MAX, 1ull << 63, ~0ull - 1, UINT64_MAX};
    int one = mapped();
    struct share_request request = request_of(SHARE_CHUNKS);
    struct share_reply reply;

    for (size_t i = 0; i < sizeof(odd) / sizeof(*odd); i++)
        for (size_t k = 0; k < sizeof(odd) / sizeof(*odd); k++) {
            request.offset = odd[i];
            request.length = odd[k];
            if (!send_bytes(one, &request, sizeof(request), -1, 0))
                fail("cannot send");
            expect(one, 0, "chunks of an odd range", &reply);
            for (uint32_t c = 0; c < reply.chunk_count; c++)
                if (reply.chunks[c].offset < odd[i] || reply.chunks[c].offset - odd[i] >= odd[k] ||
                    reply.chunks[c].length == 0)
                    fail("a chunk at %llu was not asked for",
                         (unsigned long long)reply.chunks[c].offset);
        }
    close(one);
}

/* -- subjects: attach -------------------------------------------------------------------------- */

/* FILE is empty. */
static void attach(void)
{
    int one = mapped(); /* of ARGUMENT: to learn the device's UUID, see main */
    struct share_request request = request_of(SHARE_MAP);
    struct share_reply reply;

    if (!send_bytes(one, &request, sizeof(request), -1, 0))
        fail("cannot send");
    expect(one, 0, "map", &reply);
    close(one);

    int empty = open(argument, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0644);
    int memory = memfd_create("memory", MFD_CLOEXEC);
    if (empty < 0 || memory < 0 || ftruncate(memory, 4 << 20) < 0)
        fail("cannot make files");
    one = connected();
    request = request_of(SHARE_ATTACH);
    request.memory_kind = SHARE_MEMORY_IPC;
    request.length = 4096;
    ask(one, &request, empty, 1, -ENODEV, "memory of no device");
    memcpy(request.device_uuid, reply.device_uuid, sizeof(request.device_uuid));
    ask(one, &request, empty, 1, -EINVAL, "an IPC handle of zeros");
    memset(request.ipc_handle, 0xa5, sizeof(request.ipc_handle));
    ask(one, &request, empty, 1, -EINVAL, "an IPC handle of garbage");
    request.length = 0;
    ask(one, &request, empty, 1, -EINVAL, "0 bytes");
    request.memory_kind = SHARE_MEMORY_DESCRIPTOR;
    request.length = 4096;
    static const uint64_t lengths[] = {0,          1,          4096,  2097152,
                                       1ull << 21, 1ull << 40, ~0ull, ~0ull << 21};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        request.allocation_length = lengths[i];
        ask(one, &request, empty, 2, -EINVAL, "a file for memory");
    }
    close(one);
    /* The file comes first, then the memory: here the other way round. */
    one = connected();
    request.allocation_length = 4 << 20;
    ask(one, &request, memory, 2, -ENOTSUP, "memory for a file");
    close(one);
    close(memory);
}

/* -- subjects: bad company --------------------------------------------------------------------- */

/* Asks and asks, and reads no answer: the daemon must give this one up, or wait for this one only.
 */
static void deaf(void)
{
    int one = mapped();
    struct share_request request = request_of(SHARE_CHUNKS);

    request.length = UINT64_MAX;
    fcntl(one, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < 100000 && send_bytes(one, &request, sizeof(request), -1, 0);)
        i++;
    sleep(argument ? (unsigned int)atoi(argument) : 1);
}

/* Leaves at every point of a conversation. */
static void leaves(void)
{
    struct share_request map = request_of(SHARE_MAP), chunks = request_of(SHARE_CHUNKS),
                         sync = request_of(SHARE_SYNC);

    chunks.length = UINT64_MAX;
    for (int i = 0; i < 300; i++) {
        int one = connected();
        if (i % 6 > 0)
            send_bytes(one, &map, sizeof(map), file, 1);
        if (i % 6 > 1)
            send_bytes(one, &chunks, sizeof(chunks), -1, 0);
        if (i % 6 > 2)
            send_bytes(one, &sync, sizeof(sync), -1, 0);
        if (i % 6 > 3)
            send_bytes(one, &map, sizeof(map), -1, 0);
        if (i % 6 > 4)
            shutdown(one, i % 12 > 6 ? SHUT_RD : SHUT_WR);
        close(one);
    }
}

static void quick(void)
{
    for (int i = 0; i < 2000; i++)
        close(connected());
}

/* Opens connections until one is turned away; prints how many were kept. */
static void crowd(void)
{
    static int all[5000];
    int count = 0;
    struct share_request request = request_of(SHARE_MAP);
    struct share_reply reply;
    size_t got;

    while (count < 5000) {
        int one = connected();
        bool sent = send_bytes(one, &request, sizeof(request), file, 1);
        bool answered = (sent || errno == EPIPE) && receive(one, &reply, &got);
        if (!answered || reply.error < 0) {
            printf("%d: %s\n", count, answered ? reply.message : "no answer");
            exit(0);
        }
        all[count++] = one;
    }
    printf("%d: no limit\n", count + all[0] * 0);
    exit(0);
}

/* Sends FILE, which may be anything, for a mapping. ARGUMENT: a file on the mount. */
static void foreign(void)
{
    struct share_request request = request_of(SHARE_MAP);
    struct share_reply reply;
    int sent = file;

    file = open(argument, O_RDWR | O_DIRECT | O_CLOEXEC);
    int one = connected();
    if (!send_bytes(one, &request, sizeof(request), sent, 1))
        fail("cannot send");
    close(sent); /* what the daemon has is the last one */
    expect(one, -ENOTSUP, "a file of another file system", &reply);
    close(one);
}

/* Descriptors of FILE that are not open for reading and writing. */
static void readonly(void)
{
    static const int flags[] = {O_RDONLY | O_DIRECT, O_WRONLY | O_DIRECT, O_PATH};
    struct share_request request = request_of(SHARE_MAP);
    int one = connected();

    for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
        int sent = open(argument, flags[i] | O_CLOEXEC);
        if (sent >= 0)
            ask(one, &request, sent, 1, flags[i] == O_PATH ? -EBADF : -EACCES, "map");
        close(sent);
    }
    close(one);
}

/*
 * As foreign, and FILE's daemon, process MORE, stops meanwhile: the last reference goes when it
 * does not answer.
 */
static void stuck(void)
{
    struct share_request request = request_of(SHARE_MAP);
    struct share_reply reply;
    int sent = file;

    file = open(argument, O_RDWR | O_DIRECT | O_CLOEXEC);
    int one = connected();
    kill(atoi(more), SIGSTOP);
    if (!send_bytes(one, &request, sizeof(request), sent, 1))
        fail("cannot send");
    puts("sent");
    fflush(stdout);
    size_t count;
    if (receive(one, &reply, &count) && reply.error != -ENOTSUP)
        fail("%d: %s", reply.error, reply.message);
    kill(getpid(), SIGKILL); /* without closing FILE */
}

/* Sends FILE for a mapping, and prints the error. ARGUMENT: a file on the mount. */
static void gives(void)
{
    struct share_request request = request_of(SHARE_MAP);
    struct share_reply reply;
    size_t count;
    int sent = file;

    file = open(argument, O_RDWR | O_DIRECT | O_CLOEXEC);
    int one = connected();
    if (!send_bytes(one, &request, sizeof(request), sent, 1) || !receive(one, &reply, &count))
        fail("no answer");
    printf("%d\n", reply.error);
    exit(0);
}

static const struct {
    const char *name;
    void (*function)(void);
} subjects[] = {
    {"sizes", sizes},     {"fields", fields},     {"descriptors", descriptors},
    {"nothing", nothing}, {"garbage", garbage},   {"order", order},
    {"ranges", ranges},   {"attach", attach},     {"deaf", deaf},
    {"leaves", leaves},   {"quick", quick},       {"crowd", crowd},
    {"foreign", foreign}, {"readonly", readonly}, {"gives", gives},
    {"stuck", stuck},
};

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: rawshare SUBJECT FILE [ARGUMENT [MORE]]\n");
        return 2;
    }
    /* Not through the page cache, if that can be. */
    static const int flags[] = {O_RDWR | O_DIRECT, O_RDWR, O_RDONLY};
    file = -1;
    for (size_t i = 0; i < sizeof(flags) / sizeof(*flags) && file < 0; i++)
        file = open(argv[2], flags[i] | O_CLOEXEC);
    argument = argc > 3 ? argv[3] : NULL;
    more = argc > 4 ? argv[4] : "";
    if (file < 0)
        fail("%s", argv[2]);
    for (size_t i = 0; i < sizeof(subjects) / sizeof(*subjects); i++)
        if (strcmp(subjects[i].name, argv[1]) == 0) {
            subjects[i].function();
            puts("as expected");
            return 0;
        }
    fprintf(stderr, "rawshare: no subject %s\n", argv[1]);
    return 2;
}
