/*
 * libresident: CUDA programs use the memory behind files of residentfs, without a copy, and show
 * memory of their own as files.
 *
 *     int fd = open("/mnt/vram/model", O_RDWR);
 *     struct resident_mapping *mapping;
 *     if (resident_map(fd, 0, &mapping) < 0)
 *         errx(1, "%s", resident_error());
 *     kernel<<<...>>>((float *)resident_address(mapping), resident_length(mapping));
 *
 * Nothing of CUDA is linked: the driver is found at run time. Memory is mapped on the device that
 * the file system is on, in the context that is current for the calling thread if that is of this
 * device, and else in its primary context (that of the CUDA runtime, PyTorch, ...).
 *
 * When bytes are where: a kernel sees what was written through the file once fsync or close of the
 * writer returned 0, or after resident_sync. A read of the file sees what kernels wrote before it,
 * if their work was synchronised. A copy of the file in a page cache (a memory-mapped file) is
 * dropped by resident_sync.
 *
 * All functions return 0 or a negative errno; resident_error() then says in one line what went
 * wrong and what to do. Different mappings may be used by different threads at the same time; one
 * mapping, by one thread at a time. A child of fork must not use what its parent mapped, but may
 * unmap and detach, which ends nothing for the parent.
 */
#ifndef RESIDENT_H
#define RESIDENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

struct resident_mapping;
struct resident_attachment;
struct resident_tensor;

/* Kernels will not write. Where the driver can, writing is a fault; see resident_is_read_only. */
#define RESIDENT_READ_ONLY 1u

/*
 * Maps the file that FD has open. FD may be closed afterwards. The caller must be allowed to read
 * and to write the file, also for RESIDENT_READ_ONLY: an FD that is open for reading only is opened
 * anew for that. Holes of the file get memory.
 *
 * -EACCES  may not write the file
 * -ENOTSUP not a file of residentfs, or its device cannot share memory
 * -ENODATA the file is empty
 * -ENOSPC  no memory for the file's holes
 * -EBUSY   the file is open through the page cache (cache=on): open it with O_DIRECT
 * -ENODEV  the device is not visible to this process
 * -EIO     the device is lost, or a copy to the file failed
 */
int resident_map(int fd, unsigned int flags, struct resident_mapping **out);
int resident_map_path(const char *path, unsigned int flags, struct resident_mapping **out);

/*
 * Looks anew at the file, which may have grown: address and length may be others afterwards. The
 * old address is invalid if the new one differs. On failure the mapping is what it was.
 *
 * -EBUSY   the address would have to change, and others hold the mapping (resident_hold, tensors)
 */
int resident_remap(struct resident_mapping *mapping);

/* What was written through the file before this call is seen by work that begins after it. */
int resident_sync(struct resident_mapping *mapping);

/* Waits for the work of the context, which may use the memory. NULL is fine. */
int resident_unmap(struct resident_mapping *mapping);

/* From now on resident_unmap is to be called once more until it unmaps. For any thread, both. */
void resident_hold(struct resident_mapping *mapping);

/* Of a mapping: constant between resident_map or resident_remap and the next call of these. */
uint64_t resident_address(const struct resident_mapping *mapping); /* CUdeviceptr */
size_t resident_length(const struct resident_mapping *mapping);    /* of the file, bytes */
int resident_device(const struct resident_mapping *mapping);       /* CUdevice, this process's */
/* 1: the driver refuses writes of kernels. 0: they would succeed. */
int resident_is_read_only(const struct resident_mapping *mapping);

/*
 * A tensor over the memory, by the DLPack protocol (of which nothing is needed to call this):
 * *OUT is a DLManagedTensorVersioned of version 1.0, or with VERSIONED 0 a DLManagedTensor, which
 * cannot tell that it is read-only. It holds the mapping, and whoever has it calls its deleter in
 * the end. -EINVAL: not inside the file.
 */
int resident_dlpack(struct resident_mapping *mapping, const struct resident_tensor *tensor,
                    int versioned, void **out);

struct resident_tensor {
    uint64_t offset;        /* of the first element in the file, bytes */
    const int64_t *shape;   /* DIMENSIONS of them */
    const int64_t *strides; /* likewise, in elements, none negative; NULL: C order */
    int32_t dimensions;
    uint8_t code, bits; /* DLDataType */
    uint16_t lanes;
    int read_only; /* what the tensor says; see resident_is_read_only */
};

/* For PyCapsule_New: ends a capsule called "dltensor" or "dltensor_versioned" nobody has taken. */
void resident_dlpack_capsule_end(void *capsule);

/*
 * Makes the file PATH (it must not exist; MODE as for open) whose content is BYTES bytes of device
 * memory at POINTER, which belongs to the caller: memory of cudaMalloc or cuMemAlloc, or an
 * exportable allocation of cuMemCreate. It stays the caller's, and is to stay allocated until
 * resident_detach. Reads and writes of the file read and write the memory; it cannot grow or
 * shrink. If the caller dies, reads and writes give EIO.
 *
 * -EEXIST, -EACCES, ... as open; -EINVAL: not device memory, not of one allocation; -ENODEV: of
 * another device than the file system's; -ENOTSUP: not exportable, or not a residentfs.
 */
int resident_attach(const char *path, uint64_t pointer, size_t bytes, mode_t mode,
                    struct resident_attachment **out);

/* The daemon has let go of the memory when this returns. The file stays, and gives EIO. */
int resident_detach(struct resident_attachment *attachment);

/* Of the calling thread's last call that failed; "" before any did. */
const char *resident_error(void);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
