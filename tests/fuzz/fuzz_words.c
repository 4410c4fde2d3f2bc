/* A device or a budget, as users name them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/budget_setting.h"
#include "core/device_selector.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct device_selector selector;
    struct budget_setting setting, again;
    char text[BUDGET_SETTING_TEXT_BYTES];
    char *word = malloc(size + 1), *bytes = malloc(size);

    memcpy(word, data, size);
    word[size] = 0;
    device_selector_parse(word, &selector);
    if (size > 0)
        memcpy(bytes, data, size);
    if (budget_setting_parse(bytes, size, &setting) == 0) {
        budget_setting_format(&setting, text);
        if (budget_setting_parse(text, strlen(text), &again) < 0 || again.kind != setting.kind ||
            again.value != setting.value)
            abort();
    }
    free(word);
    free(bytes);
    return 0;
}
