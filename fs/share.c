#include "fs/share.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <time.h>

#include "core/log.h"

#define CLIENTS_MAX      1024
#define CLIENTS_USER_MAX 256 /* of one user, who is neither root nor the mount's owner */
#define CLIENT_STACK     (256 * 1024)
#define SEND_TIMEOUT_S   10
#define BACKLOG          128
#define STOP_TIMEOUT_S   10
#define REFUSED_MESSAGES 8 /* read from one who is turned away */

struct share {
    struct residentfs *fs;
    dev_t device; /* st_dev of the mount */
    int socket;
    int stop_fd; /* eventfd */
    pthread_t thread;
    bool running; /* the main thread's */

    pthread_mutex_t mutex; /* covers what follows */
    pthread_cond_t left;   /* a client has gone */
    char path[SHARE_PATH_BYTES];
    struct share_client *clients;
    unsigned int clients_count;
    bool stopping;
};

/* -- descriptors ------------------------------------------------------------------------------- */

/*
 * Without asking any file system: a program may send a descriptor of one that never answers. Of our
 * own, the number is known to the kernel all the same.
 */
static bool identify(int descriptor, const char *path, dev_t *device, uint64_t *ino)
{
    struct statx st;

    if (statx(descriptor, path, AT_EMPTY_PATH | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_INO,
              &st) < 0)
        return false;
    *device = makedev(st.stx_dev_major, st.stx_dev_minor);
    *ino = st.stx_ino;
    return true;
}

bool share_descriptor_ino(const struct share *share, int descriptor, uint64_t *ino)
{
    dev_t device;

    return identify(descriptor, "", &device, ino) && device == share->device;
}

/* -- one client -------------------------------------------------------------------------------- */

/*
 * The length of what was received, or 0 when the conversation is over. A message without bytes ends
 * it too, but may have brought descriptors.
 */
static ssize_t receive(int socket, void *bytes, size_t capacity, int *descriptors, size_t *count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SHARE_DESCRIPTORS_MAX)];
        struct cmsghdr align;
    } control;
    struct iovec data = {bytes, capacity};
    struct msghdr message = {
        .msg_iov = &data,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    ssize_t length;

    *count = 0;
    do
        length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_TRUNC);
    while (length < 0 && errno == EINTR);
    if (length < 0)
        return 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(descriptors + *count, CMSG_DATA(c), here * sizeof(int));
        *count += here;
    }
    if (length > 0 && !(message.msg_flags & MSG_CTRUNC))
        return length;
    /* More descriptors than any request has, or than this process may have open. */
    if (message.msg_flags & MSG_CTRUNC)
        log_warning("share: a request with more descriptors than could be taken was dropped");
    while (*count > 0)
        close(descriptors[--*count]);
    return 0;
}

static bool reply_with(int socket, const struct share_reply *reply, const int *sent)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SHARE_CHUNKS_MAX)];
        struct cmsghdr align;
    } control;
    struct iovec data = {(void *)reply, sizeof(*reply)};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    ssize_t length;

    if (reply->chunk_count > 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * reply->chunk_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * reply->chunk_count);
        memcpy(CMSG_DATA(c), sent, sizeof(int) * reply->chunk_count);
    }
    do
        length = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (length < 0 && errno == EINTR);
    return length == (ssize_t)sizeof(*reply);
}

static struct share_reply reply_to(const struct share_request *request)
{
    return (struct share_reply){
        .magic = SHARE_MAGIC, .version = SHARE_VERSION, .operation = request->operation};
}

