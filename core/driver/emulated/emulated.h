/*
 * Inside the emulated driver: devices, memory, streams and faults over host memory.
 *
 * One mutex, emulated.lock, covers everything declared here. An entry point takes it in enter()
 * and gives it back in leave(); an engine thread (one a device) drops it only while it copies
 * bytes, between op->running = true and false. "Lock held" is the rule for every function below
 * unless its comment says otherwise.
 *
 * Device addresses are reserved with PROT_NONE and never become accessible to the host: the engine
 * reaches the bytes through an alias of its own, so a host access to device memory always faults,
 * mapped or not.
 */
#ifndef RESIDENTFS_CORE_DRIVER_EMULATED_EMULATED_H
#define RESIDENTFS_CORE_DRIVER_EMULATED_EMULATED_H

#include "core/driver/cuda_abi.h"
#include "core/driver/cuda_entry_points.h"
#include "core/driver/emulated/hooks.h"
#include "core/util.h"

#include <pthread.h>
#include <sys/types.h>

#define EXPORT            __attribute__((visibility("default")))

#define DRIVER_VERSION    12080
#define GRANULARITY_BYTES (2 * MIB)
#define MAX_DEVICES       16
#define UNPROVEN_NS       50000000u /* queued DMA runs this long after a failed synchronisation */

enum entry {
#define ENTRY_ENUMERATOR(name, suffix, asked, need, parameters) ENTRY_##name,
    CUDA_ENTRY_POINTS(ENTRY_ENUMERATOR)
#undef ENTRY_ENUMERATOR
        ENTRY_COUNT
};

extern const char *const entry_names[ENTRY_COUNT];

enum order { ORDER_RANDOM, ORDER_SYNC, ORDER_EAGER };
enum vmm { VMM_ON, VMM_OFF, VMM_REFUSE };

struct config {
    unsigned devices;
    uint64_t memory_bytes; /* of each device */
    uint64_t seed;
    enum order order;
    int scribble; /* -1: as the order says */
    bool hazard_aborts;
    bool fill;
    bool batch;
    bool export;
    enum vmm vmm;
    uint64_t bandwidth; /* bytes per second; 0: unlimited */
    uint64_t latency_ns;
    uint64_t other_bytes;
    char *other_file; /* owned; NULL: other_bytes counts */
    uint64_t pinned_bytes;
};

struct device {
    int ordinal;
    unsigned retained; /* of the primary context, whose handle is the struct's address */
    uint64_t used_bytes;
    CUresult lost; /* CUDA_SUCCESS: alive */
    bool engine_started;
    pthread_cond_t work; /* something was queued, allowed or unblocked */
    pthread_cond_t done; /* an operation finished or was given up */
};

/* Physical memory: a memfd, and the engine's view of it. */
struct physical {
    unsigned refs;                       /* handles + mappings + queued operations */
    CUmemGenericAllocationHandle handle; /* the one handle, */
    unsigned handle_refs;                /* and how often it must be released */
    int device;
    bool charged; /* counts in used_bytes: not so for an import */
    int fd;
    size_t bytes; /* what was asked for */
    size_t backed_bytes;
    char *alias;
    ino_t inode;
    CUmemAllocationProp properties;
};

struct mapping {
    uint64_t start;
    size_t bytes;
    struct physical *physical; /* owned reference */
    uint8_t access[MAX_DEVICES];
};

enum reservation_kind { RESERVED_ADDRESSES, RESERVED_ALLOCATION, RESERVED_IPC };

/* A range of device addresses. An allocation or opened IPC handle is one with a single mapping. */
struct reservation {
    uint64_t start;
    size_t bytes;
    size_t mapped_bytes; /* what munmap takes */
    enum reservation_kind kind;
    unsigned opened; /* how often, for an IPC handle */
    pid_t maker;     /* of the IPC handle */
    struct mapping *mappings;
    size_t mapping_count, mapping_capacity;
};

