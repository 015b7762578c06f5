/* SPDX-License-Identifier: MIT
 *
 * inside.h - what the files of the simulation share.
 *
 * events.c keeps the queue. links.c and levels.c share links among flows; memory.c shares a memory's bandwidth among workgroups; both change rates only when time moves
 * on (settle), so what happens at one moment is one change. fabric.c lays the links out. ranks.c runs slices; send.c is stores, messages and flags;
 * operators.c begins and ends operators, costs.c says what they take; stuck.c explains what cannot go on.
 */
#ifndef FCC_KERNELS_SIM_INSIDE_H
#define FCC_KERNELS_SIM_INSIDE_H

#include <assert.h>
#include <stddef.h>

#include "kernels/plan/cost.h"
#include "kernels/sim/sim.h"

#define PS_PER_S 1e12
#define NONE UINT32_MAX
#define PATH_MAX_LINKS 72
#define PATH_STEP 4 /* links of a way that are looked at together */
#define NEVER UINT64_MAX
#define END_OF_TIME (UINT64_C(1) << 62) /* in picoseconds: 53 days. A simulation that comes to it is refused */

/* Whole picoseconds, rounded up. END_OF_TIME: as many or more, or no number. */
static inline uint64_t ps_of(double seconds)
{
    const double ps = seconds * PS_PER_S;

    if (!(ps < (double)END_OF_TIME))
        return END_OF_TIME;
    const int64_t whole = (int64_t)ps; /* signed, as processors convert such in one instruction */
    return (uint64_t)whole + ((double)whole < ps);
}

/* The picoseconds from one moment to a later one, in seconds. */
static inline double seconds_from(uint64_t from, uint64_t to)
{
    return (double)(int64_t)(to - from) / PS_PER_S;
}

/* The moment that is so many picoseconds after another one. Neither is more than END_OF_TIME, nor is what it returns. */
static inline uint64_t ps_after(uint64_t at, uint64_t ps)
{
    return at + ps < END_OF_TIME ? at + ps : END_OF_TIME;
}

/* ---- arrays that grow: rarely, and they are asked at every flow and event ---- */

bool array_grow(void *array, uint32_t *room, size_t size);
bool ring_grow(void *ring, uint32_t first, uint32_t *room, size_t size);

/* Room for one more. */
static inline bool array_room(void *array, uint32_t used, uint32_t *room, size_t size)
{
    return used < *room || array_grow(array, room, size);
}
/* Room for one more in a ring of `n` from `first` on; room is a power of two. */
static inline bool ring_room(void *ring, uint32_t first, uint32_t n, uint32_t *room, size_t size)
{
    return n < *room || ring_grow(ring, first, room, size);
}

/* ---- events.c: the queue, earliest first; of one time, in the order in which they were put ---- */

