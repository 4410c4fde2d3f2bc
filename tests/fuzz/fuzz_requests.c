/*
 * Requests of the kernel, made of the fuzzer's bytes, through libfuse to the handlers, with files
 * on an emulated device; nothing is mounted. At the end the kernel lets go of all that it has, or
 * the connection just ends, and all must be given back.
 *
 * What the kernel guarantees, and the handlers rely on, is kept to:
 * - A request is whole: as long as its header and its sizes say, names end in a zero byte.
 * - A file handle is one that OPEN, CREATE, TMPFILE or OPENDIR gave for that very node, and that
 *   has not been released. Only requests that OPEN, CREATE or TMPFILE come before read, write and
 *   their like; only OPENDIR comes before READDIR.
 * - It forgets as many lookups of a node as it got, and no more.
 * - The sizes of READ and WRITE are at most what INIT granted.
 * - Of requests that nobody waits for any more the reply fails with ENOENT, and gives nothing.
 * Everything else is as it comes: numbers of nodes that there are not, or no more, names of any
 * bytes (the kernel has neither "/" nor "" in them, "." and ".." only in LOOKUP), offsets, lengths,
 * masks and flags.
 */
#include <fcntl.h>
#include <string.h>

#include "core/log.h"
#include "fs/worker.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_kernel.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const char *__lsan_default_options(void);

#define MAX_WRITE      (128 * KIB)
#define LISTING_MAX    16384
#define PAYLOAD_START  (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
#define STATX_IN_BYTES 24

/* What lives as long as the process. */
static struct conf conf;
static struct device *device;
static struct worker worker;

static struct residentfs fs;
static struct fuse_session *fuse;

/* -- requests ---------------------------------------------------------------------------------- */

static ssize_t no_read(int fd, void *bytes, size_t size, void *userdata)
{
    (void)fd;
    (void)bytes;
    (void)size;
    (void)userdata;
    abort();
}

static void begin(uint32_t opcode, uint64_t node)
{
    size_t capacity;
    struct receive_buffer *buffer = worker_next_receive_buffer(&worker);

    REQUIRE(buffer);
    kernel.message = receive_buffer_bytes(buffer, &capacity);
    kernel.length = sizeof(struct fuse_in_header);
    kernel.opcode = opcode;
    kernel.node = node;
    kernel.capacity = 0;
}

static void put(const void *bytes, size_t size)
{
    memcpy(kernel.message + kernel.length, bytes, size);
    kernel.length += size;
}

static void put_name(const char *name)
{
    put(name, strlen(name) + 1);
}

/* Whose it is comes of WHO; with its highest bit nobody waits for the reply. */
static void finish(uint8_t who)
{
    struct fuse_in_header header = {
        .len = (uint32_t)kernel.length,
        .opcode = kernel.opcode,
        .unique = ++kernel.unique,
        .nodeid = kernel.node,
        .uid = who & 1 ? 1000 : 0,
        .gid = who & 2 ? 1000 : 0,
        .pid = who & 4 ? (uint32_t)getpid() : 0,
    };
    struct fuse_buf request = {.mem = kernel.message, .size = kernel.length};
    bool is_answered = kernel.opcode != FUSE_FORGET && kernel.opcode != FUSE_BATCH_FORGET;

    memcpy(kernel.message, &header, sizeof(header));
    kernel.replied = false;
    kernel.refuses = is_answered && (who & 128);
    fuse_session_process_buf(fuse, &request);
    REQUIRE(kernel.replied == is_answered);
}

static void send_init(uint32_t minor, uint32_t flags)
{
    struct fuse_init_in init = {
        .major = FUSE_KERNEL_VERSION,
        .minor = minor,
        .max_readahead = 131072,
        .flags = flags,
    };

    begin(FUSE_INIT, 0);
    put(&init, sizeof(init));
    finish(0);
    REQUIRE(kernel.error == 0);
    fuse_session_reset(fuse);
}

/* COUNT of the lookups of a node. */
static void send_forget(struct node *node, uint64_t count)
{
    struct fuse_forget_in forget = {.nlookup = count};

    begin(FUSE_FORGET, node->number);
    put(&forget, sizeof(forget));
    node->lookups -= count;
    finish(0);
}

