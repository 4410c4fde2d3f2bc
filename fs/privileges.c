#include "fs/privileges.h"

#include <dirent.h>
#include <errno.h>
#include <linux/capability.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include "core/log.h"
#include "core/util.h"

#define BIT(capability) (UINT64_C(1) << (capability))
/* Unmounting; and the way to a mount point below a folder that is closed to others. */
#define UNMOUNT_CAPABILITIES (BIT(CAP_SYS_ADMIN) | BIT(CAP_DAC_READ_SEARCH))
#define THREADS_MAX          4096
#define ANSWER_S             2
#define SIGNAL_TO_ALL        (__SIGRTMIN + 1)
#define KERNEL_SET_BYTES     (_NSIG / 8)

/* What a thread is asked to do, and its answer. One thread at a time is asked. */
static struct {
    uint64_t kept; /* constant while threads are asked, as is the next */
    bool root;
    _Atomic pid_t answered; /* who did last */
    _Atomic int error;      /* an errno; 0: it worked */
    sem_t answer;
} request;

struct asked {
    pid_t threads[THREADS_MAX]; /* this one first */
    unsigned int count;
    unsigned int failed;
    int error; /* of the last one that failed */
    bool silent;
};

struct kernel_action {
    unsigned long words[32]; /* more than any architecture has */
};

/* -- one thread -------------------------------------------------------------------------------- */

/* System calls only, since handle_signal calls them. 0 or an errno. */
static int get_capabilities(uint64_t *permitted, uint64_t *effective)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};

    if (syscall(SYS_capget, &header, data) < 0)
        return errno;
    *permitted = (uint64_t)data[1].permitted << 32 | data[0].permitted;
    *effective = (uint64_t)data[1].effective << 32 | data[0].effective;
    return 0;
}

static int set_capabilities(uint64_t permitted, uint64_t effective)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {
        {.permitted = (uint32_t)permitted, .effective = (uint32_t)effective},
        {.permitted = (uint32_t)(permitted >> 32), .effective = (uint32_t)(effective >> 32)},
    };

    return syscall(SYS_capset, &header, data) < 0 ? errno : 0;
}

/*
 * For root a program that it starts would have all of the bounding set again. Who is not root needs
 * fusermount3 for unmounting, which is set-user-ID: that must go on gaining privileges.
 */
static int bar_ways_back(uint64_t kept)
{
    int error = 0;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        error = errno;
    for (int capability = 0; capability < 64; capability++) {
        int has = prctl(PR_CAPBSET_READ, capability, 0, 0, 0);

        if (has < 0)
            break; /* the kernel knows no more */
        if (has > 0 && !(kept & BIT(capability)) && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0)
            error = errno;
    }
    return error;
}

/* 0 or an errno; what can be lowered is. */
static int lower(uint64_t kept, uint64_t in_effect, bool root)
{
    uint64_t permitted, effective;
    int error = root ? bar_ways_back(kept) : 0;

    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    int result = get_capabilities(&permitted, &effective);
    if (result == 0)
        result = set_capabilities(permitted & kept, permitted & in_effect);
    return result != 0 ? result : error;
}

/* -- all threads ------------------------------------------------------------------------------- */

static void handle_signal(int signal_number)
{
    int saved = errno;

    (void)signal_number;
    request.error = lower(request.kept, request.kept, request.root);
    request.answered = (pid_t)syscall(SYS_gettid);
    sem_post(&request.answer);
    errno = saved;
}

/* 0, ETIMEDOUT or what the thread met. One that has ended has nothing left. */
static int ask_thread(pid_t thread)
{
    struct timespec until;

    if (syscall(SYS_tgkill, getpid(), thread, SIGNAL_TO_ALL) < 0)
        return errno == ESRCH ? 0 : errno;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ANSWER_S;
    while (request.answered != thread)
        if (sem_timedwait(&request.answer, &until) < 0 && errno == ETIMEDOUT)
            return syscall(SYS_tgkill, getpid(), thread, 0) < 0 ? 0 : ETIMEDOUT;
    return request.error;
}