enum event_kind {
    EVENT_LINK,    /* id: link: the first of the flows that it holds back ends */
    EVENT_MEMORY,  /* memory: the first of its jobs ends */
    EVENT_START,   /* task */
    EVENT_STEP,    /* task: its next kernel begins */
    EVENT_WORK,    /* workgroup: a time that shares nothing has passed */
    EVENT_CORE,    /* node: its proxy gets a core, whoever computes */
    EVENT_READY,   /* adapter: the proxy has prepared the next of its messages */
    EVENT_ARRIVE,  /* message: it is at its node */
    EVENT_DELIVER, /* message: the proxy there has stored it; or a flag of the node itself */
};
struct event {
    uint64_t at, order;
    uint32_t kind, id;
};
/* When an event happens, which is all that is looked at to find the first one: four of these are a cache line. */
struct when {
    uint64_t at, order;
};
/* Which event it is. moved: its place in `moved`: of links, then of memories, and one for all other events. */
struct what {
    uint32_t kind, id, moved;
};
/* Events that all come the same time after they were put stand in a lane, a ring in which the first is the earliest. */
enum lane_kind { LANE_SLICE, LANE_FLAG, LANES }; /* what each slice costs, and the latency of a flag inside of a node */
struct lane {
    struct event *ring;
    uint32_t first, n, room; /* room: a power of two */
};
struct events {
    struct when *heap, *heap_begin; /* heap_begin: of its memory */
    struct what *whats;             /* of the heap's events */
    uint32_t n, room;
    uint64_t order;
    struct lane lane[LANES];
    struct when *
        moved; /* when each is to happen; NEVER: not at all. One that is to happen later than it stands in the queue stays there until it is the first */
    uint32_t *places; /* where each stands in the heap; NONE: it does not */
};
bool moved_new(struct sim *s);
void events_free(struct sim *s);
bool event_put_lane(struct sim *s, enum lane_kind lane, enum event_kind kind, uint32_t id, uint64_t after);
bool event_put(struct sim *s, enum event_kind kind, uint32_t id, uint64_t at);
/* Moves an event of a memory or a link, of which there is one at most; NEVER takes it out. */
bool event_move(struct sim *s, enum event_kind kind, uint32_t id, uint64_t at);
bool event_take(struct sim *s, struct event *out);
/* Whether another one happens at this moment. */
bool event_due(struct sim *s);

/* ---- links.c ---- */

/* What else is known of a link stands in arrays of its own (struct sim), so that this is 64 bytes. */
struct link {
    double bytes_s; /* whole */
    double served;  /* bytes that each flow which it holds back has been served, until `since` */
    uint64_t since;
    uint32_t *flows;   /* id << path_shift | place in that flow's path */
    struct held *held; /* flows that it holds back, a heap, the first to end first */
    uint32_t n, nheld, room, held_room;
    bool dirty, timed; /* it is going to be looked at; its event is going to be moved */
    bool fixed;        /* each flow may have bytes_s, whatever the others have: a limit of its own */
    bool wide;         /* what can come to it is never more than it carries, so it holds nothing back */
};
static_assert(sizeof(struct link) == 64, "a cache line");
/* What changes with every flow, of all links in an array of its own: rates change at several links at once, all over the machine. Rates are whole, so sums are. */
struct gauge {
    int64_t room;  /* how much more its flows may have together until it is looked at; less than 0: it is to be looked at */
    int64_t spare; /* it is to be looked at with more room than this */
    int64_t mark;  /* the room, and what they have */
    double level;  /* what a flow may have at most; DBL_MAX: it is not full */
};
struct held {
    double end; /* of `served` of the link, when the flow ends */
    uint64_t order;
    uint32_t flow;
};
/* What its other links let a flow have. */
struct limit {
    double rate;
    uint32_t flow;
};
enum flow_kind { FLOW_MESSAGE, FLOW_PULL, FLOW_STORE };
struct flow {
    uint32_t place; /* among those that its holder holds back */
    uint32_t owner; /* a message's number, or a workgroup's of a store */
    uint8_t kind;   /* enum flow_kind */
};
/* What of a flow is needed whenever its rate changes, so it lies close together. */
struct pace {
    double rate;            /* the level of the holder; 0: not known yet */
    uint32_t holder;        /* the link that holds it back */
    uint32_t memory[2];     /* what it reads from and stores to; sim.nmemories: a memory that it does not load */
    uint8_t nlinks, padded; /* padded: nlinks and so many links that are none that they are a multiple of PATH_STEP */
    uint8_t nwide;          /* links of its way that cannot be full */
};
/* A message's flow that has ended, and is on its links still: often the same adapter's next message is to the same node. */
struct stopped {
    uint32_t flow, adapter; /* flow: NONE: there is none */
    uint16_t to;
    uint64_t latency;
};
/* path_most: the most links that a flow has. */
struct message;
bool links_new(struct sim *s, uint32_t n, unsigned path_most);
void link_make(struct sim *s, uint32_t i, double bytes_s, bool fixed);
/* Returns its number, or NONE: no memory. `path`: of nlinks links, at least one. */
uint32_t flow_begin(struct sim *s, double bytes, const uint32_t path[], unsigned nlinks, const uint32_t memory[2],
                    uint32_t owner, enum flow_kind kind);
