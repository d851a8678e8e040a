/*
 * Between Weir and intel-ipsec-mb, so that no Rust type has to mirror IMB_MGR or IMB_JOB: their
 * layout differs between versions. What the two sides share is `struct weir_op` and plain
 * functions; the Rust side is sys.rs beside this file. Written for 1.3 and later, 2.x included: the headers of 1.4, 1.5,
 * 2.0 and 2.0.2 compile, too.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <intel-ipsec-mb.h>

#if IMB_VERSION_NUM < IMB_VERSION(1, 3, 0)
#error "intel-ipsec-mb 1.3 or later is needed: earlier ones have no burst API"
#endif

/* Reserved by sys.rs. */
_Static_assert(sizeof(struct gcm_key_data) <= WEIR_GCM_KEY_BYTES, "GCM key");
_Static_assert(_Alignof(struct gcm_key_data) <= 64, "alignment of a GCM key");
_Static_assert(sizeof(struct gcm_context_data) <= 128, "GCM context");
_Static_assert(IMB_DES_KEY_SCHED_SIZE == 128, "DES key schedule");

/* One operation on one packet, in place. Mirrored in sys.rs, field by field. */
struct weir_op {
        const void *enc;        /* AES or GCM schedule, or the ChaCha20 key */
        const void *dec;        /* AES schedule for decryption */
        const void *des[3];     /* DES schedules, used in this order by 3DES encryption */
        const void *mac[3];     /* HMAC: inner and outer state; XCBC: k1, k2, k3; CMAC: key, k1, k2 */
        uint8_t *packet;
        const uint8_t *aad;
        uint64_t aad_len;
        uint32_t body_at, body_len;
        uint32_t cover_at, cover_len;
        uint8_t iv[16];
        uint8_t tag[64];        /* written */
        uint8_t cipher, hash;   /* WEIR_* below */
        uint8_t key_len, iv_len, tag_len;
        uint8_t encrypt;
        uint8_t done;           /* written: the tag and the body are there */
        uint8_t own[41];        /* number of the job, not accessed here */
};
_Static_assert(sizeof(struct weir_op) == 11 * 8 + 4 * 4 + 16 + 64 + 48, "as in sys.rs");

/* Operations of a call. */
#define BURST 64

enum { WEIR_NULL, WEIR_AES_CBC, WEIR_AES_CTR, WEIR_DES, WEIR_3DES, WEIR_GCM, WEIR_CHACHA, WEIR_CCM };
enum { WEIR_MD5, WEIR_SHA1, WEIR_SHA256, WEIR_SHA384, WEIR_SHA512, WEIR_XCBC, WEIR_CMAC, WEIR_AEAD };

static const IMB_CIPHER_MODE ciphers[] = {
        [WEIR_NULL] = IMB_CIPHER_NULL,  [WEIR_AES_CBC] = IMB_CIPHER_CBC,
        [WEIR_AES_CTR] = IMB_CIPHER_CNTR, [WEIR_DES] = IMB_CIPHER_DES,
        [WEIR_3DES] = IMB_CIPHER_DES3,  [WEIR_GCM] = IMB_CIPHER_GCM,
        [WEIR_CHACHA] = IMB_CIPHER_CHACHA20_POLY1305, [WEIR_CCM] = IMB_CIPHER_CCM,
};

static const IMB_HASH_ALG hashes[] = {
        [WEIR_MD5] = IMB_AUTH_MD5,      [WEIR_SHA1] = IMB_AUTH_HMAC_SHA_1,
        [WEIR_SHA256] = IMB_AUTH_HMAC_SHA_256, [WEIR_SHA384] = IMB_AUTH_HMAC_SHA_384,
        [WEIR_SHA512] = IMB_AUTH_HMAC_SHA_512, [WEIR_XCBC] = IMB_AUTH_AES_XCBC,
        [WEIR_CMAC] = IMB_AUTH_AES_CMAC,
};

/* The version that was linked. */
const char *weir_mb_version_text(void) { return imb_get_version_str(); }

/* The numbers of the enumeration differ between versions. */
static const char *arch_name(IMB_ARCH arch)
{
        switch (arch) {
        case IMB_ARCH_SSE: return "sse";
#if IMB_VERSION_NUM < IMB_VERSION(2, 0, 0)
        case IMB_ARCH_AVX: return "avx";
#endif
        case IMB_ARCH_AVX2: return "avx2";
        case IMB_ARCH_AVX512: return "avx512";
#if IMB_VERSION_NUM >= IMB_VERSION(3, 0, 0)
        case IMB_ARCH_AVX10: return "avx10";
#endif
        default: return "unknown";
        }
}

