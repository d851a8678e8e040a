/*
 * User Mode Linux 6.1 on processors with a larger register state than it expects (AMX).
 *
 * It writes the state of a process back with PTRACE_SETREGSET and the 2,696 bytes that it has room
 * for; the kernel of the host accepts only the whole state, 11,008 bytes with AMX, so that the
 * first process of the guest ends with SIGSEGV. Preloaded, this completes such a request with
 * what the host has of the rest. No process of the guest uses that.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

enum {
    /* Offset of XSTATE_BV, which says what of the state is in use (Intel SDM, volume 1, 13.4.2). */
    XSTATE_BV = 512,
    /* The first component behind those that the guest saves: AVX-512 and PKRU are below it. */
    FIRST_OTHER = 10,
};

typedef long (*ptrace_call)(enum __ptrace_request, pid_t, void *, void *);

static long set_state(ptrace_call call, pid_t pid, void *set, struct iovec *part)
{
    static _Thread_local uint8_t state[65536] __attribute__((aligned(64)));
    struct iovec whole = {state, sizeof state};
    uint64_t theirs, ours, own = (UINT64_C(1) << FIRST_OTHER) - 1;

    if (call(PTRACE_SETREGSET, pid, set, part) == 0)
        return 0;
    if (part->iov_len < XSTATE_BV + sizeof theirs || call(PTRACE_GETREGSET, pid, set, &whole) != 0 ||
        part->iov_len >= whole.iov_len)
        return -1;
    memcpy(&theirs, state + XSTATE_BV, sizeof theirs);
    memcpy(state, part->iov_base, part->iov_len);
    memcpy(&ours, state + XSTATE_BV, sizeof ours);
    ours = (ours & own) | (theirs & ~own);
    memcpy(state + XSTATE_BV, &ours, sizeof ours);
    return call(PTRACE_SETREGSET, pid, set, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
    static ptrace_call next;
    va_list list;
    pid_t pid;
    void *at, *data;

    va_start(list, request);
    pid = va_arg(list, pid_t);
    at = va_arg(list, void *);
    data = va_arg(list, void *);
    va_end(list);
    if (!next)
        next = (ptrace_call)dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && (uintptr_t)at == NT_X86_XSTATE)
        return set_state(next, pid, at, data);
    return next(request, pid, at, data);
}
