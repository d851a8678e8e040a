//! Assigned numbers of IKEv1 that do not exist in IKEv2 or have another meaning there.

use std::fmt;

use super::super::numbers::numbers;

/// The IPsec DOI (RFC 2407).
pub const DOI_IPSEC: u32 = 1;
/// The only situation without labels (RFC 2407 §4.2.1).
pub const SIT_IDENTITY_ONLY: u32 = 1;
/// Transform ID of every phase 1 transform: the key exchange is IKE (RFC 2407 §4.4.2).
pub const KEY_IKE: u8 = 1;

/// Vendor IDs that announce features.
pub mod vendor {
    /// NAT traversal (RFC 3947 §3.1): MD5 of "RFC 3947".
    pub const NAT_T: [u8; 16] = 0x4a131c81070358455c5728f20e95452f_u128.to_be_bytes();
    /// NAT traversal of draft 02, its name hashed with a line feed, as deployed.
    pub const NAT_T_DRAFT_02: [u8; 16] = 0x90cb80913ebb696e086381b5ec427b1f_u128.to_be_bytes();
    /// NAT traversal of draft 03.
    pub const NAT_T_DRAFT_03: [u8; 16] = 0x7d9419a65310ca6f2c179d9215529d56_u128.to_be_bytes();
    /// Dead peer detection, version 1.0 (RFC 3706 §5.1).
    pub const DPD: [u8; 16] = 0xafcad71368a1f1c96b8696fc77570100_u128.to_be_bytes();
    /// Fragmentation: MD5 of "FRAGMENTATION". Some senders append four bytes of flags.
    pub const FRAGMENTATION: [u8; 16] = 0x4048b7d56ebce88525e7de7f00d6c2d3_u128.to_be_bytes();
    /// Extended authentication, draft 06.
    pub const XAUTH: [u8; 8] = 0x09002689dfd6b712_u64.to_be_bytes();
    /// Unity attributes in Mode Config; the last two bytes are a version.
    pub const UNITY: [u8; 16] = 0x12f5f28c457168a9702d9fe274cc0100_u128.to_be_bytes();
}

numbers! {
    /// Notify Message Type of IKEv1 (RFC 2408 §3.14.1, RFC 2407 §4.6.3).
    NotifyType(u16), "notify" {
        INVALID_PAYLOAD_TYPE = 1 "Unknown payload.";
        DOI_NOT_SUPPORTED = 2 "Unknown DOI.";
        SITUATION_NOT_SUPPORTED = 3 "Unknown situation.";
        INVALID_COOKIE = 4 "No such ISAKMP SA.";
        INVALID_MAJOR_VERSION = 5 "Major version.";
        INVALID_MINOR_VERSION = 6 "Minor version.";
        INVALID_EXCHANGE_TYPE = 7 "Unknown exchange.";
        INVALID_FLAGS = 8 "Unknown flags.";
        INVALID_MESSAGE_ID = 9 "Unexpected message ID.";
        INVALID_PROTOCOL_ID = 10 "Unknown protocol.";
        INVALID_SPI = 11 "Unknown SPI.";
        INVALID_TRANSFORM_ID = 12 "Unknown transform.";
        ATTRIBUTES_NOT_SUPPORTED = 13 "Unknown attribute.";
        NO_PROPOSAL_CHOSEN = 14 "No proposal was acceptable.";
        BAD_PROPOSAL_SYNTAX = 15 "A proposal breaks a rule.";
        PAYLOAD_MALFORMED = 16 "A payload breaks a rule.";
        INVALID_KEY_INFORMATION = 17 "Bad public value.";
        INVALID_ID_INFORMATION = 18 "Identities, or selectors, not acceptable.";
        INVALID_CERT_ENCODING = 19 "Bad certificate encoding.";
        INVALID_CERTIFICATE = 20 "Bad certificate.";
        CERT_TYPE_UNSUPPORTED = 21 "Unknown certificate type.";
        INVALID_CERT_AUTHORITY = 22 "Unknown authority.";
        INVALID_HASH_INFORMATION = 23 "Wrong hash.";
        AUTHENTICATION_FAILED = 24 "The peer could not be authenticated.";
        INVALID_SIGNATURE = 25 "Wrong signature.";
        ADDRESS_NOTIFICATION = 26 "Address.";
        NOTIFY_SA_LIFETIME = 27 "Lifetime.";
        CERTIFICATE_UNAVAILABLE = 28 "No certificate.";
        UNSUPPORTED_EXCHANGE_TYPE = 29 "Exchange not supported.";
        UNEQUAL_PAYLOAD_LENGTHS = 30 "Lengths do not add up.";
        CONNECTED = 16384 "Answer to the commit bit.";
        RESPONDER_LIFETIME = 24576 "The lifetime that the responder uses; data: attributes.";
        REPLAY_STATUS = 24577 "Whether replays are checked; data: 4 bytes.";
        INITIAL_CONTACT = 24578 "This is the only ISAKMP SA with the peer.";
        R_U_THERE = 36136 "Dead peer detection; data: sequence number, 4 bytes (RFC 3706).";
        R_U_THERE_ACK = 36137 "Its answer, with the same number.";
    }
}

