/*
 * asyncio: libaio's and io_uring's system calls, for tests/posix/iomodes.t.
 *
 *   asyncio aio|uring FILE [direct]
 */
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "subject.h"

#define REQUESTS 32
#define PIECE    20000

static void check_pieces(int file, unsigned char **pieces, const char *what)
{
    for (int i = 0; i < REQUESTS; i++)
        holds(file, (off_t)i * PIECE, pieces[i], PIECE, what);
}

static void aio(char **a)
{
    int file = fresh(a[0], a[1] && strcmp(a[1], "direct") == 0 ? O_DIRECT : 0);
    aio_context_t context = 0;
    struct iocb blocks[REQUESTS], *list[REQUESTS];
    struct io_event events[REQUESTS];
    unsigned char *pieces[REQUESTS], *seen[REQUESTS];
    if (syscall(SYS_io_setup, REQUESTS, &context) < 0)
        not_here("io_setup");
    for (int i = 0; i < REQUESTS; i++) {
        pieces[i] = pattern(PIECE, (unsigned int)i);
        seen[i] = pattern(PIECE, 99);
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < REQUESTS; i++) {
            blocks[i] = (struct iocb){.aio_lio_opcode = pass ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE,
                                      .aio_fildes = (uint32_t)file,
                                      .aio_buf = (uintptr_t)(pass ? seen[i] : pieces[i]),
                                      .aio_nbytes = PIECE,
                                      .aio_offset = (int64_t)i * PIECE,
                                      .aio_data = (uint64_t)i};
            list[i] = &blocks[i];
        }
        for (long done = 0; done < REQUESTS;) {
            long now = syscall(SYS_io_submit, context, REQUESTS - done, list + done);
            MUST(now);
            done += now;
        }
        for (long done = 0; done < REQUESTS;) {
            long now = syscall(SYS_io_getevents, context, 1, REQUESTS, events, NULL);
            MUST(now);
            for (long i = 0; i < now; i++)
                expect(events[i].res == PIECE, "pass %d, request %llu: %lld", pass,
                       (unsigned long long)events[i].data, (long long)events[i].res);
            done += now;
        }
        check_pieces(file, pieces, "written by libaio");
    }
    for (int i = 0; i < REQUESTS; i++)
        expect(memcmp(seen[i], pieces[i], PIECE) == 0, "request %d read other bytes", i);
}

struct ring {
    int file;
    struct io_uring_params params;
    unsigned char *submission, *completion;
    struct io_uring_sqe *entries;
};

static void *ring_map(struct ring *ring, size_t length, off_t offset)
{
    void *m =
        mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->file, offset);
    if (m == MAP_FAILED)
        not_here("mmap of io_uring");
    return m;
}

static void ring_open(struct ring *ring)
{
    struct io_uring_params *p = &ring->params;
    ring->file = (int)syscall(SYS_io_uring_setup, REQUESTS, p);
    if (ring->file < 0)
        not_here("io_uring_setup");
    ring->submission =
        ring_map(ring, p->sq_off.array + p->sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    ring->completion = ring_map(ring, p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe),
                                IORING_OFF_CQ_RING);
    ring->entries = ring_map(ring, p->sq_entries * sizeof(*ring->entries), IORING_OFF_SQES);
}

