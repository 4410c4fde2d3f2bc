/* What was built, for --version and .resident/version. */
#ifndef RESIDENTFS_FS_VERSION_H
#define RESIDENTFS_FS_VERSION_H

/* RESIDENTFS_VERSION comes from meson. */
#if defined(__clang__)
#define RESIDENTFS_COMPILER "clang " __clang_version__
#else
#define RESIDENTFS_COMPILER "gcc " __VERSION__
#endif

#if defined(__OPTIMIZE__)
#define RESIDENTFS_OPTIMIZED "optimised"
#else
#define RESIDENTFS_OPTIMIZED "not optimised"
#endif

#define RESIDENTFS_BUILD RESIDENTFS_COMPILER ", " RESIDENTFS_OPTIMIZED

#endif
