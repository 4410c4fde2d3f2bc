#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "conf/conf.h"

#define MAX_ARGUMENTS 32

static char folder[] = "/tmp/residentfs-test-conf.XXXXXX";
static char ini_path[sizeof(folder) + 8];
static char message[CONF_MESSAGE_BYTES];
static struct conf conf;

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(ini_path, sizeof(ini_path), "%s/ini", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(ini_path);
    return rmdir(folder);
}

static void write_bytes(const void *bytes, size_t length)
{
    int fd = open(ini_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, length), (ssize_t)length);
    close(fd);
}

static void write_ini(const char *text)
{
    write_bytes(text, strlen(text));
}

static errint_t parse_words(const char *program, const char *first, va_list words)
{
    char *argv[MAX_ARGUMENTS + 1] = {strdup(program)};
    char *owned[MAX_ARGUMENTS + 1];
    int argc = 1;
    errint_t error;

    for (const char *word = first; word; word = va_arg(words, const char *)) {
        assert_true(argc < MAX_ARGUMENTS);
        argv[argc++] = strdup(word);
    }
    memcpy(owned, argv, sizeof(owned));
    memset(message, 0, sizeof(message));
    /* Whatever the stack held must not matter. */
    memset(&conf, 0xa5, sizeof(conf));
    error = conf_parse(argc, argv, &conf, message, sizeof(message));
    for (int i = 0; i < argc; i++)
        free(owned[i]);
    return error;
}

/* Parses the words of argv[1]…, up to NULL. */
static errint_t parse(const char *first, ...)
{
    errint_t error;
    va_list words;

    va_start(words, first);
    error = parse_words("residentfs", first, words);
    va_end(words);
    return error;
}

static errint_t parse_as_helper(const char *first, ...)
{
    errint_t error;
    va_list words;

    va_start(words, first);
    error = parse_words("/sbin/mount.fuse.residentfs", first, words);
    va_end(words);
    return error;
}

/* The empty INI file, so that the one of this machine has no say. */
#define parse_o(...) \
    (write_ini(""), parse("emulated", "/mnt", "--config", ini_path, __VA_ARGS__, NULL))

