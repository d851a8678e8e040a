/* A plugin of FD.io VPP for scripts/vpp.py: a node between the generator and ip4-input which holds back as many packets as 21 MB
 * have, so that each comes out of the L3 cache, as from a network card. */

#include <vlib/vlib.h>
#include <vnet/vnet.h>
#include <vnet/ip/ip.h>
#include <vnet/pg/pg.h>
#include <vnet/plugin/plugin.h>
#include <vpp/app/version.h>

#define HELD 9472 /* packets: 37 frames of 256 */

static u32 held[HELD];
static u32 next_slot;

typedef enum
{
  HOLD_NEXT_INPUT,
  HOLD_N_NEXT,
} hold_next_t;

static uword
hold_fn (vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
  u32 *from = vlib_frame_vector_args (frame);
  u32 out[VLIB_FRAME_SIZE], n_out = 0;

  for (u32 i = 0; i < frame->n_vectors; i++)
    {
      /* 0 is no index of a packet here: the first buffer of a pool is never used. */
      if (held[next_slot])
	out[n_out++] = held[next_slot];
      held[next_slot] = from[i];
      next_slot = next_slot + 1 == HELD ? 0 : next_slot + 1;
    }
  if (n_out)
    vlib_buffer_enqueue_to_single_next (vm, node, out, HOLD_NEXT_INPUT, n_out);
  return frame->n_vectors;
}

VLIB_REGISTER_NODE (hold_node) = {
  .function = hold_fn,
  .name = "hold",
  .vector_size = sizeof (u32),
  .type = VLIB_NODE_TYPE_INTERNAL,
  .n_next_nodes = HOLD_N_NEXT,
  .next_nodes = { [HOLD_NEXT_INPUT] = "ip4-input" },
};

/* The generator writes IPv4 headers as it does for ip4-input. */
static clib_error_t *
hold_init (vlib_main_t *vm)
{
  pg_get_node (hold_node.index)->unformat_edit = unformat_pg_ip4_header;
  return 0;
}

VLIB_INIT_FUNCTION (hold_init);

VLIB_PLUGIN_REGISTER () = {
  .version = VPP_BUILD_VER,
  .description = "Holds packets back",
};
