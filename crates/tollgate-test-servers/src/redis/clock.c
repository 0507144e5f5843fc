/*
 * Shifts a program's wall clock by AHEAD_MICROS when loaded with LD_PRELOAD.
 *
 * libfaketime does the same, but redis-server hangs in it: libfaketime allocates memory when the
 * clock is first read, and jemalloc reads the clock when memory is first allocated.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000LL

static long long ahead;

__attribute__((constructor)) static void read_ahead(void) {
    const char *text = getenv("AHEAD_MICROS");
    ahead = text ? atoll(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (syscall(SYS_clock_gettime, clock, at) != 0) return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        long long micros = at->tv_sec * SECOND + at->tv_nsec / 1000 + ahead;
        at->tv_nsec = micros % SECOND * 1000 + at->tv_nsec % 1000;
        at->tv_sec = micros / SECOND;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
