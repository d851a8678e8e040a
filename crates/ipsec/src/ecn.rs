//! ECN between inner and outer header of a tunnel (RFC 6040).