/* Submits the first COUNT entries and waits for all; each must give RESULT. */
static void ring_run(struct ring *ring, unsigned int count, int result, const char *what)
{
    const struct io_uring_params *p = &ring->params;
    unsigned int *sq_tail = (unsigned int *)(ring->submission + p->sq_off.tail);
    unsigned int *sq_mask = (unsigned int *)(ring->submission + p->sq_off.ring_mask);
    unsigned int *array = (unsigned int *)(ring->submission + p->sq_off.array);
    unsigned int *cq_head = (unsigned int *)(ring->completion + p->cq_off.head);
    unsigned int *cq_tail = (unsigned int *)(ring->completion + p->cq_off.tail);
    unsigned int *cq_mask = (unsigned int *)(ring->completion + p->cq_off.ring_mask);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(ring->completion + p->cq_off.cqes);
    unsigned int tail = *sq_tail;

    for (unsigned int i = 0; i < count; i++)
        array[(tail + i) & *sq_mask] = i;
    __atomic_store_n(sq_tail, tail + count, __ATOMIC_RELEASE);
    for (unsigned int seen = 0, left = count; seen < count;) {
        long entered =
            syscall(SYS_io_uring_enter, ring->file, left, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        MUST(entered);
        left -= (unsigned int)entered;
        for (; *cq_head != __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE); seen++) {
            struct io_uring_cqe *entry = &done[*cq_head & *cq_mask];
            expect(entry->res == result, "%s: request %llu gave %d", what,
                   (unsigned long long)entry->user_data, entry->res);
            __atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
        }
    }
}

static void uring(char **a)
{
    int file = fresh(a[0], a[1] && strcmp(a[1], "direct") == 0 ? O_DIRECT : 0);
    struct ring ring = {0};
    unsigned char *pieces[REQUESTS], *seen[REQUESTS];
    struct iovec vectors_of[REQUESTS], fixed[REQUESTS];
    ring_open(&ring);
    for (int i = 0; i < REQUESTS; i++) {
        pieces[i] = pattern(PIECE, (unsigned int)i + 40);
        seen[i] = pattern(PIECE, 99);
        fixed[i] = (struct iovec){seen[i], PIECE};
    }
    bool registered =
        syscall(SYS_io_uring_register, ring.file, IORING_REGISTER_BUFFERS, fixed, REQUESTS) == 0;
    static const struct {
        int operation;
        bool writes;
        const char *name;
    } passes[] = {{IORING_OP_WRITE, true, "write"},
                  {IORING_OP_READ, false, "read"},
                  {IORING_OP_WRITEV, true, "writev"},
                  {IORING_OP_READV, false, "readv"},
                  {IORING_OP_READ_FIXED, false, "read into registered buffers"}};
    for (size_t pass = 0; pass < sizeof passes / sizeof *passes; pass++) {
        bool is_fixed = passes[pass].operation == IORING_OP_READ_FIXED;
        bool is_vector =
            passes[pass].operation == IORING_OP_WRITEV || passes[pass].operation == IORING_OP_READV;
        if (is_fixed && !registered)
            continue;
        memset(ring.entries, 0, REQUESTS * sizeof *ring.entries);
        for (int i = 0; i < REQUESTS; i++) {
            if (passes[pass].writes)
                pieces[i][pass] ^= 0x55;
            else
                memset(seen[i], 0, PIECE);
            vectors_of[i] = (struct iovec){passes[pass].writes ? pieces[i] : seen[i], PIECE};
            ring.entries[i] = (struct io_uring_sqe){
                .opcode = (uint8_t)passes[pass].operation,
                .fd = file,
                .off = (uint64_t)i * PIECE,
                .addr = is_vector ? (uintptr_t)&vectors_of[i] : (uintptr_t)vectors_of[i].iov_base,
                .len = is_vector ? 1 : PIECE,
                .buf_index = (uint16_t)(is_fixed ? i : 0),
                .user_data = (uint64_t)i};
        }
        ring_run(&ring, REQUESTS, PIECE, passes[pass].name);
        for (int i = 0; i < REQUESTS && !passes[pass].writes; i++)
            expect(memcmp(seen[i], pieces[i], PIECE) == 0, "%s %d: other bytes", passes[pass].name,
                   i);
        check_pieces(file, pieces, passes[pass].name);
    }
    ring.entries[0] = (struct io_uring_sqe){.opcode = IORING_OP_FSYNC, .fd = file};
    ring_run(&ring, 1, 0, "fsync");
    expect(dirty_bytes(file) == 0, "fsync left %lld bytes", dirty_bytes(file));
}

static const struct subject subjects[] = {{"aio", aio}, {"uring", uring}};

int main(int argc, char **argv)
{
    return run_subject(subjects, sizeof subjects / sizeof *subjects, argc, argv);
}
