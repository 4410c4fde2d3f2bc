/* The configuration file. */
#include "tests/fuzz/conf_roundtrip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[40];
    int file = fuzz_file(data, size, path);

    fuzz_roundtrip(path, NULL);
    close(file);
    return 0;
}
