/*
 * sharer: a CUDA program that uses libresident, for the shell tests.
 *
 *   sharer CALL ARGUMENT… [: CALL ARGUMENT…]…
 *   sharer -          reads the same from stdin, a line at a time
 *
 * Mappings, attachments, allocations and open files are numbered from 0, each kind by itself, in
 * the order in which the calls made them. MEMORY is mN for a mapping or dN for an allocation. A
 * call that fails prints the name of its errno, ": " and what resident_error() says, and ends the
 * run with status 1; after "-CALL" it goes on. With "-", each line is answered by what its calls
 * print and then "= ok" or "= failed"; the run ends with stdin.
 *
 *   map PATH [ro]                         mapfile FILE [ro]
 *   remap M    sync M    unmap M          length M    address M    isreadonly M    state
 *   alloc BYTES [vmm|unexportable]        free D      (cuMemAlloc, or cuMemCreate and cuMemMap)
 *   attach PATH D BYTES [OFFSET]          attachnear PATH BYTES: memory of the host
 *   detach A
 *   read MEMORY OFFSET LENGTH             write MEMORY OFFSET TEXT
 *   fill MEMORY OFFSET LENGTH SEED        check MEMORY OFFSET LENGTH SEED|zero
 *   ffill FILE OFFSET LENGTH SEED         fcheck FILE OFFSET LENGTH SEED|zero: the same of a file
 *   open PATH FLAGS    close FILE    pipe    socket
 *   mmapwrite FILE OFFSET TEXT            mmapread FILE OFFSET LENGTH: through a shared mapping
 *   cycle PATH COUNT                      maps, reads the first byte and unmaps, so many times
 *   counts                                open descriptors and address ranges of this process
 *   sleep SECONDS    pid    exit    kill: SIGKILL to itself
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/driver/cuda_error.h"
#include "core/driver/driver.h"
#include "core/share/resident.h"

#define THINGS_MAX 2048
#define PIECE      (size_t)(1 << 20)

struct allocation {
    CUdeviceptr address;
    size_t bytes;
    CUmemGenericAllocationHandle handle; /* 0: of cuMemAlloc */
};

static struct resident_mapping *mappings[THINGS_MAX];
static struct resident_attachment *attachments[THINGS_MAX];
static struct allocation allocations[THINGS_MAX];
static int files[THINGS_MAX];
static int mapping_count, attachment_count, allocation_count, file_count;
static struct driver *driver;

__attribute__((noreturn)) static void usage(const char *what, const char *word)
{
    fprintf(stderr, "sharer: %s %s\n", what, word);
    exit(2);
}

static void must(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("%s: %s\n", call, driver_error_name(driver, result));
    fflush(stdout);
    exit(3);
}
#define MUST(call) must(call, #call)

/* Of a word; suffixes K, M, G. */
static uint64_t number_of(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 0);
    const char *suffix = *end ? strchr("KMG", *end) : NULL;
    if (end == text || (*end && (!suffix || end[1])))
        usage("not a number:", text);
    return suffix ? value << (10 * (suffix - "KMG" + 1)) : value;
}

static int index_of(const char *text, int count)
{
    uint64_t number = number_of(text);
    if (number >= (uint64_t)count)
        usage("no such number:", text);
    return (int)number;
}

static struct resident_mapping *mapping_of(const char *text)
{
    struct resident_mapping *mapping = mappings[index_of(text, mapping_count)];
    if (!mapping)
        usage("unmapped:", text);
    return mapping;
}

static int file_of(const char *text)
{
    return strcmp(text, "bad") == 0 ? 987 : files[index_of(text, file_count)];
}

static CUdeviceptr memory_of(const char *text)
{
    if (text[0] == 'm')
        return resident_address(mapping_of(text + 1));
    if (text[0] != 'd')
        usage("not memory:", text);
    return allocations[index_of(text + 1, allocation_count)].address;
}

/* -- bytes ------------------------------------------------------------------------------------- */

/* Never 0, but for seed 0 always. */
static unsigned char pattern(uint64_t offset, uint64_t seed)
{
    uint64_t mixed = (offset + 1) * 0x9e3779b97f4a7c15u + seed * 0xbf58476d1ce4e5b9u;
    return seed ? (unsigned char)(mixed >> 40 | 1) : 0;
}

