/* SPDX-License-Identifier: MIT
 *
 * product.h - products through rings, inside of the plug-in: launches that a rank makes by itself, one for each shape, and keeps.
 */
#ifndef FCC_KERNELS_GPU_PLUGIN_PRODUCT_H
#define FCC_KERNELS_GPU_PLUGIN_PRODUCT_H

#include "kernels/gpu/bound.h"
#include "kernels/gpu/plugin/inside.h"
#include "kernels/gpu/plugin/rings.h"

struct product_launch;

/* Of a communicator's rings. */
struct products {
    struct product_launch *launches; /* the one that was used last comes first */
    uint32_t n;                      /* of those that may be freed */
};

/* The epilogue's stages, as a header has them. */
uint32_t product_stages(const struct rings_product *what);
/* Enqueues a product on the stream. rings: as of every collective of the communicator. */
int product_start(struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *what,
                  hipStream_t stream, struct error *e);
/* All runs have ended. */
void products_free(struct products *products);

#endif