impl NotifyType {
    /// True for errors (below 16384), false for status.
    pub const fn is_error(self) -> bool {
        self.0 < 16384
    }
}

numbers! {
    /// Attribute of a phase 1 transform (RFC 2409 appendix A).
    Phase1Attr(u16), "attribute" {
        ENCRYPTION = 1 "Phase1Encryption.";
        HASH = 2 "Phase1Hash.";
        AUTHENTICATION = 3 "Phase1Auth.";
        GROUP = 4 "Diffie-Hellman group; numbers as for transform type KE of IKEv2.";
        GROUP_TYPE = 5 "Kind of a group described here.";
        GROUP_PRIME = 6 "Its prime.";
        GROUP_GENERATOR_1 = 7 "Its generator.";
        GROUP_GENERATOR_2 = 8 "Its second generator.";
        GROUP_CURVE_A = 9 "Its curve.";
        GROUP_CURVE_B = 10 "Its curve.";
        LIFE_TYPE = 11 "LifeType of the duration that follows.";
        LIFE_DURATION = 12 "Duration in the unit before.";
        PRF = 13 "Pseudo-random function; HMAC of the hash without it.";
        KEY_LENGTH = 14 "Key length in bits.";
        FIELD_SIZE = 15 "Field of a group described here.";
        GROUP_ORDER = 16 "Its order.";
    }
}

numbers! {
    /// Value of [`Phase1Attr::ENCRYPTION`].
    Phase1Encryption(u16), "encryption" {
        DES_CBC = 1 "DES; never to be used.";
        BLOWFISH_CBC = 3 "Blowfish.";
        TRIPLE_DES_CBC = 5 "3DES.";
        CAST_CBC = 6 "CAST.";
        AES_CBC = 7 "AES (RFC 3602).";
        CAMELLIA_CBC = 8 "Camellia.";
    }
}

numbers! {
    /// Value of [`Phase1Attr::HASH`].
    Phase1Hash(u16), "hash" {
        MD5 = 1 "MD5.";
        SHA1 = 2 "SHA-1.";
        TIGER = 3 "Tiger.";
        SHA2_256 = 4 "SHA-256.";
        SHA2_384 = 5 "SHA-384.";
        SHA2_512 = 6 "SHA-512.";
    }
}

numbers! {
    /// Value of [`Phase1Attr::AUTHENTICATION`].
    Phase1Auth(u16), "authentication method" {
        PSK = 1 "Pre-shared key.";
        DSS = 2 "DSS signatures.";
        RSA = 3 "RSA signatures.";
        RSA_ENCRYPTION = 4 "RSA encryption; never to be used.";
        RSA_REVISED_ENCRYPTION = 5 "Revised RSA encryption; never to be used.";
        ECDSA256 = 9 "ECDSA on P-256 (RFC 4754).";
        ECDSA384 = 10 "ECDSA on P-384 (RFC 4754).";
        ECDSA521 = 11 "ECDSA on P-521 (RFC 4754).";
        HYBRID_INIT_RSA = 64221 "Hybrid, RSA; the initiator is authenticated by XAuth.";
        HYBRID_RESP_RSA = 64222 "Hybrid, RSA; the responder is authenticated by XAuth.";
        XAUTH_INIT_PSK = 65001 "Pre-shared key, then XAuth of the initiator.";
        XAUTH_RESP_PSK = 65002 "Pre-shared key, then XAuth of the responder.";
        XAUTH_INIT_RSA = 65005 "RSA signatures, then XAuth of the initiator.";
        XAUTH_RESP_RSA = 65006 "RSA signatures, then XAuth of the responder.";
    }
}

numbers! {
    /// Unit of a lifetime, in both phases.
    LifeType(u16), "life type" {
        SECONDS = 1 "Seconds.";
        KILOBYTES = 2 "Kilobytes of 1024 bytes.";
    }
}

