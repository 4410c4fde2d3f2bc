/*
 * How other processes come by the memory that an IPC handle names: a thread of the process that
 * made it hands out its descriptor, at a socket with an abstract name. As with CUDA, whoever has
 * the handle is given the memory, whichever user he is; and nothing else that this process has
 * open.
 */
#include "core/driver/emulated/emulated.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG   64
#define TIMEOUT_S 10

/* Which memory is asked for; the answer is a byte that has its descriptor. */
struct question {
    int fd;
    uint64_t inode;
};

static socklen_t name_of(pid_t maker, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1,
                          "residentfs-emulated-ipc-%d", (int)maker);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static bool set_timeout(int socket)
{
    struct timeval timeout = {.tv_sec = TIMEOUT_S};

    return setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0 &&
           setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) == 0;
}

/* One descriptor and a byte, to be sent or received. */
struct parcel {
    char byte;
    struct iovec data;
    struct msghdr message;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
};

static void parcel_init(struct parcel *parcel)
{
    memset(parcel, 0, sizeof(*parcel));
    parcel->data = (struct iovec){&parcel->byte, 1};
    parcel->message.msg_iov = &parcel->data;
    parcel->message.msg_iovlen = 1;
    parcel->message.msg_control = parcel->control.bytes;
    parcel->message.msg_controllen = sizeof(parcel->control.bytes);
}

/* The memory that there are handles of: its descriptor, and one of our own to hand out. */
static struct {
    pthread_mutex_t mutex; /* a leaf: not the driver's, which is held by who waits for an answer */
    struct offer {
        int memory, fd;
        ino_t inode;
    } * items;
    size_t count, capacity;
} offers = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* With the mutex. NULL: there is none. */
static struct offer *find_offer(int memory)
{
    for (size_t i = 0; i < offers.count; i++)
        if (offers.items[i].memory == memory)
            return &offers.items[i];
    return NULL;
}

/* With the mutex. */
static bool offer(int memory)
{
    struct stat status;

    if (find_offer(memory))
        return true;
    if (offers.count == offers.capacity) {
        size_t capacity = offers.capacity ? 2 * offers.capacity : 16;
        struct offer *items = realloc(offers.items, capacity * sizeof(*items));
        if (!items)
            return false;
        offers.items = items;
        offers.capacity = capacity;
    }
    cleanup_fd int fd = fcntl(memory, F_DUPFD_CLOEXEC, 0);
    if (fd < 0 || fstat(fd, &status))
        return false;
    offers.items[offers.count++] = (struct offer){memory, fd, status.st_ino};
    steal_fd(&fd);
    return true;
}

void ipc_withdraw(int memory)
{
    pthread_mutex_lock(&offers.mutex);
    struct offer *found = find_offer(memory);
    if (found) {
        close(found->fd);
        *found = offers.items[--offers.count];
    }
    if (offers.count == 0) {
        free(offers.items);
        offers.items = NULL;
        offers.capacity = 0;
    }
    pthread_mutex_unlock(&offers.mutex);
}

/* A descriptor of the memory asked for, the caller's; -1: it is not offered (any more). */
static int take_offered(const struct question *question)
{
    pthread_mutex_lock(&offers.mutex);
    const struct offer *found = find_offer(question->fd);
    int fd =
        found && found->inode == (ino_t)question->inode ? fcntl(found->fd, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&offers.mutex);
    return fd;
}

/* No answer where there is no such memory. */
static void answer(int socket)
{
    struct question question;
    struct parcel parcel;

    if (!set_timeout(socket) ||
        recv(socket, &question, sizeof(question), 0) != (ssize_t)sizeof(question))
        return;
    cleanup_fd int fd = take_offered(&question);
    if (fd < 0)
        return;
    parcel_init(&parcel);
    struct cmsghdr *header = CMSG_FIRSTHDR(&parcel.message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(int));
    sendmsg(socket, &parcel.message, MSG_NOSIGNAL);
}

static void *serve(void *data)
{
    int listener = (int)(intptr_t)data;

    for (;;) {
        cleanup_fd int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0)
            answer(client);
        else
            usleep(100000);
    }
    return NULL;
}

bool ipc_serve(int fd)
{
    static pid_t serving; /* a child of fork has no such thread */
    struct sockaddr_un address;
    sigset_t all, before;
    pthread_t thread;

    pthread_mutex_lock(&offers.mutex);
    bool offered = offer(fd);
    pthread_mutex_unlock(&offers.mutex);
    if (!offered)
        return false;
    if (serving == getpid())
        return true;
    cleanup_fd int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0 ||
        bind(listener, (struct sockaddr *)&address, name_of(getpid(), &address)) < 0 ||
        listen(listener, BACKLOG) < 0)
        return false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = !pthread_create(&thread, NULL, serve, (void *)(intptr_t)listener);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started)
        return false;
    pthread_detach(thread);
    steal_fd(&listener);
    serving = getpid();
    return true;
}

int ipc_ask(pid_t maker, int fd, uint64_t inode)
{
    struct question question = {0};
    struct sockaddr_un address;
    socklen_t length = name_of(maker, &address);
    struct parcel parcel;
    int received = -1;
    cleanup_fd int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    question.fd = fd;
    question.inode = inode;
    if (connection < 0 || !set_timeout(connection) ||
        connect(connection, (struct sockaddr *)&address, length) < 0 ||
        send(connection, &question, sizeof(question), MSG_NOSIGNAL) != (ssize_t)sizeof(question))
        return -1;
    parcel_init(&parcel);
    if (recvmsg(connection, &parcel.message, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&parcel.message);
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(&received, CMSG_DATA(header), sizeof(int));
    return received;
}
