// AES-GCM for OpenCL C and CUDA C++. Layouts of keys and packets: src/key.rs, src/packet.rs.
//
// A packet has 1 << shift lanes, a power of two up to 32. Its GHASH input (associated data,
// ciphertext, lengths) is a sequence of blocks, preceded by as many zero blocks as make it a
// multiple of two blocks per lane: leading zeros change no sum. In each turn a lane has two
// consecutive blocks of the sequence. AES is bitsliced over these two; GHASH multiplies with 32-bit
// integers that have three zero bits after each bit of an operand, so that no carry reaches the
// next bit.
//
// Constant time: addresses and loop counts depend on lengths and positions only. There is no table
// of an S-box or of a product, and no branch on a byte of a key or packet.
//
// Source: the S-box is the circuit of Boyar and Peralta ("A depth-16 circuit for the AES S-box").

#ifdef __OPENCL_VERSION__
typedef uint u32;
typedef ulong u64;
#define U64(x) x##UL
#define KERNEL __kernel
#define GLOBAL __global
#define LOCAL __local
#define ITEM ((u32)get_global_id(0))
#define LOCAL_ITEM ((u32)get_local_id(0))
#define SYNC() barrier(CLK_LOCAL_MEM_FENCE)
#define FN static inline
#define RESTRICT restrict
#else
typedef unsigned int u32;
typedef unsigned long long u64;
#define U64(x) x##ULL
#define KERNEL extern "C" __global__
#define GLOBAL
#define LOCAL __shared__
#define ITEM (blockIdx.x * blockDim.x + threadIdx.x)
#define LOCAL_ITEM (threadIdx.x)
#define SYNC() __syncthreads()
#define FN static __device__ __forceinline__
#define RESTRICT __restrict__
#endif

// Items of a work group, a multiple of the most lanes of a packet. src/packet.rs has it, too.
#define WORK_GROUP 64
// Words of a key slot: round keys, number of rounds, powers of the hash key.
#define KEY_WORDS 384
#define KEY_ROUNDS 120
#define KEY_POWERS 128
// Words of a packet's descriptor.
#define DESCRIPTOR 12

typedef struct {
  u64 hi, lo;
} Block;

FN u32 swap_bytes(u32 x) {
  return (x >> 24) | ((x >> 8) & 0xFF00) | ((x << 8) & 0xFF0000) | (x << 24);
}

// Exchanges bits of two words: those of `low` in y with those of its complement in x.
#define EXCHANGE(low, s, x, y)                       \
  {                                                  \
    u32 a = x, b = y;                                \
    x = (a & low) | ((b & low) << s);                \
    y = ((a & ~low) >> s) | (b & ~low);              \
  }

// Two blocks, word by word, to bit planes and back: transposes the 8 × 8 bits of each byte.
FN void transpose(u32 *q) {
  for (u32 i = 0; i < 8; i += 2) EXCHANGE(0x55555555u, 1, q[i], q[i + 1])
  for (u32 i = 0; i < 2; i++) {
    EXCHANGE(0x33333333u, 2, q[i], q[i + 2])
    EXCHANGE(0x33333333u, 2, q[i + 4], q[i + 6])
  }
  for (u32 i = 0; i < 4; i++) EXCHANGE(0x0F0F0F0Fu, 4, q[i], q[i + 4])
}

