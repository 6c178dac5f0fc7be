/* Lets C11's timed waits go by the clock that clock_gettime tells, also when it is set while they wait, as the kernel
 * does. faketime's library leaves these waits alone, and librdkafka waits by them.
 *
 * No headers, so that a compiler without the C library's development files will do.
 */
struct timespec { long tv_sec, tv_nsec; };
int clock_gettime(int clock, struct timespec *now);
int pthread_cond_clockwait(void *condition, void *mutex, int clock, const struct timespec *until);

enum { REALTIME = 0, MONOTONIC = 1 };           /* clocks */
enum { SUCCESS = 0, ERROR = 2, TIMED_OUT = 4 }; /* of C11's threads */
enum { ETIMEDOUT = 110 };
static const long SECOND = 1000000000, LOOK = 50000000; /* nanoseconds, until it looks at the clock again */

int cnd_timedwait(void *condition, void *mutex, const struct timespec *until) {
    for (;;) {
        struct timespec now, wake;
        long seconds, wait = LOOK;
        int ended;
        clock_gettime(REALTIME, &now);
        seconds = until->tv_sec - now.tv_sec;
        if (seconds < 2) wait = seconds * SECOND + until->tv_nsec - now.tv_nsec;
        if (wait < 0) wait = 0;
        if (wait > LOOK) wait = LOOK;
        clock_gettime(MONOTONIC, &wake);
        wake.tv_nsec += wait;
        if (wake.tv_nsec >= SECOND) {
            wake.tv_nsec -= SECOND;
            wake.tv_sec++;
        }
        ended = pthread_cond_clockwait(condition, mutex, MONOTONIC, &wake);
        if (ended == 0) return SUCCESS;
        if (ended != ETIMEDOUT) return ERROR;
        if (wait < LOOK) return TIMED_OUT;
    }
}