static void assert_refused(errint_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void assert_refused(errint_t error, const char *format, ...)
{
    char expected[CONF_MESSAGE_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(expected, sizeof(expected), format, arguments);
    va_end(arguments);
    assert_int_equal(error, -EINVAL);
    assert_string_equal(message, expected);
    /* Nothing is left to free. */
    assert_null(conf.mountpoint);
    assert_null(conf.mount_options);
    conf_finish(&conf);
}

static errint_t parse_ini(const char *text)
{
    write_ini(text);
    return parse("emulated", "/mnt", "--config", ini_path, NULL);
}

static void test_defaults(void **state)
{
    (void)state;
    assert_int_equal(parse_o("-f"), 0);
    assert_int_equal(conf.action, CONF_ACTION_MOUNT);
    assert_int_equal(conf.budget.kind, BUDGET_AUTO);
    assert_int_equal(conf.workers, 0);
    assert_int_equal(conf.max_write_bytes, MIB);
    assert_int_equal(conf.max_background, 128);
    assert_int_equal(conf.io_uring, CONF_SWITCH_AUTO);
    assert_int_equal(conf.cache, CONF_CACHE_OFF);
    assert_true(conf.entry_timeout_s == 3600);
    assert_true(conf.attr_timeout_s == 1);
    assert_int_equal(conf.allow_other, CONF_SWITCH_AUTO);
    assert_int_equal(conf.staging_bytes, 64 * MIB);
    assert_int_equal(conf.streams, 4);
    assert_int_equal(conf.flush_interval_ms, 5);
    assert_int_equal(conf.direct_threshold_bytes, 256 * KIB);
    assert_int_equal(conf.readahead_bytes, 1 * MIB);
    assert_int_equal(conf.busy_poll_us, 50);
    assert_int_equal(conf.allow_other, CONF_SWITCH_AUTO);
    assert_int_equal(conf_allows_other(&conf), geteuid() == 0);
    assert_int_equal(conf.uid, getuid());
    assert_int_equal(conf.gid, getgid());
    assert_int_equal(conf.root_mode, 0755);
    assert_int_equal(conf_log_sink(&conf), LOG_SINK_STDERR);
    assert_int_equal(conf.log_level, LOG_LEVEL_INFO);
    assert_int_equal(conf.emulated_memory_bytes, 4 * GIB);
    assert_int_equal(conf.mount_options_count, 0);
    conf_finish(&conf);
}

static void test_command_line(void **state)
{
    (void)state;
    write_ini("");
    /* Options before, between and after the positionals. */
    assert_int_equal(parse("-d", "cuda:2", "-o", "workers=3", "--config", ini_path, "/mnt/a b",
                           "-oworkers=4,streams=9", NULL),
                     0);
    assert_true(conf.has_device);
    assert_int_equal(conf.device.driver, DEVICE_DRIVER_CUDA);
    assert_int_equal(conf.device.index, 2);
    assert_string_equal(conf.mountpoint, "/mnt/a b");
    assert_string_equal(conf.config_path, ini_path);
    assert_true(conf.foreground && conf.debug);
    assert_int_equal(conf.log_level, LOG_LEVEL_DEBUG);
    assert_int_equal(conf.workers, 4);
    assert_int_equal(conf.streams, 9);
    conf_finish(&conf);

    assert_int_equal(parse_o("-o", ""), 0);
    assert_false(conf.foreground);
    assert_int_equal(conf_log_sink(&conf), LOG_SINK_SYSLOG);
    conf_finish(&conf);

    assert_int_equal(parse_o("-f", "-o", "log=journal"), 0);
    assert_int_equal(conf_log_sink(&conf), LOG_SINK_JOURNAL);
    conf_finish(&conf);

    assert_int_equal(parse("--help", "--nonsense", "-o", "bad", NULL), 0);
    assert_int_equal(conf.action, CONF_ACTION_HELP);
    conf_finish(&conf);
    assert_int_equal(parse("--version", "--config", "/nonexistent", NULL), 0);
    assert_int_equal(conf.action, CONF_ACTION_VERSION);
    conf_finish(&conf);
    assert_int_equal(parse("--list-devices", "emulated:2", "--config", ini_path, NULL), 0);
    assert_int_equal(conf.action, CONF_ACTION_LIST_DEVICES);
    assert_true(conf.has_device);
    assert_null(conf.mountpoint);
    conf_finish(&conf);
    assert_int_equal(parse("--check-config", "--config", ini_path, NULL), 0);
    assert_int_equal(conf.action, CONF_ACTION_CHECK_CONFIG);
    assert_false(conf.has_device);
    conf_finish(&conf);
    /* After --, a mount point may look like an option. */
    assert_int_equal(parse("--config", ini_path, "--", "emulated", "-f", NULL), 0);
    assert_string_equal(conf.mountpoint, "-f");
    conf_finish(&conf);
}

static void test_command_line_errors(void **state)
{
    (void)state;
    write_ini("");
    assert_refused(parse(NULL), "DEVICE and MOUNTPOINT are missing; usage: residentfs DEVICE "
                                "MOUNTPOINT [-o OPT,...] (see residentfs --help; to try it without "
                                "a GPU: residentfs emulated MOUNTPOINT)");
    assert_refused(parse("emulated", NULL),
                   "MOUNTPOINT is missing; usage: residentfs DEVICE MOUNTPOINT [-o OPT,...] (see "
                   "residentfs --help; to try it without a GPU: residentfs emulated MOUNTPOINT)");
    assert_refused(parse("emulated", "/mnt", "/tmp", NULL),
                   "unexpected argument \"/tmp\" after DEVICE and MOUNTPOINT");
    assert_refused(parse("emulated", "", NULL), "MOUNTPOINT is empty");
    assert_refused(parse("gpu0", "/mnt", NULL),
                   "unknown DEVICE \"gpu0\"; DEVICE is one of: " DEVICE_SELECTOR_FORMS);
    assert_refused(parse("emulated", "/mnt", "--confg=x", NULL),
                   "unknown argument \"--confg=x\"; did you mean \"--config\"?");
    assert_refused(parse("emulated", "/mnt", "-z", NULL),
                   "unknown argument \"-z\"; see residentfs --help");
    assert_refused(parse("emulated", "/mnt", "--config", NULL),
                   "\"--config\" needs a value; see residentfs --help");
    assert_refused(parse("emulated", "/mnt", "-o", NULL),
                   "\"-o\" needs a value; see residentfs --help");
    assert_refused(parse("emulated", "/mnt", "--config", "/nonexistent/file", NULL),
                   "/nonexistent/file: No such file or directory");
    assert_refused(parse("emulated", "/mnt", "--config", folder, NULL), "%s: Is a directory",
                   folder);
    /* A message is one line, whatever the user's text holds. */
    assert_refused(parse("a\nb\x1b[31m", "/mnt", NULL),
                   "unknown DEVICE \"a?b?[31m\"; DEVICE is one of: " DEVICE_SELECTOR_FORMS);
}

static void test_limits(void **state)
{
    static const struct {
        const char *option;
        bool good;
    } cases[] = {
        {"workers=0", true},
        {"workers=256", true},
        {"workers=257", false},
        {"workers=", false},
        {"workers=4294967296", false},
        {"workers=18446744073709551616", false},
        {"workers=1 ", false},
        {"max_write=64KiB", true},
        {"max_write=65536", true},
        {"max_write=32MiB", true},
        {"max_write=65535", false},
        {"max_write=61440", false},
        {"max_write=69632", true},
        {"max_write=69633", false},
        {"max_write=33558528", false},
        {"max_background=1", true},
        {"max_background=0", false},
        {"max_background=65535", true},
        {"max_background=65536", false},
        {"io_uring=auto", true},
        {"io_uring=yes", false},
        {"staging=8MiB", true},
        {"staging=8388607", false},
        {"staging=16GiB", true},
        {"staging=17179869185", false},
        {"streams=1", true},
        {"streams=0", false},
        {"streams=64", true},
        {"streams=65", false},
        {"flush_interval=0", true},
        {"flush_interval=60000", true},
        {"flush_interval=60001", false},
        {"entry_timeout=0", true},
        {"entry_timeout=0.000000001", true},
        {"entry_timeout=0.0000000001", false},
        {"entry_timeout=1000000000", true},
        {"entry_timeout=1000000000.5", false},
        {"entry_timeout=nan", false},
        {"entry_timeout=inf", false},
        {"entry_timeout=1e3", false},
        {"entry_timeout=.5", false},
        {"entry_timeout=5.", false},
        {"entry_timeout=-1", false},
        {"attr_timeout=0", true},
        {"attr_timeout=1000000000", true},
        {"attr_timeout=1000000000.5", false},
        {"root_mode=0", true},
        {"root_mode=7777", true},
        {"root_mode=01777", true},
        {"root_mode=10000", false},
        {"root_mode=0788", false},
        {"uid=0", true},
        {"uid=4294967294", true},
        {"uid=4294967295", false},
        {"gid=0", true},
        {"gid=4294967294", true},
        {"gid=4294967295", false},
        {"max_files=0", true},
        {"max_files=4294967295", true},
        {"max_files=4294967296", false},
        {"direct_threshold=4KiB", true},
        {"direct_threshold=4095", false},
        {"direct_threshold=64MiB", true},
        {"direct_threshold=67108865", false},
        {"busy_poll=0", true},
        {"busy_poll=10000", true},
        {"busy_poll=10001", false},
        {"busy_poll=-1", false},
        {"readahead=0", true},
        {"readahead=64MiB", true},
        {"readahead=67108865", false},
        {"readahead=-1", false},
        {"scrub=off", true},
        {"scrub=on", true},
        {"scrub=auto", false},
        {"share=auto", true},
        {"share=on", true},
        {"share=off", true},
        {"share=maybe", false},
        {"cache=on", true},
        {"cache=On", false},
        {"cache", true},
        {"no_cache", true},
        {"allow_other=auto", true},
        {"allow_other=all", false},
        {"no_allow_other", true},
        {"no_workers", false},
        {"budget", false},
        {"budget=50%", true},
        {"budget=50%\n", false},
        {"budget=0", false},
        {"budget=1", true},
        {"budget=100%", true},
        {"budget=101%", false},
        {"=", false},
        {"=1", false},
        {"log=journal", true},
        {"log=journald", false},
        {"log_level=error", true},
        {"log_level=debug", true},
        {"log_level=trace", false},
        {"on_device_lost=stay", true},
        {"on_device_lost=exit", true},
        {"on_device_lost=on", false},
        {"on_suspend=warn", true},
        {"on_suspend=refuse", true},
        {"on_suspend=save", true},
        {"on_suspend=ignore", true},
        {"on_suspend", false},
        {"on_suspend=", false},
        {"emulated_memory=16MiB", true},
        {"emulated_memory=16777215", false},
        {"emulated_memory=1024GiB", true},
        {"emulated_memory=1099511627777", false},
    };
    size_t count;
    const struct conf_option *options = conf_options(&count);

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        errint_t error = parse_o("-o", cases[i].option);

        print_message("# -o %s: %d %s\n", cases[i].option, error, message);
        assert_int_equal(error, cases[i].good ? 0 : -EINVAL);
        assert_int_equal(strlen(message) == 0, cases[i].good);
        conf_finish(&conf);
    }
    /* Of every option there is what is allowed and what is not. */
    for (size_t o = 0; o < count; o++) {
        size_t length = strlen(options[o].name);
        bool tried[2] = {false, false};

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
            if (strncmp(cases[i].option, options[o].name, length) == 0 &&
                cases[i].option[length] == '=')
                tried[cases[i].good] = true;
        }
        print_message("# %s\n", options[o].name);
        assert_true(tried[true] && tried[false]);
    }
}

