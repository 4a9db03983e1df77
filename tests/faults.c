/* A disk that crashes and fails on demand, between a process and its kernel (LD_PRELOAD). tests/faults.py drives it.

   Acts below one directory, the root, set by faults_begin. It does two things there:

   What would survive a crash of the machine is recorded in another directory, the shadow, outside of the root and on its
   filesystem. fsync of a file keeps its content of now in inodes/NUMBER, fsync of a directory its entries of now in
   dirs/NUMBER. Nothing else counts as durable: neither sync(), nor O_SYNC, nor msync. The real fsync is left out.
   Removed files and directories move to kept/NUMBER, so that the number of an inode is never given to another.

   The n-th operation that changes something fails, once or from then on, or kills the process: faults_arm. Before
   others the process is stopped, for its parent to copy what a crash would leave: faults_stop. After so many bytes the
   disk is full: faults_quota. All hard links are refused: faults_refuse_links. What failed is told in the shadow's file
   "hits".

   Thread-safe. Calls the kernel itself, as the functions of libc are the ones it stands in for. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PATH 8192

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH], shadow[PATH], only[PATH];
static long armed, armed_error, armed_forever, armed_removals, stop_every, stop_first, seen, hits, refused_links;
static long long quota = -1;

/* What the test calls. */

void faults_begin(const char *new_root, const char *new_shadow) {
    snprintf(root, PATH, "%s", new_root);
    snprintf(shadow, PATH, "%s", new_shadow);
}

/* Let the n-th operation from now on fail with this errno; below 0: let it kill the process. n 0: let all succeed, and
   do not count. Counted are operations whose path ends with `ending`. removals: whether those may fail, too. */
void faults_arm(long n, long error, long forever, const char *ending, long removals) {
    pthread_mutex_lock(&lock);
    snprintf(only, PATH, "%s", ending);
    armed = n, armed_error = error, armed_forever = forever, armed_removals = removals, seen = hits = 0;
    pthread_mutex_unlock(&lock);
}

/* Stop the process, all of its threads, before the operations first, first + every ... that are counted; 0: never. */
void faults_stop(long first, long every) { stop_first = first, stop_every = every; }

void faults_quota(long long bytes) { quota = bytes; }
void faults_refuse_links(long error) { refused_links = error; }
long faults_seen(void) { return seen; }
long faults_hits(void) { return hits; }

/* Paths. */

static int below(const char *path) {
    size_t n = strlen(root);
    return n && !strncmp(path, root, n) && (path[n] == '/' || path[n] == 0);
}

static int fd_path(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, out, (size_t)PATH - 1);
    out[n < 0 ? 0 : n] = 0;
    return n > 0;
}

/* Whether the path is below the root; out: the path, absolute. */
static int inside(int dirfd, const char *path, char *out) {
    char folder[PATH];
    if (!root[0] || !path) return 0;
    if (path[0] == '/') snprintf(out, PATH, "%s", path);
    else {
        if (dirfd != AT_FDCWD ? !fd_path(dirfd, folder) : !getcwd(folder, PATH)) return 0;
        if (snprintf(out, PATH, "%s/%s", folder, path) >= PATH) return 0;
    }
    return below(out);
}

static int fd_inside(int fd, char *out) { return root[0] && fd_path(fd, out) && below(out); }

static void in_shadow(char *out, const char *folder, unsigned long inode) {
    if (snprintf(out, PATH, "%s/%s/%lu", shadow, folder, inode) >= PATH) abort();
}

/* Failing. */

static void tell(const char *what, const char *path) {
    char name[PATH], line[PATH + 64];
    if (snprintf(name, PATH, "%s/hits", shadow) >= PATH) abort();
    int fd = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND, 0644);
    int n = snprintf(line, sizeof line, "%s %s\n", what, path);
    syscall(SYS_write, fd, line, (size_t)n);
    syscall(SYS_close, fd);
}

/* Whether the operation is to fail; then errno is set. */
static int fails(const char *what, const char *path) {
    size_t n = strlen(path);
    pthread_mutex_lock(&lock);
    int counts = armed && n >= strlen(only) && !strcmp(path + n - strlen(only), only);
    long number = counts ? ++seen : 0, error = armed_error;
    int hit = counts && (number == armed || (armed_forever && number > armed));
    int stop = counts && stop_every && number >= stop_first && (number - stop_first) % stop_every == 0;
    if (hit && hits++ < 20) tell(what, path);
    if (hit && error < 0) syscall(SYS_kill, getpid(), SIGKILL);
    pthread_mutex_unlock(&lock);
    if (stop) syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGSTOP); /* a signal to this thread stops it here */
    if (!hit) return 0;
    errno = error;
    return 1;
}

