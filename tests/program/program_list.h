/* SPDX-License-Identifier: MIT
 *
 * program_list.h - the programs that program_cases.h runs on whatever device.
 */
#ifndef FCC_TESTS_PROGRAM_PROGRAM_LIST_H
#define FCC_TESTS_PROGRAM_PROGRAM_LIST_H

#include <stdbool.h>

#include "proto/fccclient.h"

struct program_case {
    const char *file, *text; /* one of them */
    bool scheduled;          /* false: the schedule is left out */
    struct fcc_program_size sizes[3];
    int nsizes;
    double tolerance;
};

#define MLP                                                                                                                    \
    "program epilogue(M = 6, N = 700)\nin x: f32[M, N] local\nin b: f32[N]\nin r: f32[M, N]\nout y: f32[M, N]\nscalar seed, "  \
    "step\n"                                                                                                                   \
    "s = all_reduce(x)\nd = dropout(s + b, 0.25, seed, step)\ny = d + r\nschedule\n"

#define LAMB                                                                                                                   \
    "program lamb(N = 1500)\nin g: f32[N] local\ninout p, m, v: f32[N] replicated\nscalar lr, beta1, beta2, step, scale\n"     \
    "s = all_reduce(g)\na = s * scale\nm = beta1 * m + (1 - beta1) * a\nv = beta2 * v + (1 - beta2) * a * a\n"                 \
    "u = m / (1 - pow(beta1, step)) / (sqrt(v / (1 - pow(beta2, step))) + 0.01) + 0.01 * p\nwide = norm(p)\n"                  \
    "long = norm(u)\np = p - lr * select(wide * long > 0, wide / long, 1) * u\nschedule\n"

#define HALVES                                                                                                                 \
    "program halves(M = 9, N = 130)\nin x: bf16[M, N] local\nin w: f32[N]\nin t: bf16[M, N] sliced(0)\ninout q: f32[M, N] "    \
    "sliced(0)\nout r: bf16[M, N] sliced(0)\nout k, z: f32[]\nout y: bf16[M, N]\n"                                             \
    "s = reduce_scatter(x)\na = f32(s) * w + f32(t)\nq = q - a\nlong = norm(a)\nlevel = mean(f32(s))\nk = long\nz = level\n"   \
    "r = s\nd = a * 0.5 + long * 0.01\ny = all_gather(bf16(d))\nschedule\n"

#define THIN                                                                                                                   \
    "program thin(M = 3, K = 100, N = 130)\nin x: f32[M, K] sliced(1)\nin w: f32[N, K] sliced(1)\nin b: f32[N]\nin r: f32[M, " \
    "N]\nout y: f32[M, N]\n"                                                                                                   \
    "product = matmul(x, transpose(w))\ns = all_reduce(product)\ny = relu(s + b + r)\nschedule\n"

#define BATCH                                                                                                                  \
    "program batch(B = 5, S = 3, K = 24, N = 20)\nin a: f32[B, S, K] sliced(2)\nin b: f32[K, N] sliced(0)\nin c: f32[N]\nin "  \
    "r: f32[B, "                                                                                                               \
    "S, N]\nin x: f32[B, S, K] sliced(0)\nin w, n: f32[K, 12]\nin h: f32[B, S, K]\nin o: f32[12, K] sliced(1)\nout y: f32[B, " \
    "S, N]\nout z: "                                                                                                           \
    "f32[B, S, 12] sliced(0)\nout v: f32[B, S, 12]\n"                                                                          \
    "p = matmul(a, b)\ns = all_reduce(p)\ny = s + c + r\nq = matmul(x, w)\nz = relu(q)\nt = matmul(as_slice(h, 2), "           \
    "transpose(o))\n"                                                                                                          \
    "u = all_reduce(t)\nv = silu(u) + matmul(h, n) / K ** 2 * ranks - -2 ** 2 / B\nschedule\n"