struct host_range {
    uint64_t start;
    size_t bytes;
    bool registered; /* else allocated */
};

struct failure {
    unsigned refs;
    CUresult result;
    bool reported;
};

/* One call of cuEventRecord. */
struct record {
    unsigned refs;
    bool done;
    uint64_t serial;
    struct stream *stream; /* owned reference */
    struct failure *failure;
};

struct segment {
    char *alias;
    size_t bytes;
    struct physical *physical; /* owned reference */
};

/* One end of a copy: device memory as segments, or host memory. */
struct side {
    uint64_t address;
    bool is_device;
    bool pinned;
    char *host;
    struct segment *segments; /* owned */
    size_t segment_count;
};

struct transfer {
    struct side destination, source;
    size_t bytes;
    char *staged; /* owned copy of a source that was read at the call */
};

enum op_kind { OP_COPY, OP_SET, OP_RECORD, OP_WAIT };

struct op {
    struct op *next;
    uint64_t serial;
    enum op_kind kind;
    enum entry entry;
    struct transfer *transfers; /* owned */
    size_t transfer_count;
    uint32_t set_value;
    unsigned set_width;
    uint64_t not_before_ns;
    CUresult fault; /* the bytes are not copied, and this is reported */
    bool cancelled;
    bool running;
    struct record *record; /* owned reference */
};

struct stream {
    unsigned refs; /* handle + queue not empty + records + waiters */
    struct stream *next_all;
    uint64_t id;
    int device;
    bool destroyed;
    struct op *head, *tail;
    uint64_t submitted, completed, allowed; /* serials */
    CUresult unproven;
    bool held; /* nothing runs until a synchronisation has failed, or until held_until_ns */
    uint64_t held_until_ns;
    struct failure *failure;
};

struct event {
    uint64_t id;
    int device;
    struct record *latest; /* owned reference; NULL: never recorded */
};

/* Handles that are never mistaken for another object, also after the slot is used again. */
struct handles {
    void **objects;
    uint32_t *generations;
    size_t count, capacity, live;
};

struct emulated {
    pthread_mutex_t lock;
    bool configured, bad_config, initialised;
    struct config config;
    uint64_t random;
    struct device devices[MAX_DEVICES];
    struct reservation **reservations; /* by address */
    size_t reservation_count, reservation_capacity;
    struct host_range *host_ranges; /* by address */
    size_t host_range_count, host_range_capacity;
    uint64_t host_bytes;
    struct handles streams, events, physicals;
    struct stream *all_streams;
    uint64_t next_address, next_id, fill_sequence;
    uint64_t calls[ENTRY_COUNT];
    uint64_t queued, hazards;
};

extern struct emulated emulated;

/* ---- state.c ---- */

enum needs {
    NEEDS_INIT = 1,
    NEEDS_CONTEXT = 2, /* and init */
    NEEDS_DEVICE = 4,  /* fails on a lost device */
};

/* What a rule wants of this call beyond an immediate result. */
struct verdict {
    CUresult late;
    CUresult unproven;
};

/* On success the lock is held until leave(); otherwise it is not, and the result is to be returned.
 */
CUresult enter(enum entry entry, unsigned needs, struct verdict *verdict);
CUresult leave(CUresult result);

struct device *current_device(void);                 /* of the thread's context, or NULL */
struct device *device_of_context(CUcontext context); /* or NULL */
uint64_t random_below(uint64_t limit);
/* Grows an array of SIZE-byte elements so that one more fits. */
bool reserve_element(void *array, size_t *capacity, size_t count, size_t size);

uint64_t handle_add(struct handles *handles, void *object); /* 0: no memory */
void *handle_find(struct handles *handles, uint64_t handle);
void handle_remove(struct handles *handles, uint64_t handle);

/* ---- config.c, faults.c ---- */

CUresult config_apply(const char *text);
CUresult config_parse_result(const char *text, CUresult *result);
uint64_t config_other_bytes(void);
bool config_scribbles(void);

