#include "core/readback.h"

#include <errno.h>
#include <string.h>

#include "core/log.h"

/* Copies that are ready to be submitted. */
struct job {
    const struct driver *driver;
    const struct readback_copy *copies;
    void *const *destinations; /* one a copy */
    size_t count;
};

static CUresult submit_job(CUstream stream, void *data)
{
    const struct job *job = data;
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; i < job->count && result == CUDA_SUCCESS; i++)
        result = job->driver->cuMemcpyDtoHAsync(job->destinations[i], job->copies[i].address,
                                                job->copies[i].length, stream);
    return result;
}

/* Runs the job on a stream of its own. */
static errint_t run_leased(struct device *device, struct job *job)
{
    CUstream stream;
    errint_t err = stream_lease(device, &stream);

    if (err < 0)
        return -EIO;
    const char *call = "cuMemcpyDtoHAsync";
    CUresult result = submit_job(stream, job);
    if (result == CUDA_SUCCESS) {
        call = "cuStreamSynchronize";
        result = device->driver->cuStreamSynchronize(stream);
        if (result == CUDA_SUCCESS) {
            stream_return(device, stream);
            return 0;
        }
    }
    device_failure(device, result, call, "a readback");
    if (!device_is_lost(device) && device->driver->cuStreamSynchronize(stream) == CUDA_SUCCESS) {
        telemetry_add(&device->telemetry, TELEMETRY_SYNC_POINTS, 1);
        stream_return(device, stream);
        return -EIO;
    }
    stream_quarantine(device, stream);
    return -ENOTRECOVERABLE;
}

static errint_t run_job(struct device *device, struct upload_target *target, struct job *job)
{
    errint_t err;

    if (atomic_load(&target->dirty)) {
        err = upload_queue_read_behind(target->queue, target, submit_job, job);
    } else {
        err = run_leased(device, job);
        if (err == 0)
            telemetry_add(&device->telemetry, TELEMETRY_SYNC_POINTS, 1);
    }
    if (err < 0) {
        telemetry_add(&device->telemetry, TELEMETRY_ERRORS_READBACK, 1);
        /* While an unproven copy may still read it, the memory must not be given to anyone else. */
        if (err == -ENOTRECOVERABLE)
            atomic_store(&target->failed, true);
        return err == -ENOTRECOVERABLE ? err : -EIO;
    }
    uint64_t bytes = 0;
    for (size_t i = 0; i < job->count; i++)
        bytes += job->copies[i].length;
    telemetry_add(&device->telemetry, TELEMETRY_D2H_BYTES, bytes);
    telemetry_add(&device->telemetry, TELEMETRY_D2H_OPERATIONS, job->count);
    return 0;
}

/* Several requests share a copy: it goes to staging, and the views of it are handed out. */
static errint_t run_staged(struct device *device, struct upload_target *target,
                           const struct readback_plan *plan, const struct readback_piece *pieces)
{
    cleanup_free void **destinations = calloc(plan->copy_count, sizeof(*destinations));
    struct pinned_memory staging;
    errint_t err;

    if (!destinations || pinned_memory_init(device, &staging, plan->host_bytes) < 0)
        return -ENOMEM;
    unsigned char *base = staging.bytes;
    for (size_t i = 0; i < plan->copy_count; i++)
        destinations[i] = base + plan->copies[i].host_offset;
    struct job job = {device->driver, plan->copies, destinations, plan->copy_count};
    err = run_job(device, target, &job);
    if (err == -ENOTRECOVERABLE) {
        /* It is our staging that is lost, not the caller's memory. */
        pinned_memory_quarantine(device, &staging);
        return -EIO;
    }
    for (size_t i = 0; err == 0 && i < plan->view_count; i++) {
        const struct readback_view *view = &plan->views[i];
        if (view->length > 0)
            memcpy(pieces[i].bytes, base + plan->copies[view->copy].host_offset + view->offset,
                   view->length);
    }
    pinned_memory_finish(device, &staging);
    return err;
}

static errint_t run_planned(struct device *device, struct upload_target *target,
                            const struct readback_piece *pieces, size_t count)
{
    cleanup_free struct readback_range *ranges = calloc(count, sizeof(*ranges));
    cleanup_free void **destinations = calloc(count, sizeof(*destinations));
    struct readback_plan plan;
    size_t nonempty = 0;

    if (!ranges || !destinations)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        ranges[i] = pieces[i].range;
        nonempty += ranges[i].length > 0;
    }
    errint_t err = readback_plan_init(&plan, ranges, count);
    if (err < 0)
        return err;
    err = readback_plan_validate(&plan, ranges, count);
    if (err < 0) {
        log_error("a readback plan of %zu ranges does not add up; nothing was copied", count);
    } else if (plan.copy_count == 0) {
        err = 0;
    } else if (plan.copy_count == nonempty) {
        /* Each has a copy of its own, straight to where it is wanted. */
        for (size_t i = 0; i < count; i++)
            if (plan.views[i].length > 0)
                destinations[plan.views[i].copy] = pieces[i].bytes;
        struct job job = {device->driver, plan.copies, destinations, plan.copy_count};
        err = run_job(device, target, &job);
    } else {
        err = run_staged(device, target, &plan, pieces);
    }
    readback_plan_finish(&plan);
    return err;
}

errint_t readback_run(struct device *device, struct upload_target *target,
                      const struct readback_piece *pieces, size_t count)
{
    telemetry_add(&device->telemetry, TELEMETRY_READBACK_REQUESTS, count);
    if (count != 1)
        return count == 0 ? 0 : run_planned(device, target, pieces, count);

    /* One piece needs no plan, and no memory. */
    struct readback_copy copy = {.address = pieces[0].range.address,
                                 .length = pieces[0].range.length};
    void *destination = pieces[0].bytes;
    struct job job = {device->driver, &copy, &destination, 1};
    return copy.length == 0 ? 0 : run_job(device, target, &job);
}