static CUstream stream(void)
{
    static CUstream one;
    if (!one)
        MUST(driver->cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    return one;
}

static void put(CUdeviceptr to, const void *bytes, size_t length)
{
    MUST(driver->cuMemcpyHtoDAsync(to, bytes, length, stream()));
    MUST(driver->cuStreamSynchronize(stream()));
}

static void get(void *bytes, CUdeviceptr from, size_t length)
{
    MUST(driver->cuMemcpyDtoHAsync(bytes, from, length, stream()));
    MUST(driver->cuStreamSynchronize(stream()));
}

static void print_data(const unsigned char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        printf(isprint(bytes[i]) && bytes[i] != '\\' ? "%c" : "\\x%02x", bytes[i]);
    putchar('\n');
}

/* Walks a range piece by piece. FILE is -1 for memory at BASE. Returns 0 or a negative errno. */
static int each_piece(char **a, int file, CUdeviceptr base, bool filling)
{
    uint64_t offset = number_of(a[1]), end = offset + number_of(a[2]);
    uint64_t seed = strcmp(a[3], "zero") == 0 ? 0 : number_of(a[3]);
    static unsigned char bytes[PIECE];

    while (offset < end) {
        size_t now = end - offset < PIECE ? (size_t)(end - offset) : PIECE;
        ssize_t done = (ssize_t)now;
        if (filling)
            for (size_t i = 0; i < now; i++)
                bytes[i] = pattern(offset + i, seed);
        if (file >= 0)
            done = filling ? pwrite(file, bytes, now, (off_t)offset)
                           : pread(file, bytes, now, (off_t)offset);
        else if (filling)
            put(base + offset, bytes, now);
        else
            get(bytes, base + offset, now);
        if (done < 0)
            return -errno;
        if (done == 0) {
            printf("ends at %llu\n", (unsigned long long)offset);
            return 0;
        }
        for (size_t i = 0; !filling && i < (size_t)done; i++)
            if (bytes[i] != pattern(offset + i, seed)) {
                printf("differs at %llu: 0x%02x, not 0x%02x\n", (unsigned long long)(offset + i),
                       bytes[i], pattern(offset + i, seed));
                return 0;
            }
        offset += (uint64_t)done;
    }
    if (!filling)
        puts("same");
    return 0;
}

/* -- calls ------------------------------------------------------------------------------------- */

static int keep_mapping(int error)
{
    mapping_count += error == 0;
    return error;
}

static unsigned int map_flags(char **a, int n)
{
    return n > 1 && strcmp(a[1], "ro") == 0 ? RESIDENT_READ_ONLY : 0;
}

static int call_map(char **a, int n)
{
    return keep_mapping(resident_map_path(a[0], map_flags(a, n), &mappings[mapping_count]));
}

static int call_mapfile(char **a, int n)
{
    return keep_mapping(resident_map(file_of(a[0]), map_flags(a, n), &mappings[mapping_count]));
}

static int call_remap(char **a, int n)
{
    (void)n;
    return resident_remap(mapping_of(a[0]));
}

static int call_sync(char **a, int n)
{
    (void)n;
    return resident_sync(mapping_of(a[0]));
}

static int call_unmap(char **a, int n)
{
    (void)n;
    int error = resident_unmap(mapping_of(a[0]));
    mappings[number_of(a[0])] = NULL;
    return error;
}

static int call_length(char **a, int n)
{
    (void)n;
    printf("%zu\n", resident_length(mapping_of(a[0])));
    return 0;
}

static int call_address(char **a, int n)
{
    (void)n;
    printf("0x%llx\n", (unsigned long long)resident_address(mapping_of(a[0])));
    return 0;
}

static int call_isreadonly(char **a, int n)
{
    (void)n;
    printf("%d\n", resident_is_read_only(mapping_of(a[0])));
    return 0;
}

static int call_alloc(char **a, int n)
{
    struct allocation *allocation = &allocations[allocation_count++];
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
    };
    CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    *allocation = (struct allocation){.bytes = number_of(a[0])};
    if (n == 1) {
        MUST(driver->cuMemAlloc(&allocation->address, allocation->bytes));
        return 0;
    }
    if (strcmp(a[1], "unexportable") == 0)
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    size_t bytes = allocation->bytes;
    MUST(driver->cuMemCreate(&allocation->handle, bytes, &properties, 0));
    MUST(driver->cuMemAddressReserve(&allocation->address, bytes, 0, 0, 0));
    MUST(driver->cuMemMap(allocation->address, bytes, 0, allocation->handle, 0));
    MUST(driver->cuMemSetAccess(allocation->address, bytes, &access, 1));
    return 0;
}

static int call_free(char **a, int n)
{
    (void)n;
    struct allocation *allocation = &allocations[index_of(a[0], allocation_count)];
    if (!allocation->handle) {
        MUST(driver->cuMemFree(allocation->address));
        return 0;
    }
    MUST(driver->cuMemUnmap(allocation->address, allocation->bytes));
    MUST(driver->cuMemAddressFree(allocation->address, allocation->bytes));
    MUST(driver->cuMemRelease(allocation->handle));
    return 0;
}

static int attach(const char *path, uint64_t address, uint64_t bytes)
{
    struct resident_attachment *attachment = NULL;
    int error = resident_attach(path, address, bytes, 0644, &attachment);
    if (error == 0)
        attachments[attachment_count++] = attachment;
    return error;
}