void flow_end(struct sim *s, uint32_t id);
/* Ends one of a message, but for its links: flow_again() begins it with other bytes there, and whatever flow begins or stopped_end() takes it off. */
void flow_stop(struct sim *s, uint32_t id, const struct message *m);
void flow_again(struct sim *s, double bytes, uint32_t owner);
void stopped_end(struct sim *s);
/* The first of the flows that the link holds back that have ended by now; NONE: there is none. */
uint32_t link_ended(struct sim *s, uint32_t link);
void flow_rates_note(struct sim *s, uint32_t id); /* for a trace */

/* ---- levels.c ---- */

bool links_settle(struct sim *s);

/* ---- memory.c: jobs that read and write memory, each as fast as its workgroup can, and their memory has left ---- */

struct job {
    double end; /* of the class's `served`, when it ends */
    uint32_t workgroup, order;
};
struct job_class {
    double most, rate, served; /* bytes a second of each job; bytes that each job has been served */
    struct job *jobs;          /* a ring, the first to end first */
    uint32_t first, n, room;   /* room: a power of two */
};
/* What is looked at whenever a flow's rate changes comes first, in one cache line. */
struct memory {
    double taken, found; /* by flows: now, and when the rest was shared */
    double wanted;       /* what its jobs take if nothing holds them back */
    double bytes_s;
    uint32_t njobs, nflows;
    bool dirty, full; /* full: jobs have less than they can take */
    uint32_t n, room, order;
    uint64_t since;
    struct job_class *classes;
} __attribute__((aligned(64)));
bool job_begin(struct sim *s, uint32_t memory, double bytes, double most, uint32_t workgroup);
void memory_touch(struct sim *s, uint32_t memory); /* it is shared anew before time moves on */
bool memory_ended(struct sim *s, uint32_t memory); /* its event */
bool memories_settle(struct sim *s);

/* ---- fabric.c ---- */

int fabric_make(struct sim *s, struct error *e);
/* A message's way from a node's adapter to the other node's: the links, and how long it takes besides. */
unsigned fabric_path(const struct sim *s, int from, int to, int rail, uint32_t path[PATH_MAX_LINKS], uint64_t *latency);
/* The way between two ranks of a node. */
unsigned node_path(const struct sim *s, int from, int to, uint32_t path[PATH_MAX_LINKS]);
void link_name(const struct sim *s, uint32_t link, char out[SIM_NAME]);

/* ---- ranks.c, send.c, operators.c ---- */