/* One request. False: the conversation is over. */
static bool serve_one(struct share_client *client)
{
    struct share_request request = {0};
    int received[SHARE_DESCRIPTORS_MAX], sent[SHARE_CHUNKS_MAX];
    char bytes[sizeof(request) + 1];
    size_t count;
    ssize_t length = receive(client->socket, bytes, sizeof(bytes), received, &count);

    if (length == 0)
        return false;
    struct share_reply reply;
    char text[SHARE_MESSAGE_BYTES] = "";
    errint_t error =
        share_request_parse(bytes, (size_t)length, count, &request, text, sizeof(text));
    reply = reply_to(&request);
    if (error < 0) {
        log_warning("share: process %d (%s) of user %u: %s", (int)client->pid, client->command,
                    (unsigned int)client->uid, text);
        reply.error = error;
        memcpy(reply.message, text, sizeof(reply.message));
    } else {
        share_request_serve(client, &request, received, count, &reply, sent);
    }
    for (size_t i = 0; i < count; i++)
        close(received[i]);
    bool good = reply_with(client->socket, &reply, sent) && error == 0;
    for (size_t i = 0; i < reply.chunk_count; i++)
        close(sent[i]);
    return good;
}

static void client_leave(struct share_client *client)
{
    struct share *share = client->share;

    pthread_mutex_lock(&share->mutex);
    if (client->previous)
        client->previous->next = client->next;
    else
        share->clients = client->next;
    if (client->next)
        client->next->previous = client->previous;
    close(client->socket);
    free(client);
    share->clients_count--;
    pthread_cond_broadcast(&share->left);
    pthread_mutex_unlock(&share->mutex);
}

static void *client_run(void *data)
{
    struct share_client *client = data;

    if (device_attach_thread(client->fs->device) < 0)
        log_error("share: a thread cannot use the device");
    else
        while (serve_one(client))
            ;
    share_client_end(client);
    client_leave(client);
    return NULL;
}

void share_client_set(struct share_client *client, enum share_client_kind kind, struct inode *inode,
                      uint64_t length)
{
    pthread_mutex_lock(&client->share->mutex);
    client->kind = kind;
    client->inode = inode;
    client->length = length;
    pthread_mutex_unlock(&client->share->mutex);
}

/* -- the listener ------------------------------------------------------------------------------ */

static void set_command(struct share_client *client)
{
    char path[40];
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/comm", (int)client->pid);
    file = client->pid > 0 ? fopen(path, "re") : NULL;
    if (!file || !fgets(client->command, sizeof(client->command), file))
        strcpy(client->command, "?");
    if (file)
        fclose(file);
    client->command[strcspn(client->command, "\n")] = 0;
    for (char *c = client->command; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._+-", *c))
            *c = '?';
}

/* Whether there are as many connections as there may be. With the mutex held. */
static bool is_full(const struct share *share, uid_t uid)
{
    unsigned int same = 0;

    if (uid != 0 && uid != share->fs->owner_uid)
        for (const struct share_client *c = share->clients; c; c = c->next)
            same += c->uid == uid;
    return same >= CLIENTS_USER_MAX || share->clients_count >= CLIENTS_MAX;
}

static void refuse(const struct share_client *client)
{
    struct share_reply reply = {.magic = SHARE_MAGIC, .version = SHARE_VERSION, .error = -EMFILE};

    snprintf(reply.message, sizeof(reply.message),
             "too many files are shared: %u at once, %u by one user; unmap some", CLIENTS_MAX,
             CLIENTS_USER_MAX);
    log_warning("share: process %d (%s) of user %u was turned away: %s", (int)client->pid,
                client->command, (unsigned int)client->uid, reply.message);
    reply_with(client->socket, &reply, NULL);
    /* A socket that is closed with something unread takes the reply with it. */
    shutdown(client->socket, SHUT_RDWR);
    for (int i = 0; i < REFUSED_MESSAGES; i++)
        if (recv(client->socket, &(char){0}, 1, MSG_DONTWAIT) <= 0)
            break;
}

/* Starts a thread for the client, which owns it then. False: not taken. */
static bool client_enter(struct share *share, struct share_client *client)
{
    pthread_attr_t attributes;
    pthread_t thread;
    bool started = false;

    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, CLIENT_STACK);
    pthread_mutex_lock(&share->mutex);
    if (!share->stopping && !is_full(share, client->uid)) {
        client->next = share->clients;
        if (client->next)
            client->next->previous = client;
        share->clients = client;
        share->clients_count++;
        started = pthread_create(&thread, &attributes, client_run, client) == 0;
        if (!started) {
            share->clients = client->next;
            if (client->next)
                client->next->previous = NULL;
            share->clients_count--;
        }
    }
    pthread_mutex_unlock(&share->mutex);
    pthread_attr_destroy(&attributes);
    return started;
}