static void send_forget_all(void)
{
    struct fuse_batch_forget_in batch = {0};

    begin(FUSE_BATCH_FORGET, 0);
    for (size_t i = 0; i < kernel.nodes_count; i++)
        batch.count += kernel.nodes[i].lookups > 0;
    put(&batch, sizeof(batch));
    for (size_t i = 0; i < kernel.nodes_count; i++) {
        struct node *node = &kernel.nodes[i];
        struct fuse_forget_one one = {.nodeid = node->number, .nlookup = node->lookups};

        if (node->lookups > 0)
            put(&one, sizeof(one));
        node->lookups = 0;
    }
    finish(0);
}

static void send_release(size_t index, uint8_t who)
{
    struct opened *opened = &kernel.opened[index];
    struct fuse_release_in release = {.fh = opened->handle};

    begin(opened->is_directory ? FUSE_RELEASEDIR : FUSE_RELEASE, opened->node);
    put(&release, sizeof(release));
    *opened = kernel.opened[--kernel.opened_count];
    finish(who);
}

static uint64_t some_node(struct input *input)
{
    uint8_t which = (uint8_t)take(input, 1);

    if (which < 240)
        return kernel.nodes[which % kernel.nodes_count].number;
    return which < 250 ? take(input, 1) : take(input, 8);
}

/* NULL: none is open. */
static const struct opened *some_opened(struct input *input, bool is_directory)
{
    size_t first = take(input, 1);

    for (size_t i = 0; i < kernel.opened_count; i++) {
        const struct opened *opened = &kernel.opened[(first + i) % kernel.opened_count];

        if (opened->is_directory == is_directory)
            return opened;
    }
    return NULL;
}

/* Requests about names in a directory; the node is the directory. */
static void send_named(struct input *input, uint32_t opcode, uint8_t who)
{
    char name[NAME_BYTES], other[NAME_BYTES];
    uint64_t second;

    begin(opcode, some_node(input));
    switch (opcode) {
    case FUSE_CREATE:
    case OPCODE_TMPFILE: {
        struct fuse_create_in create = {.flags = (uint32_t)take(input, 4),
                                        .mode = (uint32_t)take(input, 2),
                                        .umask = (uint32_t)take(input, 2)};
        put(&create, sizeof(create));
        break;
    }
    case FUSE_MKNOD: {
        struct fuse_mknod_in mknod = {.mode = (uint32_t)take(input, 2),
                                      .rdev = (uint32_t)take(input, 1)};
        put(&mknod, sizeof(mknod));
        break;
    }
    case FUSE_MKDIR: {
        struct fuse_mkdir_in mkdir = {.mode = (uint32_t)take(input, 2)};
        put(&mkdir, sizeof(mkdir));
        break;
    }
    case FUSE_LINK:
        second = some_node(input);
        put(&second, sizeof(struct fuse_link_in));
        break;
    case FUSE_RENAME:
        second = some_node(input);
        put(&second, sizeof(struct fuse_rename_in));
        break;
    case FUSE_RENAME2: {
        struct fuse_rename2_in rename = {.newdir = some_node(input),
                                         .flags = (uint32_t)take(input, 1)};
        put(&rename, sizeof(rename));
        break;
    }
    }
    put_name(take_name(input, name));
    if (opcode == FUSE_RENAME || opcode == FUSE_RENAME2 || opcode == FUSE_SYMLINK)
        put_name(take_name(input, other));
    finish(who);
}

