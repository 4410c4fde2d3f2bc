#include "core/driver/driver.h"

#include "core/driver/cuda_error.h"
#include "core/driver/driver_paths.h" /* written by the build */

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define CUDA_LIBRARY     "libcuda.so.1"
#define EMULATED_LIBRARY "libresidentfs-emulated.so"
#define EMULATED_ENV     "RESIDENTFS_EMULATED_LIBRARY"

enum need { OPTIONAL, REQUIRED };

struct entry_point {
    const char *name;
    const char *symbol;
    size_t field; /* offset in struct driver */
    int asked;
    enum need need;
};

static const struct entry_point entry_points[] = {
#define ENTRY_POINT(name, suffix, asked, need, parameters) \
    {#name, #name #suffix, offsetof(struct driver, name), asked, need},
    CUDA_ENTRY_POINTS(ENTRY_POINT)
#undef ENTRY_POINT
};

typedef CUresult (*get_proc_address_v1)(const char *symbol, void **function, int version,
                                        cuuint64_t flags);
typedef CUresult (*get_proc_address_v2)(const char *symbol, void **function, int version,
                                        cuuint64_t flags, CUdriverProcAddressQueryResult *status);

/* ISO C has no cast from an object pointer to a function pointer; POSIX promises that copying the
 * bits works. */
#define COPY_FUNCTION(to, from)                                                \
    do {                                                                       \
        _Static_assert(sizeof(*(to)) == sizeof(void *), "a function pointer"); \
        memcpy((to), &(from), sizeof(void *));                                 \
    } while (0)

static void *lookup(void *library, const struct entry_point *entry)
{
    void *found = dlsym(library, "cuGetProcAddress_v2"), *function = NULL;
    if (found) {
        get_proc_address_v2 get;
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
        COPY_FUNCTION(&get, found);
        if (get(entry->name, &function, entry->asked, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status) ||
            status != CU_GET_PROC_ADDRESS_SUCCESS)
            return NULL;
        return function;
    }
    found = dlsym(library, "cuGetProcAddress");
    if (found) {
        get_proc_address_v1 get;
        COPY_FUNCTION(&get, found);
        if (get(entry->name, &function, entry->asked, CU_GET_PROC_ADDRESS_LEGACY_STREAM))
            return NULL;
        return function;
    }
    return dlsym(library, entry->symbol);
}

static const char *resolve(struct driver *driver)
{
    for (size_t i = 0; i < ARRAY_SIZE(entry_points); i++) {
        const struct entry_point *entry = &entry_points[i];
        void *function = lookup(driver->library, entry);
        if (!function && entry->need == REQUIRED)
            return entry->name;
        memcpy((char *)driver + entry->field, &function, sizeof(function));
    }
    return NULL;
}

/* The folder of the running program, without a slash at the end. */
static bool program_folder(char *folder, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", folder, bytes - 1);
    if (length <= 0)
        return false;
    folder[length] = 0;
    char *slash = strrchr(folder, '/');
    if (!slash)
        return false;
    *slash = 0;
    return true;
}

/* Returns the handle and, in PATH, what was opened; or NULL, and in PATH what was tried last. */
static void *open_emulated(char *path, size_t bytes)
{
    static const char *const below[] = {
        "",             /* beside the program */
        "core/driver/", /* build/residentfs */
        "../lib/residentfs/",
        "../core/driver/", /* build/X/program */
        "../../core/driver/",
    };
    const char *named = getenv(EMULATED_ENV);
    if (named && *named) {
        snprintf(path, bytes, "%s", named);
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    char folder[PATH_MAX];
    if (program_folder(folder, sizeof(folder))) {
        for (size_t i = 0; i < ARRAY_SIZE(below); i++) {
            int length = snprintf(path, bytes, "%s/%s" EMULATED_LIBRARY, folder, below[i]);
            if (length < 0 || (size_t)length >= bytes || access(path, F_OK))
                continue;
            return dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
    }
    snprintf(path, bytes, "%s", EMULATED_LIBRARY_DIR "/" EMULATED_LIBRARY);
    if (!access(path, F_OK))
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    snprintf(path, bytes, "%s", EMULATED_LIBRARY);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static errint_t open_library(struct driver *driver, char *message, size_t message_bytes)
{
    char path[PATH_MAX + 64] = CUDA_LIBRARY;
    bool emulated = !strcmp(driver->name, "emulated");
    if (emulated)
        driver->library = open_emulated(path, sizeof(path));
    else
        driver->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (driver->library) {
        driver->library_path = strdup(path);
        return driver->library_path ? 0 : -ENOMEM;
    }
    const char *why = dlerror();
    if (emulated)
        snprintf(
            message, message_bytes,
            "no emulated driver: %s; install it (Debian: residentfs-emulated), or set " EMULATED_ENV
            " to the path of " EMULATED_LIBRARY,
            why ? why : path);
    else
        snprintf(message, message_bytes,
                 "no CUDA driver: %s; install the NVIDIA driver; to try residentfs without a GPU: "
                 "residentfs emulated MOUNTPOINT",
                 why ? why : path);
    return -ENOENT;
}

errint_t driver_open(const char *name, struct driver **out, char *message, size_t message_bytes)
{
    *out = NULL;
    bool emulated = !strcmp(name, "emulated");
    if (!emulated && strcmp(name, "cuda")) {
        snprintf(message, message_bytes, "no driver is called '%s': use cuda or emulated", name);
        return -EINVAL;
    }
    struct driver *driver = calloc(1, sizeof(*driver));
    if (!driver) {
        snprintf(message, message_bytes, "no memory to open the driver");
        return -ENOMEM;
    }
    driver->name = emulated ? "emulated" : "cuda";
    errint_t error = open_library(driver, message, message_bytes);
    if (error == -ENOMEM)
        snprintf(message, message_bytes, "no memory to open the driver");
    if (error)
        goto close;
    const char *missing = resolve(driver);
    if (driver->cuDriverGetVersion)
        driver->cuDriverGetVersion(&driver->version);
    if (missing) {
        snprintf(message, message_bytes, "%s: version %d.%d lacks %s as of CUDA 12.0; %s",
                 driver->library_path, driver->version / 1000, driver->version % 1000 / 10, missing,
                 emulated ? "install the one that belongs to this residentfs"
                          : "install NVIDIA driver 525 or later");
        error = -ENOSYS;
        goto close;
    }
    *out = driver;
    return 0;
close:
    driver_close(driver);
    return error;
}

void driver_close(struct driver *driver)
{
    if (!driver)
        return;
    if (driver->library)
        dlclose(driver->library);
    free(driver->library_path);
    free(driver);
}

const char *driver_error_name(const struct driver *driver, CUresult result)
{
    const char *name = NULL;
    if (driver && driver->cuGetErrorName && !driver->cuGetErrorName(result, &name) && name)
        return name;
    return cuda_result_name(result);
}