numbers! {
    /// Attribute of a phase 2 transform (RFC 2407 §4.5).
    Phase2Attr(u16), "attribute" {
        LIFE_TYPE = 1 "LifeType of the duration that follows.";
        LIFE_DURATION = 2 "Duration in the unit before.";
        GROUP = 3 "Diffie-Hellman group.";
        ENCAPSULATION_MODE = 4 "EncapsulationMode.";
        AUTHENTICATION = 5 "Phase2Integrity.";
        KEY_LENGTH = 6 "Key length in bits.";
        KEY_ROUNDS = 7 "Rounds.";
        COMPRESS_DICTIONARY_SIZE = 8 "IPComp.";
        COMPRESS_PRIVATE = 9 "IPComp.";
        ECN_TUNNEL = 10 "ECN (RFC 3168).";
        EXTENDED_SEQUENCE_NUMBERS = 11 "1 for 64-bit numbers (RFC 4304).";
    }
}

numbers! {
    /// Value of [`Phase2Attr::ENCAPSULATION_MODE`] (RFC 2407 §4.5, RFC 3947 §5.1).
    EncapsulationMode(u16), "encapsulation mode" {
        TUNNEL = 1 "Tunnel.";
        TRANSPORT = 2 "Transport.";
        UDP_TUNNEL = 3 "Tunnel in UDP.";
        UDP_TRANSPORT = 4 "Transport in UDP.";
        UDP_TUNNEL_DRAFT = 61443 "Tunnel in UDP, of the drafts before RFC 3947.";
        UDP_TRANSPORT_DRAFT = 61444 "Transport in UDP, of the drafts before RFC 3947.";
    }
}

numbers! {
    /// Value of [`Phase2Attr::AUTHENTICATION`]: integrity of ESP and AH.
    Phase2Integrity(u16), "integrity" {
        HMAC_MD5 = 1 "HMAC-MD5-96.";
        HMAC_SHA1 = 2 "HMAC-SHA1-96.";
        DES_MAC = 3 "DES-MAC.";
        KPDK = 4 "KPDK.";
        HMAC_SHA2_256 = 5 "HMAC-SHA-256-128.";
        HMAC_SHA2_384 = 6 "HMAC-SHA-384-192.";
        HMAC_SHA2_512 = 7 "HMAC-SHA-512-256.";
        AES_XCBC_MAC = 9 "AES-XCBC-96.";
        AES_128_GMAC = 11 "AES-GMAC with 128 bits (RFC 4543).";
        AES_192_GMAC = 12 "AES-GMAC with 192 bits.";
        AES_256_GMAC = 13 "AES-GMAC with 256 bits.";
    }
}

numbers! {
    /// Transform ID of ESP (RFC 2407 §4.4.4).
    EspTransform(u8), "ESP transform" {
        DES_IV64 = 1 "DES; never to be used.";
        DES = 2 "DES; never to be used.";
        TRIPLE_DES = 3 "3DES-CBC.";
        NULL = 11 "No encryption.";
        AES_CBC = 12 "AES-CBC.";
        AES_CTR = 13 "AES-CTR.";
        AES_CCM_8 = 14 "AES-CCM with an ICV of 8 bytes.";
        AES_CCM_12 = 15 "AES-CCM with an ICV of 12 bytes.";
        AES_CCM_16 = 16 "AES-CCM with an ICV of 16 bytes.";
        AES_GCM_8 = 18 "AES-GCM with an ICV of 8 bytes.";
        AES_GCM_12 = 19 "AES-GCM with an ICV of 12 bytes.";
        AES_GCM_16 = 20 "AES-GCM with an ICV of 16 bytes.";
        CAMELLIA = 22 "Camellia-CBC.";
        NULL_AES_GMAC = 23 "AES-GMAC without encryption (RFC 4543).";
    }
}

numbers! {
    /// Transform ID of AH (RFC 2407 §4.4.3).
    AhTransform(u8), "AH transform" {
        MD5 = 2 "HMAC-MD5-96.";
        SHA1 = 3 "HMAC-SHA1-96.";
        DES = 4 "DES-MAC.";
        SHA2_256 = 5 "HMAC-SHA-256-128.";
        SHA2_384 = 6 "HMAC-SHA-384-192.";
        SHA2_512 = 7 "HMAC-SHA-512-256.";
        AES_XCBC_MAC = 9 "AES-XCBC-96.";
        AES_128_GMAC = 11 "AES-GMAC with 128 bits (RFC 4543).";
        AES_192_GMAC = 12 "AES-GMAC with 192 bits.";
        AES_256_GMAC = 13 "AES-GMAC with 256 bits.";
    }
}