/* Requests about a node. */
static void send_about_node(struct input *input, uint32_t opcode, uint8_t who)
{
    char name[XATTR_NAME_BYTES];

    begin(opcode, some_node(input));
    switch (opcode) {
    case FUSE_OPEN:
    case FUSE_OPENDIR: {
        struct fuse_open_in open = {.flags = (uint32_t)take(input, 4)};
        put(&open, sizeof(open));
        break;
    }
    case FUSE_SETATTR: {
        struct fuse_setattr_in set = {
            .valid = (uint32_t)take(input, 4) & ~(uint32_t)FATTR_FH,
            .size = take_offset(input),
            .atime = take(input, 1),
            .mtime = take(input, 8),
            .mtimensec = (uint32_t)take(input, 4),
            .mode = (uint32_t)take(input, 2),
            .uid = (uint32_t)take(input, 1),
            .gid = (uint32_t)take(input, 1),
        };
        put(&set, sizeof(set));
        break;
    }
    case FUSE_GETATTR:
    case OPCODE_STATX: {
        char zeros[STATX_IN_BYTES] = {0};
        put(zeros, opcode == FUSE_GETATTR ? sizeof(struct fuse_getattr_in) : sizeof(zeros));
        break;
    }
    case FUSE_SETXATTR: {
        static char value[VALUE_BYTES];
        struct fuse_setxattr_in set = {.flags = (uint32_t)take(input, 1)};

        take_xattr_name(input, name);
        set.size = (uint32_t)take_value(input, value);
        put(&set, kernel.extended_setxattr ? sizeof(set) : FUSE_COMPAT_SETXATTR_IN_SIZE);
        put_name(name);
        put(value, set.size);
        break;
    }
    case FUSE_GETXATTR:
    case FUSE_LISTXATTR: {
        struct fuse_getxattr_in get = {.size = (uint32_t)take(input, 2)};
        kernel.capacity = get.size;
        put(&get, sizeof(get));
        if (opcode == FUSE_GETXATTR)
            put_name(take_xattr_name(input, name));
        break;
    }
    case FUSE_REMOVEXATTR:
        put_name(take_xattr_name(input, name));
        break;
    }
    finish(who);
}

static void put_payload(struct input *input, uint32_t *size)
{
    char *payload = kernel.message + PAYLOAD_START;
    size_t given = take(input, 1);

    if (given < 128) { /* what it says */
        *size = (uint32_t)take_bytes(input, payload, given);
        return;
    }
    *size = (uint32_t)(given < 192 ? take(input, 2) : take(input, 3) % (MAX_WRITE + 1));
    memset(payload, (int)given, *size);
}

/* Requests about what is open. */
static void send_about_opened(struct input *input, uint32_t opcode, uint8_t who)
{
    bool is_directory =
        opcode == FUSE_READDIR || opcode == FUSE_READDIRPLUS || opcode == FUSE_FSYNCDIR;
    const struct opened *opened = some_opened(input, is_directory);

    if (!opened)
        return;
    begin(opcode, opened->node);
    switch (opcode) {
    case FUSE_READ:
    case FUSE_READDIR:
    case FUSE_READDIRPLUS: {
        uint32_t most = is_directory ? LISTING_MAX : MAX_WRITE;
        struct fuse_read_in read = {.fh = opened->handle,
                                    .offset = take_offset(input),
                                    .size = (uint32_t)take(input, 3) % (most + 1)};
        kernel.capacity = read.size;
        put(&read, sizeof(read));
        break;
    }
    case FUSE_WRITE: {
        struct fuse_write_in write = {.fh = opened->handle,
                                      .offset = take_offset(input),
                                      .flags = (uint32_t)take(input, 4),
                                      .write_flags = (uint32_t)take(input, 1)};
        put_payload(input, &write.size);
        put(&write, sizeof(write));
        kernel.length += write.size;
        break;
    }
    case FUSE_FLUSH: {
        struct fuse_flush_in flush = {.fh = opened->handle};
        put(&flush, sizeof(flush));
        break;
    }
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR: {
        struct fuse_fsync_in fsync = {.fh = opened->handle,
                                      .fsync_flags = (uint32_t)take(input, 1)};
        put(&fsync, sizeof(fsync));
        break;
    }
    case FUSE_FALLOCATE: {
        struct fuse_fallocate_in fallocate = {.fh = opened->handle,
                                              .offset = take_offset(input),
                                              .length = take_offset(input),
                                              .mode = (uint32_t)take(input, 1)};
        put(&fallocate, sizeof(fallocate));
        break;
    }
    case FUSE_LSEEK: {
        struct fuse_lseek_in lseek = {
            .fh = opened->handle, .offset = take_offset(input), .whence = (uint32_t)take(input, 1)};
        put(&lseek, sizeof(lseek));
        break;
    }
    case FUSE_COPY_FILE_RANGE: {
        const struct opened *to = some_opened(input, false);
        struct fuse_copy_file_range_in copy = {.fh_in = opened->handle,
                                               .off_in = take_offset(input),
                                               .nodeid_out = to->node,
                                               .fh_out = to->handle,
                                               .off_out = take_offset(input),
                                               .len = take_offset(input),
                                               .flags = take(input, 1) & 1};
        put(&copy, sizeof(copy));
        break;
    }
    }
    finish(who);
}