FN void sub_bytes(u32 *q) {
  u32 x0 = q[7], x1 = q[6], x2 = q[5], x3 = q[4], x4 = q[3], x5 = q[2], x6 = q[1], x7 = q[0];
  u32 y14 = x3 ^ x5, y13 = x0 ^ x6, y9 = x0 ^ x3, y8 = x0 ^ x5, t0 = x1 ^ x2, y1 = t0 ^ x7;
  u32 y4 = y1 ^ x3, y12 = y13 ^ y14, y2 = y1 ^ x0, y5 = y1 ^ x6, y3 = y5 ^ y8, t1 = x4 ^ y12;
  u32 y15 = t1 ^ x5, y20 = t1 ^ x1, y6 = y15 ^ x7, y10 = y15 ^ t0, y11 = y20 ^ y9;
  u32 y7 = x7 ^ y11, y17 = y10 ^ y11, y19 = y10 ^ y8, y16 = t0 ^ y11, y21 = y13 ^ y16;
  u32 y18 = x0 ^ y16;
  u32 t2 = y12 & y15, t3 = y3 & y6, t4 = t3 ^ t2, t5 = y4 & x7, t6 = t5 ^ t2, t7 = y13 & y16;
  u32 t8 = y5 & y1, t9 = t8 ^ t7, t10 = y2 & y7, t11 = t10 ^ t7, t12 = y9 & y11;
  u32 t13 = y14 & y17, t14 = t13 ^ t12, t15 = y8 & y10, t16 = t15 ^ t12, t17 = t4 ^ t14;
  u32 t18 = t6 ^ t16, t19 = t9 ^ t14, t20 = t11 ^ t16, t21 = t17 ^ y20, t22 = t18 ^ y19;
  u32 t23 = t19 ^ y21, t24 = t20 ^ y18, t25 = t21 ^ t22, t26 = t21 & t23, t27 = t24 ^ t26;
  u32 t28 = t25 & t27, t29 = t28 ^ t22, t30 = t23 ^ t24, t31 = t22 ^ t26, t32 = t31 & t30;
  u32 t33 = t32 ^ t24, t34 = t23 ^ t33, t35 = t27 ^ t33, t36 = t24 & t35, t37 = t36 ^ t34;
  u32 t38 = t27 ^ t36, t39 = t29 & t38, t40 = t25 ^ t39, t41 = t40 ^ t37, t42 = t29 ^ t33;
  u32 t43 = t29 ^ t40, t44 = t33 ^ t37, t45 = t42 ^ t41;
  u32 z0 = t44 & y15, z1 = t37 & y6, z2 = t33 & x7, z3 = t43 & y16, z4 = t40 & y1;
  u32 z5 = t29 & y7, z6 = t42 & y11, z7 = t45 & y17, z8 = t41 & y10, z9 = t44 & y12;
  u32 z10 = t37 & y3, z11 = t33 & y4, z12 = t43 & y13, z13 = t40 & y5, z14 = t29 & y2;
  u32 z15 = t42 & y9, z16 = t45 & y14, z17 = t41 & y8;
  u32 t46 = z15 ^ z16, t47 = z10 ^ z11, t48 = z5 ^ z13, t49 = z9 ^ z10, t50 = z2 ^ z12;
  u32 t51 = z2 ^ z5, t52 = z7 ^ z8, t53 = z0 ^ z3, t54 = z6 ^ z7, t55 = z16 ^ z17;
  u32 t56 = z12 ^ t48, t57 = t50 ^ t53, t58 = z4 ^ t46, t59 = z3 ^ t54, t60 = t46 ^ t57;
  u32 t61 = z14 ^ t57, t62 = t52 ^ t58, t63 = t49 ^ t58, t64 = z4 ^ t59, t65 = t61 ^ t62;
  u32 t66 = z1 ^ t63, s0 = t59 ^ t63, s6 = t56 ^ ~t62, s7 = t48 ^ ~t60, t67 = t64 ^ t65;
  u32 s3 = t53 ^ t66, s4 = t51 ^ t66, s5 = t47 ^ t65, s1 = t64 ^ ~s3, s2 = t55 ^ ~t67;
  q[7] = s0; q[6] = s1; q[5] = s2; q[4] = s3; q[3] = s4; q[2] = s5; q[1] = s6; q[0] = s7;
}

// Byte r of a plane is row r of both states, with two bits per column: row r rotates by 2r bits.
FN void shift_rows(u32 *q) {
  for (u32 i = 0; i < 8; i++) {
    u32 x = q[i];
    q[i] = (x & 0xFF) | ((x & 0xFC00) >> 2) | ((x & 0x0300) << 6) | ((x & 0xF00000) >> 4)
         | ((x & 0x0F0000) << 4) | ((x & 0xC0000000u) >> 6) | ((x & 0x3F000000) << 2);
  }
}

// 2 (s0 + s1) + s1 + s2 + s3 for each byte s0 and those below it in its column.
FN void mix_columns(u32 *q) {
  u32 next[8], sum[8];
  for (u32 i = 0; i < 8; i++) {
    next[i] = (q[i] >> 8) | (q[i] << 24);
    sum[i] = q[i] ^ next[i];
  }
  for (u32 i = 0; i < 8; i++) {
    u32 x = next[i] ^ (sum[i] >> 16) ^ (sum[i] << 16);
    if (i > 0) x ^= sum[i - 1];
    if (i == 0 || i == 1 || i == 3 || i == 4) x ^= sum[7];
    q[i] = x;
  }
}

FN void add_round_key(u32 *q, GLOBAL const u32 *key) {
  for (u32 i = 0; i < 8; i++) q[i] ^= key[i];
}

// Encrypts two blocks, with alternating words in q.
FN void encrypt(u32 *q, GLOBAL const u32 *key) {
  u32 rounds = key[KEY_ROUNDS];
  transpose(q);
  add_round_key(q, key);
  for (u32 round = 1; round < rounds; round++) {
    sub_bytes(q);
    shift_rows(q);
    mix_columns(q);
    add_round_key(q, key + 8 * round);
  }
  sub_bytes(q);
  shift_rows(q);
  add_round_key(q, key + 8 * rounds);
  transpose(q);
}

#define WIDE(x, y) ((u64)(x) * (y))

