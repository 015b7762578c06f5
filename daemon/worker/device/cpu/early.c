/* SPDX-License-Identifier: MIT
 *
 * early.c - runs a rank's slices of a small operator that need only the rank's own inputs, before other ranks have come (comm/early.c). The
 * engine alone runs them, between operators.
 */
#include "daemon/worker/device/cpu/threads.h"
#include "proto/base/clock.h"

bool device_cpu_run_early(struct launch *l, int rank)
{
    struct launch_run *r = &l->runs[rank];
    struct workgroup *wg = &((struct cpu_device *)r->device->state)->inline_[0].workgroup;
    const struct plan *plan = r->plan;
    const uint32_t as_they_are = plan->level_first[plan->start_level < plan->nlevels ? plan->start_level : plan->nlevels];
    uint64_t start_ns, now_ns = clock_ns();
    struct slice compute;
    struct error ignored;

    error_clear(&ignored);
    for (uint32_t i = 0; i < plan->nslices && i < CPU_EARLY_SLICES; i++) {
        const struct slice *s = &plan->slices[i];
        if (s->kind != SLICE_COMPUTE && s->kind != SLICE_COMPUTE_PUT)
            continue;
        bool staged = i >= as_they_are;
        if (staged && (s->kind == SLICE_COMPUTE || !plan_stages_tiles(plan)))
            break;
        compute = *s;
        compute.kind = staged ? SLICE_COMPUTE : s->kind;
        start_ns = now_ns;
        if (cpu_slice(&r->run, &compute, wg, &ignored))
            break; /* the slice will fail again in the operator's turn, and is reported then */
        now_ns = clock_ns();
        r->times[l->turn][i].wait_ns = 0;
        cpu_times_note(s, &r->times[l->turn][i], 1, 0, start_ns, now_ns);
        *(staged ? &r->staged : &r->early) |= UINT64_C(1) << i;
        if (!staged)
            cpu_slice_signal(l, r, s, true);
    }
    return r->early || r->staged;
}