static void send_some(struct input *input)
{
    static const struct {
        void (*send)(struct input *input, uint32_t opcode, uint8_t who);
        uint32_t opcode;
    } requests[] = {
        {send_named, FUSE_LOOKUP},
        {send_named, FUSE_CREATE},
        {send_named, OPCODE_TMPFILE},
        {send_named, FUSE_MKNOD},
        {send_named, FUSE_MKDIR},
        {send_named, FUSE_SYMLINK},
        {send_named, FUSE_LINK},
        {send_named, FUSE_UNLINK},
        {send_named, FUSE_RMDIR},
        {send_named, FUSE_RENAME},
        {send_named, FUSE_RENAME2},
        {send_about_node, FUSE_OPEN},
        {send_about_node, FUSE_OPENDIR},
        {send_about_node, FUSE_GETATTR},
        {send_about_node, OPCODE_STATX},
        {send_about_node, FUSE_SETATTR},
        {send_about_node, FUSE_READLINK},
        {send_about_node, FUSE_STATFS},
        {send_about_node, FUSE_SETXATTR},
        {send_about_node, FUSE_GETXATTR},
        {send_about_node, FUSE_LISTXATTR},
        {send_about_node, FUSE_REMOVEXATTR},
        {send_about_opened, FUSE_READ},
        {send_about_opened, FUSE_WRITE},
        {send_about_opened, FUSE_WRITE},
        {send_about_opened, FUSE_FLUSH},
        {send_about_opened, FUSE_FSYNC},
        {send_about_opened, FUSE_FALLOCATE},
        {send_about_opened, FUSE_LSEEK},
        {send_about_opened, FUSE_COPY_FILE_RANGE},
        {send_about_opened, FUSE_READDIR},
        {send_about_opened, FUSE_READDIRPLUS},
        {send_about_opened, FUSE_FSYNCDIR},
    };
    size_t which = take(input, 1) % (ARRAY_SIZE(requests) + 2);
    uint8_t who = (uint8_t)take(input, 1);

    if (which < ARRAY_SIZE(requests)) {
        requests[which].send(input, requests[which].opcode, who);
    } else if (which == ARRAY_SIZE(requests)) {
        if (kernel.opened_count > 0)
            send_release(take(input, 1) % kernel.opened_count, who);
    } else {
        struct node *node = &kernel.nodes[take(input, 1) % kernel.nodes_count];

        if (node->lookups > 0)
            send_forget(node, 1 + take(input, 1) % node->lookups);
    }
}

/* -- the file system --------------------------------------------------------------------------- */

static void close_device(void)
{
    worker_finish(&worker);
    device_close(device);
    conf_finish(&conf);
}

/* LeakSanitizer of clang 14 stumbles over thread-local variables of what is loaded later: the
 * emulated driver. */
const char *__lsan_default_options(void)
{
    return "use_tls=0:print_suppressions=0";
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    char *arguments[] = {"residentfs", "emulated", "/", "-o", "max_write=128KiB,max_files=4096",
                         NULL};
    const struct device_options options = {
        .budget = {.kind = BUDGET_AUTO},
        .staging_bytes = MIB,
        .upload_streams = 2,
        .flush_interval_ms = 1,
        .direct_threshold_bytes = 64 * KIB,
    };
    char message[CONF_MESSAGE_BYTES] = "";

    (void)argc;
    (void)argv;
    setenv("RESIDENTFS_EMULATED_LIBRARY", EMULATED_LIBRARY_PATH, 0);
    setenv("RESIDENTFS_EMULATED", "memory=64MiB;order=random;seed=1", 1);
    log_set_level(LOG_LEVEL_ERROR);
    if (conf_parse(5, arguments, &conf, message, sizeof(message)) < 0 ||
        device_open(&conf.device, &options, &device, message, sizeof(message)) < 0 ||
        worker_init(&worker, NULL, device, MAX_WRITE) < 0) {
        fprintf(stderr, "%s\n", message);
        abort();
    }
    worker_set_current(&worker);
    atexit(close_device);
    return 0;
}