/* With this object the linker takes functions that are in place of unused ones of the library
 * (build/unused.rs). */
extern const int weir_mb_unused;

/* A manager for one thread, set up for this processor; NULL when there is no memory, when the
 * processor lacks AVX2 or AES instructions, or when the library's self-test failed. The managers for
 * processors without AVX2 are left out. */
IMB_MGR *weir_mb_new(const char **arch)
{
        IMB_ARCH used = IMB_ARCH_NONE;
        IMB_MGR *mgr = weir_mb_unused ? alloc_mb_mgr(0) : NULL;

        if (mgr == NULL)
                return NULL;
        if ((mgr->features & IMB_CPUFLAGS_AVX2) != IMB_CPUFLAGS_AVX2) {
                free_mb_mgr(mgr);
                return NULL;
        }
        init_mb_mgr_auto(mgr, &used);
        const int tested = (mgr->features & IMB_FEATURE_SELF_TEST) == 0 ||
                           (mgr->features & IMB_FEATURE_SELF_TEST_PASS) != 0;
        if (imb_get_errno(mgr) != 0 || !tested || (mgr->features & IMB_FEATURE_AESNI) == 0) {
                free_mb_mgr(mgr);
                return NULL;
        }
        *arch = arch_name(used);
        return mgr;
}

/* Jobs of the passes over a burst, for one thread; NULL when there is no memory. Fields that no
 * pass writes stay zero. One more job than a pass uses has the fields that all have in common. */
IMB_JOB *weir_mb_jobs_new(void) { return calloc(BURST + 1, sizeof(IMB_JOB)); }

/* Jobs, and the lanes with what is left of the keys they ran under, are overwritten. The lanes lie behind the
 * struct, in the one block that alloc_mb_mgr() takes for both. */
void weir_mb_free(IMB_MGR *mgr, IMB_JOB *jobs)
{
        free(jobs);
        imb_clear_mem(mgr, imb_get_mb_mgr_size());
        free_mb_mgr(mgr);
}

/* Whether AES-GCM runs on vectors of blocks. */
int weir_mb_has_vaes(const IMB_MGR *mgr)
{
        return (mgr->features & (IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ)) ==
               (IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ);
}

/* The direct calls of AES-GCM; they use nothing of a manager, so any thread may call them. */
aes_gcm_enc_dec_t weir_mb_gcm(const IMB_MGR *mgr, unsigned key_len, int encrypt)
{
        switch (key_len) {
        case 16: return encrypt ? mgr->gcm128_enc : mgr->gcm128_dec;
        case 32: return encrypt ? mgr->gcm256_enc : mgr->gcm256_dec;
        default: return NULL;
        }
}

int weir_mb_expand_gcm(const IMB_MGR *mgr, const uint8_t *key, unsigned key_len, struct gcm_key_data *to)
{
        switch (key_len) {
        case 16: IMB_AES128_GCM_PRE(mgr, key, to); return 1;
        case 32: IMB_AES256_GCM_PRE(mgr, key, to); return 1;
        default: return 0;
        }
}

/* Both schedules are always written, 240 bytes reserved for each. */
int weir_mb_expand_aes(const IMB_MGR *mgr, const uint8_t *key, unsigned key_len, void *enc, void *dec)
{
        switch (key_len) {
        case 16: IMB_AES_KEYEXP_128(mgr, key, enc, dec); return 1;
        case 24: IMB_AES_KEYEXP_192(mgr, key, enc, dec); return 1;
        case 32: IMB_AES_KEYEXP_256(mgr, key, enc, dec); return 1;
        default: return 0;
        }
}

void weir_mb_expand_des(const IMB_MGR *mgr, const uint8_t *key, uint64_t *to)
{
        IMB_DES_KEYSCHED(mgr, to, key);
}

/* The state of `hash` after one block; 64 bytes reserved. */
int weir_mb_one_block(const IMB_MGR *mgr, unsigned hash, const uint8_t *block, void *to)
{
        switch (hash) {
        case WEIR_MD5: IMB_MD5_ONE_BLOCK(mgr, block, to); return 1;
        case WEIR_SHA1: IMB_SHA1_ONE_BLOCK(mgr, block, to); return 1;
        case WEIR_SHA256: IMB_SHA256_ONE_BLOCK(mgr, block, to); return 1;
        case WEIR_SHA384: IMB_SHA384_ONE_BLOCK(mgr, block, to); return 1;
        case WEIR_SHA512: IMB_SHA512_ONE_BLOCK(mgr, block, to); return 1;
        default: return 0;
        }
}