static int call_attach(char **a, int n)
{
    const struct allocation *allocation = &allocations[index_of(a[1], allocation_count)];
    return attach(a[0], allocation->address + (n > 3 ? number_of(a[3]) : 0), number_of(a[2]));
}

static int call_attachnear(char **a, int n)
{
    (void)n;
    return attach(a[0], (uint64_t)(uintptr_t)files, number_of(a[1]));
}

static int call_detach(char **a, int n)
{
    (void)n;
    int which = index_of(a[0], attachment_count);
    int error = resident_detach(attachments[which]);
    attachments[which] = NULL;
    return error;
}

static int call_read(char **a, int n)
{
    (void)n;
    static unsigned char bytes[PIECE];
    size_t length = number_of(a[2]);
    if (length > PIECE)
        usage("too long:", a[2]);
    get(bytes, memory_of(a[0]) + number_of(a[1]), length);
    print_data(bytes, length);
    return 0;
}

static int call_write(char **a, int n)
{
    (void)n;
    put(memory_of(a[0]) + number_of(a[1]), a[2], strlen(a[2]));
    return 0;
}

static int call_fill(char **a, int n)
{
    (void)n;
    return each_piece(a, -1, memory_of(a[0]), true);
}

static int call_check(char **a, int n)
{
    (void)n;
    return each_piece(a, -1, memory_of(a[0]), false);
}

static int call_ffill(char **a, int n)
{
    (void)n;
    return each_piece(a, file_of(a[0]), 0, true);
}

static int call_fcheck(char **a, int n)
{
    (void)n;
    return each_piece(a, file_of(a[0]), 0, false);
}

static int keep_file(int file)
{
    if (file < 0)
        return -errno;
    files[file_count++] = file;
    return 0;
}

static int call_open(char **a, int n)
{
    static const struct {
        const char *name;
        int value;
    } known[] = {
        {"O_RDONLY", O_RDONLY}, {"O_WRONLY", O_WRONLY},   {"O_RDWR", O_RDWR},
        {"O_CREAT", O_CREAT},   {"O_TRUNC", O_TRUNC},     {"O_APPEND", O_APPEND},
        {"O_DIRECT", O_DIRECT}, {"O_PATH", O_PATH},       {"O_DIRECTORY", O_DIRECTORY},
        {"O_EXCL", O_EXCL},     {"O_TMPFILE", O_TMPFILE},
    };
    int flags = 0;
    (void)n;
    for (char *save = NULL, *word = strtok_r(a[1], ",", &save); word;
         word = strtok_r(NULL, ",", &save)) {
        size_t i = 0;
        while (i < ARRAY_SIZE(known) && strcmp(known[i].name, word) != 0)
            i++;
        if (i == ARRAY_SIZE(known))
            usage("unknown flag", word);
        flags |= known[i].value;
    }
    return keep_file(open(a[0], flags | O_CLOEXEC, 0644));
}

static int call_close(char **a, int n)
{
    (void)n;
    return close(file_of(a[0])) < 0 ? -errno : 0;
}

static int call_pipe(char **a, int n)
{
    int ends[2];
    (void)a, (void)n;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    keep_file(ends[0]);
    return keep_file(ends[1]);
}

