//! Two whole gateways with one connection between them.

use std::time::Instant;

use gateway::simulation::{Gateway, Kernel};

/// A gateway and its kernel.
pub(crate) struct Site {
    pub(crate) gateway: Gateway,
    pub(crate) kernel: Kernel,
}

/// Configuration of gateway `own`, 1 or 2, with a shared key and these settings and sections of
/// Child SAs.
pub(crate) fn text(own: u8, settings: &str, children: &str) -> String {
    let peer = 3 - own;
    format!(
        "connections {{
           site {{
             {settings}
             local_addrs = 192.0.2.{own}
             remote_addrs = 192.0.2.{peer}
             proposals = aes128-sha256-ecp256
             local {{
               auth = psk
               id = h{own}.test
             }}
             remote {{
               auth = psk
               id = h{peer}.test
             }}
             children {{
               {children}
             }}
           }}
         }}
         secrets {{
           ike-1 {{
             secret = \"a secret of many bytes\"
           }}
         }}"
    )
}

/// Starts both gateways: `network` is behind each, `text` its configuration.
///
/// # Panics
/// When a gateway does not start.
pub(crate) fn start(now: Instant, network: impl Fn(u8) -> String, text: impl Fn(u8) -> String) -> [Site; 2] {
    [1, 2].map(|own: u8| {
        let network = network(own).parse::<wire::TrafficSelector>().expect("a network").addrs;
        let kernel = Kernel::new(vec![[192, 0, 2, own].into()], vec![network]);
        let gateway = Gateway::start(now, &text(own), &kernel, own.into()).expect("starts");
        Site { gateway, kernel }
    })
}