/* k1 of XCBC and the key of CMAC are AES-128 schedules. */
void weir_mb_expand_xcbc(const IMB_MGR *mgr, const uint8_t *key, void *k1, void *k2, void *k3)
{
        IMB_AES_XCBC_KEYEXP(mgr, key, k1, k2, k3);
}

void weir_mb_expand_cmac(const IMB_MGR *mgr, const uint8_t *key, void *schedule, void *unused, void *k1, void *k2)
{
        IMB_AES_KEYEXP_128(mgr, key, schedule, unused);
        IMB_AES_CMAC_SUBKEY_GEN_128(mgr, schedule, k1, k2);
}

static void fill(IMB_JOB *job, struct weir_op *op)
{
        job->src = op->packet;
        job->dst = op->packet + op->body_at;
        job->cipher_mode = ciphers[op->cipher];
        job->cipher_direction = op->encrypt ? IMB_DIR_ENCRYPT : IMB_DIR_DECRYPT;
        job->chain_order = op->encrypt ? IMB_ORDER_CIPHER_HASH : IMB_ORDER_HASH_CIPHER;
        job->enc_keys = op->enc;
        job->dec_keys = op->dec;
        job->key_len_in_bytes = op->key_len;
        job->cipher_start_src_offset_in_bytes = op->body_at;
        job->msg_len_to_cipher_in_bytes = op->body_len;
        job->hash_start_src_offset_in_bytes = op->cover_at;
        job->msg_len_to_hash_in_bytes = op->cover_len;
        job->iv = op->iv;
        job->iv_len_in_bytes = op->iv_len;
        job->auth_tag_output = op->tag;
        job->auth_tag_output_len_in_bytes = op->tag_len;
        job->user_data = op;
        switch (op->cipher) {
        case WEIR_GCM:
                job->hash_alg = IMB_AUTH_AES_GMAC;
                job->u.GCM.aad = op->aad;
                job->u.GCM.aad_len_in_bytes = op->aad_len;
                return;
        case WEIR_CHACHA:
                job->hash_alg = IMB_AUTH_CHACHA20_POLY1305;
                job->u.CHACHA20_POLY1305.aad = op->aad;
                job->u.CHACHA20_POLY1305.aad_len_in_bytes = op->aad_len;
                return;
        case WEIR_CCM:
                /* The order is that of CCM, not that of the two passes of another suite. */
                job->chain_order = op->encrypt ? IMB_ORDER_HASH_CIPHER : IMB_ORDER_CIPHER_HASH;
                job->hash_alg = IMB_AUTH_AES_CCM;
                job->u.CCM.aad = op->aad;
                job->u.CCM.aad_len_in_bytes = op->aad_len;
                return;
        case WEIR_DES:
                job->enc_keys = op->des[0];
                job->dec_keys = op->des[0];
                break;
        case WEIR_3DES:
                job->enc_keys = op->des;
                job->dec_keys = op->des;
                break;
        default:
                break;
        }
        job->hash_alg = hashes[op->hash];
        switch (op->hash) {
        case WEIR_XCBC:
                job->u.XCBC._k1_expanded = op->mac[0];
                job->u.XCBC._k2 = op->mac[1];
                job->u.XCBC._k3 = op->mac[2];
                return;
        case WEIR_CMAC:
                job->u.CMAC._key_expanded = op->mac[0];
                job->u.CMAC._skey1 = op->mac[1];
                job->u.CMAC._skey2 = op->mac[2];
                return;
        default:
                job->u.HMAC._hashed_auth_key_xor_ipad = op->mac[0];
                job->u.HMAC._hashed_auth_key_xor_opad = op->mac[1];
                return;
        }
}

static void collect(IMB_JOB **jobs, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++) {
                struct weir_op *op = jobs[i]->user_data;

                op->done = jobs[i]->status == IMB_STATUS_COMPLETED;
        }
}

/* Runs every operation to its end. One that the library refuses stays not done and its packet
 * untouched; the library refuses a burst as a whole. The manager is empty afterwards. */