static bool was_asked(const struct asked *asked, pid_t thread)
{
    for (unsigned int i = 0; i < asked->count; i++)
        if (asked->threads[i] == thread)
            return true;
    return false;
}

static void note_error(struct asked *asked, int error)
{
    if (error == 0)
        return;
    asked->failed++;
    asked->error = error;
    asked->silent |= error == ETIMEDOUT;
}

/* Asks those that have not been asked yet. False: there was none. */
static bool ask_new_threads(struct asked *asked)
{
    unsigned int before = asked->count;
    DIR *folder = opendir("/proc/self/task");
    struct dirent *entry;

    if (!folder) {
        note_error(asked, errno);
        return false;
    }
    while (asked->count < THREADS_MAX && (entry = readdir(folder))) {
        pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);

        if (thread <= 0 || was_asked(asked, thread))
            continue;
        asked->threads[asked->count++] = thread;
        note_error(asked, ask_thread(thread));
    }
    closedir(folder);
    return asked->count > before;
}

/*
 * Threads of a driver block all signals that they can. The one by which the C library changes user
 * ids in all threads they cannot: it is borrowed. Nothing here changes those. The action is copied
 * as the kernel has it, since that takes more than a program can say.
 */
static bool borrow_signal(struct kernel_action *before)
{
    struct sigaction action = {.sa_handler = handle_signal, .sa_flags = SA_RESTART}, other;
    struct kernel_action ours;

    sigfillset(&action.sa_mask);
    if (sigaction(SIGRTMAX, &action, &other) < 0)
        return false;
    bool borrowed = syscall(SYS_rt_sigaction, SIGRTMAX, NULL, &ours, KERNEL_SET_BYTES) == 0 &&
                    syscall(SYS_rt_sigaction, SIGNAL_TO_ALL, &ours, before, KERNEL_SET_BYTES) == 0;
    sigaction(SIGRTMAX, &other, NULL);
    return borrowed;
}

/* One that had not been asked yet may have started another meanwhile: until there is none. */
static void ask_other_threads(struct asked *asked)
{
    struct kernel_action before;

    asked->threads[asked->count++] = (pid_t)syscall(SYS_gettid);
    sem_init(&request.answer, 0, 0);
    if (!borrow_signal(&before)) {
        note_error(asked, errno);
        return;
    }
    while (ask_new_threads(asked))
        ;
    /* Who did not answer may yet take the signal. */
    if (!asked->silent)
        syscall(SYS_rt_sigaction, SIGNAL_TO_ALL, &before, NULL, KERNEL_SET_BYTES);
}

void privileges_drop(void)
{
    struct asked asked = {0};
    uint64_t permitted, effective;
    struct rlimit locked;

    if (get_capabilities(&permitted, &effective) == 0 && permitted == 0) {
        log_debug("capabilities: there were none");
        return;
    }
    request.root = geteuid() == 0;
    /* Page-locked memory is asked for all the time; where it is not limited, by anybody. */
    if (getrlimit(RLIMIT_MEMLOCK, &locked) < 0 || locked.rlim_cur != RLIM_INFINITY)
        request.kept = BIT(CAP_IPC_LOCK);
    ask_other_threads(&asked);
    note_error(&asked, lower(request.kept | UNMOUNT_CAPABILITIES, request.kept, request.root));
    if (asked.failed > 0)
        log_warning("%u of %u threads could not drop all privileges that they do not need: %s",
                    asked.failed, asked.count, strerror(asked.error));
    log_debug("capabilities: in effect in %u threads: %s; kept for unmounting: CAP_SYS_ADMIN, "
              "CAP_DAC_READ_SEARCH",
              asked.count, request.kept ? "CAP_IPC_LOCK" : "none");
}

void privileges_before_unmount(void)
{
    uint64_t permitted, effective;

    if (get_capabilities(&permitted, &effective) == 0)
        set_capabilities(permitted, permitted);
}
