/*
 * What a daemon that root started may do once it serves: of its capabilities it keeps those that
 * unmounting takes, in the main thread and not in effect until then. Capabilities are each thread's
 * own, and the driver starts threads that are not ours, so every thread is asked to lower its own.
 */
#ifndef RESIDENTFS_FS_PRIVILEGES_H
#define RESIDENTFS_FS_PRIVILEGES_H

/*
 * In all threads of the process; those that they start later inherit it. Called once everything has
 * started, by the thread that is to unmount. What cannot be lowered is logged, and stays.
 */
void privileges_drop(void);

/* Puts into effect, in the thread that dropped the rest, what unmounting takes. */
void privileges_before_unmount(void);

#endif
