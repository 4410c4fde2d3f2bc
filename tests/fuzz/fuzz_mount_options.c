/* The text of -o. */
#include "tests/fuzz/conf_roundtrip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    memcpy(text, data, size);
    text[size] = 0;
    fuzz_roundtrip("/dev/null", text);
    free(text);
    return 0;
}