static void accept_client(struct share *share)
{
    int socket = accept4(share->socket, NULL, NULL, SOCK_CLOEXEC);
    struct ucred peer = {0};
    socklen_t length = sizeof(peer);
    struct timeval timeout = {.tv_sec = SEND_TIMEOUT_S};
    struct share_client *client;

    if (socket < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
            log_error("share: cannot take a connection: %s", strerror(errno));
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        }
        return;
    }
    client = calloc(1, sizeof(*client));
    if (!client || getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0 ||
        setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0) {
        log_error("share: cannot take a connection: %s", strerror(errno));
        free(client);
        close(socket);
        return;
    }
    client->share = share;
    client->fs = share->fs;
    client->socket = socket;
    client->pid = peer.pid;
    client->uid = peer.uid;
    set_command(client);
    if (!client_enter(share, client)) {
        refuse(client);
        close(socket);
        free(client);
    }
}

static void *listener_run(void *data)
{
    struct share *share = data;
    struct pollfd fds[] = {
        {.fd = share->stop_fd, .events = POLLIN},
        {.fd = share->socket, .events = POLLIN},
    };

    while (true) {
        if (poll(fds, ARRAY_SIZE(fds), -1) < 0)
            continue;
        if (fds[0].revents)
            break;
        if (fds[1].revents)
            accept_client(share);
    }
    return NULL;
}

/* -- start and stop ---------------------------------------------------------------------------- */

/* A folder that nobody else can put things into; made if need be. */
static errint_t socket_folder(char *path, size_t path_bytes)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;

    if (getuid() == 0)
        snprintf(path, path_bytes, "/run/residentfs");
    else if (runtime && runtime[0] == '/')
        snprintf(path, path_bytes, "%s/residentfs", runtime);
    else
        snprintf(path, path_bytes, "/tmp/residentfs-%u", (unsigned int)getuid());
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return -errno;
    if (lstat(path, &st) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode) || st.st_uid != getuid() || (st.st_mode & 022))
        return -EPERM;
    return 0;
}

static errint_t bind_socket(struct share *share, char *message, size_t message_bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char folder[sizeof(address.sun_path) - 24];
    uint64_t root_ino;

    if (!identify(AT_FDCWD, share->fs->conf->mountpoint, &share->device, &root_ino) ||
        root_ino != INODE_ROOT) {
        snprintf(message, message_bytes, "cannot find out the device number of %s",
                 share->fs->conf->mountpoint);
        return -EIO;
    }
    errint_t error = socket_folder(folder, sizeof(folder));
    if (error < 0) {
        snprintf(message, message_bytes,
                 "cannot use %s for the share socket: %s; it must be a folder of user %u that only "
                 "he may write to",
                 folder, strerror(-error), (unsigned int)getuid());
        return error;
    }
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/%u.%u", folder, major(share->device),
             minor(share->device));
    /* The number is this mount's, so what bears it is left over. */
    unlink(address.sun_path);
    if (bind(share->socket, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        chmod(address.sun_path, 0666) < 0 || listen(share->socket, BACKLOG) < 0) {
        error = -errno;
        snprintf(message, message_bytes, "cannot listen on %s: %s", address.sun_path,
                 strerror(-error));
        return error;
    }
    pthread_mutex_lock(&share->mutex);
    memcpy(share->path, address.sun_path, sizeof(share->path));
    pthread_mutex_unlock(&share->mutex);
    return 0;
}

