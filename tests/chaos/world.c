/* The world as a server is made to see it: LD_PRELOAD lays this over libc. The file CHAOS_WORLD, of
   two int64, says how far the wall clock is off, in nanoseconds, and whether the disk is full: then
   nothing can be written to regular files below CHAOS_DISK. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const int64_t calm[2];
static const volatile int64_t *world = calm;
static const char *disk;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);

__attribute__((constructor)) static void open_world(void) {
  real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  real_write = dlsym(RTLD_NEXT, "write");
  real_pwrite = dlsym(RTLD_NEXT, "pwrite");
  real_writev = dlsym(RTLD_NEXT, "writev");
  disk = getenv("CHAOS_DISK");
  const char *path = getenv("CHAOS_WORLD");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *mapped = mmap(NULL, sizeof calm, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped != MAP_FAILED) world = mapped;
  close(fd);
}

int clock_gettime(clockid_t id, struct timespec *now) {
  int failed = real_clock_gettime(id, now);
  if (failed || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return failed;
  int64_t ns = now->tv_sec * 1000000000LL + now->tv_nsec + world[0];
  now->tv_sec = ns / 1000000000LL;
  now->tv_nsec = ns % 1000000000LL;
  return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
  (void)zone;
  struct timespec fine;
  if (clock_gettime(CLOCK_REALTIME, &fine)) return -1;
  now->tv_sec = fine.tv_sec;
  now->tv_usec = fine.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *where) {
  struct timespec fine;
  clock_gettime(CLOCK_REALTIME, &fine);
  if (where) *where = fine.tv_sec;
  return fine.tv_sec;
}

static int is_full(int fd) {
  if (!world[1] || !disk) return 0;
  struct stat found;
  if (fstat(fd, &found) || !S_ISREG(found.st_mode)) return 0;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  if (strncmp(path, disk, strlen(disk))) return 0;
  errno = ENOSPC;
  return 1;
}

ssize_t write(int fd, const void *from, size_t size) {
  return is_full(fd) ? -1 : real_write(fd, from, size);
}

ssize_t pwrite(int fd, const void *from, size_t size, off_t at) {
  return is_full(fd) ? -1 : real_pwrite(fd, from, size, at);
}

ssize_t pwrite64(int fd, const void *from, size_t size, off_t at) {
  return pwrite(fd, from, size, at);
}

ssize_t writev(int fd, const struct iovec *parts, int number) {
  return is_full(fd) ? -1 : real_writev(fd, parts, number);
}
