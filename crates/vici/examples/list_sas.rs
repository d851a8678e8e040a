//! Lists the SAs of a daemon: `cargo run -p weir-vici --example list_sas -- /run/weir/weir.vici`
//! (strongSwan: `/run/charon.vici`).

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use vici::{Client, Command, Event, Message};

/// One line per IKE SA and Child SA.
fn list(socket: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut client = Client::connect(socket)?;
    let (sas, reply) = client.list(Command::ListSas, Event::ListSa, &Message::new(), Some(Duration::from_secs(5)))?;
    reply.outcome()?;
    let mut lines = Vec::new();
    // An IKE SA is a section with the name of its connection, a Child SA one of its section
    // `child-sas`.
    for (name, ike) in sas.iter().flat_map(Message::sections) {
        let text = |key| ike.text(key).unwrap_or("?");
        lines.push(format!("{name}: {} {} - {}", text("state"), text("local-host"), text("remote-host")));
        for (_, child) in ike.section("child-sas").into_iter().flat_map(Message::sections) {
            let text = |key| child.text(key).unwrap_or("?");
            lines.push(format!("  {}: {} {} {}", text("name"), text("state"), text("mode"), text("protocol")));
        }
    }
    Ok(lines)
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(socket) = std::env::args_os().nth(1) else { return Err("usage: list_sas SOCKET".into()) };
    let lines = list(Path::new(&socket))?;
    println!("{}", if lines.is_empty() { "no IKE SAs".to_owned() } else { lines.join("\n") });
    Ok(())
}

/// Against a server that has one IKE SA.
#[cfg(test)]
mod tests {
    use vici::listing;
    use vici::{Incoming, Server};

    use super::*;

    #[test]
    fn lists_what_a_server_has() {
        let path = std::env::temp_dir().join(format!("vici-list-sas-{}", std::process::id()));
        let (server, requests) = Server::start(&path, None).expect("a socket");
        let handle = server.handle();
        let daemon = std::thread::spawn(move || {
            while let Ok(incoming) = requests.next_within(Duration::from_secs(60)) {
                if let Some(Incoming::Request { client, command, .. }) = incoming {
                    assert_eq!(command, Command::ListSas);
                    handle.list(client, Event::ListSa, vec![sa()], Message::new());
                }
            }
        });
        let lines = list(&path).expect("an answer");
        assert_eq!(lines, ["site: ESTABLISHED 192.0.2.1 - 192.0.2.2", "  net: INSTALLED TUNNEL ESP"]);
        drop(server);
        daemon.join().expect("the daemon ends with its server");
        // Without a daemon the error names the path.
        assert!(list(&path).expect_err("no server listens").to_string().contains("vici-list-sas"));
        assert!(listing::success().outcome().is_ok());
    }

    fn sa() -> Message {
        let (mut child, mut children, mut ike, mut sa) =
            (Message::new(), Message::new(), Message::new(), Message::new());
        child.set("name", "net").set("state", "INSTALLED").set("mode", "TUNNEL").set("protocol", "ESP");
        children.set_section("net-1", child);
        ike.set("state", "ESTABLISHED").set("local-host", "192.0.2.1").set("remote-host", "192.0.2.2");
        ike.set_section("child-sas", children);
        sa.set_section("site", ike);
        sa
    }
}
