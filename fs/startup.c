#include "fs/startup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "core/log.h"

/* Reports to the parent: one of these, then text. */
#define STEP         'S'
#define READY        'R'
#define FAILED       'F'
#define REPORT_BYTES 2048

/* From then on, what is being done is shown. */
#define SLOW_MS 1000

/* -- to the parent ----------------------------------------------------------------------------- */

/* In the parent: waits for the child's word. */
static __attribute__((noreturn)) void wait_for_report(int fd)
{
    char report[REPORT_BYTES];
    char step[REPORT_BYTES] = "starting";
    uint64_t slow_ns = monotonic_ns() + SLOW_MS * UINT64_C(1000000);
    bool slow = false;

    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        uint64_t now_ns = monotonic_ns();
        ssize_t length;

        if (!slow && now_ns >= slow_ns) {
            slow = true;
            fprintf(stderr, "residentfs: %s ...\n", step);
        }
        if (poll(&poll_fd, 1, slow ? -1 : (int)((slow_ns - now_ns) / 1000000 + 1)) <= 0)
            continue;
        length = recv(fd, report, sizeof(report) - 1, 0);
        if (length < 0 && errno == EINTR)
            continue;
        report[MAX(length, 0)] = '\0';
        switch (report[0]) {
        case READY:
            _exit(EXIT_SUCCESS);
        case FAILED:
            fprintf(stderr, "residentfs: %s\n", report + 1);
            _exit(EXIT_FAILURE);
        case STEP:
            memcpy(step, report + 1, (size_t)length);
            if (slow)
                fprintf(stderr, "residentfs: %s ...\n", step);
            continue;
        default:
            fprintf(stderr, "residentfs: the daemon ended while it was starting; start it with -f "
                            "to see more\n");
            _exit(EXIT_FAILURE);
        }
    }
}

static bool report(const struct startup *startup, char kind, const char *text)
{
    char bytes[REPORT_BYTES];
    int length = snprintf(bytes, sizeof(bytes), "%c%s", kind, text);

    length = MIN(length, (int)sizeof(bytes) - 1);
    return send(startup->report_fd, bytes, (size_t)length, MSG_NOSIGNAL) == length;
}

/* -- to a service manager ---------------------------------------------------------------------- */

static uint64_t environment_number(const char *name)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 10) : 0;
}

/* Programs that the daemon starts are not to speak for it: the variables are taken away. */
static void find_service_manager(struct startup *startup)
{
    struct sockaddr_un *address = &startup->notify_address;
    const char *path = getenv("NOTIFY_SOCKET");
    size_t length = path ? strlen(path) : 0;
    uint64_t pid = environment_number("WATCHDOG_PID");

    if (length > 1 && length < sizeof(address->sun_path) && (path[0] == '/' || path[0] == '@')) {
        address->sun_family = AF_UNIX;
        memcpy(address->sun_path, path, length);
        if (path[0] == '@') /* the abstract namespace */
            address->sun_path[0] = '\0';
        startup->notify_address_bytes =
            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
        startup->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (pid == 0 || pid == (uint64_t)getpid())
            startup->watchdog_ns = environment_number("WATCHDOG_USEC") * 1000;
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

static void notify(const struct startup *startup, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void notify(const struct startup *startup, const char *format, ...)
{
    char text[REPORT_BYTES];
    va_list arguments;
    int length;

    if (startup->notify_fd < 0)
        return;
    va_start(arguments, format);
    length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    length = MIN(length, (int)sizeof(text) - 1);
    if (sendto(startup->notify_fd, text, (size_t)length, MSG_NOSIGNAL,
               (const struct sockaddr *)&startup->notify_address,
               startup->notify_address_bytes) < 0)
        log_debug("the service manager cannot be told: %s", strerror(errno));
}

/* Half of the time, so that none is missed. */
void startup_alive(struct startup *startup)
{
    uint64_t now_ns = monotonic_ns();

    if (startup->watchdog_ns == 0 || now_ns - startup->signed_ns < startup->watchdog_ns / 2)
        return;
    startup->signed_ns = now_ns;
    notify(startup, "WATCHDOG=1");
}

uint64_t startup_patience_ns(const struct startup *startup)
{
    return startup->watchdog_ns / 2;
}

void startup_ending(struct startup *startup, const char *why)
{
    notify(startup, "STOPPING=1\nSTATUS=%s", why);
}

void startup_finish(struct startup *startup)
{
    if (startup->notify_fd >= 0)
        close(startup->notify_fd);
    startup->notify_fd = -1;
}

/* -- both -------------------------------------------------------------------------------------- */

errint_t startup_begin(struct startup *startup, bool foreground, bool keep_stderr)
{
    int fds[2];
    pid_t child;

    *startup = (struct startup){.report_fd = -1, .notify_fd = -1, .keep_stderr = keep_stderr};
    if (foreground) {
        find_service_manager(startup);
        return 0;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
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

static void end_step(struct startup *startup)
{
    uint64_t took_ms = (monotonic_ns() - startup->step_since_ns) / 1000000;

    if (startup->step[0] && took_ms >= SLOW_MS)
        log_info("%s took %.1f s", startup->step, (double)took_ms / 1e3);
    startup->step[0] = '\0';
}

void startup_step(struct startup *startup, const char *format, ...)
{
    va_list arguments;

    end_step(startup);
    va_start(arguments, format);
    vsnprintf(startup->step, sizeof(startup->step), format, arguments);
    va_end(arguments);
    startup->step_since_ns = monotonic_ns();
    notify(startup, "STATUS=%s", startup->step);
    if (startup->report_fd >= 0)
        report(startup, STEP, startup->step);
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
    bool told;

    end_step(startup);
    notify(startup, "READY=1\nSTATUS=Mounted");
    startup->signed_ns = monotonic_ns();
    if (startup->report_fd < 0)
        return true;
    told = report(startup, READY, "");
    close(startup->report_fd);
    startup->report_fd = -1;
    leave_terminal(startup);
    return told;
}

void startup_failed(struct startup *startup, const char *message)
{
    notify(startup, "STATUS=%s", message);
    if (startup->report_fd < 0) {
        fprintf(stderr, "residentfs: %s\n", message);
        return;
    }
    if (!report(startup, FAILED, message))
        log_error("%s", message);
    close(startup->report_fd);
    startup->report_fd = -1;
}