/* How many of n bytes may be written now: -1, and errno, for none. */
static ssize_t room(int fd, const char *what, size_t n) {
    char path[PATH];
    ssize_t granted = n;
    if (!fd_inside(fd, path)) return granted;
    if (fails(what, path)) return -1;
    pthread_mutex_lock(&lock);
    if (quota >= 0) {
        if (n && !quota) errno = ENOSPC, granted = -1;
        else quota -= granted = (long long)n < quota ? (ssize_t)n : quota;
    }
    pthread_mutex_unlock(&lock);
    return granted;
}

static ssize_t room_for_all(int fd, const char *what, const struct iovec *parts, int count) {
    size_t n = 0;
    for (int i = 0; i < count; i++) n += parts[i].iov_len;
    ssize_t granted = room(fd, what, n);
    if (granted >= 0 && (size_t)granted < n) errno = ENOSPC, granted = -1;
    return granted;
}

ssize_t write(int fd, const void *data, size_t n) {
    ssize_t granted = room(fd, "write", n);
    return granted < 0 ? -1 : syscall(SYS_write, fd, data, granted);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    ssize_t granted = room(fd, "pwrite", n);
    return granted < 0 ? -1 : syscall(SYS_pwrite64, fd, data, granted, at);
}
ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) { return pwrite(fd, data, n, at); }
ssize_t writev(int fd, const struct iovec *parts, int count) {
    return room_for_all(fd, "writev", parts, count) < 0 ? -1 : syscall(SYS_writev, fd, parts, count);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    return room_for_all(fd, "pwritev", parts, count) < 0 ? -1 : syscall(SYS_pwritev, fd, parts, count, at, 0L);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) { return pwritev(fd, parts, count, at); }
ssize_t sendfile(int to, int from, off_t *at, size_t n) {
    struct stat it;
    size_t most = !fstat(from, &it) && (size_t)it.st_size < n ? (size_t)it.st_size : n;
    ssize_t granted = room(to, "sendfile", most);
    return granted < 0 ? -1 : syscall(SYS_sendfile, to, from, at, granted);
}
ssize_t sendfile64(int to, int from, off_t *at, size_t n) { return sendfile(to, from, at, n); }
ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t n, unsigned flags) {
    struct stat it;
    size_t most = !fstat(from, &it) && (size_t)it.st_size < n ? (size_t)it.st_size : n;
    ssize_t granted = room(to, "copy_file_range", most);
    return granted < 0 ? -1 : syscall(SYS_copy_file_range, from, from_at, to, to_at, granted, flags);
}
int ftruncate(int fd, off_t size) { return room(fd, "ftruncate", 0) < 0 ? -1 : syscall(SYS_ftruncate, fd, size); }
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
int fallocate(int fd, int mode, off_t at, off_t n) {
    return room(fd, "fallocate", 0) < 0 ? -1 : syscall(SYS_fallocate, fd, mode, at, n);
}
int fallocate64(int fd, int mode, off_t at, off_t n) { return fallocate(fd, mode, at, n); }
int posix_fallocate(int fd, off_t at, off_t n) { return fallocate(fd, 0, at, n) ? errno : 0; }
int posix_fallocate64(int fd, off_t at, off_t n) { return posix_fallocate(fd, at, n); }

/* Opening. */

static int opens(int dirfd, const char *path, int flags, mode_t mode) {
    char full[PATH];
    int makes = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE;
    if (makes && inside(dirfd, path, full) && fails("create", full)) return -1;
    return syscall(SYS_openat, dirfd, path, flags, mode);
}

static mode_t mode_of(int flags, va_list rest) {
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
}

#define OPENS(dirfd) \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = mode_of(flags, rest); \
    va_end(rest); \
    return opens(dirfd, path, flags, mode);

int open(const char *path, int flags, ...) { OPENS(AT_FDCWD) }
int open64(const char *path, int flags, ...) { OPENS(AT_FDCWD) }
int openat(int dirfd, const char *path, int flags, ...) { OPENS(dirfd) }
int openat64(int dirfd, const char *path, int flags, ...) { OPENS(dirfd) }
int creat(const char *path, mode_t mode) { return opens(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* What survives. */

/* Open, for reading, what another descriptor is open on. */
static int again(int fd, int flags) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | flags, 0);
}

static void keep_content(int fd, int to) {
    static char block[1 << 16];
    int from = again(fd, 0);
    for (long n; (n = syscall(SYS_read, from, block, sizeof block)) > 0;)
        if (syscall(SYS_write, to, block, n) != n) abort();
    syscall(SYS_close, from);
}