void weir_mb_run(IMB_MGR *mgr, struct weir_op *ops, uint32_t n)
{
        IMB_JOB *jobs[BURST];

        while (n > 0) {
                uint32_t got = IMB_GET_NEXT_BURST(mgr, n < BURST ? n : BURST, jobs);
                uint32_t done;

                if (got == 0)
                        return; /* cannot be: nothing is left in the manager by the round before */
                for (uint32_t i = 0; i < got; i++) {
                        fill(jobs[i], &ops[i]);
#if IMB_VERSION_NUM >= IMB_VERSION(1, 4, 0)
                        /* What imb_set_session() does that matters here; that would count sessions
                         * besides, in a number that all cores write. */
                        mgr->set_suite_id(mgr, jobs[i]);
#endif
                }
                ops += got;
                n -= got;
                done = IMB_SUBMIT_BURST(mgr, got, jobs);
                collect(jobs, done);
                while ((done = IMB_FLUSH_BURST(mgr, BURST, jobs)) > 0)
                        collect(jobs, done);
        }
}

/* One packet of a burst in which all have one cipher and one hash. Mirrored in sys/chain.rs, field
 * by field. A cache line, so that filling it costs little compared with a small packet's cipher. */
struct weir_chain_op {
        uint8_t *packet;
        const void *key;                /* AES schedule of the direction */
        const uint8_t *states;          /* HMAC: inner state, then the outer one */
        uint32_t body_at, body_len;
        uint32_t cover_at, cover_len;
        uint32_t icv_at;
        uint32_t own;                   /* of the Rust side */
        uint8_t iv[16];
};
_Static_assert(sizeof(struct weir_chain_op) == 64, "as in sys/chain.rs");

/* Encrypts or decrypts the body of at most BURST packets with AES. Lengths and pointers must be
 * right, because the library does not check them here. Returns whether all are done; if not, any of
 * them may be. The manager is empty afterwards. */
int weir_mb_cipher(IMB_MGR *mgr, IMB_JOB *jobs, const struct weir_chain_op *ops, uint32_t n, unsigned cipher,
                   unsigned key_len, int encrypt)
{
        const IMB_CIPHER_MODE mode = ciphers[cipher];
        const IMB_CIPHER_DIRECTION direction = encrypt ? IMB_DIR_ENCRYPT : IMB_DIR_DECRYPT;
        const IMB_JOB *common = &jobs[BURST];

        /* Seldom: the next burst is probably of the same suite. */
        if (common->cipher_mode != mode || common->cipher_direction != direction ||
            common->key_len_in_bytes != key_len) {
                for (uint32_t i = 0; i <= BURST; i++) {
                        jobs[i].key_len_in_bytes = key_len;
                        jobs[i].iv_len_in_bytes = sizeof(ops->iv);
                        jobs[i].cipher_mode = mode;
                        jobs[i].cipher_direction = direction;
                }
        }
        for (uint32_t i = 0; i < n; i++) {
                IMB_JOB *job = &jobs[i];
                const struct weir_chain_op *op = &ops[i];

                job->src = op->packet;
                job->dst = op->packet + op->body_at;
                job->cipher_start_src_offset_in_bytes = op->body_at;
                job->msg_len_to_cipher_in_bytes = op->body_len;
                job->enc_keys = op->key;
                job->dec_keys = op->key;
                job->iv = op->iv;
        }
        return IMB_SUBMIT_CIPHER_BURST_NOCHECK(mgr, jobs, n, mode, direction, key_len) == n;
}

/* Computes the HMAC of at most BURST packets: into the packets, or where `tags` is given, into its
 * elements of 64 bytes. Otherwise as weir_mb_cipher(). */
int weir_mb_hash(IMB_MGR *mgr, IMB_JOB *jobs, const struct weir_chain_op *ops, uint32_t n, unsigned hash,
                 unsigned tag_len, uint8_t (*tags)[64])
{
        const IMB_HASH_ALG alg = hashes[hash];

        if (jobs[BURST].hash_alg != alg || jobs[BURST].auth_tag_output_len_in_bytes != tag_len) {
                for (uint32_t i = 0; i <= BURST; i++) {
                        jobs[i].hash_alg = alg;
                        jobs[i].auth_tag_output_len_in_bytes = tag_len;
                }
        }
        for (uint32_t i = 0; i < n; i++) {
                IMB_JOB *job = &jobs[i];
                const struct weir_chain_op *op = &ops[i];

                job->src = op->packet;
                job->hash_start_src_offset_in_bytes = op->cover_at;
                job->msg_len_to_hash_in_bytes = op->cover_len;
                job->u.HMAC._hashed_auth_key_xor_ipad = op->states;
                job->u.HMAC._hashed_auth_key_xor_opad = op->states + 64;
                job->auth_tag_output = tags != NULL ? tags[i] : op->packet + op->icv_at;
        }
        return IMB_SUBMIT_HASH_BURST_NOCHECK(mgr, jobs, n, alg) == n;
}