/* A rank's part of an operator. */
struct task {
    const struct plan *plan; /* NULL: it computes by itself */
    struct slice_costs costs;
    double of_memory;       /* of a byte, what it counts on memory, where a cache has its part of what the operator touches */
    double flops_s, adds_s; /* of a workgroup: what it computes, and additions of partial sums */
    double found;           /* part of the bytes that its slices read that a cache of tables has */
    double tile_s;          /* what a slice of a product in tiles takes; 0: what is counted of it */
    double stored_more;     /* of what its slices store over a node's links, what a link carries for a byte */
    uint32_t op, group;     /* group: its index among the operator's */
    int rank, place;        /* of all; in its group */
    uint32_t next, done;    /* slices that workgroups have taken, and finished */
    uint32_t first, workgroups; /* of its workgroups */
    uint32_t blocked, idle;     /* lists of workgroups: that wait for flags, or for a step */
    uint32_t step, step_slice,
        step_wait; /* GPUs over nodes: the step that is under way; how far the next one's flags have been looked at */
    bool begun, ended, step_asked;
    uint8_t *flags; /* a bit each */
    uint32_t *left; /* [ngroups] slices of each signal group that have not finished */
    uint64_t begin, end;
};
struct workgroup {
    uint32_t task, slice;
    uint32_t flag;            /* blocked: the number among the slice's flags that it waits for */
    uint32_t pending;         /* flows into its rank that it waits for */
    uint32_t storing, stored; /* flows out of its rank that have not ended, and the slice that they belong to */
    uint32_t next;            /* of a list */
    uint8_t phase;            /* enum phase of ranks.c */
    bool carries;             /* messages of the slice that it stores carry the flag of that slice's group */
    uint64_t wait, begin;
};
/* On its way, since it has left its adapter's queue; or a flag of the node itself. */
struct message {
    uint32_t task;    /* of the receiver */
    uint32_t next;    /* of the list of those that are free */
    uint32_t flag;    /* to be raised there; NONE */
    uint32_t adapter; /* that it leaves by */
    uint16_t to;      /* node */
    double bytes;
    uint64_t latency;
};
/* A message that waits for its adapter. There may be very many, and an adapter goes through its own, so these lie close together. */
struct queued {
    uint64_t ready; /* when the proxy has prepared it */
    double bytes;
    uint32_t task, flag;
    uint16_t from, to; /* from: a rank of all; to: a node */
};
static_assert(sizeof(struct queued) <= 32 && SIM_MAX_RANKS <= UINT16_MAX && SIM_MAX_NODES <= UINT16_MAX, "two in a cache line");
#define ADAPTER_SEES 64 /* messages that an adapter looks at for one that it can send: bits of a number */
#define NOWHERE (-1)
/* Messages that are ready, and wait for another one to their node: places in the adapter's `blocked`, in the order in which they were handed over. */
struct waiting {
    uint8_t first, last; /* ADAPTER_SEES: there are none */
};
struct adapter {
    struct queued *ring;     /* in the order in which they are ready: those that have not been looked at */
    uint32_t first, n, room; /* room: a power of two */
    uint32_t nflying;
    int node, rail;
    int left;                   /* the node that a message has left for, before the next one to it does; NOWHERE */
    bool asked;                 /* it has an event for the first of them that is not ready */
    uint64_t empty;             /* places in `blocked` that are free, a bit each */
    int flying[SIM_MAX_FLYING]; /* nodes that messages under way go to */
    struct waiting waiting[SIM_MAX_FLYING], to_left; /* for each of these, and for the one that has left */
    uint8_t next[ADAPTER_SEES];
    struct queued blocked[ADAPTER_SEES];
};
static_assert(ADAPTER_SEES == 64, "places are bits of a number");
/* The thread of a node that sends and receives. Without a core of its own it waits for one: what it is to send stands unprepared (UNPREPARED) at the end of its
 * adapters' queues, and what it has received in a list. */
#define UNPREPARED NEVER
struct proxy {
    uint64_t until;       /* it is busy */
    uint64_t asked;       /* the number of the event that ends its waiting; what comes with another is old */
    uint32_t computing;   /* workgroups of its node that compute */
    uint32_t first, last; /* messages that have come, in their order */
    bool waits, looks;    /* looks: it is among those that proxies_settle() looks at */
};
/* Where a rank is, which divisions would say at each message. */
struct home {
    int node;
    uint32_t memory, adapter;
};
/* Plans of groups of the same form are made once. */
struct pattern {
    int32_t *node_of; /* [size], from the first rank's node on */
    struct problem *problem;
    struct plan **plans; /* [size] */
};
struct operator
{
    struct sim_operator said;
    struct pattern *patterns;
    uint32_t npatterns, ngroups, *pattern_of; /* [ngroups] */
    bool is_inline;                           /* the engine of a node runs it, all ranks there on one core */
    bool borrows;                             /* another operator's patterns */
    uint32_t first;                           /* its tasks: first + rank */
    uint32_t *come; /* [ranks]: ranks of a group that have come on a node, at the first rank of these */
    uint32_t workgroups;
    uint32_t left; /* tasks that have not ended */
};

