#include "fs/startup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/log.h"

#define READY        'R'
#define FAILED       'F'
#define REPORT_BYTES 2048

/* In the parent: waits for the child's word. */
static __attribute__((noreturn)) void wait_for_report(int fd)
{
    char report[REPORT_BYTES];
    size_t length = 0;

    for (;;) {
        ssize_t got = read(fd, report + length, sizeof(report) - 1 - length);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        length += (size_t)got;
        if (report[0] == READY || length == sizeof(report) - 1)
            break;
    }
    report[length] = '\0';
    if (length > 0 && report[0] == READY)
        _exit(EXIT_SUCCESS);
    if (length > 1)
        fprintf(stderr, "residentfs: %s\n", report + 1);
    else
        fprintf(stderr, "residentfs: the daemon ended while it was starting; start it with -f to "
                        "see more\n");
    _exit(EXIT_FAILURE);
}

errint_t startup_begin(struct startup *startup, bool foreground, bool keep_stderr)
{
    int fds[2];
    pid_t child;

    *startup = (struct startup){.report_fd = -1, .keep_stderr = keep_stderr};
    if (foreground)
        return 0;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    fflush(NULL);
    child = fork();
    if (child < 0) {
        errint_t error = -errno;

        close(fds[0]);
        close(fds[1]);
        return error;
    }
    if (child > 0) {
        close(fds[1]);
        wait_for_report(fds[0]);
    }
    close(fds[0]);
    startup->report_fd = fds[1];
    setsid();
    umask(0);
    if (chdir("/") < 0)
        log_warning("cannot change to /: %s", strerror(errno));
    return 0;
}

static void leave_terminal(const struct startup *startup)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return;
    dup2(fd, STDIN_FILENO);
    dup2(fd, STDOUT_FILENO);
    if (!startup->keep_stderr)
        dup2(fd, STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

bool startup_succeeded(struct startup *startup)
{
    const char word = READY;
    bool told = true;

    if (startup->report_fd < 0)
        return true;
    told = write(startup->report_fd, &word, 1) == 1;
    close(startup->report_fd);
    startup->report_fd = -1;
    leave_terminal(startup);
    return told;
}

void startup_failed(struct startup *startup, const char *message)
{
    char report[REPORT_BYTES];
    int length;

    if (startup->report_fd < 0) {
        fprintf(stderr, "residentfs: %s\n", message);
        return;
    }
    length = snprintf(report, sizeof(report), "%c%s", FAILED, message);
    length = MIN(length, (int)sizeof(report) - 1);
    if (write(startup->report_fd, report, (size_t)length) < 0)
        log_error("%s", message);
    close(startup->report_fd);
    startup->report_fd = -1;
}
