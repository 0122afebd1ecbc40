// Faults inside one process, for `kvasir bench kills`. Loaded by LD_PRELOAD, so that the server needs no hook for them.
// A file PID.hang in the folder KVASIR_FAULTS has the id of a thread, which then stops for good while it runs, as in a
// kernel that never returns. A file PID.disk has a number of milliseconds, for which reads and writes of files below
// KVASIR_FAULTS_DISK do not return.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic long long stalled_until_ms;

static long long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void sleep_ms(long ms) {
  struct timespec left = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&left, &left) != 0) {
  }
}

static void hang(int signal) {
  (void)signal;
  for (;;) sleep_ms(3600 * 1000L);
}

/** Reads and removes the control file of this process. */
static int take(const char *folder, const char *fault, long *value) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%d.%s", folder, getpid(), fault);
  FILE *file = fopen(path, "r");
  if (file == NULL) return 0;
  const int found = fscanf(file, "%ld", value) == 1;
  fclose(file);
  unlink(path);
  return found;
}

static int runs(long thread) {
  char path[64], state = '?';
  snprintf(path, sizeof path, "/proc/self/task/%ld/stat", thread);
  FILE *file = fopen(path, "r");
  if (file == NULL) return 1;
  // The name in brackets has none itself in this process.
  const int found = fscanf(file, "%*d (%*[^)]) %c", &state);
  fclose(file);
  return found != 1 || state == 'R';
}

static void *follow(void *folder) {
  for (;;) {
    long value;
    if (take(folder, "hang", &value)) {
      while (!runs(value)) sleep_ms(1);
      syscall(SYS_tgkill, getpid(), value, SIGRTMIN + 6);
    }
    if (take(folder, "disk", &value)) atomic_store(&stalled_until_ms, now_ms() + value);
    sleep_ms(20);
  }
  return NULL;
}

__attribute__((constructor)) static void start(void) {
  char *folder = getenv("KVASIR_FAULTS");
  if (folder == NULL) return;
  struct sigaction action = {.sa_handler = hang, .sa_flags = SA_RESTART};
  sigaction(SIGRTMIN + 6, &action, NULL);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  pthread_t thread;
  pthread_create(&thread, NULL, follow, folder);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void wait_for_disk(int file) {
  if (atomic_load(&stalled_until_ms) <= now_ms()) return;
  const char *disk = getenv("KVASIR_FAULTS_DISK");
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (disk == NULL || length < 0) return;
  path[length] = '\0';
  if (strncmp(path, disk, strlen(disk)) != 0) return;
  while (now_ms() < atomic_load(&stalled_until_ms)) sleep_ms(5);
}

#define INTERPOSE(name, buffer)                                      \
  ssize_t name(int file, buffer bytes, size_t count, off_t at) {     \
    ssize_t (*next)(int, buffer, size_t, off_t) = dlsym(RTLD_NEXT, #name); \
    wait_for_disk(file);                                             \
    return next(file, bytes, count, at);                             \
  }

INTERPOSE(pread, void *)
INTERPOSE(pread64, void *)
INTERPOSE(pwrite, const void *)
INTERPOSE(pwrite64, const void *)