static void start(uint8_t settings)
{
    struct fuse_args arguments = FUSE_ARGS_INIT(0, NULL);
    const struct fuse_custom_io io = {.writev = on_reply, .read = no_read};
    struct fuse_lowlevel_ops ops = {0};
    /* With and without ACLs, handles that outlive files, O_TRUNC in OPEN, and all else. */
    uint32_t flags = settings & 1 ? FUSE_ASYNC_READ | FUSE_BIG_WRITES : ~(uint32_t)FUSE_INIT_EXT;

    conf.cache = settings & 2 ? CONF_CACHE_ON : CONF_CACHE_OFF;
    conf.atime = settings & 4 ? CONF_ATIME_STRICT : CONF_ATIME_RELATIME;
    fs = (struct residentfs){
        .conf = &conf,
        .device = device,
        .started = 1,
        .generation = 1,
        .open_files = {.mutex = PTHREAD_MUTEX_INITIALIZER},
        .open_virtual = {.mutex = PTHREAD_MUTEX_INITIALIZER},
        .open_directories = {.mutex = PTHREAD_MUTEX_INITIALIZER},
    };
    memset(&kernel, 0, sizeof(kernel));
    REQUIRE(namespace_init(&fs) == 0);
    session_operations(&ops);
    namespace_operations(&ops);
    data_operations(&ops);
    REQUIRE(fuse_opt_add_arg(&arguments, "fuzz") == 0);
    fuse = fuse_session_new(&arguments, &ops, sizeof(ops), &fs);
    fuse_opt_free_args(&arguments);
    REQUIRE(fuse);
    int result = fuse_session_custom_io(fuse, &io, open("/dev/null", O_RDWR));
    if (result == -ENOTSUP) {
        fprintf(stderr, "skipped: libfuse %s was built without enable-custom-io\n",
                fuse_pkgversion());
        _exit(0);
    }
    REQUIRE(result == 0);
    fs.session = session_create(&fs, fuse);
    REQUIRE(fs.session);
    worker.session = fs.session;
    send_init(settings & 8 ? 31 : FUSE_KERNEL_MINOR_VERSION, flags);
    REQUIRE(fs.max_write_bytes == MAX_WRITE);
    kernel.nodes[kernel.nodes_count++].number = INODE_ROOT;
    for (uint64_t number = INODE_VIRTUAL_BASE; virtual_is(number) && number < 14; number++)
        kernel.nodes[kernel.nodes_count++].number = number;
}

/* Nothing but its names keeps it. */
static void check_kept(struct inode *inode, void *data)
{
    (void)data;
    REQUIRE(inode->lookups == 0 && inode->nlink > 0);
    REQUIRE(inode->refs == 2); /* its names', and the walk's */
    REQUIRE(inode->type != S_IFREG || (inode->openers == 0 && inode->cached_openers == 0));
}

static void let_go(void)
{
    while (kernel.opened_count > 0)
        send_release(0, 0);
    send_forget_all();
    REQUIRE(!fs.open_files.first && !fs.open_virtual.first && !fs.open_directories.first);
    REQUIRE(fs.virtual_bytes == 0);
    REQUIRE(inode_table_walk(fs.inodes, check_kept, NULL) == 0);
}

static void stop(void)
{
    struct budget_report budget;

    session_destroy(fs.session);
    fuse_session_destroy(fuse);
    data_finish(&fs);
    virtual_finish(&fs);
    namespace_finish(&fs);
    budget_set(device_budget(device), (struct budget_setting){.kind = BUDGET_AUTO});
    device_get_budget_report(device, &budget);
    REQUIRE(budget.resident_bytes == 0);
    REQUIRE(!device_is_lost(device));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, data + size};
    uint8_t settings = (uint8_t)take(&input, 1);

    start(settings);
    for (int i = 0; i < REQUESTS_MAX && input.at < input.end; i++)
        send_some(&input);
    if (!(settings & 16))
        let_go();
    stop();
    return 0;
}
