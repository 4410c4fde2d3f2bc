/* A message on the share socket: the first byte says how many descriptors came with it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/share.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition) \
    do {                   \
        if (!(condition))  \
            abort();       \
    } while (0)

static void check_accepted(const struct share_request *request, size_t size, size_t descriptors)
{
    REQUIRE(size == sizeof(*request));
    REQUIRE(request->magic == SHARE_MAGIC && request->version == SHARE_VERSION);
    REQUIRE(request->reserved == 0);
    switch (request->operation) {
    case SHARE_MAP:
        REQUIRE(descriptors <= 1);
        break;
    case SHARE_CHUNKS:
    case SHARE_SYNC:
        REQUIRE(descriptors == 0);
        break;
    case SHARE_ATTACH:
        REQUIRE(request->memory_kind == SHARE_MEMORY_IPC ||
                request->memory_kind == SHARE_MEMORY_DESCRIPTOR);
        REQUIRE(descriptors == (request->memory_kind == SHARE_MEMORY_IPC ? 1 : 2));
        break;
    default:
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct share_request request = {0};
    char text[SHARE_MESSAGE_BYTES];
    size_t descriptors = size > 0 ? data[0] % 4 : 0;

    /* Of its own, so that a read past the end is seen. */
    size_t length = size > 0 ? size - 1 : 0;
    uint8_t *message = malloc(length);
    if (length > 0)
        memcpy(message, data + 1, length);
    memset(text, 0x55, sizeof(text));
    text[0] = 0;
    errint_t error =
        share_request_parse(message, length, descriptors, &request, text, sizeof(text));
    if (error == 0) {
        check_accepted(&request, length, descriptors);
    } else {
        REQUIRE(error == -EPROTO || error == -EPROTONOSUPPORT);
        REQUIRE(text[0] && memchr(text, 0, sizeof(text)));
    }
    free(message);
    return 0;
}
