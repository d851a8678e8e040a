//! The sections of `authorities`.

use std::path::PathBuf;

use super::cert::{Certificate, Context, absolute};
use super::schema::AUTHORITY;
use super::syntax::Section;
use super::value::{Fields, Sink, ValueError};

/// A certification authority, where its CRLs are, and its OCSP servers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Authority {
    /// Name of its section.
    pub name: String,
    /// Certificate.
    pub cacert: Certificate,
    /// URIs of CRLs.
    pub crl_uris: Vec<String>,
    /// URIs of OCSP servers.
    pub ocsp_uris: Vec<String>,
}

impl Authority {
    pub(crate) fn read(section: &Section, path: &str, context: &Context<'_>, sink: &Sink) -> Option<Self> {
        let fields = Fields::of(section, path.to_owned(), AUTHORITY, sink);
        let before = sink.count();
        let mut found = context.files(&fields, "cacert", "x509ca");
        if fields.get("file", absolute).is_some() {
            found.extend(context.files(&fields, "file", "x509ca"));
        }
        let crl_uris = fields.list("crl_uris", uri).unwrap_or_default();
        if crl_uris.iter().any(|uri| !uri.starts_with("file://") && !uri.starts_with("http://")) {
            fields.warn("crl_uris", "CRLs are fetched from file:// and http:// only");
        }
        let ocsp_uris = fields.list("ocsp_uris", uri).unwrap_or_default();
        if ocsp_uris.iter().any(|uri| !uri.starts_with("http://")) {
            fields.warn("ocsp_uris", "OCSP servers must be http:// URIs");
        }
        fields.finish(&[], |_| None);
        let (mut found, count) = (found.into_iter(), sink.count());
        match (found.next(), found.next()) {
            (Some(cacert), None) => {
                context.certificates.borrow_mut().authorities.push(cacert.clone());
                Some(Self { name: section.name.clone(), cacert, crl_uris, ocsp_uris })
            }
            (None, _) if count == before => {
                fields.fault("'cacert' is missing", "add 'cacert = FILE', a file in x509ca");
                None
            }
            (None, _) => None,
            (Some(_), Some(_)) => {
                fields.fault("more than one certificate", "write one 'cacert' or one 'file' per authority");
                None
            }
        }
    }
}

impl Authority {
    /// Files of its CRLs.
    pub(crate) fn crl_files(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.crl_uris.iter().filter_map(|uri| uri.strip_prefix("file://")).map(PathBuf::from)
    }
}

fn uri(text: &str) -> Result<String, ValueError> {
    let known = ["file://", "http://", "https://", "ldap://", "ldaps://"].iter().any(|scheme| text.starts_with(scheme));
    known.then(|| text.to_owned()).ok_or_else(|| "write a URI, for example file:///etc/weir/ca.crl".into())
}