static void test_errors_of_mount_options(void **state)
{
    (void)state;
    assert_refused(parse_o("-o", "workers=-3"), "-o workers=-3: not in 0..256");
    assert_refused(parse_o("-o", "ro,bugdet=1"),
                   "-o bugdet=1: unknown option \"bugdet\"; did you mean \"budget\"?");
    assert_refused(parse_o("-o", "max-write=1M"),
                   "-o max-write=1M: unknown option \"max-write\"; did you mean \"max_write\"?");
    assert_refused(parse_o("-o", "noatme"),
                   "-o noatme: unknown option \"noatme\"; did you mean \"noatime\"?");
    assert_refused(parse_o("-o", "zzzzzzzzzz=1"), "-o zzzzzzzzzz=1: unknown option "
                                                  "\"zzzzzzzzzz\"; residentfs --help lists them");
    assert_refused(parse_o("-o", "workers"), "-o workers: workers needs a value: 0..256");
    assert_refused(parse_o("-o", "cache=onn"),
                   "-o cache=onn: not one of off|on; did you mean \"on\"?");
    assert_refused(parse_o("-o", "streams=four"),
                   "-o streams=four: not a whole number; allowed: 1..64");
    assert_refused(parse_o("-o", "budget=101%"), "-o budget=101%%: not %s", BUDGET_SETTING_FORMS);
    assert_refused(parse_o("-o", "max_write=100000"),
                   "-o max_write=100000: not in 64KiB..32MiB, a multiple of 4KiB");
    assert_refused(parse_o("-o", "staging=8MiB,max_write=32MiB"),
                   "staging=8MiB is less than max_write=32MiB; one request must fit: raise staging "
                   "or lower max_write");
    assert_refused(parse_o("-o", "remount,ro"),
                   "-o remount: not supported: options are fixed at mount; unmount and mount again "
                   "(the budget can be changed in .resident/budget)");
}

