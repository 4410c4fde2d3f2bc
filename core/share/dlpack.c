/*
 * Tensors over mappings, by the DLPack protocol. Consumers let go of a tensor at any time, from any
 * thread, of Python while an exception is on its way or after it has ended: so the deleter is here,
 * and not in Python.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/share/connection.h"
#include "core/share/resident.h"

#define DIMENSIONS_MAX 64

/* As in dlpack.h; its layout does not change within major version 1. */
enum { DEVICE_CUDA = 2 };
enum { VERSION_MAJOR = 1, VERSION_MINOR = 0 };
#define FLAG_READ_ONLY ((uint64_t)1)

struct tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t dimensions;
    uint8_t type_code, type_bits;
    uint16_t type_lanes;
    int64_t *shape, *strides; /* in elements */
    uint64_t byte_offset;
};

struct plain {
    struct tensor tensor;
    void *context;
    void (*deleter)(struct plain *self);
};

struct versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct versioned *self);
    uint64_t flags;
    struct tensor tensor;
};

_Static_assert(sizeof(struct tensor) == 48, "part of the protocol");
_Static_assert(sizeof(struct plain) == 64, "part of the protocol");
_Static_assert(sizeof(struct versioned) == 80, "part of the protocol");

static void delete_plain(struct plain *self)
{
    if (self)
        resident_unmap(self->context);
    free(self);
}

static void delete_versioned(struct versioned *self)
{
    if (self)
        resident_unmap(self->context);
    free(self);
}

/* Whether all elements are inside the mapping. STRIDES gets those of C order if there are none. */
static errint_t check(const struct resident_mapping *mapping, const struct resident_tensor *given,
                      int64_t *strides)
{
    uint64_t element = ((uint64_t)given->bits * given->lanes + 7) / 8;
    uint64_t count = 1, last = 0, end;
    bool empty = false, too_large = false;

    for (int32_t i = given->dimensions - 1; i >= 0; i--) {
        int64_t extent = given->shape[i];
        uint64_t reach;
        if (extent < 0 || (given->strides && given->strides[i] < 0))
            return share_fail(-EINVAL, "an extent or a stride is negative");
        strides[i] = given->strides ? given->strides[i] : (int64_t)count;
        if (extent == 0) {
            empty = true;
            continue;
        }
        too_large |= __builtin_mul_overflow(count, (uint64_t)extent, &count);
        too_large |= __builtin_mul_overflow((uint64_t)strides[i], (uint64_t)(extent - 1), &reach);
        too_large |= __builtin_add_overflow(last, reach, &last);
    }
    too_large |= __builtin_add_overflow(last, 1, &last);
    too_large |= __builtin_mul_overflow(last, element, &end);
    too_large |= __builtin_add_overflow(end, given->offset, &end);
    if (!empty && (too_large || end > resident_length(mapping)))
        return share_fail(-EINVAL, "the tensor is not inside the file, which has %zu bytes",
                          resident_length(mapping));
    return 0;
}

int resident_dlpack(struct resident_mapping *mapping, const struct resident_tensor *given,
                    int with_version, void **out)
{
    size_t head = with_version ? sizeof(struct versioned) : sizeof(struct plain);

    if (given->dimensions < 0 || given->dimensions > DIMENSIONS_MAX || given->bits == 0 ||
        given->lanes == 0)
        return share_fail(-EINVAL, "a tensor has 0 to %d dimensions, and elements of some bits",
                          DIMENSIONS_MAX);
    size_t dimensions = (size_t)given->dimensions;
    char *block = calloc(1, head + 2 * dimensions * sizeof(int64_t));
    if (!block)
        return share_fail(-ENOMEM, "no host memory");
    int64_t *shape = (int64_t *)(block + head);
    errint_t error = check(mapping, given, shape + dimensions);
    if (error < 0) {
        free(block);
        return error;
    }
    if (dimensions > 0)
        memcpy(shape, given->shape, dimensions * sizeof(*shape));
    struct tensor tensor = {
        /* Not every consumer looks at byte_offset. */
        .data = (void *)(uintptr_t)(resident_address(mapping) + given->offset),
        .device_type = DEVICE_CUDA,
        .device_id = resident_device(mapping),
        .dimensions = given->dimensions,
        .type_code = given->code,
        .type_bits = given->bits,
        .type_lanes = given->lanes,
        .shape = shape,
        .strides = shape + dimensions,
    };
    resident_hold(mapping);
    if (with_version)
        *(struct versioned *)block = (struct versioned){
            .major = VERSION_MAJOR,
            .minor = VERSION_MINOR,
            .context = mapping,
            .deleter = delete_versioned,
            .flags = given->read_only ? FLAG_READ_ONLY : 0,
            .tensor = tensor,
        };
    else
        *(struct plain *)block = (struct plain){tensor, mapping, delete_plain};
    *out = block;
    return 0;
}

void resident_dlpack_capsule_end(void *capsule)
{
    int (*is_valid)(void *, const char *);
    void *(*get_pointer)(void *, const char *);

    /* The library knows nothing of Python: whoever made the capsule has these. */
    *(void **)&is_valid = dlsym(RTLD_DEFAULT, "PyCapsule_IsValid");
    *(void **)&get_pointer = dlsym(RTLD_DEFAULT, "PyCapsule_GetPointer");
    if (!is_valid || !get_pointer)
        return;
    /* A consumer renames the capsule whose tensor it takes. */
    if (is_valid(capsule, "dltensor_versioned"))
        delete_versioned(get_pointer(capsule, "dltensor_versioned"));
    else if (is_valid(capsule, "dltensor"))
        delete_plain(get_pointer(capsule, "dltensor"));
}
