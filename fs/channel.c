#include "fs/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fs/mount.h"
#include "fs/worker.h"

#define DESCRIPTORS_LEFT 64

/* What is not a worker's reply is a notification, for which any descriptor will do. */
static ssize_t write_reply(int fd, struct iovec *iov, int count, void *userdata)
{
    const struct worker *worker = worker_current();

    (void)userdata;
    return writev(worker ? worker->channel : fd, iov, count);
}

/* libfuse wants one, and has no use for it: workers read by themselves. */
static ssize_t read_request(int fd, void *bytes, size_t capacity, void *userdata)
{
    (void)userdata;
    return read(fd, bytes, capacity);
}

bool channels_begin(struct fuse_session *fuse)
{
    static const struct fuse_custom_io io = {.writev = write_reply, .read = read_request};

    mount_expect_refusal(true);
    int result = fuse_session_custom_io(fuse, &io, fuse_session_fd(fuse));
    mount_expect_refusal(false);
    return result == 0;
}

int channel_open(struct fuse_session *fuse)
{
    uint32_t connection = (uint32_t)fuse_session_fd(fuse);
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    struct rlimit limit;
    int error;

    if (fd < 0)
        return -errno;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd + DESCRIPTORS_LEFT >= limit.rlim_cur) {
        close(fd); /* the driver needs some, and programs that share */
        return -EMFILE;
    }
    if (ioctl(fd, FUSE_DEV_IOC_CLONE, &connection) == 0)
        return fd;
    error = -errno;
    close(fd);
    return error;
}