static void assert_kernel_options(const char *text, const char *expected)
{
    char got[256] = "";

    assert_int_equal(parse_o("-o", text), 0);
    for (size_t i = 0; i < conf.mount_options_count; i++) {
        strcat(got, i ? "," : "");
        strcat(got, conf.mount_options[i]);
    }
    assert_string_equal(got, expected);
    conf_finish(&conf);
}

static void assert_access_times(const char *text, enum conf_atime atime, bool no_directory_atime)
{
    assert_int_equal(parse_o("-o", text), 0);
    assert_int_equal(conf.atime, atime);
    assert_int_equal(conf.no_directory_atime, no_directory_atime);
    conf_finish(&conf);
}

static void test_access_times_follow_the_last_word(void **state)
{
    (void)state;
    assert_access_times("rw", CONF_ATIME_RELATIME, false);
    assert_access_times("noatime,ro", CONF_ATIME_NONE, false);
    assert_access_times("noatime,strictatime", CONF_ATIME_STRICT, false);
    assert_access_times("strictatime,nodiratime,noatime", CONF_ATIME_NONE, true);
    assert_access_times("noatime,relatime", CONF_ATIME_RELATIME, false);
    assert_access_times("nodiratime,strictatime,diratime,atime", CONF_ATIME_RELATIME, false);
}

static void test_options_of_mount(void **state)
{
    (void)state;
    assert_kernel_options("rw,nosuid,nodev,noexec,sync,dirsync,noatime,nodiratime",
                          "rw,nosuid,nodev,noexec,sync,dirsync,noatime,nodiratime");
    assert_kernel_options("suid,dev,exec,async,ro", "suid,dev,exec,async,ro");
    assert_kernel_options("ro,rw,rw,ro", "ro");
    assert_kernel_options("noatime,relatime", "");
    assert_kernel_options("strictatime,noatime,nodiratime,diratime", "noatime");
    assert_kernel_options(
        "user,users,owner,group,auto,noauto,nofail,_netdev,defaults,x-a.b=c,"
        "comment=hello world,user=joe,x-systemd.requires=a\\,b,fsname=f,subtype=s,"
        "default_permissions,,",
        "");
    assert_int_equal(parse_o("-o", "allow_other"), 0);
    assert_true(conf_allows_other(&conf));
    conf_finish(&conf);
    assert_int_equal(parse_o("-o", "allow_other,no_allow_other"), 0);
    assert_false(conf_allows_other(&conf));
    conf_finish(&conf);
}

static void test_mount_helper(void **state)
{
    (void)state;
    if (access(CONF_DEFAULT_PATH, F_OK) == 0)
        skip();
    /* What mount(8) says: spec, directory, then switches. */
    assert_int_equal(parse_as_helper("emulated", "/mnt/a b", "-n", "-s", "-v", "-t",
                                     "fuse.residentfs", "-o", "rw,nofail,workers=3", NULL),
                     0);
    assert_int_equal(conf.action, CONF_ACTION_MOUNT);
    assert_string_equal(conf.mountpoint, "/mnt/a b");
    assert_int_equal(conf.workers, 3);
    assert_false(conf.foreground);
    conf_finish(&conf);
    assert_int_equal(parse_as_helper("emulated", "/mnt", "-f", NULL), 0);
    assert_int_equal(conf.action, CONF_ACTION_CHECK_CONFIG);
    conf_finish(&conf);
    assert_refused(parse_as_helper("emulated", "/mnt", "-N", "1", NULL),
                   "-N: mounting in another namespace is not supported; run mount there: nsenter "
                   "--mount=...");
    assert_refused(parse_as_helper("emulated", "/mnt", "-o", NULL), "-o needs a value");
    assert_refused(parse_as_helper("emulated", "/mnt", "-z", NULL), "unknown argument \"-z\"");
}

static void test_precedence(void **state)
{
    (void)state;
    write_ini("[transport]\nworkers = 7\nmax_background = 9\n[budget]\nbudget=40%\n"
              "[transport]\nworkers = 8\n");
    assert_int_equal(parse("emulated", "/mnt", "-o", "budget=2G", "--config", ini_path, NULL), 0);
    assert_int_equal(conf.workers, 8);
    assert_int_equal(conf.max_background, 9);
    assert_int_equal(conf.budget.kind, BUDGET_BYTES);
    assert_int_equal(conf.budget.value, 2 * GIB);
    assert_int_equal(conf.streams, 4);
    conf_finish(&conf);
}

static void test_ini_forms(void **state)
{
    (void)state;
    assert_int_equal(parse_ini("# comment\r\n; another\r\n\r\n[transport] ; comment\r\n"
                               "  workers=5  ; inline\r\n\tcache : on\r\n"
                               "   max_background =  77\r\n[emulated]\n[mount]\nuid=1"),
                     0);
    assert_int_equal(conf.workers, 5);
    assert_int_equal(conf.cache, CONF_CACHE_ON);
    assert_int_equal(conf.max_background, 77);
    assert_int_equal(conf.uid, 1);
    conf_finish(&conf);
}