#define ALONG                                                                                                                  \
    "program along(A = 7, B = 5, C = 11)\nin x: f32[A, B, C] local\nin t: f32[A, B, C] sliced(0)\nin u: f32[A, B, C] "         \
    "sliced(1)\nin v: "                                                                                                        \
    "bf16[A, C] sliced(1)\nout a, b: f32[A, B, C] sliced(1)\nout c: f32[A, B, C] sliced(2)\nout d: f32[A, B, C] "              \
    "sliced(0)\nout e, f: "                                                                                                    \
    "f32[A, B, C]\nout g: bf16[A, C] sliced(0)\nout h: bf16[A, C]\nout n: f32[]\n"                                             \
    "a = reduce_scatter(x, 1)\nb = all_to_all(t, 1) * u + 2\nc = all_to_all(t + 1, 2)\nd = all_to_all(u, 0)\ne = "             \
    "all_gather(u)\n"                                                                                                          \
    "f = all_gather(reduce_scatter(x * 0.5, 2)) + e\ng = all_to_all(relu(v), 0)\nh = all_gather(v)\nn = norm(u)\n"

#define GROUPS                                                                                                                 \
    "program stages(M = 9, N = 70, K = 24)\ngroups 2\nin x: f32[M, N] local\nin t: f32[M, N] sliced(0)\ninout p: f32[M, "      \
    "N]\nin "                                                                                                                  \
    "a: f32[M, K] sliced(1)\nin w: f32[K, N] sliced(0)\nin b: f32[N]\nout l: f32[M, N] local\nout u: f32[M, N] "               \
    "sliced(0)\nout y, "                                                                                                       \
    "c, g: f32[M, N]\nout e: f32[M, N] local\nout n: f32[]\n"                                                                  \
    "s = all_reduce(x)\np = p - 0.5 * s\nl = send(x, 1)\nu = send(t + 1, 1)\ngone = send(p, 5)\nc = broadcast(x, 0)\n"         \
    "g = all_gather(send(t, 1)) + gone\ne = reduce(x, 0)\nproduct = matmul(a, w)\nadded = all_reduce(product)\ny = "           \
    "relu(added + b)\n"                                                                                                        \
    "n = norm(t)\nschedule\n"

#define PRODUCT                                                                                                                \
    "program product(M = 9, K = 64, N = 40)\nin a: f32[M, K] sliced(1)\nin b: f32[K, N] sliced(0)\nin bias: f32[N]\nin r: "    \
    "f32[M, N]\nout y: f32[M, N]\n"                                                                                            \
    "product = matmul(a, b)\ns = all_reduce(product)\ny = gelu(r + (bias + s))\nschedule\n"

#define ADAM_TENSORS                                                                                                           \
    "program adam(N = 9001, T = 11)\nin g: bf16[N] local scattered(T)\ninout p: bf16[N] replicated scattered(T)\ninout m: "    \
    "f32[N]\nscalar lr, "                                                                                                      \
    "beta1\n"                                                                                                                  \
    "s = all_reduce(g)\nm = beta1 * m + (1 - beta1) * f32(s)\np = bf16(f32(p) - lr * m)\nschedule\n"