static int call_socket(char **a, int n)
{
    (void)a, (void)n;
    return keep_file(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

static unsigned char *mmap_page(int file, uint64_t offset)
{
    return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                (off_t)(offset & ~(uint64_t)4095));
}

/* The mapping stays: its pages are dirty, or in the cache, when this returns. */
static int call_mmapwrite(char **a, int n)
{
    uint64_t offset = number_of(a[1]);
    unsigned char *page = mmap_page(file_of(a[0]), offset);
    (void)n;
    if (page == MAP_FAILED)
        return -errno;
    memcpy(page + (offset & 4095), a[2], strlen(a[2]));
    return 0;
}

static int call_mmapread(char **a, int n)
{
    uint64_t offset = number_of(a[1]);
    unsigned char *page = mmap_page(file_of(a[0]), offset);
    (void)n;
    if (page == MAP_FAILED)
        return -errno;
    print_data(page + (offset & 4095), number_of(a[2]));
    return 0;
}

static int call_cycle(char **a, int n)
{
    (void)n;
    for (uint64_t i = number_of(a[1]); i > 0; i--) {
        struct resident_mapping *mapping;
        unsigned char byte;
        int error = resident_map_path(a[0], 0, &mapping);
        if (error < 0)
            return error;
        get(&byte, resident_address(mapping), 1);
        error = resident_unmap(mapping);
        if (error < 0)
            return error;
    }
    return 0;
}

static int lines_of(const char *path)
{
    FILE *file = fopen(path, "re");
    int lines = 0;
    for (int c; file && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

static int call_counts(char **a, int n)
{
    int descriptors = 0;
    (void)a, (void)n;
    for (int i = 0; i < 4096; i++)
        descriptors += fcntl(i, F_GETFD) >= 0;
    printf("%d %d\n", descriptors, lines_of("/proc/self/maps"));
    return 0;
}

static int call_sleep(char **a, int n)
{
    (void)n;
    fflush(stdout);
    usleep((useconds_t)(strtod(a[0], NULL) * 1e6));
    return 0;
}

static int call_pid(char **a, int n)
{
    (void)a, (void)n;
    printf("%d\n", (int)getpid());
    return 0;
}

static int call_kill(char **a, int n)
{
    (void)a, (void)n;
    fflush(stdout);
    return kill(getpid(), SIGKILL);
}

static int call_exit(char **a, int n)
{
    (void)a, (void)n;
    exit(0);
}

static const struct call {
    const char *name;
    int least, most;
    int (*function)(char **, int);
} calls[] = {
    {"map", 1, 2, call_map},           {"mapfile", 1, 2, call_mapfile},
    {"remap", 1, 1, call_remap},       {"sync", 1, 1, call_sync},
    {"unmap", 1, 1, call_unmap},       {"length", 1, 1, call_length},
    {"address", 1, 1, call_address},   {"isreadonly", 1, 1, call_isreadonly},
    {"alloc", 1, 2, call_alloc},       {"free", 1, 1, call_free},
    {"attach", 3, 4, call_attach},     {"attachnear", 2, 2, call_attachnear},
    {"detach", 1, 1, call_detach},     {"read", 3, 3, call_read},
    {"write", 3, 3, call_write},       {"fill", 4, 4, call_fill},
    {"check", 4, 4, call_check},       {"ffill", 4, 4, call_ffill},
    {"fcheck", 4, 4, call_fcheck},     {"open", 2, 2, call_open},
    {"close", 1, 1, call_close},       {"pipe", 0, 0, call_pipe},
    {"socket", 0, 0, call_socket},     {"mmapwrite", 3, 3, call_mmapwrite},
    {"mmapread", 3, 3, call_mmapread}, {"cycle", 2, 2, call_cycle},
    {"counts", 0, 0, call_counts},     {"sleep", 1, 1, call_sleep},
    {"pid", 0, 0, call_pid},           {"kill", 0, 0, call_kill},
    {"exit", 0, 0, call_exit},
};

/* Runs one call; false if it failed and that matters. */
static bool run_call(char **words, int count)
{
    bool go_on = words[0][0] == '-';
    const char *name = words[0] + go_on;
    size_t i = 0;

    while (i < ARRAY_SIZE(calls) && strcmp(calls[i].name, name) != 0)
        i++;
    if (i == ARRAY_SIZE(calls) || count - 1 < calls[i].least || count - 1 > calls[i].most)
        usage("cannot use", words[0]);
    int error = calls[i].function(words + 1, count - 1);
    if (error < 0) {
        const char *text = strerrorname_np(-error);
        printf("%s: %s\n", text ? text : "?", resident_error());
    }
    return error == 0 || go_on;
}

static bool run(char **words, int count)
{
    for (int start = 0; start < count;) {
        int end = start;
        while (end < count && strcmp(words[end], ":") != 0)
            end++;
        if (end > start && !run_call(words + start, end - start))
            return false;
        start = end + 1;
    }
    return true;
}

static int run_lines(void)
{
    static char line[4096];

    while (fgets(line, sizeof(line), stdin)) {
        char *words[128];
        int count = 0;
        for (char *save = NULL, *word = strtok_r(line, " \n", &save); word && count < 128;
             word = strtok_r(NULL, " \n", &save))
            words[count++] = word;
        puts(run(words, count) ? "= ok" : "= failed");
        fflush(stdout);
    }
    return 0;
}

/* In a current context, as a CUDA program is. */
static void open_driver(void)
{
    const char *device = getenv("DEVICE");
    char message[512];
    CUcontext context;

    if (driver_open(device && strncmp(device, "cuda", 4) == 0 ? "cuda" : "emulated", &driver,
                    message, sizeof(message)) < 0)
        usage("no driver:", message);
    MUST(driver->cuInit(0));
    MUST(driver->cuDevicePrimaryCtxRetain(&context, 0));
    MUST(driver->cuCtxSetCurrent(context));
}

int main(int argc, char **argv)
{
    if (argc < 2)
        usage("usage: sharer CALL ARGUMENT… [: CALL ARGUMENT…]…", "| sharer -");
    open_driver();
    if (strcmp(argv[1], "-") == 0)
        return run_lines();
    return run(argv + 1, argc - 1) ? 0 : 1;
}