// Product of two polynomials of degree 31. Each operand is cut into four, with every fourth bit:
// at most eight products meet at a bit, and their sum has four bits.
FN u64 multiply_32(u32 x, u32 y) {
  u32 x0 = x & 0x11111111u, x1 = x & 0x22222222u, x2 = x & 0x44444444u, x3 = x & 0x88888888u;
  u32 y0 = y & 0x11111111u, y1 = y & 0x22222222u, y2 = y & 0x44444444u, y3 = y & 0x88888888u;
  u64 z0 = WIDE(x0, y0) ^ WIDE(x1, y3) ^ WIDE(x2, y2) ^ WIDE(x3, y1);
  u64 z1 = WIDE(x0, y1) ^ WIDE(x1, y0) ^ WIDE(x2, y3) ^ WIDE(x3, y2);
  u64 z2 = WIDE(x0, y2) ^ WIDE(x1, y1) ^ WIDE(x2, y0) ^ WIDE(x3, y3);
  u64 z3 = WIDE(x0, y3) ^ WIDE(x1, y2) ^ WIDE(x2, y1) ^ WIDE(x3, y0);
  return (z0 & U64(0x1111111111111111)) | (z1 & U64(0x2222222222222222))
       | (z2 & U64(0x4444444444444444)) | (z3 & U64(0x8888888888888888));
}

// Product of two polynomials of degree 63 (Karatsuba).
FN Block multiply_64(u64 x, u64 y) {
  u32 x0 = (u32)x, x1 = (u32)(x >> 32), y0 = (u32)y, y1 = (u32)(y >> 32);
  u64 low = multiply_32(x0, y0), high = multiply_32(x1, y1);
  u64 middle = multiply_32(x0 ^ x1, y0 ^ y1) ^ low ^ high;
  Block z;
  z.lo = low ^ (middle << 32);
  z.hi = high ^ (middle >> 32);
  return z;
}

// Product in the field of GCM. Its first bit is the highest one of `hi`.
FN Block multiply(Block x, Block y) {
  Block low = multiply_64(x.lo, y.lo), high = multiply_64(x.hi, y.hi);
  Block middle = multiply_64(x.lo ^ x.hi, y.lo ^ y.hi);
  u64 z0 = low.lo, z3 = high.hi;
  u64 z1 = low.hi ^ middle.lo ^ low.lo ^ high.lo, z2 = high.lo ^ middle.hi ^ low.hi ^ high.hi;
  // The product of reversed polynomials has 255 bits: one shift brings the first to the top.
  z3 = (z3 << 1) | (z2 >> 63);
  z2 = (z2 << 1) | (z1 >> 63);
  z1 = (z1 << 1) | (z0 >> 63);
  z0 <<= 1;
  // x^128 = x^7 + x^2 + x + 1, from the highest power down.
  z2 ^= z0 ^ (z0 >> 1) ^ (z0 >> 2) ^ (z0 >> 7);
  z1 ^= (z0 << 63) ^ (z0 << 62) ^ (z0 << 57);
  z3 ^= z1 ^ (z1 >> 1) ^ (z1 >> 2) ^ (z1 >> 7);
  z2 ^= (z1 << 63) ^ (z1 << 62) ^ (z1 << 57);
  Block z;
  z.hi = z3;
  z.lo = z2;
  return z;
}

FN Block block(u32 a, u32 b, u32 c, u32 d) {
  Block x;
  x.hi = ((u64)swap_bytes(a) << 32) | swap_bytes(b);
  x.lo = ((u64)swap_bytes(c) << 32) | swap_bytes(d);
  return x;
}

// The lowest `bytes` bytes of a word; all four if there are more.
FN u32 first_bytes(u32 bytes) {
  return bytes >= 4 ? 0xFFFFFFFFu : (1u << (8 * bytes)) - 1;
}

// The XOR of a keystream and a block of `left` bytes or more; bytes beyond are zero.
FN void apply(GLOBAL u32 *at, u32 left, const u32 *stream, u32 open, u32 *cipher) {
  for (u32 i = 0; i < 4; i++) {
    u32 keep = first_bytes(left > 4 * i ? left - 4 * i : 0), in = at[i] & keep;
    u32 out = (in ^ stream[i]) & keep;
    cipher[i] = open ? in : out;
    at[i] = out;
  }
}

// Returns true if a packet uses only its key table and the bodies, whatever its descriptor contains.
FN u32 is_inside(GLOBAL const u32 *descriptor, u32 data, u32 tags, u32 key_slots) {
  u32 body = descriptor[0], len = descriptor[1];
  return body >= data && body <= tags && len <= 4 * (tags - body) && (body & 3) == 0
      && descriptor[2] <= 16 && descriptor[3] < key_slots;
}

