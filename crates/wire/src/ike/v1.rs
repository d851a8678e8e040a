//! What only IKEv1 has (RFC 2407 to 2409, RFC 3947).