struct sim {
    struct sim_machine m;
    uint64_t seed, now, until, events_done, slices_done, messages_done;
    double message_bytes;
    int nranks;
    bool failed; /* no memory */
    struct events events;
    struct gauge *gauges;    /* [nlinks + PATH_STEP]: the last ones are those of no links */
    double *found, *carried; /* [nlinks]: what its flows had when the level was found; bytes of all flows that have begun */
    struct link *links;
    struct flow *flows;
    struct pace *paces; /* of flows */
    uint32_t *hops,
        *hop_at; /* [flows_room << path_shift]: the links of each flow, and its place among each one's flows, then its wide ones */
    unsigned path_shift, path_round;
    struct memory *memories; /* [nmemories + 1]: the last one has no jobs */
    uint32_t nlinks, nflows, flows_room, *flows_free, nflows_free, flows_free_room;
    uint32_t *dirty_links, first_dirty_link, ndirty_links; /* a ring of [nlinks] */
    uint32_t *timed_links;                                 /* [nlinks]: those that have been looked at */
    uint32_t nmemories, *dirty_memories, ndirty_memories;
    struct limit *limits; /* room for a link's flows */
    uint32_t limits_room;
    uint64_t flow_order;
    struct stopped stopped;
    uint32_t nic_out, nic_in, fabric_first, node_first; /* where links of each sort begin */
    uint32_t store_link;                                /* the limit of what one workgroup stores; NONE: there is none */
    uint32_t *next_hop;                                 /* GRAPH: [nodes + switches][nodes]: the link towards each node */
    int32_t *link_to;                                   /* GRAPH: where each cable's link leads */
    uint16_t (*torus_at)[3]; /* TORUS: [nodes]: where each stands, which divisions would say at each message */
    int leaves;
    struct home *homes;                        /* [ranks] */
    struct adapter *adapters;                  /* [nodes * rails] */
    struct proxy *proxies;                     /* [nodes] */
    uint32_t *looking, nlooking;               /* [nodes]: proxies that may have a core now */
    uint32_t *free_workgroups, *next_operator; /* [ranks]: operators begin on a rank in their order */
    struct operator* operators;
    struct task *tasks;
    struct workgroup *workgroups;
    struct message *messages;
    uint32_t noperators, operators_room, ntasks, nworkgroups, workgroups_room, nmessages, messages_room, messages_free;
    uint32_t tasks_left;
    bool ran;
    int traced;           /* rank; -1: none */
    uint32_t traced_link; /* whose use is recorded; NONE: no link */
    struct sim_span *spans;
    struct sim_rate *rates;
    size_t nspans, spans_room, nrates, rates_room;
};

/* Whether a memory is to be shared anew. Most are not: nothing waits for them, or flows take as much as before, but for the tolerance. */
static inline void memory_look(struct sim *s, uint32_t memory)
{
    const struct memory *m = &s->memories[memory];

    if (!m->njobs || m->dirty || !(m->full || m->wanted + m->taken > m->bytes_s))
        return;
    const double off = m->taken - m->found, slack = s->m.fabric.tolerance * m->bytes_s;
    if (!(slack > 0) || off > slack || off < -slack)
        memory_touch(s, memory);
}

/* Of memory a flow takes more. */
static inline void memory_take(struct sim *s, uint32_t memory, double change)
{
    s->memories[memory].taken += change;
    memory_look(s, memory);
}

/* Whether a flow reads from and stores to these. */
static inline bool flow_is_of(const struct sim *s, uint32_t flow, const uint32_t memory[2])
{
    return s->paces[flow].memory[0] == memory[0] && s->paces[flow].memory[1] == memory[1];
}

