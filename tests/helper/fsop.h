/*
 * What the files of fsop share. A call returns 0, or -1 and errno; its arguments are the words
 * after its name.
 */
#ifndef RESIDENTFS_TESTS_FSOP_H
#define RESIDENTFS_TESTS_FSOP_H

/* Of a word; a bad one is a usage error. */
long long number_of(const char *text);
int file_of(const char *text);

/* fsop_directory.c */
int call_createmany(char **a, int n);
int call_listmany(char **a, int n);
int call_unlinkmany(char **a, int n);
int call_unlinkwhilelisting(char **a, int n);
int call_renamewhilelisting(char **a, int n);
int call_churn(char **a, int n);
int call_seekdir(char **a, int n);
int call_seekdeleted(char **a, int n);
int call_listfile(char **a, int n);
int call_deep(char **a, int n);

#endif