CUresult fault_add(const char *rule);
void fault_clear(void);
/* Counts the call, applies the rules; *delay_us is to be slept without the lock. */
CUresult fault_check(enum entry entry, struct verdict *verdict, uint64_t *delay_us);
void device_lose(struct device *device, CUresult result);

/* ---- memory.c, address.c ---- */

/* Takes a reference to new physical memory; charges the device. */
CUresult physical_create(int device, size_t bytes, struct physical **out);
/* Takes FD over on success. */
CUresult physical_import(int device, int fd, size_t bytes, struct physical **out);
void physical_unref(struct physical *physical);

struct reservation *reservation_create(enum reservation_kind kind, size_t bytes, size_t alignment);
void reservation_destroy(struct reservation *reservation);
struct reservation *reservation_find(uint64_t address);
/* Takes over the reference to PHYSICAL on success. */
CUresult reservation_map(struct reservation *reservation, uint64_t start, size_t bytes,
                         struct physical *physical);
/* True if [address, address + bytes) touches device addresses in use. */
bool address_is_device(uint64_t address, size_t bytes);
/* Finds the memory behind a range that DEVICE may read or write. */
CUresult side_resolve_device(struct side *side, uint64_t address, size_t bytes, int device,
                             bool write);

/* ---- host.c ---- */

/* *pinned: wholly inside one page-locked range. Partly inside is CUDA_ERROR_INVALID_VALUE. */
CUresult host_find(uint64_t address, size_t bytes, bool *pinned);

/* ---- queue.c ---- */

struct op *op_create(enum op_kind kind, enum entry entry, size_t transfer_count);
void op_free(struct op *op);

struct stream *stream_find(CUstream handle);
void stream_ref(struct stream *stream);
void stream_unref(struct stream *stream);
void record_unref(struct record *record);
/* CUDA_SUCCESS if there is none or it was reported before; forgets it. */
CUresult failure_report(struct failure **failure);
void failure_add(struct failure **failure, CUresult result);
void failure_copy(struct failure **to, struct failure *from);

/* Takes OP over. */
CUresult stream_submit(struct stream *stream, struct op *op);
/* Lets everything up to SERIAL run, and what it depends on. */
void stream_demand(struct stream *stream, uint64_t serial);
/* From now on no synchronisation of STREAM succeeds; what is queued waits for the first to fail. */
void stream_make_unproven(struct stream *stream, CUresult result);
/* A synchronisation has failed: the DMA that it could not stop runs UNPROVEN_NS later. */
void stream_release_held(struct stream *stream);
/* Waits until SERIAL has completed; CUDA_SUCCESS, or why that is not known. */
CUresult stream_wait(struct stream *stream, uint64_t serial);

/* ENTRY is about to take [start, start + bytes) away: misuse if a queued operation touches it. With
 * hazard=count the operation is cancelled, for which the lock may be dropped. */
void hazard_check(enum entry entry, uint64_t start, size_t bytes, bool is_device);
void hazard_report(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool host_range_is_queued(uint64_t start, size_t bytes);

/* ---- ipc.c ---- */

/* With the lock held. From now on this process hands out that descriptor of memory. */
bool ipc_serve(int fd);
/* That memory goes. */
void ipc_withdraw(int fd);
/* A descriptor, the caller's, of memory of another process, with that inode number; -1: it has no
 * such, or does not answer. */
int ipc_ask(pid_t maker, int fd, uint64_t inode);

/* ---- engine.c ---- */

bool engine_start(struct device *device);

/* The exported entry points. */
#define ENTRY_PROTOTYPE(name, suffix, asked, need, parameters) \
    EXPORT CUresult name##suffix parameters;
CUDA_ENTRY_POINTS(ENTRY_PROTOTYPE)
#undef ENTRY_PROTOTYPE

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version,
                                 cuuint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *status);

#endif