struct share *share_create(struct residentfs *fs)
{
    struct share *share = calloc(1, sizeof(*share));

    if (!share)
        return NULL;
    share->fs = fs;
    share->stop_fd = eventfd(0, EFD_CLOEXEC);
    share->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    pthread_mutex_init(&share->mutex, NULL);
    pthread_cond_init(&share->left, NULL);
    if (share->stop_fd < 0 || share->socket < 0) {
        share_destroy(share);
        return NULL;
    }
    return share;
}

errint_t share_start(struct share *share, char *message, size_t message_bytes)
{
    errint_t error = bind_socket(share, message, message_bytes);

    if (error < 0)
        return error;
    error = -pthread_create(&share->thread, NULL, listener_run, share);
    if (error < 0)
        snprintf(message, message_bytes, "cannot start a thread: %s", strerror(-error));
    share->running = error == 0;
    return error;
}

bool share_stop(struct share *share)
{
    struct timespec deadline;
    uint64_t one = 1;

    if (!share)
        return true;
    if (share->running) {
        if (write(share->stop_fd, &one, sizeof(one)) < 0)
            log_error("share: cannot stop the listener: %s", strerror(errno));
        pthread_join(share->thread, NULL);
        share->running = false;
    }
    pthread_mutex_lock(&share->mutex);
    if (share->path[0])
        unlink(share->path);
    share->path[0] = 0;
    share->stopping = true;
    for (struct share_client *c = share->clients; c; c = c->next)
        shutdown(c->socket, SHUT_RDWR);
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += STOP_TIMEOUT_S;
    int waited = 0;
    while (share->clients_count > 0 && waited == 0)
        waited = pthread_cond_timedwait(&share->left, &share->mutex, &deadline);
    bool ended = share->clients_count == 0;
    pthread_mutex_unlock(&share->mutex);
    return ended;
}

void share_destroy(struct share *share)
{
    if (!share)
        return;
    if (share->stop_fd >= 0)
        close(share->stop_fd);
    if (share->socket >= 0)
        close(share->socket);
    pthread_cond_destroy(&share->left);
    pthread_mutex_destroy(&share->mutex);
    free(share);
}

/* -- who shares what --------------------------------------------------------------------------- */

void share_get_socket_path(struct share *share, char path[SHARE_PATH_BYTES])
{
    path[0] = 0;
    if (!share)
        return;
    pthread_mutex_lock(&share->mutex);
    memcpy(path, share->path, SHARE_PATH_BYTES);
    pthread_mutex_unlock(&share->mutex);
}

char *share_clients_text(struct share *share, uint64_t ino)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    unsigned int count = 0;

    if (!out)
        return NULL;
    if (share) {
        pthread_mutex_lock(&share->mutex);
        for (const struct share_client *c = share->clients; c; c = c->next)
            if (c->inode && c->inode->ino == ino)
                fprintf(out, "%s%d:%s", count++ > 0 ? "," : "", (int)c->pid, c->command);
        pthread_mutex_unlock(&share->mutex);
    }
    if (count == 0)
        fputc('-', out);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

void share_get_report(struct share *share, struct share_report *report)
{
    *report = (struct share_report){0};
    if (!share)
        return;
    pthread_mutex_lock(&share->mutex);
    for (const struct share_client *c = share->clients; c; c = c->next) {
        report->mappings += c->kind == SHARE_CLIENT_MAPS;
        report->mapped_bytes += c->kind == SHARE_CLIENT_MAPS ? c->length : 0;
        report->attachments += c->kind == SHARE_CLIENT_ATTACHES;
        report->attached_bytes += c->kind == SHARE_CLIENT_ATTACHES ? c->length : 0;
    }
    pthread_mutex_unlock(&share->mutex);
}
