//! Certificates, authorities, and pools of addresses.

use std::net::IpAddr;

use super::{CertFlag, CertKind, Message, host, printable};

/// A certificate or a related object.
#[derive(Clone, Debug, PartialEq)]
pub struct CertListing {
    /// Type.
    pub kind: CertKind,
    /// Flag of an X.509 certificate; absent for other types.
    pub flag: CertFlag,
    /// True if the private key is here.
    pub has_private_key: bool,
    /// DER; of a public key its SubjectPublicKeyInfo.
    pub der: Vec<u8>,
    /// Identity of a public key's owner.
    pub subject: Option<String>,
}

impl CertListing {
    /// The event of `list-certs`.
    pub fn list_cert(&self) -> Message {
        let mut cert = Message::new();
        cert.set("type", self.kind.name());
        if self.kind == CertKind::X509 {
            cert.set("flag", self.flag.name());
        }
        cert.set_flag("has_privkey", self.has_private_key).set("data", &self.der);
        cert.set_some("subject", self.subject.as_ref());
        printable(cert)
    }

    /// Returns whether a request of `list-certs` or `flush-certs` matches it by type and flag. Old
    /// names such as `x509ca` combine both.
    pub fn is_asked_for(&self, request: &Message) -> bool {
        let is = |text: &str, name: &str| text.eq_ignore_ascii_case(name);
        let kind = request.text("type").unwrap_or("ANY");
        if is(kind, "x509") || is(kind, "ANY") {
            let flag = request.text("flag").unwrap_or("ANY");
            return is(kind, "ANY") || self.kind == CertKind::X509 && (is(flag, "ANY") || is(flag, self.flag.name()));
        }
        let old = [("x509ca", CertFlag::Ca), ("x509aa", CertFlag::Aa), ("x509ocsp", CertFlag::Ocsp)];
        match old.iter().find(|(name, _)| is(kind, name)) {
            Some((_, flag)) => self.kind == CertKind::X509 && self.flag == *flag,
            None => {
                is(kind, self.kind.name())
                    || self.kind == CertKind::AttributeCert && is(kind, "x509ac")
                    || self.kind == CertKind::Crl && is(kind, "x509crl")
            }
        }
    }
}

/// A certification authority of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuthorityListing {
    /// Its name.
    pub name: String,
    /// Subject of its certificate.
    pub cacert: String,
    /// URIs of its revocation lists.
    pub crl_uris: Vec<String>,
    /// URIs of its OCSP servers.
    pub ocsp_uris: Vec<String>,
    /// Base URI of its certificates.
    pub cert_uri_base: Option<String>,
}

impl AuthorityListing {
    /// The event of `list-authorities`.
    pub fn list_authority(&self) -> Message {
        let mut authority = Message::new();
        authority.set("cacert", &self.cacert);
        authority.set_list("crl_uris", &self.crl_uris).set_list("ocsp_uris", &self.ocsp_uris);
        authority.set_some("cert_uri_base", self.cert_uri_base.as_ref());
        let mut message = Message::new();
        message.set_section(&self.name, authority);
        printable(message)
    }
}

/// A pool of virtual addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolListing {
    /// Its name.
    pub name: String,
    /// First address.
    pub base: IpAddr,
    /// Addresses in all.
    pub size: u64,
    /// Leased to a connected client.
    pub online: u64,
    /// Reserved for a disconnected client.
    pub offline: u64,
    /// Leases, if requested.
    pub leases: Option<Vec<Lease>>,
}

/// A lease of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// Address.
    pub address: IpAddr,
    /// Identity.
    pub identity: String,
    /// True if they are connected.
    pub online: bool,
}

/// The reply to `get-pools`.
pub fn get_pools(pools: &[PoolListing]) -> Message {
    let mut message = Message::new();
    for pool in pools {
        let mut section = Message::new();
        section.set("base", host(pool.base)).set_display("size", pool.size);
        section.set_display("online", pool.online).set_display("offline", pool.offline);
        if let Some(leases) = &pool.leases {
            let mut list = Message::new();
            for (i, lease) in leases.iter().enumerate() {
                let mut one = Message::new();
                one.set("address", host(lease.address)).set("identity", &lease.identity);
                one.set("status", if lease.online { "online" } else { "offline" });
                list.set_section(&i.to_string(), one);
            }
            section.set_section("leases", list);
        }
        message.set_section(&pool.name, section);
    }
    printable(message)
}