static void test_errors_of_the_ini_file(void **state)
{
    char text[512];
    static const char with_nul[] = "[budget]\nbudget = 80\0%\n";

    (void)state;
    assert_refused(parse_ini("\n\n\n\n\n[budget]\nbugdet = 1\n"),
                   "%s:7: unknown option \"bugdet\" in [budget]; did you mean \"budget\"?",
                   ini_path);
    assert_refused(parse_ini("[budget]\nworkers = 1\n"),
                   "%s:2: option \"workers\" belongs in [transport], not [budget]", ini_path);
    assert_refused(parse_ini("[budget]\nworkrs = 1\n"),
                   "%s:2: unknown option \"workrs\" in [budget]; did you mean \"workers\" in "
                   "[transport]?",
                   ini_path);
    assert_refused(parse_ini("[budget]\nqqqqqqqq = 1\n"),
                   "%s:2: unknown option \"qqqqqqqq\" in [budget]; residentfs --help lists them",
                   ini_path);
    assert_refused(parse_ini("[budgett]\n"),
                   "%s:1: unknown section [budgett]; did you mean [budget]?", ini_path);
    assert_refused(parse_ini("[qqqqqqqq]\n"),
                   "%s:1: unknown section [qqqqqqqq]; residentfs --help lists them", ini_path);
    assert_refused(parse_ini("budget = 1\n"),
                   "%s:1: option \"budget\" before any section; it belongs in [budget]", ini_path);
    assert_refused(parse_ini("[budget\nbudget = 1\n"), "%s:1: section without \"]\"", ini_path);
    assert_refused(parse_ini("[budget] budget = 1\n"),
                   "%s:1: text after the section's \"]\"; options stand on their own lines",
                   ini_path);
    assert_refused(parse_ini("[transport]\nworkers = 999\ncache = maybe\n"),
                   "%s:2: workers = 999: not in 0..256", ini_path);
    /* Both lines are wrong: the first is named. */
    assert_refused(parse_ini("[transport]\nworkers\nworkers = 999\n"),
                   "%s:2: neither [section] nor name = value", ini_path);
    assert_refused(parse_ini("[transport]\nworkers = 999\nworkers\n"),
                   "%s:2: workers = 999: not in 0..256", ini_path);
    /* An indented line is a line, not more of the one before. */
    assert_refused(parse_ini("[transport]\nworkers = 9\n  cach = on\n"),
                   "%s:3: unknown option \"cach\" in [transport]; did you mean \"cache\"?",
                   ini_path);
    assert_refused(parse_ini("[transport]\nworkers = 9\n  more\n"),
                   "%s:3: neither [section] nor name = value", ini_path);
    assert_refused(parse_ini("[transport]\nworkers =\n"),
                   "%s:2: workers = : not a whole number; allowed: 0..256", ini_path);
    assert_refused(parse_ini("\xef\xbb\xbf[budget]\nbudget = 1\n"),
                   "%s:1: a byte order mark; save the file as UTF-8 without one", ini_path);
    write_bytes(with_nul, sizeof(with_nul) - 1);
    assert_refused(parse("emulated", "/mnt", "--config", ini_path, NULL),
                   "%s:2: a NUL byte; this is not a text file", ini_path);

    /* "budget = 1…": cut anywhere it would still be a number. */
    snprintf(text, sizeof(text), "[budget]\nbudget = %0400d\n", 1);
    assert_refused(parse_ini(text), "%s:2: line of 409 characters; at most 197 are read", ini_path);
    /* A comment may be long. */
    snprintf(text, sizeof(text), "[budget]\n# %0400d\nbudget = 3\n", 1);
    assert_int_equal(parse_ini(text), 0);
    assert_int_equal(conf.budget.value, 3);
    conf_finish(&conf);
}

static void test_a_line_is_read_whole_or_refused(void **state)
{
    (void)state;
    for (int length = 150; length < 250; length++) {
        char text[512];
        int at = snprintf(text, sizeof(text), "[budget]\nbudget=");
        errint_t error;

        /* Zeros, then the digit that a cut would lose. */
        memset(text + at, '0', (size_t)length - 8);
        strcpy(text + at + length - 8, "7\n");
        error = parse_ini(text);
        if (error == 0)
            assert_int_equal(conf.budget.value, 7);
        else
            assert_non_null(strstr(message, ":2: line of "));
        assert_int_equal(error == 0, length <= 197);
        conf_finish(&conf);
    }
}

static void test_a_file_too_large_is_refused(void **state)
{
    size_t length = MIB + 1;
    char *text = malloc(length);

    (void)state;
    assert_non_null(text);
    memset(text, '\n', length);
    write_bytes(text, length - 1);
    assert_int_equal(parse("emulated", "/mnt", "--config", ini_path, NULL), 0);
    conf_finish(&conf);
    write_bytes(text, length);
    assert_refused(parse("emulated", "/mnt", "--config", ini_path, NULL), "%s: File too large",
                   ini_path);
    free(text);
}

static void assert_dump_comes_back(void)
{
    size_t length, again_length, count;
    const struct conf_option *options = conf_options(&count);
    char *dump = conf_dump_ini(&conf, &length), *again;
    struct conf before = conf;

    assert_non_null(dump);
    assert_int_equal(strlen(dump), length);
    write_ini(dump);
    if (parse("emulated", "/mnt", "--config", ini_path, NULL) != 0)
        fail_msg("%s\n%s", message, dump);
    for (size_t i = 0; i < count; i++) {
        char *left = conf_option_get(&options[i], &before);
        char *right = conf_option_get(&options[i], &conf);

        assert_string_equal(left, right);
        free(left);
        free(right);
    }
    assert_true(before.entry_timeout_s == conf.entry_timeout_s);
    assert_true(before.attr_timeout_s == conf.attr_timeout_s);
    again = conf_dump_ini(&conf, &again_length);
    assert_string_equal(dump, again);
    free(dump);
    free(again);
    conf_finish(&conf);
    conf = before;
}