static inline int node_of(const struct sim *s, int rank)
{
    return s->homes[rank].node;
}
static inline uint32_t memory_of(const struct sim *s, int rank)
{
    return s->homes[rank].memory;
}
static inline uint32_t adapter_of(const struct sim *s, int rank)
{
    return s->homes[rank].adapter;
}

/* ---- groups: blocks of size * stride ranks, in each of which `stride` groups lie between each other ---- */

static inline int group_of(const struct sim_operator *o, int rank)
{
    return rank / (o->size * o->stride) * o->stride + rank % o->stride;
}
static inline int place_in_group(const struct sim_operator *o, int rank)
{
    return rank / o->stride % o->size;
}
static inline int rank_of(const struct sim_operator *o, int group, int place)
{
    return group / o->stride * o->size * o->stride + group % o->stride + place * o->stride;
}

/* The rank at another place of a task's group, and its task of the same operator. */
static inline int rank_at(const struct sim *s, const struct task *like, int place)
{
    return like->rank + (place - like->place) * s->operators[like->op].said.stride;
}
static inline uint32_t task_of(const struct sim *s, const struct task *like, int place)
{
    return s->operators[like->op].first + (uint32_t)rank_at(s, like, place);
}

/* What the work of a task that has its plan takes: costs.c. */
void task_costs(const struct sim *s, const struct operator* op, const struct problem *problem, struct task *t);
void rank_go(struct sim *s, int rank);                    /* begins the operators that it can */
void task_begin(struct sim *s, uint32_t task);            /* its workgroups take slices */
void task_step(struct sim *s, uint32_t task);             /* its next kernel has begun */
void workgroup_go(struct sim *s, uint32_t workgroup);     /* what it did has ended */
void workgroup_stored(struct sim *s, uint32_t workgroup); /* a store has ended */
void flag_raise(struct sim *s, uint32_t task, uint32_t flag);
bool flag_has(const struct task *t, uint32_t flag);
bool task_flags(struct sim *s, uint32_t task);  /* memory for its flags; false: there is none */
void task_finish(struct sim *s, uint32_t task); /* all its slices have finished: operators.c */

/* Stores a slice's tile at its destinations. Returns how many flows its workgroup waits for. */
uint32_t slice_store(struct sim *s, uint32_t workgroup, double bytes);
/* Reads as much from each other rank. */
uint32_t slice_pull(struct sim *s, uint32_t workgroup, double bytes);
/* What is stored into memory that the rank's own workgroups share, at all destinations together. */
double slice_stored_here(const struct sim *s, const struct task *t, const struct slice *slice, double bytes);
/* Raises a group's flag; carried: messages of this slice have done so on other nodes. */
void group_finished(struct sim *s, uint32_t task, uint32_t group, const struct slice *carried);
void adapter_ready(struct sim *s, uint32_t adapter);
void message_sent(struct sim *s, uint32_t message, uint32_t flow); /* its flow has ended */
void message_arrive(struct sim *s, uint32_t message);
void message_deliver(struct sim *s, uint32_t message);
void proxy_core(struct sim *s, uint32_t node);              /* it has waited long enough */
void proxy_counts(struct sim *s, uint32_t rank, bool more); /* where a proxy waits for a core */
void proxies_settle(struct sim *s);                         /* those that wait go on where a core has become free */

/* A workgroup of this rank computes, or does so no more. */
static inline void proxy_computing(struct sim *s, uint32_t rank, bool more)
{
    if (s->m.fabric.core_wait_s > 0)
        proxy_counts(s, rank, more);
}

double random_of(const struct sim *s, uint64_t a, uint64_t b); /* random.c */
/* 1 or more. */
static inline double spread_of(const struct sim *s, double spread, uint64_t a, uint64_t b)
{
    return spread > 0 ? 1 + spread * random_of(s, a, b) : 1;
}
int stuck_explain(const struct sim *s, struct error *e);
void trace_span(struct sim *s, const struct workgroup *w);

#endif
