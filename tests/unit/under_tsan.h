/* UNDER_TSAN: a test that does without a fence on purpose is a data race to ThreadSanitizer. */
#ifndef RESIDENTFS_TESTS_UNDER_TSAN_H
#define RESIDENTFS_TESTS_UNDER_TSAN_H

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

#endif