/* A text for OPTION that is allowed. */
static void random_value(const struct conf_option *option, char *out, size_t out_bytes)
{
    uint64_t random = ((uint64_t)rand() << 40) ^ ((uint64_t)rand() << 20) ^ (uint64_t)rand();
    uint64_t step = MAX(option->multiple, 1);
    uint64_t steps = (option->max - option->min) / step + 1;
    size_t choices = 0;

    switch (option->type) {
    case CONF_INTEGER:
    case CONF_SIZE:
        snprintf(out, out_bytes, "%llu", (unsigned long long)(option->min + random % steps * step));
        break;
    case CONF_OCTAL:
        snprintf(out, out_bytes, "%llo", (unsigned long long)(option->min + random % steps));
        break;
    case CONF_SECONDS:
        snprintf(out, out_bytes, "%llu.%09llu",
                 (unsigned long long)(option->min + random % (steps - 1)),
                 (unsigned long long)(random % 1000000000));
        break;
    case CONF_BUDGET:
        snprintf(out, out_bytes, random % 3 ? "%llu%%" : "%llu",
                 (unsigned long long)(random % 100 + 1));
        break;
    case CONF_BOOL:
        snprintf(out, out_bytes, "%s", random % 2 ? "on" : "off");
        break;
    case CONF_ENUM:
        while (option->choices[choices])
            choices++;
        snprintf(out, out_bytes, "%s", option->choices[random % choices]);
        break;
    case CONF_STRING:
        snprintf(out, out_bytes, "text %llu", (unsigned long long)random);
        break;
    }
}