// keys: slots of KEY_WORDS. slot: descriptors before word `data`, the first one last; bodies from
// there on; tags of four words each at word `tags`. `data` and `tags` are multiples of four.
KERNEL void aes_gcm(GLOBAL const u32 *RESTRICT keys, GLOBAL u32 *RESTRICT slot, u32 data, u32 tags,
                    u32 packets, u32 shift, u32 key_slots) {
  LOCAL u64 sums[2 * WORK_GROUP];
  u32 lanes = 1u << shift, packet = ITEM >> shift, lane = LOCAL_ITEM & (lanes - 1);
  Block sum, tag_mask;
  sum.hi = sum.lo = tag_mask.hi = tag_mask.lo = 0;
  GLOBAL const u32 *descriptor = slot + (data - DESCRIPTOR * (packet + 1));
  if (packet < packets && is_inside(descriptor, data, tags, key_slots)) {
    GLOBAL u32 *body = slot + descriptor[0];
    u32 len = descriptor[1], aad_len = descriptor[2], open = descriptor[7];
    u32 nonce0 = descriptor[4], nonce1 = descriptor[5], nonce2 = descriptor[6];
    GLOBAL const u32 *key = keys + KEY_WORDS * descriptor[3];
    u32 aad_blocks = (aad_len + 15) / 16, body_blocks = (len + 15) / 16;
    u32 blocks = aad_blocks + body_blocks + 1, turns = (blocks + 2 * lanes - 1) / (2 * lanes);
    u32 zeros = 2 * lanes * turns - blocks;
    Block sum2;
    sum2.hi = sum2.lo = 0;
    for (u32 turn = 0; turn < turns; turn++) {
      // Below zero, and therefore above every limit, for the zero blocks.
      u32 first = 2 * lanes * turn + 2 * lane - zeros;
      u32 q[8];
      for (u32 j = 0; j < 2; j++) {
        u32 at = first + j;
        // Counter 1 masks the tag: it is encrypted in the place of the lengths.
        u32 counter = at == blocks - 1 ? 1 : at - aad_blocks + 2;
        q[j] = nonce0; q[2 + j] = nonce1; q[4 + j] = nonce2;
        q[6 + j] = swap_bytes(counter);
      }
      encrypt(q, key);
      // The last turn brings each lane's sum to its place; those before, one turn further.
      u32 last = turn == turns - 1;
      // One block after the other: both at a time need twice the registers.
#pragma unroll 1
      for (u32 j = 0; j < 2; j++) {
        u32 at = first + j, stream[4], input[4];
        for (u32 i = 0; i < 4; i++) {
          stream[i] = j ? q[2 * i + 1] : q[2 * i];
          input[i] = 0;
        }
        if (at < aad_blocks) {
          for (u32 i = 0; i < 4; i++) input[i] = descriptor[8 + i];
        } else if (at - aad_blocks < body_blocks) {
          u32 block_at = at - aad_blocks;
          apply(body + 4 * block_at, len - 16 * block_at, stream, open, input);
        } else if (at == blocks - 1) {
          input[1] = swap_bytes(8 * aad_len);
          input[3] = swap_bytes(8 * len);
          tag_mask = block(stream[0], stream[1], stream[2], stream[3]);
        }
        u32 power = last ? 2 * (lanes - lane) - j : 2 * lanes;
        GLOBAL const u32 *h = key + KEY_POWERS + 4 * (power - 1);
        Block x = block(input[0], input[1], input[2], input[3]), y;
        y.hi = ((u64)h[0] << 32) | h[1];
        y.lo = ((u64)h[2] << 32) | h[3];
        x.hi ^= sum.hi;
        x.lo ^= sum.lo;
        // The sums take turns.
        sum = sum2;
        sum2 = multiply(x, y);
      }
    }
    sum.hi ^= sum2.hi ^ tag_mask.hi;
    sum.lo ^= sum2.lo ^ tag_mask.lo;
  }
  sums[LOCAL_ITEM] = sum.hi;
  sums[WORK_GROUP + LOCAL_ITEM] = sum.lo;
  SYNC();
  for (u32 step = lanes / 2; step > 0; step /= 2) {
    if (lane < step) {
      sums[LOCAL_ITEM] ^= sums[LOCAL_ITEM + step];
      sums[WORK_GROUP + LOCAL_ITEM] ^= sums[WORK_GROUP + LOCAL_ITEM + step];
    }
    SYNC();
  }
  if (lane == 0 && packet < packets) {
    u64 hi = sums[LOCAL_ITEM], lo = sums[WORK_GROUP + LOCAL_ITEM];
    GLOBAL u32 *tag = slot + tags + 4 * packet;
    tag[0] = swap_bytes((u32)(hi >> 32));
    tag[1] = swap_bytes((u32)hi);
    tag[2] = swap_bytes((u32)(lo >> 32));
    tag[3] = swap_bytes((u32)lo);
  }
}