static const struct program_case cases[] = {
    {.file = "client/programs/sgd.fcc", .sizes = {{"N", 3000}}, .nsizes = 1, .tolerance = 1e-5},
    {.file = "client/programs/sgd.fcc", .scheduled = true, .sizes = {{"N", 3001}}, .nsizes = 1, .tolerance = 1e-5},
    {.file = "client/programs/adam.fcc", .sizes = {{"N", 5000}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/adam.fcc", .scheduled = true, .sizes = {{"N", 200003}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/adam.fcc", .scheduled = true, .sizes = {{"N", 1}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/adam.fcc", .scheduled = true, .sizes = {{"N", 0}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/adam_mixed.fcc", .sizes = {{"N", 5000}}, .nsizes = 1, .tolerance = 2e-2},
    {.file = "client/programs/adam_mixed.fcc", .scheduled = true, .sizes = {{"N", 20003}}, .nsizes = 1, .tolerance = 2e-2},
    {.file = "client/programs/epilogue.fcc", .scheduled = true, .tolerance = 1e-4},
    {.file = "client/programs/attention.fcc", .tolerance = 1e-4},
    {.file = "client/programs/attention.fcc",
     .scheduled = true,
     .sizes = {{"B", 3}, {"S", 5}, {"H", 30}},
     .nsizes = 3,
     .tolerance = 1e-4},
    {.file = "client/programs/mlp.fcc", .sizes = {{"M", 7}, {"K", 40}, {"H", 24}}, .nsizes = 3, .tolerance = 1e-4},
    {.file = "client/programs/mlp_slices.fcc",
     .scheduled = true,
     .sizes = {{"M", 7}, {"K", 40}, {"H", 24}},
     .nsizes = 3,
     .tolerance = 1e-4},
    {.file = "client/programs/pipeline.fcc", .tolerance = 1e-4},
    {.file = "client/programs/pipeline.fcc", .scheduled = true, .tolerance = 1e-4},
    {.file = "client/programs/pipeline.fcc",
     .scheduled = true,
     .sizes = {{"M", 7}, {"H", 30}, {"S", 3}},
     .nsizes = 3,
     .tolerance = 1e-4},
    {.file = "client/programs/pipeline.fcc",
     .scheduled = true,
     .sizes = {{"M", 5}, {"H", 9}, {"S", 1}},
     .nsizes = 3,
     .tolerance = 1e-4},
    /* products of more dimensions, in each layout, with each epilogue; sizes as numbers */
    {.text = BATCH "", .tolerance = 1e-3},
    {.text = BATCH "fuse p, s, y\nfuse q, z\nfuse t, u\n", .scheduled = true, .tolerance = 1e-3},
    {.text = BATCH "split s\nreorder s\noverlap p, s_part\n", .scheduled = true, .tolerance = 1e-3},
    /* slices: where they are, copied, of an updated parameter, of slices, of rows; used in whatever way */
    {.text =
         "program cuts(M = 9, N = 70)\nin x: f32[M, N]\nin l: f32[M, N] local\nin t: f32[M, N] sliced(0)\nin b: f32[2*N]\nin "
         "h: "
         "bf16[M, N]\ninout p: f32[M, N]\nout y: f32[4, N]\nout z: f32[M, 10]\nout u: f32[M, 7] sliced(0)\nout v: bf16[M, "
         "1]\nout w: f32[3, 5]\nout c: f32[M, 5]\nout g: f32[M, 20]\n"
         "y = slice(x, 0, 2, 6) * slice(b, 0, 70, 140)\nz = slice(all_reduce(l) * 2, 1, 60, 70) + 1\nu = slice(t, 1, 3, 10)\n"
         "v = slice(h, 1, 5, 6)\np = p * slice(p, 0, 0, 1) + slice(b, 0, 0, 70)\nw = slice(slice(p, 0, 1, 4), 1, 20, 25)\n"
         "c = matmul(slice(x, 1, 0, M), slice(x, 1, 9, 14))\ng = all_gather(slice(t + 1, 1, 0, 20))\n",
     .tolerance = 1e-4},
    /* exchanges along each dimension */
    {.text = ALONG, .tolerance = 1e-4},
    {.text = ALONG, .sizes = {{"A", 1}, {"B", 2}, {"C", 0}}, .nsizes = 3, .tolerance = 1e-4},
    {.text = ALONG, .sizes = {{"A", 33}, {"B", 17}, {"C", 20}}, .nsizes = 3, .tolerance = 1e-4},
    /* rows of tables, which go to the ranks that have their samples; and what is done with them there */
    {.file = "client/programs/embedding.fcc", .tolerance = 1e-5},
    {.file = "client/programs/embedding.fcc", .sizes = {{"B", 7}, {"D", 3}, {"N", 130}}, .nsizes = 3, .tolerance = 1e-5},
    {.text = "program means(T = 4, B = 6)\ngroups 2\nin w: bf16[T, 9, 8] sliced(0)\nin i: i32[200] local\nin offsets: "
             "i32[T*B/ranks + "
             "1] local\nin b: bf16[8]\nout y: bf16[B, T, 8] sliced(0)\nout z: bf16[B, T, 8]\np = embedding_mean(w, i, "
             "offsets)\ny = "
             "all_to_all(p, 0)\nz = relu(all_gather(y) + b)\n",
     .tolerance = 4e-2},
    /* each exchange and each layout of a send within and between groups; a product; results that are updated in place */
    {.text = GROUPS "", .tolerance = 1e-4},
    {.text = GROUPS "fuse s, p\nfuse product, added, y\n", .scheduled = true, .tolerance = 1e-4},
    {.text = GROUPS "split s\nreorder s\nfuse s_part, p_part, p as step\n", .scheduled = true, .tolerance = 1e-4},
    {.text =
         "program stages(N = 700, T = 5)\ngroups ranks\nin a: f32[N] local scattered(T)\ninout p: f32[N] scattered(T)\nout d: "
         "f32[N] local scattered(T)\ns = all_reduce(a)\np = p - 0.5 * s\nd = send(a, 3)\nschedule\nfuse s, p\n",
     .scheduled = true,
     .tolerance = 1e-4},
    {.file = "client/programs/lamb.fcc", .sizes = {{"N", 5000}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/lamb.fcc", .scheduled = true, .sizes = {{"N", 200003}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/lamb.fcc", .scheduled = true, .sizes = {{"N", 1}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/lamb.fcc", .scheduled = true, .sizes = {{"N", 0}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/lamb_mixed.fcc", .sizes = {{"N", 5000}}, .nsizes = 1, .tolerance = 2e-2},
    {.file = "client/programs/lamb_mixed.fcc", .scheduled = true, .sizes = {{"N", 20003}}, .nsizes = 1, .tolerance = 2e-2},
    {.file = "client/programs/lamb_tensors.fcc", .sizes = {{"N", 5000}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/lamb_tensors.fcc",
     .scheduled = true,
     .sizes = {{"N", 200003}, {"T", 37}},
     .nsizes = 2,
     .tolerance = 1e-4},
    {.file = "client/programs/lamb_tensors.fcc",
     .scheduled = true,
     .sizes = {{"N", 1}, {"T", 3}},
     .nsizes = 2,
     .tolerance = 1e-4},
    {.file = "client/programs/lamb_tensors.fcc",
     .scheduled = true,
     .sizes = {{"N", 0}, {"T", 1}},
     .nsizes = 2,
     .tolerance = 1e-4},
    {.file = "client/programs/lamb_tensors.fcc",
     .scheduled = true,
     .sizes = {{"N", 700}, {"T", 700}},
     .nsizes = 2,
     .tolerance = 1e-4},
    /* one pass over tensors that lie anywhere; what is added up and the result, too */
    {.text = ADAM_TENSORS "", .tolerance = 2e-2},
    {.text = ADAM_TENSORS "split s\nreorder s\nas_slice m\nfuse s_part, m_part, m, p as step\n",
     .scheduled = true,
     .tolerance = 2e-2},
    {.text = ADAM_TENSORS "fuse s, m, p\n", .scheduled = true, .tolerance = 2e-2},
    /* operators that need one piece, and sums of each tensor in each layout and dtype */
    {.text = "program tables(N = 3001, T = 9)\nin a: f32[N] local scattered(T)\nin h: bf16[N] scattered(T)\nin k: f32[T]\nout "
             "b, c: "
             "f32[N] scattered(T)\nout d: f32[N] local scattered(T)\nout e: f32[T]\nout f: bf16[T]\nout l: f32[T] local\nout "
             "o: f32[N]\nout w: f32[]\n"
             "b = all_reduce(a)\nc = broadcast(a, 0)\nd = send(a, 1)\ne = tensor_sum(f32(h)) * k\nf = tensor_norm(h)\nl = "
             "tensor_sum(a + 1)\n"
             "o = f32(h) * tensor_norm(f32(h)) - (e + e) * f32(h)\nw = norm(f32(h))\n",
     .tolerance = 2e-2},
    {.text = LAMB "", .tolerance = 1e-4},
    {.text = LAMB "split s\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "split s\nreorder s past a, m, v\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "split s\nreorder s\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "split s\nreorder s\nas_slice m\nas_slice v\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "fuse a, m, v, u, wide, long as moments\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "fuse s, a\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "split s\nreorder s\nas_slice m\nas_slice v\nfuse a, m_part, v_part, m, v, u, wide, long\nchunk s_part 2\n"
                  "overlap s_part, a\n",
     .scheduled = true,
     .tolerance = 1e-4},
    /* each sum of each layout and dtype; of expressions, in expressions; of one element and of many */
    {.text = "program sums(M = 7, N = 1301)\nin x: f32[M, N]\nin l: f32[M, N] local\nin t: f32[M, N] sliced(0)\nout a: f32[M, "
             "1]\nout b: f32[M, 1] local\nout c: f32[M, 1] sliced(0)\nout e: f32[]\nout f: f32[] local\nout k: f32[]\nout y: "
             "f32[M, N]\nout z: f32[M, N] sliced(0)\na = row_mean(x)\nb = row_norm(l + 1) * 2 + row_sum(l)\nc = row_sum(t)\ne "
             "= norm(x) + mean(t) - sum(x * 0.25)\nf = mean(l)\nk = norm(t)\ny = (x - row_mean(x)) / (row_norm(x) + 1) + x / "
             "(norm(x) + 1)\nz = t / (norm(t) + row_norm(t))\n",
     .tolerance = 1e-3},
    {.text = "program halves(M = 7, N = 130)\nin h: bf16[M, N]\nin t: f16[M, N] sliced(0)\nout d: bf16[M, 1]\nout e: f16[]\n"
             "d = row_mean(h * h)\ne = norm(t * 0.125)\n",
     .tolerance = 2e-2},
    {.text = "program layernorm(M = 9, N = 600)\nin x: f32[M, N] local\nin w: f32[N]\nout y: f32[M, N]\ns = all_reduce(x)\n"
             "c = s - row_mean(s)\ny = c / sqrt(row_mean(c * c) + 0.001) * w\nschedule\nsplit s\n",
     .scheduled = true,
     .tolerance = 1e-3},
    {.text = "program large(N = 300001)\nin x: f32[N]\nin t: f32[N] sliced(0)\nin h: f16[N] sliced(0)\nout a, b: f32[]\nout c: "
             "f16[]\n"
             "a = mean(x) + norm(x)\nb = norm(t) + mean(t)\nc = mean(h)\n",
     .tolerance = 1e-3},
    {.text = "program broken(N = 3000)\nin x: f32[N] sliced(0)\nin w: f32[5, N]\nout a, b: f32[]\nout y: f32[5, 1]\na = "
             "norm(log(x))\n"
             "b = sum(1 / (x * 0))\ny = row_norm(w * (1 / 0))\n",
     .tolerance = 1e-3},
    /* a sum over the ranks with what follows from its slices, and slices with what gathers them, each one step; sums beside them, of which some end alike */
    {.text = HALVES "fuse s, a, q, long, level as begin\nfuse d, y as end\n", .scheduled = true, .tolerance = 4e-2},
    {.text = HALVES "fuse s, a, q, long, level as begin\nfuse d, y as end\n",
     .scheduled = true,
     .sizes = {{"M", 411}, {"N", 600}},
     .nsizes = 2,
     .tolerance = 4e-2},
    {.text = HALVES "fuse s, a, q, long, level as begin\nfuse d, y as end\n",
     .scheduled = true,
     .sizes = {{"M", 1}, {"N", 3}},
     .nsizes = 2,
     .tolerance = 4e-2},
    {.text = HALVES "", .tolerance = 4e-2},
    {.text =
         "program end(M = 7, N = 130)\nin t: f32[M, N] sliced(0)\nin b: f32[N]\nin r: f32[M, N]\ninout y: f32[M, N]\nscalar "
         "seed, step\nout u: f32[M, N] sliced(0)\n"
         "a = dropout(t + b, 0.25, seed, step)\nu = a * 2\ny = all_gather(a + as_slice(r, 0) - as_slice(y, 0))\nschedule\n"
         "fuse a, u, y as end\n",
     .scheduled = true,
     .tolerance = 1e-4},
    {.text = "program all(N = 70001)\nin x: f32[N] local\nin t: f32[N] sliced(0)\nout y: f32[N]\nout k, l, m: f32[]\n"
             "s = reduce_scatter(x)\na = s * t\nb = norm(a)\nc = norm(s)\nd = sum(t)\ny = all_gather(a)\nk = b\nl = c\nm = d\n"
             "schedule\nfuse s, a, b, c, d, y as all\n",
     .scheduled = true,
     .tolerance = 1e-3},
    {.text = "program tables(N = 3001, T = 9)\nin a: bf16[N] local scattered(T)\nin p: f32[N] scattered(T)\ninout m: f32[N] "
             "sliced(0)\nout k: f32[]\nout c: f32[N] scattered(T)\n"
             "s = reduce_scatter(a)\nm = m * 0.5 + f32(s)\nlong = norm(m)\nd = m * 0.25\nc = all_gather(d + as_slice(p, 0))\n"
             "k = long\nschedule\nfuse s, m, long\nfuse d, c\n",
     .scheduled = true,
     .tolerance = 4e-2},
    {.text = "program many(N = 150001)\nin x: f32[N] sliced(0)\nin w: f32[N]\nout a, b, c, d, e, f, g: f32[]\nout h, i: f32[] "
             "local\n"
             "k = norm(x)\nl = norm(x * 2)\nm = norm(x + 1)\nn = mean(x)\no = mean(x * x)\np = sum(x)\nq = norm(x - 1)\nr = "
             "norm(w)\ns = sum(w * 0.125)\na = k\nb = l\nc = m\nd = n\ne = o\nf = p\ng = q\nh = as_local(r)\ni = as_local(s)\n"
             "schedule\nfuse k, l, m, n, o, p, q\nfuse r, s\n",
     .scheduled = true,
     .tolerance = 1e-3},
    {.text = MLP, .tolerance = 1e-5},
    {.text = MLP "fuse s, d, y\n", .scheduled = true, .tolerance = 1e-5},
    {.text = MLP "split s\nreorder s\nfuse s_part, d, y\n", .scheduled = true, .tolerance = 1e-5},
    {.text = MLP "split s\nreorder s\n", .scheduled = true, .tolerance = 1e-5},
    {.text = MLP "split s\nreorder s past d\n", .scheduled = true, .tolerance = 1e-5},
    {.text = "program halves(N = 1500)\nin g: bf16[N] local\nin c: f16[N]\ninout p: f32[N]\nout q: bf16[N]\ns = "
             "all_reduce(g)\nu = p - 0.5 * f32(s)\np = u\n"
             "q = bf16(f32(c) * u)\nschedule\nfuse s, u\n",
     .scheduled = true,
     .tolerance = 2e-2},
    {.text = "program products(M = 9, K = 64, N = 40)\nin a: f32[M, K] sliced(1)\nin b: f32[K, N] sliced(0)\nin r: f32[M, "
             "N]\nout y: f32[M, N]\n"
             "s = all_reduce(matmul(a, b))\ny = gelu(s) + r\n",
     .tolerance = 1e-4},
    /* products alone, of each layout; of views; used twice */
    {.text =
         "program alone(M = 9, K = 25, N = 24)\nin a: f32[M, K] local\nin b: f32[K, N] local\nin x: f32[M, K] sliced(0)\nin w: "
         "f32[K, N]\nin u: f32[M, K]\nin z: f32[K, N] sliced(1)\nout c: f32[M, N] local\nout d: f32[M, N] sliced(0)\nout e, h: "
         "f32[M, N]\nout f: "
         "f32[M, N] sliced(1)\nout g: f32[M, N] sliced(0)\n"
         "c = matmul(a, b)\nd = relu(matmul(x, w))\ne = matmul(u, w) + 1\nf = matmul(u, z)\ng = matmul(as_slice(u, 0), w)\n"
         "t = matmul(as_slice(u, 1), as_slice(w, 0))\nr = all_reduce(t * 2)\nh = all_reduce(t) + r\n",
     .tolerance = 1e-4},
    {.text = "program halves(M = 5, K = 32, N = 12)\nin a: bf16[M, K] sliced(1)\nin b: bf16[K, N] sliced(0)\nin u: bf16[N, "
             "3]\nout y: bf16[M, 3]\n"
             "y = matmul(all_reduce(matmul(a, b)) * 0.0625, u)\n",
     .tolerance = 4e-2},
    /* a whole MLP: the first product's columns are spread over the ranks, and its epilogue is the product's */
    {.file = "client/programs/mlp_whole.fcc",
     .scheduled = true,
     .sizes = {{"M", 7}, {"K", 24}, {"H", 20}},
     .nsizes = 3,
     .tolerance = 1e-4},
    {.text =
         "program alone(M = 9, K = 25, N = 24)\nin a: f32[M, K] local\nin b: f32[K, N] local\nin l: f32[N] local\nin x: f32[M, "
         "K]\nin w: "
         "f32[K, N] sliced(1)\nin v: f32[K, N]\nin n: f32[N]\nin r: f32[M, N]\nout c: f32[M, N] local\nout d: f32[M, N] "
         "sliced(1)\nout e: f32[M, N]\nout f: "
         "f32[M, N] sliced(0)\n"
         "p = matmul(a, b)\nc = relu(p + l + as_local(r))\nq = matmul(x, w)\nd = q + n + r\nt = matmul(x, v)\ne = silu(r + t)\n"
         "u = matmul(as_slice(x, 0), v)\nf = gelu(n + u) \nschedule\nfuse p, c\nfuse q, d\nfuse t, e\nfuse u, f\n",
     .scheduled = true,
     .tolerance = 1e-4},
    /* few rows by a matrix that is stored transposed, and rows of the sum on each rank */
    {.text = THIN "", .tolerance = 1e-4},
    {.text = THIN "fuse product, s, y\n", .scheduled = true, .tolerance = 1e-4},
    {.text = "program thin(M = 2, K = 70, N = 130)\nin x: bf16[M, K] sliced(1)\nin w: bf16[N, K] sliced(1)\nout y: bf16[M, N]\n"
             "y = all_reduce(matmul(x, transpose(w)))\n",
     .tolerance = 4e-2},
    {.text = PRODUCT "", .tolerance = 1e-4},
    {.text = PRODUCT "fuse s, y\n", .scheduled = true, .tolerance = 1e-4},
    {.text = PRODUCT "split s\nreorder s\nfuse s_part, y\n", .scheduled = true, .tolerance = 1e-4},
    {.text = PRODUCT "fuse product, s, y\n", .scheduled = true, .tolerance = 1e-4},
    {.text = PRODUCT "split s\n", .scheduled = true, .tolerance = 1e-4},
    {.text = PRODUCT "split s\nreorder s\n", .scheduled = true, .tolerance = 1e-4},
    {.text = PRODUCT "split s\nreorder s\nas_slice r\n", .scheduled = true, .tolerance = 1e-4},
    {.file = "client/programs/mlp.fcc",
     .scheduled = true,
     .sizes = {{"M", 7}, {"K", 40}, {"H", 24}},
     .nsizes = 3,
     .tolerance = 1e-4},
    {.text = "program scattered(M = 11, K = 64, N = 40)\nin a: f32[M, K] sliced(1)\nin b: f32[K, N] sliced(0)\nin bias: "
             "f32[N]\nin r: f32[M, N]\nin q: "
             "f32[M, N] sliced(0)\nout y: f32[M, N] sliced(0)\nout z: f32[M, N] sliced(0)\n"
             "p = matmul(a, b)\ns = reduce_scatter(p)\ny = silu(s + bias + as_slice(r, 0))\nt = matmul(a, b)\nu = "
             "reduce_scatter(t, 0)\nz = gelu(q + u)\n"
             "schedule\nfuse p, s, y\nfuse t, u, z\n",
     .scheduled = true,
     .tolerance = 1e-4},
    {.text = "program moves(N = 600)\nin a: f32[N] local\nin w: f32[1]\nin t: f32[N] sliced(0)\nout b, c, h: f32[N]\nout d, e: "
             "f32[N] local\nout f: f32[N] sliced(0)\n"
             "b = broadcast(a * 2, 0)\nd = send(a, 1)\ne = reduce(a, 0) + 1\nf = reduce_scatter(a, 0) * w + as_slice(b, 0)\nc "
             "= all_gather(t) + select(b < 0, 1, w)\nh = 3\n",
     .tolerance = 1e-5},
    {.text =
         "program all(N = 513)\nin x: f32[N]\nscalar k\nout y, z: f32[N]\na = abs(x) + 0.5\n"
         "y = max(exp(-a), min(log(a), k)) + pow(a, k) * tanh(x) - sigmoid(x) / rsqrt(a) + relu(x) * silu(x) + gelu(x)\n"
         "z = select(x >= k, sqrt(a), -x) + select(x == 0, 1, k * x) + select(x != 0, x, k) + select(x > 0, 1, x) + select(x "
         "<= k, x, 3)\n",
     .tolerance = 1e-4},
    /* what was read of a parameter stays what it was after the parameter's update */
    {.text =
         "program before(N = 1500)\ninout m: f32[N]\nout prev, z: f32[N]\nprev = m\nm = m * 0.5\nz = prev * 2\nschedule\nfuse "
         "prev, m, z\n",
     .scheduled = true,
     .tolerance = 1e-5},
    {.text = "program views(N = 1500)\ninout w, v: f32[N]\nout y: f32[N] local\nout z: f32[N] sliced(0)\nold = "
             "as_local(w)\npart = as_slice(v, 0)\n"
             "w = w * 0.5\nv = v * 0.25\ny = old + 1\nz = part + 1\n",
     .tolerance = 1e-5},
    {.text = "program nan(N = 600)\nin x: f32[N]\nout y, z: f32[N]\ny = relu(log(x))\nz = relu(0 / 0)\n", .tolerance = 1e-4},
    {.text = "program slices(N = 700)\nin x: f32[N] local\nin w: f32[N] sliced(0)\nout y: f32[N] sliced(0)\ns = "
             "all_reduce(x)\ny = s * w\nschedule\nfuse s, y\n",
     .scheduled = true,
     .tolerance = 1e-5},
    {.text = "program named(M = 5, N = 300)\nin x: f32[M, N]\nin b: f32[N]\nscalar seed, step\nout y: f32[M, N]\n"
             "d = dropout(b, 0.25, seed, step)\ny = x + d\n",
     .tolerance = 1e-5},
};

#endif