static unsigned seed_random(void)
{
    const char *given = getenv("SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 0) : (unsigned)monotonic_ns();

    print_message("# SEED=%u\n", seed);
    srand(seed);
    return seed;
}

static void test_the_dump_comes_back(void **state)
{
    size_t count;
    const struct conf_option *options = conf_options(&count);

    (void)state;
    seed_random();
    assert_int_equal(parse_o("-f"), 0);
    assert_dump_comes_back();
    conf_finish(&conf);
    for (unsigned round = 0; round < 500; round++) {
        char text[4096] = "";

        for (size_t i = 0; i < count; i++) {
            char value[128];

            random_value(&options[i], value, sizeof(value));
            sprintf(text + strlen(text), "%s=%s,", options[i].name, value);
        }
        if (parse_o("-o", text) != 0) {
            /* Only what two options say together may be wrong. */
            assert_ptr_equal(strstr(message, "staging="), message);
            continue;
        }
        assert_dump_comes_back();
        conf_finish(&conf);
    }
}

static void test_random_ini_files_never_crash_the_parser(void **state)
{
    static const char *const pieces[] = {
        "[",
        "]",
        "[budget]\n",
        "[transport]\n",
        "[mount]\n",
        "budget",
        "workers",
        "cache",
        "uid",
        "=",
        " = ",
        ":",
        ";",
        "#",
        "\n",
        "\r\n",
        " ",
        "\t",
        "80%",
        "1",
        "-1",
        "on",
        "off",
        "12GiB",
        "9999999999999999999999",
        "\xef\xbb\xbf",
        "\xff\xfe",
        "\"",
        "\\",
        "%s%n",
        "entry_timeout",
        "0.5",
        "..",
        "root_mode",
        "0755",
        "log",
        "stderr",
        "auto",
    };
    unsigned accepted = 0;

    (void)state;
    seed_random();
    for (unsigned round = 0; round < 5000; round++) {
        char text[2048];
        size_t at = 0, count = (size_t)rand() % 40;
        errint_t error;

        for (size_t i = 0; i < count; i++) {
            const char *piece = pieces[(size_t)rand() % ARRAY_SIZE(pieces)];

            if (rand() % 10 == 0) {
                text[at++] = (char)rand();
            } else if (rand() % 50 == 0) {
                memset(text + at, 'a' + rand() % 26, 150);
                at += 150;
                if (at > sizeof(text) - 300)
                    break;
            } else {
                memcpy(text + at, piece, strlen(piece));
                at += strlen(piece);
            }
        }
        write_bytes(text, at);
        error = parse("emulated", "/mnt", "--config", ini_path, NULL);
        if (error == 0) {
            accepted++;
            assert_dump_comes_back();
        } else {
            assert_int_equal(error, -EINVAL);
            assert_true(strlen(message) > 0 && !strpbrk(message, "\n\r\t"));
            assert_ptr_equal(strstr(message, ini_path), message);
        }
        conf_finish(&conf);
    }
    print_message("# %u of 5000 accepted\n", accepted);
    assert_in_range(accepted, 1, 4999);
}

static void test_random_mount_options_never_crash_the_parser(void **state)
{
    static const char *const pieces[] = {
        "budget",  "workers",     "ro",    "rw", "noatime", "atime", "cache",
        "no_",     "=",           "=",     ",",  ",",       "\\",    "\\,",
        "x-",      "comment=",    "80%",   "1",  "-",       "on",    "9999999999999999999999999",
        "remount", "allow_other", "12GiB", "\n", " ",       "user",  "\xff",
        "%n",      "fsname=",
    };
    unsigned accepted = 0;

    (void)state;
    seed_random();
    for (unsigned round = 0; round < 5000; round++) {
        char text[1024] = "";
        size_t count = (size_t)rand() % 12;

        for (size_t i = 0; i < count; i++)
            strcat(text, pieces[(size_t)rand() % ARRAY_SIZE(pieces)]);
        if (parse_o("-o", text) == 0)
            accepted++;
        else
            assert_true(strlen(message) > 0 && !strpbrk(message, "\n\r\t"));
        conf_finish(&conf);
    }
    print_message("# %u of 5000 accepted\n", accepted);
    assert_in_range(accepted, 1, 4999);
}

static void test_a_short_message_buffer_is_enough(void **state)
{
    char *argv[] = {strdup("residentfs"), strdup("nonsense"), strdup("/mnt"), NULL};
    char short_message[8];

    (void)state;
    memset(short_message, 'x', sizeof(short_message));
    assert_int_equal(conf_parse(3, argv, &conf, short_message, sizeof(short_message)), -EINVAL);
    assert_string_equal(short_message, "unknown");
    for (size_t i = 0; i < ARRAY_SIZE(argv); i++)
        free(argv[i]);
}

/* Types that the table has no option of, yet. */
static void test_bools_and_strings(void **state)
{
    static const struct {
        bool flag;
        char *text;
    } layout;
    const struct conf_option flag = {.name = "flag", .type = CONF_BOOL, .offset = 0};
    const struct conf_option text = {
        .name = "text",
        .type = CONF_STRING,
        .offset = (size_t)((const char *)&layout.text - (const char *)&layout)};
    struct {
        bool flag;
        char *text;
    } value = {0};
    char why[256], range[64];
    char *got;

    (void)state;
    assert_true(conf_option_is_switch(&flag));
    assert_false(conf_option_is_switch(&text));
    assert_int_equal(conf_option_set(&flag, &value, "on", why, sizeof(why)), 0);
    assert_true(value.flag);
    assert_int_equal(conf_option_set(&flag, &value, "offf", why, sizeof(why)), -EINVAL);
    assert_string_equal(why, "not one of off|on; did you mean \"off\"?");
    assert_true(value.flag);
    assert_string_equal(conf_option_range(&flag, range, sizeof(range)), "off|on");
    assert_int_equal(conf_option_set(&text, &value, "a b", why, sizeof(why)), 0);
    assert_int_equal(conf_option_set(&text, &value, "two\xc3\xa9", why, sizeof(why)), 0);
    assert_string_equal(value.text, "two\xc3\xa9");
    assert_int_equal(conf_option_set(&text, &value, "a;b", why, sizeof(why)), -EINVAL);
    assert_int_equal(conf_option_set(&text, &value, " a", why, sizeof(why)), -EINVAL);
    assert_int_equal(conf_option_set(&text, &value, "a\nb", why, sizeof(why)), -EINVAL);
    assert_string_equal(value.text, "two\xc3\xa9");
    got = conf_option_get(&text, &value);
    assert_string_equal(got, value.text);
    free(got);
    assert_int_equal(conf_option_set(&text, &value, "", why, sizeof(why)), 0);
    assert_null(value.text);
    got = conf_option_get(&text, &value);
    assert_string_equal(got, "");
    free(got);
    conf_option_finish(&text, &value);
}

static void test_nearest_name(void **state)
{
    static const char *const names[] = {"budget",    "workers", "cache", "log",
                                        "log_level", "uid",     "gid"};
    static const struct {
        const char *word, *nearest;
    } cases[] = {
        {"budget", "budget"},
        {"bugdet", "budget"},
        {"budge", "budget"},
        {"budgets", "budget"},
        {"wokers", "workers"},
        {"worker", "workers"},
        {"cahce", "cache"},
        {"loglevel", "log_level"},
        {"lg", "log"},
        {"udi", "uid"},
        {"", NULL},
        {"x", NULL},
        {"zzzzzz", NULL},
        {"memory", NULL},
        {"budgetbudgetbudgetbudgetbudgetbudgetbudgetbudget", NULL},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *near = conf_nearest(cases[i].word, names, ARRAY_SIZE(names));

        print_message("# %s: %s\n", cases[i].word, near ? near : "-");
        if (cases[i].nearest) {
            assert_non_null(near);
            assert_string_equal(near, cases[i].nearest);
        } else {
            assert_null(near);
        }
    }
}

static void test_the_table_is_sound(void **state)
{
    size_t count;
    const struct conf_option *options = conf_options(&count);

    (void)state;
    for (size_t i = 0; i < count; i++) {
        struct conf scratch = {0};
        char why[256];
        char *back;

        print_message("# %s\n", options[i].name);
        assert_true(strlen(options[i].name) <= 32);
        assert_true(options[i].default_text || options[i].default_note);
        assert_null(strpbrk(options[i].help, "\n"));
        assert_int_equal(!!options[i].metavar,
                         options[i].type != CONF_ENUM && options[i].type != CONF_BOOL);
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(options[i].name, options[j].name);
            /* The options of a section stand together. */
            if (strcmp(options[i].section, options[j].section) == 0)
                assert_string_equal(options[i - 1].section, options[i].section);
        }
        if (!options[i].default_text)
            continue;
        /* A default is written as the dump writes it. */
        assert_int_equal(
            conf_option_set(&options[i], &scratch, options[i].default_text, why, sizeof(why)), 0);
        back = conf_option_get(&options[i], &scratch);
        assert_string_equal(back, options[i].default_text);
        free(back);
        conf_option_finish(&options[i], &scratch);
    }
}

