#include "core/share/connection.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/share/resident.h"

#define SOCKET_VARIABLE    "RESIDENT_SOCKET"
#define DISCONNECT_SECONDS 10

static _Thread_local char last_error[512];

const char *resident_error(void)
{
    return last_error;
}

errint_t share_fail(errint_t error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(last_error, sizeof(last_error), format, arguments);
    va_end(arguments);
    return error;
}

errint_t share_connect(int file, int *out)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *given = getenv(SOCKET_VARIABLE);
    ssize_t length =
        fgetxattr(file, SHARE_SOCKET_XATTR, address.sun_path, sizeof(address.sun_path) - 1);

    if (length < 0 && (errno == ENODATA || errno == EOPNOTSUPP))
        return share_fail(-ENOTSUP, "not a file of residentfs, or of one that shares nothing "
                                    "(option share=off)");
    if (length < 0)
        return share_fail(-errno, "cannot ask for the share socket: %s", strerror(errno));
    address.sun_path[length] = 0;
    if (given && given[0]) {
        if (strlen(given) >= sizeof(address.sun_path))
            return share_fail(-ENAMETOOLONG, "%s is longer than %zu bytes", SOCKET_VARIABLE,
                              sizeof(address.sun_path) - 1);
        strcpy(address.sun_path, given);
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return share_fail(-errno, "cannot make a socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        errint_t error = -errno;
        close(fd);
        return share_fail(error,
                          "cannot connect to residentfs at %s: %s; in a container, mount that "
                          "folder too, or name the socket in " SOCKET_VARIABLE,
                          address.sun_path, strerror(-error));
    }
    *out = fd;
    return 0;
}

void share_disconnect(int socket)
{
    struct timeval timeout = {.tv_sec = DISCONNECT_SECONDS};
    char end;

    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    shutdown(socket, SHUT_WR);
    while (recv(socket, &end, sizeof(end), 0) < 0 && errno == EINTR)
        ;
    close(socket);
}

struct share_request share_request_of(enum share_operation operation)
{
    return (struct share_request){
        .magic = SHARE_MAGIC, .version = SHARE_VERSION, .operation = operation};
}

static errint_t send_request(int socket, const struct share_request *request,
                             const int *descriptors, size_t count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SHARE_DESCRIPTORS_MAX)];
        struct cmsghdr align;
    } control = {0};
    struct iovec data = {(void *)request, sizeof(*request)};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    ssize_t length;

    if (count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(c), descriptors, sizeof(int) * count);
    }
    do
        length = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (length < 0 && errno == EINTR);
    return length == (ssize_t)sizeof(*request) ? 0 : -errno;
}

/* The length of the reply, 0 when the daemon is gone, or a negative errno. */
static ssize_t receive_reply(int socket, struct share_reply *reply, int *received, size_t *count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SHARE_CHUNKS_MAX)];
        struct cmsghdr align;
    } control;
    struct iovec data = {reply, sizeof(*reply)};
    struct msghdr message = {
        .msg_iov = &data,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    ssize_t length;

    *count = 0;
    do
        length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    if (length <= 0)
        return length < 0 ? -errno : 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        *count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(received, CMSG_DATA(c), *count * sizeof(int));
    }
    if (message.msg_flags & MSG_CTRUNC)
        return -EMFILE;
    return length;
}

errint_t share_ask(int socket, const struct share_request *request, const int *descriptors,
                   size_t count, struct share_reply *reply, int *received)
{
    int here[SHARE_CHUNKS_MAX];
    size_t got;
    errint_t error = send_request(socket, request, descriptors, count);
    ssize_t length =
        error < 0 && error != -EPIPE ? error : receive_reply(socket, reply, here, &got);

    if (error < 0 && error != -EPIPE)
        return share_fail(error, "cannot ask residentfs: %s", strerror(-error));
    if (length == (ssize_t)sizeof(*reply) && reply->magic == SHARE_MAGIC && reply->error == 0 &&
        got == reply->chunk_count && (received || got == 0)) {
        if (received)
            memcpy(received, here, got * sizeof(int));
        return 0;
    }
    for (size_t i = 0; i < got; i++)
        close(here[i]);
    if (length == -EMFILE)
        return share_fail(-EMFILE,
                          "not as many descriptors may be open as the file has chunks: raise the "
                          "limit (ulimit -n)");
    if (length < 0)
        return share_fail((errint_t)length, "no answer from residentfs: %s",
                          strerror((int)-length));
    if (length == 0)
        return share_fail(-EPIPE, "residentfs has ended, or was unmounted");
    if (length != (ssize_t)sizeof(*reply) || reply->magic != SHARE_MAGIC || reply->error >= 0)
        return share_fail(-EPROTO, "residentfs answered in a way that this libresident does not "
                                   "know: they must be of one version");
    reply->message[sizeof(reply->message) - 1] = 0;
    return share_fail(reply->error, "%s", reply->message);
}