static void keep_entries(int fd, int to) {
    DIR *folder = fdopendir(again(fd, O_DIRECTORY));
    if (!folder) abort();
    for (struct dirent *entry; (entry = readdir(folder));) {
        struct stat it;
        char line[PATH];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (fstatat(dirfd(folder), entry->d_name, &it, AT_SYMLINK_NOFOLLOW)) continue;
        int n = snprintf(line, PATH, "%c %lu %s\n", S_ISDIR(it.st_mode) ? 'd' : 'f', it.st_ino, entry->d_name);
        if (syscall(SYS_write, to, line, (size_t)n) != n) abort();
    }
    closedir(folder);
}

static int syncs(int fd, const char *what, long call) {
    char path[PATH], final[PATH], partial[PATH];
    struct stat it;
    if (!fd_inside(fd, path)) return syscall(call, fd);
    if (fails(what, path)) return -1;
    if (fstat(fd, &it)) return -1;
    pthread_mutex_lock(&lock);
    in_shadow(final, S_ISDIR(it.st_mode) ? "dirs" : "inodes", it.st_ino);
    in_shadow(partial, "partial", it.st_ino);
    int to = syscall(SYS_openat, AT_FDCWD, partial, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (to < 0) abort();
    if (S_ISDIR(it.st_mode)) keep_entries(fd, to);
    else keep_content(fd, to);
    syscall(SYS_close, to);
    if (syscall(SYS_renameat2, AT_FDCWD, partial, AT_FDCWD, final, 0)) abort();
    pthread_mutex_unlock(&lock);
    return 0;
}

int fsync(int fd) { return syncs(fd, "fsync", SYS_fsync); }
int fdatasync(int fd) { return syncs(fd, "fdatasync", SYS_fdatasync); }

/* Names. */

static int is_empty(const char *path) {
    int entries = 0;
    DIR *folder = opendir(path);
    while (folder && readdir(folder)) entries++;
    if (folder) closedir(folder);
    return entries <= 2;
}

static int removes(int dirfd, const char *path, int flags) {
    char full[PATH], kept[PATH];
    struct stat it;
    if (!inside(dirfd, path, full)) return syscall(SYS_unlinkat, dirfd, path, flags);
    /* A crash may come before it. */
    if (armed && (!armed_error || armed_removals) && fails("remove", full)) return -1;
    pthread_mutex_lock(&lock);
    int result = -1;
    if (fstatat(dirfd, path, &it, AT_SYMLINK_NOFOLLOW)) result = -1;
    else if (flags & AT_REMOVEDIR && !S_ISDIR(it.st_mode)) errno = ENOTDIR;
    else if (!(flags & AT_REMOVEDIR) && S_ISDIR(it.st_mode)) errno = EISDIR;
    else if (flags & AT_REMOVEDIR && !is_empty(full)) errno = ENOTEMPTY;
    else if (S_ISDIR(it.st_mode) || (S_ISREG(it.st_mode) && it.st_nlink == 1)) {
        in_shadow(kept, "kept", it.st_ino);
        result = syscall(SYS_renameat2, dirfd, path, AT_FDCWD, kept, 0);
    } else result = syscall(SYS_unlinkat, dirfd, path, flags);
    pthread_mutex_unlock(&lock);
    return result;
}

int unlink(const char *path) { return removes(AT_FDCWD, path, 0); }
int unlinkat(int dirfd, const char *path, int flags) { return removes(dirfd, path, flags); }
int rmdir(const char *path) { return removes(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    struct stat it;
    return !lstat(path, &it) && S_ISDIR(it.st_mode) ? rmdir(path) : unlink(path);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    char full[PATH], kept[PATH];
    struct stat it;
    if (!inside(to, new, full)) return syscall(SYS_renameat2, from, old, to, new, flags);
    if (fails("rename", full)) return -1;
    pthread_mutex_lock(&lock);
    if (!fstatat(to, new, &it, AT_SYMLINK_NOFOLLOW) && S_ISREG(it.st_mode) && it.st_nlink == 1) {
        in_shadow(kept, "kept", it.st_ino);
        syscall(SYS_linkat, to, new, AT_FDCWD, kept, 0);
    }
    int result = syscall(SYS_renameat2, from, old, to, new, flags);
    pthread_mutex_unlock(&lock);
    return result;
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char full[PATH];
    if (inside(to, new, full)) {
        if (fails("link", full)) return -1;
        if (refused_links) return errno = refused_links, -1;
    }
    return syscall(SYS_linkat, from, old, to, new, flags);
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int mkdirat(int dirfd, const char *path, mode_t mode) {
    char full[PATH];
    if (inside(dirfd, path, full) && fails("mkdir", full)) return -1;
    return syscall(SYS_mkdirat, dirfd, path, mode);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