static void test_help_names_everything(void **state)
{
    size_t count, length;
    const struct conf_option *options = conf_options(&count);
    char *help = NULL;
    FILE *out = open_memstream(&help, &length);

    (void)state;
    conf_print_help(out);
    fclose(out);
    for (size_t i = 0; i < count; i++) {
        char text[256], range[160];

        snprintf(text, sizeof(text), "\n  %s=", options[i].name);
        assert_non_null(strstr(help, text));
        assert_non_null(strstr(help, options[i].help));
        assert_non_null(strstr(help, conf_option_range(&options[i], range, sizeof(range))));
        snprintf(text, sizeof(text), "default %s",
                 options[i].default_text ? options[i].default_text : options[i].default_note);
        assert_non_null(strstr(help, text));
    }
    assert_non_null(strstr(help, "emulated:<count>"));
    assert_non_null(strstr(help, "Exit codes:"));
    for (const char *line = help; *line;) {
        size_t line_length = strcspn(line, "\n");

        if (line_length > 100)
            fail_msg("%zu columns: %.*s", line_length, (int)line_length, line);
        line += line_length + (line[line_length] == '\n');
    }
    free(help);
}

/* packaging/residentfs.conf as the table would have it. */
static char *sample_ini(void)
{
    size_t count, length;
    const struct conf_option *options = conf_options(&count);
    char *text = NULL;
    FILE *out = open_memstream(&text, &length);

    fputs("# Configuration of residentfs. Every option is shown with its default.\n"
          "# residentfs --check-config says what is wrong with this file.\n",
          out);
    for (size_t i = 0; i < count; i++) {
        char range[160];
        const struct conf_option *option = &options[i];

        if (i == 0 || strcmp(option->section, options[i - 1].section) != 0)
            fprintf(out, "\n[%s]\n", option->section);
        fprintf(out, "\n# %s\n# %s%s%s\n", option->help,
                conf_option_range(option, range, sizeof(range)),
                !option->default_note  ? ""
                : option->default_text ? "; "
                                       : "; default: ",
                option->default_note ? option->default_note : "");
        fprintf(out, "#%s =%s%s\n", option->name, option->default_text ? " " : "",
                option->default_text ? option->default_text : "");
    }
    fclose(out);
    return text;
}

static char *read_whole(const char *path)
{
    char *text = calloc(1, 65536);
    FILE *in = fopen(path, "r");

    if (!in)
        fail_msg("%s: %s", path, strerror(errno));
    assert_true(fread(text, 1, 65535, in) < 65535);
    fclose(in);
    return text;
}

static void test_the_sample_file_is_the_table(void **state)
{
    const char *root = getenv("SOURCE_ROOT");
    char path[4096];
    char *text, *expected, *from_sample, *defaults;

    (void)state;
    if (!root)
        skip();
    snprintf(path, sizeof(path), "%s/packaging/residentfs.conf", root);
    text = read_whole(path);
    expected = sample_ini();
    if (strcmp(text, expected) != 0)
        print_message(
            "# write it anew: tests/unit/test_conf --sample > packaging/residentfs.conf\n");
    assert_string_equal(text, expected);

    /* With the comment signs before options taken away it is a configuration: the defaults. */
    for (char *line = strchr(text, '#'); line; line = strstr(line + 1, "\n#")) {
        char *sign = line + (*line == '\n');
        size_t length = strcspn(sign, "\n");

        if (sign[1] != ' ' && sign[length - 1] != '=')
            *sign = ' ';
    }
    if (parse_ini(text) != 0)
        fail_msg("%s", message);
    from_sample = conf_dump_ini(&conf, NULL);
    conf_finish(&conf);
    assert_int_equal(parse_o("-f"), 0);
    defaults = conf_dump_ini(&conf, NULL);
    assert_string_equal(from_sample, defaults);
    free(from_sample);
    free(defaults);
    conf_finish(&conf);
    free(text);
    free(expected);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_command_line),
        cmocka_unit_test(test_command_line_errors),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_errors_of_mount_options),
        cmocka_unit_test(test_options_of_mount),
        cmocka_unit_test(test_access_times_follow_the_last_word),
        cmocka_unit_test(test_mount_helper),
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_ini_forms),
        cmocka_unit_test(test_errors_of_the_ini_file),
        cmocka_unit_test(test_a_line_is_read_whole_or_refused),
        cmocka_unit_test(test_a_file_too_large_is_refused),
        cmocka_unit_test(test_the_dump_comes_back),
        cmocka_unit_test(test_random_ini_files_never_crash_the_parser),
        cmocka_unit_test(test_random_mount_options_never_crash_the_parser),
        cmocka_unit_test(test_a_short_message_buffer_is_enough),
        cmocka_unit_test(test_bools_and_strings),
        cmocka_unit_test(test_nearest_name),
        cmocka_unit_test(test_the_table_is_sound),
        cmocka_unit_test(test_help_names_everything),
        cmocka_unit_test(test_the_sample_file_is_the_table),
    };

    if (argc == 2 && strcmp(argv[1], "--sample") == 0) {
        cleanup_free char *text = sample_ini();

        return fputs(text, stdout) < 0;
    }
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
